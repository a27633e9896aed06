//! Log clean-up: commits and checkpoints that no version within the retention needs are removed, the
//! oldest first. Before that, the checkpoint that the log will begin with is read and compared with what
//! the log begins with now and all commits since then say.

use std::collections::BTreeMap;
use std::pin::pin;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use object_store::path::Path;
use tokio::sync::Semaphore;

use crate::lake::commit::read_actions;
use crate::lake::error::LakeError;
use crate::lake::log::{ReadAction, commit_path};
use crate::lake::open::{Table, active_files, describe_at, open_table, with_kernel};
use crate::lake::sources::SOURCE_FILE;
use crate::lake::store::TableStore;

/// Commits that are read at the same time.
const COMMITS_AT_ONCE: usize = 8;

/// Parts of the retention: the last ones keep all checkpoints, of the earlier ones each keeps one.
const PARTS: i64 = 24;
const PARTS_WITH_ALL: i64 = 3;

/// Removes what only versions need that were followed by another one before `retention_ms` ago, in
/// milliseconds by the store's clock, and most of the older checkpoints: all versions can be read without.
///
/// # Errors
/// Kind `Conflict` if a checkpoint is not right: then nothing was removed.
pub(super) async fn clean_log(
    store: &TableStore,
    kernels: &Semaphore,
    now_ms: i64,
    retention_ms: i64,
) -> Result<(), LakeError> {
    let mut entries = entries(store).await?;
    if let Some(plan) = Plan::new(&entries, now_ms - retention_ms) {
        compare(store, kernels, plan.before, plan.checkpoint).await?;
        if plan.removed.contains(&commit_path(0)) {
            keep_source(store, kernels).await?;
        }
        store.delete_files(plan.removed).await?;
        entries.retain(|entry| entry.version >= plan.checkpoint);
    }
    let part_ms = retention_ms / PARTS;
    let spare = spare_checkpoints(&entries, now_ms - PARTS_WITH_ALL * part_ms, part_ms);
    store.delete_files(spare).await
}

/// A file of the log that belongs to a version.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    path: Path,
    version: u64,
    kind: Kind,
    /// When it was written, in milliseconds since 1970.
    written_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Commit,
    Checkpoint,
    Other,
}

impl Entry {
    fn new(path: Path, written_ms: i64) -> Option<Entry> {
        let name = path.filename().filter(|_| path.parts_count() == 2)?;
        let (version, suffix) = name.split_at_checked(20)?;
        let version = version.parse().ok()?;
        let kind = match suffix {
            ".json" => Kind::Commit,
            ".checkpoint.parquet" => Kind::Checkpoint,
            // Checksums, and checkpoints of several parts, which others may have written.
            _ if suffix.starts_with('.') => Kind::Other,
            _ => return None,
        };
        Some(Entry {
            path,
            version,
            kind,
            written_ms,
        })
    }
}

/// The log's files in the order of their versions.
async fn entries(store: &TableStore) -> Result<Vec<Entry>, LakeError> {
    let mut entries = Vec::new();
    let take = |meta: ObjectMeta| {
        entries.extend(Entry::new(
            meta.location,
            meta.last_modified.timestamp_millis(),
        ));
    };
    store.list_log(take).await?;
    Ok(entries)
}

/// Checkpoints that were written before a time, one of each part of it left out, and the newest one. None if
/// the commits between the log's beginning and its end are not all there.
fn spare_checkpoints(entries: &[Entry], before_ms: i64, part_ms: i64) -> Vec<Path> {
    let of = |kind: Kind| entries.iter().filter(move |entry| entry.kind == kind);
    let commits: Vec<u64> = of(Kind::Commit).map(|entry| entry.version).collect();
    let begins = of(Kind::Checkpoint)
        .map(|entry| entry.version)
        .min()
        .into_iter()
        .chain(commits.first().copied().filter(|first| *first == 0))
        .min();
    let whole = commits.windows(2).all(|pair| pair[0] + 1 == pair[1]);
    if !whole || begins.is_none() || commits.first() > begins.as_ref() {
        return Vec::new();
    }
    let mut kept_ms = None;
    let mut spare = Vec::new();
    let newest = of(Kind::Checkpoint).map(|entry| entry.version).max();
    for entry in of(Kind::Checkpoint) {
        let close = kept_ms.is_some_and(|kept_ms| entry.written_ms - kept_ms < part_ms);
        if close && entry.written_ms < before_ms && Some(entry.version) != newest {
            spare.push(entry.path.clone());
        } else {
            kept_ms = Some(entry.written_ms);
        }
    }
    spare
}

/// What is to be removed.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// What the log will begin with.
    checkpoint: u64,
    /// The version that the log begins with now. With the commits since then it must make the checkpoint.
    before: u64,
    /// The oldest first.
    removed: Vec<Path>,
}

