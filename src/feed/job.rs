//! What feed worker and snapshot worker write down for each other: the job and its answer, as
//! files in the server's folder for temporary files (the server removes left-overs when it
//! starts). Shared memory ([`crate::shared::Lane`]) tells when to look.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::scan::Extent;
use crate::foreign_server;
use crate::lake::{Access, DataFile, Destination, Field, LakeError};

/// The server's folder for temporary files, relative to the data directory, where every server
/// process works.
const FOLDER: &str = "base/pgsql_tmp";

/// One table to copy.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Job {
    /// OID of the table.
    pub table: u32,
    /// Cluster that the table is in.
    pub system: u64,
    /// Database that the table is in.
    pub database: u32,
    /// Life of the table's rows.
    pub generation: u64,
    /// Identities of the data directories that may write to the history table.
    pub homes: Vec<String>,
    /// Destination in canonical form.
    pub destination: String,
    /// The foreign server that says how it is reached, if there is one. What is secret is not written
    /// down: the snapshot worker reads it for itself.
    pub server: Option<u32>,
    /// The role whose user mapping counts.
    pub role: u32,
    /// Folder of a history table that is there already.
    pub folder: Option<String>,
    /// `_pg_lsn` of the rows: at or below every commit that the snapshot will not see.
    pub lsn: u64,
    /// Last `_sort_by` that the history table has.
    pub sort_by: i64,
    /// Milliseconds that a statement may wait for the table because of the copy.
    pub patience_ms: u64,
    /// The history is kept: its columns follow those of the copy.
    pub evolves: bool,
    /// It is another worker's table, of which pages are to be copied.
    pub assist: Option<Assist>,
    /// The destination, once it was asked for.
    #[serde(skip)]
    pub opened: Arc<OnceLock<Destination>>,
}

impl Job {
    /// The destination, reached as the catalog says. In a transaction.
    ///
    /// # Errors
    /// If what the feed worker wrote down is no destination.
    pub fn destination(&self) -> Result<Destination, LakeError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened.clone());
        }
        let opened = Destination::open(&self.destination, self.access())?;
        Ok(self.opened.get_or_init(|| opened).clone())
    }

    /// Has the rest of a long copy be written with the credentials that the catalog has now. In a
    /// transaction, whatever its snapshot: the catalog's caches are of now.
    pub fn renew(&self) {
        if let Some(opened) = self.opened.get() {
            opened.renew(self.access());
        }
    }

    fn access(&self) -> Access {
        foreign_server::access(&self.destination, self.server, self.role)
    }
}

/// What a worker has to know to copy pages of another one's table.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Assist {
    /// Lane of the other worker.
    pub leader: usize,
    /// Name of its snapshot, which it has exported.
    pub snapshot: String,
    /// `_timestamp` of the rows, as Postgres has it.
    pub timestamp: i64,
    /// The history table's folder.
    pub folder: String,
    /// The relations with the rows.
    pub extents: Vec<Extent>,
    /// The table's columns.
    pub fields: Vec<Field>,
}

/// What the snapshot worker says once it has its snapshot, before it copies.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Start {
    /// The snapshot, as `pg_current_snapshot()` prints it.
    pub snapshot: String,
    /// End of the WAL after it was taken: what it sees was committed before.
    pub until: u64,
    /// The table's columns.
    pub fields: Vec<Field>,
    /// The history table's folder.
    pub folder: String,
    /// The most rows that the table can have.
    pub most_rows: u64,
}

/// What the snapshot worker says when all rows are in files.
#[derive(Serialize, Deserialize, Clone, Debug)]
pub struct Answer {
    /// Data files, on disk, not yet in the Delta log.
    pub files: Vec<DataFile>,
    /// Rows in them.
    pub rows: u64,
    /// `_sort_by` of the last row, or the job's if there is none.
    pub sort_by: i64,
    /// Values in which something had no place in UTF-8.
    pub replaced: u64,
}

impl Answer {
    /// No rows behind this `_sort_by`.
    pub fn nothing(sort_by: i64) -> Answer {
        Answer {
            files: Vec::new(),
            rows: 0,
            sort_by,
            replaced: 0,
        }
    }
}

/// Files of one lane.
pub struct Files {
    lane: usize,
    database: u32,
}

impl Files {
    /// The files of a lane.
    pub fn of(database: u32, lane: usize) -> Files {
        Files { lane, database }
    }

    fn path(&self, what: &str) -> PathBuf {
        let name = format!("pgsql_tmp_wal2delta_{}_{}.{what}", self.database, self.lane);
        Path::new(FOLDER).join(name)
    }

    fn write<T: Serialize>(&self, what: &str, value: &T) -> io::Result<()> {
        fs::create_dir_all(FOLDER)?;
        fs::write(self.path(what), serde_json::to_vec(value)?)
    }

    fn read<T: DeserializeOwned>(&self, what: &str) -> io::Result<T> {
        Ok(serde_json::from_slice(&fs::read(self.path(what))?)?)
    }

    /// Writes the job.
    pub fn write_job(&self, job: &Job) -> io::Result<()> {
        self.write("job", job)
    }

    /// Reads the job.
    pub fn read_job(&self) -> io::Result<Job> {
        self.read("job")
    }

    /// Writes what is known at the start.
    pub fn write_start(&self, start: &Start) -> io::Result<()> {
        self.write("start", start)
    }

    /// Reads it.
    pub fn read_start(&self) -> io::Result<Start> {
        self.read("start")
    }

    /// Writes the answer.
    pub fn write_answer(&self, answer: &Answer) -> io::Result<()> {
        self.write("answer", answer)
    }

    /// Reads it.
    pub fn read_answer(&self) -> io::Result<Answer> {
        self.read("answer")
    }

    /// Removes the files.
    pub fn remove(&self) {
        for what in ["job", "start", "answer"] {
            // Left-overs are overwritten by the next job and removed by the server's next start.
            let _ = fs::remove_file(self.path(what));
        }
    }
}
