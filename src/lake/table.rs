//! The task of one history table: it takes messages in order, and is the only one in this
//! process that commits to the table. A failure, even a panic, becomes an event; until a
//! `discard` the table then ignores what it is sent.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use object_store::path::Path;
use tokio::sync::mpsc::{UnboundedReceiver, WeakUnboundedSender};

use crate::lake::actions::{add, next_actions, next_table, remove, txns};
use crate::lake::clear::{History, delete_all};
use crate::lake::commit::{Commit, Failure, commit};
use crate::lake::create::create_table;
use crate::lake::error::{ErrorKind, LakeError};
use crate::lake::event::{Cleared, DataFile, Event};
use crate::lake::held::Held;
use crate::lake::log::{Action, Operation};
use crate::lake::open::{Table, active_files, open_table};
use crate::lake::runtime::Shared;
use crate::lake::schema::HistorySchema;
use crate::lake::source::{CLEARED_PROPERTY, GAP_PROPERTY, Progress};
use crate::lake::store::TableStore;
use crate::lake::upkeep::{Exchange, Upkeep};
use crate::lake::writer::{
    Believed, Clear, Content, Message, OpenTable, Replace, RowsCommit, Target,
};

/// How often a replacement is built anew because others have moved files.
const MAX_REBUILDS: usize = 10;

/// An open table. It is dropped after a failure: then only the log knows the table's state.
struct Open {
    store: TableStore,
    table: Table,
    schema: HistorySchema,
    /// The schema that was told last, with an event.
    told: HistorySchema,
    /// The schema of rows that are written now, and of the table from the next commit on.
    evolved: Option<HistorySchema>,
    held: Held,
    upkeep: Upkeep,
    /// Somebody else has changed the table, or a late commit of ours: rows cannot be added before it
    /// is replaced or opened anew.
    taken: Option<LakeError>,
}

impl Open {
    /// A schema that the table's evolves into, with its columns mapped. Only the table itself knows for
    /// sure how: as its own, and as those of rows that are held for the next commit.
    fn mapped(&self, next: HistorySchema) -> HistorySchema {
        next.mapped_after(self.evolved.as_ref().unwrap_or(&self.schema))
    }

    /// The table's columns, if they are others than were told last.
    fn news(&mut self) -> Option<HistorySchema> {
        let same = self.told == self.schema;
        (!same).then(|| self.told.clone_from(&self.schema))?;
        Some(self.schema.clone())
    }
}

/// The task's state.
pub(crate) struct TableTask {
    shared: Arc<Shared>,
    spec: OpenTable,
    /// Where the table is, from the first time it was opened.
    store: Option<TableStore>,
    open: Option<Open>,
    /// Stored files of a failed state that no commit attempt has named.
    orphans: Vec<Path>,
    /// Where upkeep sends what it wants to have committed.
    messages: WeakUnboundedSender<Message>,
    lives: u64,
}

impl TableTask {
    /// `messages` leads to the receiver that [`TableTask::run`] gets.
    pub(crate) fn new(
        shared: Arc<Shared>,
        spec: OpenTable,
        messages: WeakUnboundedSender<Message>,
    ) -> Self {
        TableTask {
            shared,
            spec,
            store: None,
            open: None,
            orphans: Vec::new(),
            messages,
            lives: 0,
        }
    }

    /// Runs until the handle is dropped.
    pub(crate) async fn run(mut self, mut messages: UnboundedReceiver<Message>) {
        self.guarded(None).await;
        while let Some(message) = messages.recv().await {
            self.guarded(Some(message)).await;
        }
        // Nobody can ask for a commit of what is left.
        let mut orphans = std::mem::take(&mut self.orphans);
        if let Some(open) = &mut self.open {
            orphans.extend(open.held.forget());
        }
        if let Some(store) = &self.store {
            store.delete_orphans(orphans).await;
        }
        self.shared.open_tables.fetch_sub(1, Ordering::Relaxed);
    }

