//! The one way a commit gets into a Delta log: its file is put in place if there is none of that
//! version yet. After an error or a conflict the version is read back, because a store can answer
//! "already exists" to our own earlier try. Nothing is listed and nothing read on the good path.

use bytes::Bytes;
use uuid::Uuid;

use crate::lake::error::{ErrorKind, LakeError};
use crate::lake::log::{
    self, Action, Landed, Operation, ReadAction, commit_path, read_landed, to_lines,
};
use crate::lake::store::TableStore;
use crate::lake::writers::Writer;

/// A commit on its way.
pub(crate) struct Commit<'a> {
    /// What it does.
    pub operation: Operation,
    /// Its actions but the `commitInfo`.
    pub actions: Vec<Action>,
    /// Begin of our own application ids.
    pub own_app_ids: &'a str,
    /// Our data directory: a commit with such a `txn` from another one is by a copy of us.
    pub home: &'a str,
    /// True if the actions depend on which files are active: then files that others move are not
    /// passed over.
    pub needs_exact_files: bool,
}

/// Why a commit is not known to be in the log.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It may be in the log or still get there: its files must never be removed.
    Unknown(LakeError),
    /// It is not in the log and will not get there.
    NotLanded(LakeError),
    /// It is not in the log: with `version`, others have exchanged files; build it anew.
    FilesMoved { version: u64 },
}

impl Failure {
    pub(crate) fn into_error(self) -> LakeError {
        match self {
            Failure::Unknown(error) | Failure::NotLanded(error) => error,
            Failure::FilesMoved { version } => LakeError::transient(format!(
                "other writers kept exchanging files, last in version {version}"
            )),
        }
    }
}

/// Commits at `version`, or at the next free one after foreign commits that change nothing.
/// Returns the version. When it returns `Ok`, the commit is durable.
pub(crate) async fn commit(
    store: &TableStore,
    version: u64,
    commit: Commit<'_>,
) -> Result<u64, Failure> {
    let id = Uuid::new_v4();
    let mut actions = vec![Action::CommitInfo(commit.operation.info(id, commit.home))];
    let (own_app_ids, home) = (commit.own_app_ids, commit.home);
    actions.extend(commit.actions);
    let lines = Bytes::from(to_lines(&actions).map_err(Failure::NotLanded)?);
    drop(actions);
    let mut version = version;
    let mut pauses = store.pauses();
    loop {
        // Errors are answered by the same put again, not by a read: when the put says that the
        // version exists, the store has also made it durable.
        let error = match store.create(&commit_path(version), lines.clone()).await {
            Ok(true) => return Ok(version),
            Ok(false) => match landed_at(store, version).await {
                Ok(landed) if landed.commit_id == Some(id) => return Ok(version),
                Ok(landed) => {
                    pass_over(store, version, &landed, own_app_ids, home)?;
                    if landed.moves_files && commit.needs_exact_files {
                        return Err(Failure::FilesMoved { version });
                    }
                    version += 1;
                    continue;
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        if error.kind() != ErrorKind::Transient || !pauses.wait().await {
            return Err(Failure::Unknown(error));
        }
    }
}

/// Reads a commit that is said to exist.
async fn landed_at(store: &TableStore, version: u64) -> Result<Landed, LakeError> {
    let path = commit_path(version);
    read_commit(store, version).await?.ok_or_else(|| {
        LakeError::transient(format!(
            "could not {}: it exists, but is not found",
            store.doing("read", &path)
        ))
    })
}

/// Reads a commit; `None` if there is none of that version (any more).
pub(crate) async fn read_commit(
    store: &TableStore,
    version: u64,
) -> Result<Option<Landed>, LakeError> {
    let lines = store.get(&commit_path(version)).await?;
    let landed = lines.map(|lines| read_landed(&lines)).transpose();
    landed.map_err(|error| damaged(store, version, &error))
}

/// Reads the actions of a commit that must exist.
pub(crate) async fn read_actions(
    store: &TableStore,
    version: u64,
) -> Result<Vec<ReadAction>, LakeError> {
    let path = commit_path(version);
    let lines = store.get(&path).await?.ok_or_else(|| {
        LakeError::conflict(format!(
            "could not {}: it does not exist",
            store.doing("read", &path)
        ))
    })?;
    log::read_actions(&lines).map_err(|error| damaged(store, version, &error))
}

fn damaged(store: &TableStore, version: u64, error: &serde_json::Error) -> LakeError {
    let doing = store.doing("read", &commit_path(version));
    LakeError::config(
        format!("could not {doing}: {error}"),
        "The commit file is damaged; restore it or take a new snapshot into another destination.",
    )
}

/// One writer per table (rule 9): only commits that change no rows, schema or protocol, and do
/// not carry our own application id, may come from others.
fn pass_over(
    store: &TableStore,
    version: u64,
    landed: &Landed,
    own_app_ids: &str,
    home: &str,
) -> Result<(), Failure> {
    let own = |app_id: &String| app_id.starts_with(own_app_ids);
    let carries_own = landed.app_ids.iter().any(own);
    if landed.home.as_deref() == Some(home) && (carries_own || landed.changes_table) {
        // Its answer came too late for the one who asked; reading the table again tells all.
        return Err(Failure::NotLanded(LakeError::transient(format!(
            "an earlier commit got into history table \"{}\" late",
            store.name()
        ))));
    }
    if carries_own {
        return Err(Failure::NotLanded(Writer::copy(store.name(), version)));
    }
    if landed.changes_table {
        return Err(Failure::NotLanded(Writer::stranger(store.name(), version)));
    }
    Ok(())
}

#[cfg(test)]
#[path = "commit_tests.rs"]
mod tests;
