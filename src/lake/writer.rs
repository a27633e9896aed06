//! The handle of a history table. It only queues messages: the table's task does the work in
//! their order and answers with events.

use arrow::array::RecordBatch;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::lake::budget::Charged;
use crate::lake::destination::Destination;
use crate::lake::error::LakeError;
use crate::lake::event::DataFile;
use crate::lake::schema::HistorySchema;
use crate::lake::source::{Progress, Source};
use crate::lake::upkeep::Exchange;

/// Which table to open.
#[derive(Debug, Clone)]
pub struct OpenTable {
    /// The source table's oid: the name of the table in events.
    pub table: u32,
    /// The identity of the source table, recorded in the history table.
    pub source: Source,
    /// The generation of the table's rows, part of the application ids.
    pub generation: u64,
    /// Identities of the data directories that may have written to the table.
    pub homes: Vec<String>,
    /// How far the table has come, as its user believes.
    pub believed: Believed,
    /// Where the history tables are.
    pub destination: Destination,
    /// Which folder, and what for.
    pub target: Target,
    /// The schema of a new table. For an existing one it only counts at the next `replace`, or if it
    /// evolves.
    pub schema: HistorySchema,
    /// Rows of `schema` are written to an existing table whose columns follow, in all that is staged.
    pub evolves: bool,
}

/// How far a table has come, as the one believes who writes to it. A commit whose answer was lost can
/// land between the survey that found it and the opening: then rows must not be added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Believed {
    /// It does not matter: the table is made, or replaced.
    Nothing,
    /// As a survey found it.
    Progress(Option<Progress>),
}

/// Which folder to open, and what for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A table that a survey found.
    Existing {
        /// Its folder.
        folder: String,
    },
    /// A table to be created: in `lb_<table_name>_history`, or with a number if that is taken.
    New {
        /// The source table's name.
        table_name: String,
        /// The LSN from which all rows of the source table are in the write-ahead log.
        whole: Option<u64>,
    },
    /// Only data files are written, for another process to commit.
    StageOnly {
        /// The folder of the existing table.
        folder: String,
    },
}

/// How far the source has come with the rows of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowsCommit {
    /// End LSN of the last transaction.
    pub lsn: u64,
    /// Checksum of the WAL record that ends there, if it is known.
    pub crc: Option<u32>,
    /// The last `_sort_by` given.
    pub sort_by: i64,
}

/// What a snapshot is to the rows that a history has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// There are none.
    First,
    /// It comes instead of them.
    Instead,
    /// It comes behind them, and behind `delete`s for each that lived ([`HistoryWriter::clear`]), the last
    /// of which has this `_sort_by`. The schema is what the table's evolves into.
    Behind(i64),
    /// It is none: the table gets the columns that its own evolve into.
    Columns,
}

/// A commit that brings a snapshot.
#[derive(Debug, Clone)]
pub struct Replace {
    /// The generation from now on.
    pub generation: u64,
    /// The schema of the table from now on.
    pub schema: HistorySchema,
    /// Files staged by another process, written with the same schema.
    pub files: Vec<DataFile>,
    /// What becomes of the rows that are there.
    pub content: Content,
    /// How far the source has come.
    pub commit: RowsCommit,
}

/// What the rows have in common that say of all living rows that they are deleted.
#[derive(Debug, Clone)]
pub struct Clear {
    /// `_pg_lsn`.
    pub lsn: u64,
    /// The last `_sort_by` given; the rows have the next ones.
    pub sort_by: i64,
    /// LSN of a snapshot that was to be committed before, up to `sort_by`, with an outcome that is not
    /// known.
    pub tried: Option<u64>,
}

/// What the table's task is told.
#[derive(Debug)]
pub(crate) enum Message {
    Write(Charged<RecordBatch>),
    Evolve(HistorySchema),
    Clear {
        ticket: u64,
        clear: Clear,
    },
    Spill,
    Commit {
        ticket: u64,
        commit: RowsCommit,
    },
    Replace {
        ticket: u64,
        replace: Replace,
    },
    Stage {
        ticket: u64,
    },
    MarkGap {
        ticket: u64,
    },
    Optimize {
        ticket: u64,
    },
    /// Of upkeep. The answer is the life that begins with the commit, none if there is none; an error: that
    /// is not known.
    Exchange {
        exchange: Exchange,
        answer: oneshot::Sender<Result<Option<u64>, LakeError>>,
    },
    Discard,
}

/// The handle of one history table. Nothing blocks. Dropping it ends the table's task after what
/// is queued.
#[derive(Debug)]
pub struct HistoryWriter {
    pub(crate) messages: UnboundedSender<Message>,
}

impl HistoryWriter {
    fn send(&self, message: Message) {
        // It fails only once the runtime is gone, and then nobody waits for an answer.
        let _ = self.messages.send(message);
    }

    /// Rows of the full history schema, with the columns' names as readers see them. They stay
    /// in memory, charged, until they are spilled or committed.
    pub fn write(&self, batch: Charged<RecordBatch>) {
        self.send(Message::Write(batch));
    }

    /// The rows that follow need this schema, which the table's evolves into; the next commit says so.
    pub fn evolve(&self, schema: HistorySchema) {
        self.send(Message::Evolve(schema));
    }

    /// Stores a `delete` for each row that lives in the history by its last commit, to be committed with
    /// what follows. Answers `Event::Cleared`.
    pub fn clear(&self, ticket: u64, clear: Clear) {
        self.send(Message::Clear { ticket, clear });
    }

    /// Stores what is held in memory as data files, not in the log, and releases the memory.
    pub fn spill(&self) {
        self.send(Message::Spill);
    }

    /// Commits everything written since the last commit as one Delta commit. Answers
    /// `Event::Committed`, with no version if nothing was written.
    pub fn commit(&self, ticket: u64, commit: RowsCommit) {
        self.send(Message::Commit { ticket, commit });
    }

    /// Commits the given files and everything written since the last commit, instead of the content or
    /// behind it, as one Delta commit. Answers `Event::Committed`.
    pub fn replace(&self, ticket: u64, replace: Replace) {
        self.send(Message::Replace { ticket, replace });
    }

    /// Stores everything written and hands the files over in `Event::Staged`.
    pub fn stage(&self, ticket: u64) {
        self.send(Message::Stage { ticket });
    }

    /// Records in the table that changes after its last commit are missing, so that whoever opens
    /// it replaces it first; `replace` takes the mark away. Answers `Event::Committed`.
    pub fn mark_gap(&self, ticket: u64) {
        self.send(Message::MarkGap { ticket });
    }

    /// Brings the table into its best form: small files are merged, what nobody needs is removed. Rows can
    /// be written and committed meanwhile. Answers `Event::Optimized`.
    pub fn optimize(&self, ticket: u64) {
        self.send(Message::Optimize { ticket });
    }

    /// Forgets what is held and staged. After a failure it opens the table again, which answers
    /// `Event::Opened` (or `Event::Failed`).
    pub fn discard(&self) {
        self.send(Message::Discard);
    }
}
