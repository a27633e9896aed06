//! What the lake tells the thread that uses it.

use serde::{Deserialize, Serialize};

use crate::lake::error::LakeError;
use crate::lake::schema::HistorySchema;
use crate::lake::source::{Progress, Source};
use crate::lake::writers::Writer;

/// A history table that a survey found.
#[derive(Debug, Clone)]
pub struct Found {
    /// Its folder in the destination.
    pub folder: String,
    /// The source table it belongs to.
    pub source: Source,
    /// Its newest version.
    pub version: u64,
    /// Its columns, or why it cannot be written.
    pub schema: Result<HistorySchema, LakeError>,
    /// How far it has come; `None` if it has no commit with rows.
    pub progress: Option<Progress>,
    /// Changes after its last commit are missing: see [`crate::lake::HistoryWriter::mark_gap`].
    pub gap: bool,
    /// It was made for its first rows, which are in the write-ahead log from this LSN on.
    pub whole: Option<u64>,
    /// Who changed it last.
    pub writer: Writer,
}

impl Found {
    /// Why a server that has lived in these data directories must not go on with the table.
    pub fn refuses(&self, homes: &[String]) -> Option<LakeError> {
        self.writer.refuses(&self.folder, homes)
    }
}

/// A data file that is stored, durable, and not yet in the Delta log.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Relative to the table's folder.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Rows.
    pub rows: u64,
    /// Milliseconds since 1970.
    pub modification_time_ms: i64,
    /// The `stats` text of its `add` action.
    pub stats: String,
    /// Names and types of its columns inside the file.
    pub layout: Vec<String>,
}

/// The outcome of [`crate::lake::HistoryWriter::clear`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleared {
    /// Each row that lived has a `delete`, the last one with this `_sort_by`.
    Deleted(i64),
    /// The history cannot be read, so that what lives in it cannot be told.
    Unreadable,
    /// The commit that was tried before is there: there is nothing to do.
    Landed,
}

/// An answer, or news.
#[derive(Debug)]
pub enum Event {
    /// The answer to [`crate::lake::Lake::survey`].
    Surveyed {
        /// The number given with the request.
        request: u64,
        /// The tables found; an error if the destination could not be listed.
        result: Result<Vec<Found>, LakeError>,
    },
    /// The answer to [`crate::lake::Lake::probe`].
    Probed {
        /// The number given with the request.
        request: u64,
        /// Whether everything that was asked about can be written.
        result: Result<(), LakeError>,
    },
    /// The table is open and can be committed to. Comes after [`crate::lake::Lake::open`], and
    /// again after a `discard` that ended a failed state.
    Opened {
        /// The source table's oid.
        table: u32,
        /// The table's folder in the destination.
        folder: String,
        /// Its newest version.
        version: u64,
        /// How far it has come: a commit that was reported as failed may have landed.
        progress: Option<Progress>,
        /// Its columns.
        schema: HistorySchema,
    },
    /// The answer to `commit` and `replace`: everything is durable.
    Committed {
        /// The source table's oid.
        table: u32,
        /// The number given with the request.
        ticket: u64,
        /// The Delta version; `None` if there was nothing to commit.
        version: Option<u64>,
        /// Rows in the commit.
        rows: u64,
        /// The table's columns, if it has others than before.
        schema: Option<HistorySchema>,
    },
    /// The answer to `clear`.
    Cleared {
        /// The source table's oid.
        table: u32,
        /// The number given with the request.
        ticket: u64,
        /// What has become of it.
        outcome: Cleared,
        /// The table's schema.
        schema: HistorySchema,
    },
    /// The answer to `stage`.
    Staged {
        /// The source table's oid.
        table: u32,
        /// The number given with the request.
        ticket: u64,
        /// Files written since the last `stage`.
        files: Vec<DataFile>,
        /// Their rows.
        rows: u64,
    },
    /// The table failed; what it held is dropped, and what is sent to it is ignored until
    /// `discard`.
    Failed {
        /// The source table's oid.
        table: u32,
        /// Why.
        error: LakeError,
    },
    /// The state of a catalog, or of a table in it, has changed. Nothing that is written is affected; what
    /// failed is tried again.
    Registration {
        /// Of what.
        what: String,
        /// Why it failed; `None`: it works again.
        error: Option<LakeError>,
    },
    /// The answer to `optimize`.
    Optimized {
        /// The source table's oid.
        table: u32,
        /// The number given with the request.
        ticket: u64,
        /// Why not everything was done.
        result: Result<(), LakeError>,
    },
    /// Upkeep of a table has begun to fail, or does not fail any more. Its data is not affected; upkeep is
    /// tried again later.
    Upkeep {
        /// The source table's oid.
        table: u32,
        /// Why it fails; `None`: it does not any more.
        error: Option<LakeError>,
    },
}