    /// Opens the table or handles a message; turns a failure into an event.
    async fn guarded(&mut self, message: Option<Message>) {
        let work = AssertUnwindSafe(async {
            match message {
                None => self.open().await,
                Some(message) => self.handle(message).await,
            }
        });
        let outcome = work
            .catch_unwind()
            .await
            .unwrap_or_else(|panic| Err(LakeError::panicked("writing a history table", &*panic)));
        if let Err(error) = outcome {
            if let Some(mut open) = self.open.take() {
                self.orphans.extend(open.held.forget());
            }
            self.shared.send(Event::Failed {
                table: self.spec.table,
                error,
            });
        }
    }

    async fn open(&mut self) -> Result<(), LakeError> {
        let (folder, store, table) = match &self.spec.target {
            Target::New { .. } => create_table(&self.shared, &self.spec).await?,
            Target::Existing { folder } | Target::StageOnly { folder } => {
                let store = self.spec.destination.table_store(folder, false).await?;
                let table = open_table(&store, &self.shared.kernels).await?;
                (folder.clone(), store, table)
            }
        };
        if table.source.as_ref() != Some(&self.spec.source) {
            return Err(LakeError::conflict(format!(
                "history table \"{}\" belongs to another source table",
                store.name()
            )));
        }
        let schema = table.schema.clone()?;
        if let Target::New { .. } = self.spec.target {
            self.spec.target = Target::Existing {
                folder: folder.clone(),
            };
        }
        let opened = Event::Opened {
            table: self.spec.table,
            folder,
            version: table.version,
            progress: table.progress,
            schema: schema.clone(),
        };
        self.store = Some(store.clone());
        let moved = match self.spec.believed {
            Believed::Progress(progress) => progress != table.progress,
            Believed::Nothing => false,
        };
        let taken = table.writer.refuses(store.name(), &self.spec.homes);
        let taken = taken.or(moved.then(|| {
            LakeError::transient(format!(
                "an earlier commit got into history table \"{}\" late",
                store.name()
            ))
        }));
        self.lives += 1;
        let evolves = self.spec.evolves && matches!(self.spec.target, Target::StageOnly { .. });
        self.open = Some(Open {
            taken,
            told: schema.clone(),
            evolved: evolves.then(|| schema.evolve(&self.spec.schema).schema),
            held: Held::new(Arc::clone(&self.shared), store.clone(), self.spec.table),
            upkeep: Upkeep::new(
                Arc::clone(&self.shared),
                store.clone(),
                self.spec.table,
                table.version,
                self.messages.clone(),
                self.lives,
            ),
            store,
            table,
            schema,
        });
        self.shared.send(opened);
        Ok(())
    }

    async fn handle(&mut self, message: Message) -> Result<(), LakeError> {
        if matches!(message, Message::Discard) {
            return self.discard().await;
        }
        // Failed: the batch is dropped with the message, nothing is answered.
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        let table = self.spec.table;
        match message {
            Message::Write(batch) => {
                let schema = open.evolved.as_ref().unwrap_or(&open.schema);
                open.held.add(batch, schema)?;
            }
            Message::Evolve(schema) => {
                open.held.turn();
                open.evolved = Some(open.mapped(schema));
            }
            Message::Clear { ticket, clear } => {
                let schema = open.schema.clone();
                let outcome = self.clear(clear).await?;
                self.shared.send(Event::Cleared {
                    table,
                    ticket,
                    outcome,
                    schema,
                });
            }
            Message::Spill => open.held.spill(),
            Message::Stage { ticket } => {
                let (files, _) = open.held.take_files().await?;
                let rows = files.iter().map(|file| file.rows).sum();
                self.shared.send(Event::Staged {
                    table,
                    ticket,
                    files,
                    rows,
                });
            }
            Message::Commit { ticket, commit } => {
                self.refuse_if_stage_only()?;
                let (version, rows) = self.append(commit).await?;
                self.shared.send(Event::Committed {
                    table,
                    ticket,
                    version,
                    rows,
                    schema: self.open.as_mut().and_then(Open::news),
                });
            }
            Message::Replace { ticket, replace } => {
                self.refuse_if_stage_only()?;
                let (version, rows) = self.replace(replace).await?;
                self.shared.send(Event::Committed {
                    table,
                    ticket,
                    version: Some(version),
                    rows,
                    schema: self.open.as_mut().and_then(Open::news),
                });
            }
            Message::MarkGap { ticket } => {
                self.refuse_if_stage_only()?;
                let version = self.mark_gap().await?;
                self.shared.send(Event::Committed {
                    table,
                    ticket,
                    version,
                    rows: 0,
                    schema: None,
                });
            }
            Message::Optimize { ticket } => {
                let (version, orphans) = (open.table.version, open.held.is_empty());
                open.upkeep.optimize(ticket, version, orphans);
            }
            Message::Exchange { exchange, answer } => {
                let outcome = self.exchange(exchange).await;
                // Who does not wait any more has nothing to remove either.
                let _ = answer.send(outcome);
            }
            Message::Discard => {}
        }
        Ok(())
    }

