//! The task of one history table: it takes messages in order, and is the only one in this
//! process that commits to the table. A failure, even a panic, becomes an event; until a
//! `discard` the table then ignores what it is sent.

mod commits;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::FutureExt;
use object_store::path::Path;
use tokio::sync::mpsc::{UnboundedReceiver, WeakUnboundedSender};

use crate::lake::create::create_table;
use crate::lake::error::LakeError;
use crate::lake::event::Event;
use crate::lake::held::Held;
use crate::lake::open::{Table, open_table};
use crate::lake::runtime::Shared;
use crate::lake::schema::HistorySchema;
use crate::lake::store::TableStore;
use crate::lake::upkeep::Upkeep;
use crate::lake::writer::{Believed, Message, OpenTable, Target};

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
}
