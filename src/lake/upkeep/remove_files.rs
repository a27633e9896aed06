//! Removal of data files that nobody can need any more: those removed from the table longer ago than
//! versions can be read, and those that no commit has ever named.

use std::collections::HashSet;

use object_store::path::Path;
use tokio::sync::Semaphore;

use crate::lake::error::LakeError;
use crate::lake::store::TableStore;
use crate::lake::upkeep::log_files::LogFiles;

/// Files that a crash can leave behind half written; no reader sees them.
const UNFINISHED: [&str; 2] = [".wal2delta-tmp-", ".wal2delta_probe_"];

/// Removes what left the table before `cutoff_ms`. They are named by the log, so nothing is listed.
pub(super) async fn remove_expired(
    store: &TableStore,
    files: &LogFiles,
    cutoff_ms: i64,
) -> Result<(), LakeError> {
    let expired = files
        .removed
        .iter()
        .filter(|file| file.removed_ms < cutoff_ms);
    // A path that is no relative one is another table's file.
    let own = expired.filter_map(|file| Path::from_url_path(&file.path).ok());
    let own = own.filter(|path| path.parts_count() == 1);
    store.delete_files(own.collect()).await
}

/// Removes the data files at the table's root that were last written before `cutoff_ms`, and that neither
/// the newest version nor one that can still be read needs.
pub(super) async fn remove_orphans(
    store: &TableStore,
    kernels: &Semaphore,
    cutoff_ms: i64,
) -> Result<(), LakeError> {
    // Listed before the log is read: what is committed meanwhile is in the log then.
    let mut old = store.files_before("", cutoff_ms).await?;
    let unfinished = |path: &Path| {
        path.filename()
            .is_some_and(|name| UNFINISHED.iter().any(|prefix| name.starts_with(prefix)))
    };
    let mut orphans = store.files_before("_delta_log", cutoff_ms).await?;
    orphans.extend_from_slice(&old);
    orphans.retain(unfinished);
    old.retain(|path| {
        path.filename()
            .is_some_and(|name| name.ends_with(".parquet") && !name.starts_with(['.', '_']))
    });
    if !old.is_empty() {
        let files = LogFiles::newest(store, kernels).await?;
        let needed: HashSet<Path> = files
            .needed()
            .into_iter()
            .filter_map(|path| Path::from_url_path(path).ok())
            .collect();
        orphans.extend(old.into_iter().filter(|path| !needed.contains(path)));
    }
    store.delete_files(orphans).await
}
