//! A table whose rows are copied, and the changes that come meanwhile.

use super::History;
use crate::feed::buffer::{Buffer, Held};
use crate::feed::visibility::Visibility;
use crate::lake::{HistorySchema, HistoryWriter};

/// A table whose rows are copied.
pub struct Snapshot {
    /// The history that the copy replaces or, without rows yet, fills.
    pub history: Option<History>,
    /// Its history table is being made: columns, and last `_sort_by` given out for it.
    pub opening: Option<(HistorySchema, i64)>,
    /// The history's writer, if it has been open; it alone may commit to the history.
    pub writer: Option<HistoryWriter>,
    /// The commit under way that marks the history as having a gap.
    pub marking: Option<u64>,
    /// Whether the history is kept, and the rows that live in it have been deleted.
    pub clearing: Clearing,
    /// The LSN of an earlier copy whose commit failed, which may be in Delta all the same.
    pub tried: Option<u64>,
    /// Everything before this LSN is in the history already, or was never asked for.
    pub since: u64,
    /// The slot must not move past `since`: what made the snapshot necessary is known from the WAL
    /// alone and has to be seen again after a restart.
    pub pinned: bool,
    /// Why a history is replaced; empty for a first snapshot.
    pub why: &'static str,
    /// How far it is.
    pub phase: Phase,
}

impl Snapshot {
    /// A snapshot that waits for a lane.
    pub fn queued(
        history: Option<History>,
        since: u64,
        pinned: bool,
        why: &'static str,
    ) -> Snapshot {
        Snapshot {
            history,
            why,
            opening: None,
            writer: None,
            marking: None,
            clearing: Clearing::Not,
            tried: None,
            since,
            pinned,
            phase: Phase::Queued,
        }
    }
}

/// What becomes of the rows that a history has, where it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clearing {
    /// Nothing has been done.
    Not,
    /// The writer was asked, with this number, to delete each row that lives.
    Asked(u64),
    /// Files of the writer say so, up to this `_sort_by`; they are committed with the copy.
    Done(i64),
    /// What lives cannot be told: the copy replaces the history.
    Impossible,
}

/// Phase of a snapshot.
pub enum Phase {
    /// Waits for a lane. Changes that come now will be in the snapshot.
    Queued,
    /// A snapshot worker works on it; changes are held.
    Copying(Box<Copying>),
}

/// Changes held while a table is copied.
#[derive(Default)]
pub struct Copying {
    /// The lane of the snapshot worker.
    pub lane: usize,
    /// Where decoding stood when it began: `_pg_lsn` of the snapshot's rows.
    pub lsn: u64,
    /// What the snapshot sees, once the worker has told.
    pub start: Option<Start>,
    /// Builders for changes that come.
    pub buffer: Option<Buffer>,
    /// Changes held, in commit order; their `_sort_by` is not known before the rows are counted.
    pub held: Vec<Held>,
    /// Writer for changes that memory could not hold, and the last `_sort_by` it was given.
    pub spilled: Option<(HistoryWriter, i64)>,
    /// End of the last transaction with a change in here.
    pub last_end: u64,
}

/// What the snapshot worker told at its start.
pub struct Start {
    /// What the snapshot sees.
    pub seen: Visibility,
    /// All that it sees was committed before this LSN.
    pub until: u64,
    /// The table's columns.
    pub schema: HistorySchema,
    /// Folder of the history table.
    pub folder: String,
    /// The most rows it can have.
    pub most_rows: u64,
}