    fn refuse_if_stage_only(&self) -> Result<(), LakeError> {
        match self.spec.target {
            Target::StageOnly { .. } => Err(LakeError::internal(
                "a table opened for staging was asked to commit",
            )),
            _ => Ok(()),
        }
    }

    async fn discard(&mut self) -> Result<(), LakeError> {
        let mut orphans = std::mem::take(&mut self.orphans);
        if let Some(open) = &mut self.open {
            orphans.extend(open.held.forget());
            open.evolved = None;
            open.store.delete_orphans(orphans).await;
            return Ok(());
        }
        self.open().await?;
        if let Some(open) = &self.open {
            open.store.delete_orphans(orphans).await;
        }
        Ok(())
    }

    /// One commit of rows. Returns version and rows.
    async fn append(&mut self, rows_commit: RowsCommit) -> Result<(Option<u64>, u64), LakeError> {
        let Some(open) = &mut self.open else {
            return Err(not_open());
        };
        if let Some(error) = &open.taken {
            return Err(error.clone());
        }
        let (files, _staged) = open.held.take_files().await?;
        let schema = open.evolved.clone().unwrap_or_else(|| open.schema.clone());
        if let Err(error) = check_layout(&files, &schema) {
            self.orphans
                .extend(files.into_iter().map(|file| Path::from(file.path)));
            return Err(error);
        }
        if files.is_empty() {
            return Ok((None, 0));
        }
        if let Some(done) = open
            .table
            .progress
            .filter(|done| done.generation == self.spec.generation)
            && (rows_commit.lsn <= done.lsn || rows_commit.sort_by <= done.sort_by)
        {
            // Rule 1: such rows are in the table already.
            return Err(LakeError::internal(
                "the rows do not come after those in the history table",
            ));
        }
        let rows = files.iter().map(|file| file.rows).sum();
        let next = next_table(
            &open.table,
            &open.schema,
            &schema,
            self.spec.generation,
            &self.shared.upkeep_settings(),
        );
        let mut actions = next_actions(&open.table, &next);
        actions.extend(txns(&self.spec, rows_commit)?);
        let new_files = files.len();
        actions.extend(files.into_iter().map(|file| add(file, true)));
        let own_app_ids = self.spec.source.app_id_prefix();
        let append = Commit {
            operation: Operation::Append,
            actions,
            own_app_ids: &own_app_ids,
            home: &self.shared.config.home,
            needs_exact_files: false,
        };
        let version = commit(&open.store, open.table.version + 1, append)
            .await
            .map_err(Failure::into_error)?;
        open.table = next;
        open.schema = schema;
        open.evolved = None;
        self.committed(version, rows_commit, new_files);
        Ok((Some(version), rows))
    }