impl Plan {
    /// The first version that stays is that of the first commit that was not written before a time, or the
    /// last one. `None` if there is nothing to remove.
    fn new(entries: &[Entry], cutoff_ms: i64) -> Option<Plan> {
        let of = |kind: Kind| entries.iter().filter(move |entry| entry.kind == kind);
        let mut commits = of(Kind::Commit);
        let young = commits.clone().find(|entry| entry.written_ms >= cutoff_ms);
        let stays = young.or(commits.next_back())?.version;
        let checkpoints = of(Kind::Checkpoint).map(|entry| entry.version);
        let checkpoint = checkpoints.clone().filter(|it| *it <= stays).max()?;
        let removed = entries.iter().filter(|entry| entry.version < checkpoint);
        let removed: Vec<Path> = removed.map(|entry| entry.path.clone()).collect();
        // A checkpoint that is not right makes all later ones wrong: only the first one, which was compared
        // when the log was made to begin with it, can be relied on.
        let earlier = checkpoints.filter(|it| *it < checkpoint).min();
        let whole = of(Kind::Commit).next()?.version == 0;
        let before = earlier.or(whole.then_some(0))?;
        (!removed.is_empty()).then_some(Plan {
            checkpoint,
            before,
            removed,
        })
    }
}

/// What a version consists of.
struct State {
    table: Table,
    files: BTreeMap<String, u64>,
}

impl State {
    /// As the kernel reads it, from the last checkpoint up to the version.
    async fn at(store: &TableStore, kernels: &Semaphore, version: u64) -> Result<State, LakeError> {
        let table = with_kernel(store, kernels, move |store, engine| {
            describe_at(engine, version).map_err(|error| {
                let doing = format!("read version {version} of \"{}\"", store.name());
                LakeError::kernel(&doing, &error)
            })
        })
        .await?;
        let files = active_files(store, kernels, version).await?;
        let files = files.into_iter().map(|file| (file.path, file.size));
        Ok(State {
            table,
            files: files.collect(),
        })
    }

    fn apply(&mut self, action: ReadAction) {
        match action {
            ReadAction::Add { path, size } => drop(self.files.insert(path, size)),
            ReadAction::Remove { path } => drop(self.files.remove(&path)),
            ReadAction::MetaData(metadata) => self.table.metadata = metadata,
            ReadAction::Protocol(protocol) => self.table.protocol = protocol,
            ReadAction::Txn { app_id, version } => {
                let Some(source) = &self.table.source else {
                    return;
                };
                let progress = self.table.progress.as_mut();
                let Some(progress) =
                    progress.filter(|progress| app_id == source.app_id(progress.generation))
                else {
                    return;
                };
                progress.lsn = version.max(0).unsigned_abs();
            }
        }
    }

    /// What differs, by name.
    fn difference(&self, other: &State) -> Option<&'static str> {
        let (one, two) = (&self.table.metadata, &other.table.metadata);
        let lsn = |state: &State| {
            let progress = state.table.progress?;
            Some((progress.generation, progress.lsn))
        };
        // Another generation's progress is not in what was read before.
        let comparable = lsn(self).zip(lsn(other));
        let comparable = comparable.filter(|(one, two)| one.0 == two.0);
        [
            (self.files != other.files, "data files"),
            (one.id != two.id, "the table's id"),
            (one.schema_string != two.schema_string, "columns"),
            (one.configuration != two.configuration, "properties"),
            (self.table.protocol != other.table.protocol, "protocol"),
            (
                comparable.is_some_and(|(one, two)| one != two),
                "how far the source has come",
            ),
        ]
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
    }
}

/// That a checkpoint says what an earlier version and the commits since then say.
async fn compare(
    store: &TableStore,
    kernels: &Semaphore,
    before: u64,
    checkpoint: u64,
) -> Result<(), LakeError> {
    let mut state = State::at(store, kernels, before).await?;
    let commits = stream::iter(before + 1..=checkpoint).map(|version| read_actions(store, version));
    let mut commits = pin!(commits.buffered(COMMITS_AT_ONCE));
    while let Some(actions) = commits.try_next().await? {
        actions.into_iter().for_each(|action| state.apply(action));
    }
    match state.difference(&State::at(store, kernels, checkpoint).await?) {
        None => Ok(()),
        Some(what) => Err(LakeError::conflict(format!(
            "the checkpoint of version {checkpoint} of history table \"{}\" has other {what} than its commits; \
             the log stays as it is",
            store.name()
        ))),
    }
}

/// The source that version 0 names must be known even when the rest of the log cannot be read.
async fn keep_source(store: &TableStore, kernels: &Semaphore) -> Result<(), LakeError> {
    let table = open_table(store, kernels).await?;
    if let Some(source) = table.source {
        let content = Bytes::from(source.to_string());
        // It is there already if an earlier clean-up was interrupted.
        store.create(&Path::from(SOURCE_FILE), content).await?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "clean_log_tests.rs"]
mod tests;
