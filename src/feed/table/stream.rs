//! A table whose changes are fed: what is pending, and what is being committed.

use std::collections::VecDeque;
use std::time::Instant;

use super::History;
use crate::feed::buffer::Buffer;
use crate::lake::{HistorySchema, HistoryWriter};

/// A table whose changes are fed.
pub struct Stream {
    /// The history, if it was there when the worker began to feed it.
    pub history: Option<History>,
    /// Transactions that end at or before this LSN are in it.
    pub settled: u64,
    /// A record with this checksum must end at `settled`; `None`: it has, or that cannot be known.
    pub unchecked: Option<u32>,
    /// Last `_sort_by` given out.
    pub sort_by: i64,
    /// The history table's columns, once it is there or about to be.
    pub schema: Option<HistorySchema>,
    /// The writer has not been told of `schema` yet.
    pub evolved: bool,
    /// Builders, from the first change on.
    pub buffer: Option<Buffer>,
    /// The writer, from the first batch on.
    pub writer: Option<HistoryWriter>,
    /// Changes since the last commit that was asked for.
    pub pending: Option<Pending>,
    /// Where the current transaction began, if it may have to be given up and no other.
    pub boundary: Option<Boundary>,
    /// Commits that were asked for, oldest first.
    pub in_flight: VecDeque<InFlight>,
    /// Its history is being made before it has a row: the commit that made the table what it is.
    pub opening: Option<u64>,
    /// It has no rows in its history, and its storage was replaced before this LSN: should there be
    /// rows from before that in the WAL, they have other values now.
    pub rewritten_by: Option<u64>,
    /// Rows of the current transaction came while the identity was not FULL; only if it is at the
    /// transaction's end are they whole.
    pub unproven: bool,
    /// Whether it ever had a row, as far as this worker knows.
    pub has_rows: bool,
}

/// Changes that no commit was asked for yet.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    /// Commit record of the first transaction in it.
    pub first: u64,
    /// End of the last transaction in it.
    pub last_end: u64,
    /// Checksum of the record that ends there.
    pub last_crc: u32,
    /// When the first change came.
    pub came: Instant,
}

/// What was pending before a transaction that changes the catalog, all of it handed to the writer, and
/// nothing of the transaction.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    /// End of the transaction.
    pub of: u64,
    /// What was pending.
    pub pending: Pending,
}

/// A commit that was asked for.
#[derive(Clone, Copy, Debug)]
pub struct InFlight {
    /// Number by which the writer answers.
    pub ticket: u64,
    /// Commit record of the first transaction in it; 0 for the first copy of a table.
    pub first: u64,
    /// Whether it brings a snapshot.
    pub snapshot: bool,
    /// It brings no rows, only columns: what made it necessary lies before `first`.
    pub bare: bool,
}

impl Stream {
    /// A table that is fed from here on, with nothing pending.
    pub fn new(history: Option<History>, settled: u64) -> Stream {
        Stream {
            sort_by: history.as_ref().map_or(i64::MIN, |history| history.sort_by),
            has_rows: history.is_some(),
            schema: history.as_ref().map(|history| history.schema.clone()),
            history,
            settled,
            unchecked: None,
            evolved: false,
            buffer: None,
            writer: None,
            pending: None,
            boundary: None,
            in_flight: VecDeque::new(),
            opening: None,
            rewritten_by: None,
            unproven: false,
        }
    }

    /// Start of the first transaction that is not in Delta yet.
    pub fn first_undurable(&self) -> Option<u64> {
        self.in_flight
            .front()
            .map(|commit| commit.first)
            .or(self.pending.map(|pending| pending.first))
    }

    /// Whether a snapshot is being committed.
    pub fn joins_snapshot(&self) -> bool {
        self.in_flight.iter().any(|commit| commit.snapshot)
    }
}