    /// Stores a `delete` for each living row.
    async fn clear(&mut self, mut clear: Clear) -> Result<Cleared, LakeError> {
        let Some(open) = &mut self.open else {
            return Err(not_open());
        };
        if let Some(done) = open.table.progress {
            if done.generation == self.spec.generation
                && clear.tried == Some(done.lsn)
                && clear.sort_by == done.sort_by
            {
                return Ok(Cleared::Landed);
            }
            clear.sort_by = clear.sort_by.max(done.sort_by);
        }
        // Each takes a part of the memory allowed.
        let _permit = self
            .shared
            .replays
            .acquire()
            .await
            .map_err(|error| LakeError::internal(error.to_string()))?;
        let version = open.table.version;
        let cleared = open.table.metadata.configuration.get(CLEARED_PROPERTY);
        let after = cleared.and_then(|sort_by| sort_by.parse().ok());
        let files = active_files(&open.store, &self.shared.kernels, version).await?;
        let history = History {
            files,
            schema: &open.schema,
            after: after.unwrap_or(i64::MIN),
        };
        let held = &mut open.held;
        held.turn();
        match delete_all(&self.shared, &open.store, history, held, clear).await {
            Ok(sort_by) => Ok(Cleared::Deleted(sort_by)),
            Err(error) if error.kind() == ErrorKind::Conflict => {
                self.orphans.extend(held.forget());
                Ok(Cleared::Unreadable)
            }
            Err(error) => Err(error),
        }
    }

    /// One commit that changes nothing but the mark. `None`: it is there already.
    async fn mark_gap(&mut self) -> Result<Option<u64>, LakeError> {
        let Some(open) = &mut self.open else {
            return Err(not_open());
        };
        if let Some(error) = &open.taken {
            return Err(error.clone());
        }
        let mut metadata = open.table.metadata.clone();
        let property = GAP_PROPERTY.to_owned();
        if metadata
            .configuration
            .insert(property, "true".to_owned())
            .is_some()
        {
            return Ok(None);
        }
        let own_app_ids = self.spec.source.app_id_prefix();
        let mark = Commit {
            operation: Operation::MarkGap,
            actions: vec![Action::MetaData(metadata.clone())],
            own_app_ids: &own_app_ids,
            home: &self.shared.config.home,
            needs_exact_files: false,
        };
        let version = commit(&open.store, open.table.version + 1, mark)
            .await
            .map_err(Failure::into_error)?;
        open.table.metadata = metadata;
        open.table.version = version;
        Ok(Some(version))
    }

    /// One commit of a snapshot. Returns version and rows.
    async fn replace(&mut self, replace: Replace) -> Result<(u64, u64), LakeError> {
        let Some(open) = &mut self.open else {
            return Err(not_open());
        };
        if let Some(error) = open
            .taken
            .as_ref()
            .filter(|_| replace.content == Content::Columns)
        {
            return Err(error.clone());
        }
        self.spec.generation = replace.generation;
        let schema = match replace.content {
            Content::Behind(_) | Content::Columns => open.mapped(replace.schema),
            Content::First | Content::Instead => replace.schema.adopt(&open.schema),
        };
        let mut files = replace.files;
        let (held, _staged) = open.held.take_files().await?;
        files.extend(held);
        check_layout(&files, &schema)?;
        let rows = files.iter().map(|file| file.rows).sum();

        let mut next = next_table(
            &open.table,
            &open.schema,
            &schema,
            self.spec.generation,
            &self.shared.upkeep_settings(),
        );
        let configuration = &mut next.metadata.configuration;
        let cleared = CLEARED_PROPERTY.to_owned();
        match replace.content {
            Content::Columns => {}
            Content::Behind(sort_by) => {
                configuration.remove(GAP_PROPERTY);
                configuration.insert(cleared, sort_by.to_string());
            }
            Content::First | Content::Instead => {
                configuration.remove(GAP_PROPERTY);
                configuration.remove(&cleared);
            }
        }
        let mut common = next_actions(&open.table, &next);
        common.extend(txns(&self.spec, replace.commit)?);

        let new_files = files.len();
        let adds: Vec<Action> = files.into_iter().map(|file| add(file, true)).collect();
        let own_app_ids = self.spec.source.app_id_prefix();
        for _ in 0..MAX_REBUILDS {
            let mut actions = common.clone();
            if replace.content == Content::Instead {
                let active =
                    active_files(&open.store, &self.shared.kernels, open.table.version).await?;
                actions.extend(active.into_iter().map(|file| remove(file, true)));
            }
            actions.extend_from_slice(&adds);
            // What lives by the rows of a history does not depend on which files they are in.
            let needs_exact_files = replace.content == Content::Instead;
            let attempt = Commit {
                operation: match replace.content {
                    Content::Instead => Operation::Replace,
                    Content::First | Content::Behind(_) | Content::Columns => Operation::Append,
                },
                actions,
                own_app_ids: &own_app_ids,
                home: &self.shared.config.home,
                needs_exact_files,
            };
            match commit(&open.store, open.table.version + 1, attempt).await {
                Ok(version) => {
                    open.table = next;
                    open.schema = schema;
                    open.evolved = None;
                    open.taken = None;
                    self.lives += 1;
                    open.upkeep.renew(self.lives);
                    self.committed(version, replace.commit, new_files);
                    return Ok((version, rows));
                }
                Err(Failure::FilesMoved { version }) => open.table.version = version,
                Err(failure) => return Err(failure.into_error()),
            }
        }
        Err(Failure::FilesMoved {
            version: open.table.version,
        }
        .into_error())
    }

