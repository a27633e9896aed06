//! What a table's task commits: rows, snapshots, marks, and files in exchange for others.

use object_store::path::Path;

use super::TableTask;
use crate::lake::actions::{add, next_actions, next_table, remove, txns};
use crate::lake::clear::{History, delete_all};
use crate::lake::commit::{Commit, Failure, commit};
use crate::lake::error::{ErrorKind, LakeError};
use crate::lake::event::{Cleared, DataFile};
use crate::lake::log::{Action, Operation};
use crate::lake::open::active_files;
use crate::lake::schema::HistorySchema;
use crate::lake::source::{CLEARED_PROPERTY, GAP_PROPERTY, Progress};
use crate::lake::upkeep::Exchange;
use crate::lake::writer::{Believed, Clear, Content, Replace, RowsCommit};

/// How often a replacement is built anew because others have moved files.
const MAX_REBUILDS: usize = 10;

impl TableTask {
    /// One commit of rows. Returns version and rows.
    pub(super) async fn append(
        &mut self,
        rows_commit: RowsCommit,
    ) -> Result<(Option<u64>, u64), LakeError> {
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
    pub(super) async fn clear(&mut self, mut clear: Clear) -> Result<Cleared, LakeError> {
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
    pub(super) async fn mark_gap(&mut self) -> Result<Option<u64>, LakeError> {
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
    pub(super) async fn replace(&mut self, replace: Replace) -> Result<(u64, u64), LakeError> {
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
    pub(super) async fn exchange(&mut self, exchange: Exchange) -> Result<Option<u64>, LakeError> {
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
