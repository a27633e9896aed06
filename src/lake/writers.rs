//! One writer per table (rule 9): who committed last, and whether that is us.

use crate::lake::commit::read_commit;
use crate::lake::error::LakeError;
use crate::lake::log::now_ms;
use crate::lake::store::TableStore;

/// Who committed what changed a table last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writer {
    /// A wal2delta.
    Home {
        /// Version of the commit.
        version: u64,
        /// Identity of the data directory it works in.
        home: String,
        /// Time of the commit, in milliseconds since 1970.
        time_ms: i64,
    },
    /// Something else.
    Stranger {
        /// Version of the commit.
        version: u64,
        /// Time of the commit, in milliseconds since 1970; as good as now if it does not say.
        time_ms: i64,
    },
    /// The log does not go back that far.
    Unknown,
}

impl Writer {
    /// Reads the log from `version` backwards, mostly one commit: those of others that change
    /// nothing, as compaction does, are passed over.
    pub(crate) async fn last(store: &TableStore, version: u64) -> Result<Writer, LakeError> {
        for version in (0..=version).rev() {
            let Some(landed) = read_commit(store, version).await? else {
                return Ok(Writer::Unknown);
            };
            if landed.commit_id.is_some() {
                return Ok(Writer::Home {
                    version,
                    home: landed.home.unwrap_or_default(),
                    time_ms: landed.time_ms.unwrap_or_default(),
                });
            }
            if landed.changes_table {
                let time_ms = landed.time_ms.unwrap_or_else(now_ms);
                return Ok(Writer::Stranger { version, time_ms });
            }
        }
        Ok(Writer::Unknown)
    }

    /// Why a server that has lived in these data directories, and nowhere else, must not write to
    /// the table `name`; `None`: it may.
    pub(crate) fn refuses(&self, name: &str, homes: &[String]) -> Option<LakeError> {
        match self {
            Writer::Home { version, home, .. } => {
                (!homes.contains(home)).then(|| Writer::copy(name, *version))
            }
            Writer::Stranger { version, .. } => Some(Writer::stranger(name, *version)),
            Writer::Unknown => None,
        }
    }

    /// When that was, in milliseconds since 1970; 0 if it is not known.
    pub fn time_ms(&self) -> i64 {
        match self {
            Writer::Home { time_ms, .. } | Writer::Stranger { time_ms, .. } => *time_ms,
            Writer::Unknown => 0,
        }
    }

    /// A commit by a copy of this server.
    pub(crate) fn copy(name: &str, version: u64) -> LakeError {
        LakeError::conflict(format!(
            "version {version} of history table \"{name}\" was committed by another server for the same source table"
        ))
    }

    /// A commit by something that is no wal2delta.
    pub(crate) fn stranger(name: &str, version: u64) -> LakeError {
        LakeError::conflict(format!(
            "version {version} of history table \"{name}\" was committed by another writer and changes the table"
        ))
    }
}