    /// One commit that says of files that another one has their rows. Returns the life that begins with
    /// it, `None` if it is certain that it is not in the log. It is tried once: the next flush must not wait
    /// for it.
    async fn exchange(&mut self, exchange: Exchange) -> Result<Option<u64>, LakeError> {
        let Some(open) = &mut self.open else {
            return Ok(None);
        };
        if exchange.life != open.upkeep.life() || open.taken.is_some() {
            return Ok(None);
        }
        let removed = exchange.removed.into_iter();
        let mut actions: Vec<Action> = removed.map(|file| remove(file, false)).collect();
        actions.push(add(exchange.added, false));
        let own_app_ids = self.spec.source.app_id_prefix();
        let optimize = Commit {
            operation: Operation::Optimize,
            actions,
            own_app_ids: &own_app_ids,
            home: &self.shared.config.home,
            needs_exact_files: true,
        };
        let store = open.store.impatient();
        match commit(&store, open.table.version + 1, optimize).await {
            Ok(version) => {
                open.table.version = version;
                self.lives += 1;
                open.upkeep.renew(self.lives);
                Ok(Some(self.lives))
            }
            // What there is to merge has to be looked for anew.
            Err(Failure::FilesMoved { version }) => {
                open.table.version = version;
                Ok(None)
            }
            Err(Failure::NotLanded(_)) => Ok(None),
            Err(Failure::Unknown(error)) => {
                // If it is in the log, these files are not there any more.
                self.lives += 1;
                open.upkeep.renew(self.lives);
                Err(error)
            }
        }
    }

    fn committed(&mut self, version: u64, commit: RowsCommit, files: usize) {
        let progress = Some(Progress {
            generation: self.spec.generation,
            lsn: commit.lsn,
            crc: commit.crc,
            sort_by: commit.sort_by,
        });
        self.spec.believed = Believed::Progress(progress);
        if let Some(open) = &mut self.open {
            open.table.version = version;
            open.table.progress = progress;
            open.upkeep.after_commit(version, files);
        }
    }
}

fn not_open() -> LakeError {
    LakeError::internal("the history table is not open")
}

/// Files with columns under other names than the table's would read as null.
fn check_layout(files: &[DataFile], schema: &HistorySchema) -> Result<(), LakeError> {
    if !files.iter().all(|file| schema.accepts(&file.layout)) {
        return Err(LakeError::internal(
            "rows were written with another schema than the one to be committed",
        ));
    }
    Ok(())
}
