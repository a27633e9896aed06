//! One source table of a feed: its state, and what each state may hold.
//!
//! ```text
//!             ┌────────────► Skipped ◄───────┐
//!   new ──────┼─► Snapshot ──► Streaming ────┤
//!             └────▲─▲───────────┬───────────┘
//!          Skipped ┘ └─ Failed ◄─┘   (from every state)
//!
//!   Paused, from every state, until decoding begins again.
//! ```

use pgrx::prelude::*;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::buffer::{Buffer, Held};
use super::reason::Reason;
use super::visibility::Visibility;
use crate::lake::{HistorySchema, HistoryWriter, Progress, Retry};

/// First and longest pause before something that failed is tried again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// A table of a fed schema.
pub struct Table {
    /// OID of the relation.
    pub oid: u32,
    /// OID of its schema.
    pub namespace: u32,
    /// Name when it was last looked at.
    pub name: String,
    /// Which life of its rows is written: the feed's, or that of a later `resync`.
    pub generation: u64,
    /// Where it stands.
    pub state: State,
    /// What the views show besides the state.
    pub shown: Shown,
    /// How long a statement may wait for the table because it is copied.
    pub patience: Duration,
    /// Pause after the last failure; grows with each, falls back with success.
    pub pause: Duration,
    /// The last failure that was logged, until a success.
    pub logged: Option<String>,
    /// Its columns are to be compared with those that its history has.
    pub compare: bool,
    /// Its columns are not those of its history.
    pub altered: Option<Altered>,
    /// How often it was found that it has to be copied again, or that its history's columns evolve.
    pub copies: u64,
    /// Its history is kept when its columns change, and when it is copied.
    pub evolves: bool,
    /// A look found it in its schema, ahead of decoding: the end of the WAL then.
    pub found_at: u64,
    /// A look did not find it any more: it leaves its feed once decoding is here.
    pub gone_at: Option<u64>,
}

/// Columns of a table that are not those of its history, by a look ahead of decoding.
#[derive(Clone, Debug)]
pub struct Altered {
    /// End of the WAL at the look.
    pub at: u64,
    /// `copies` of the table then: if it has grown since, a row has shown that something changed.
    pub copies: u64,
    /// The columns; `None`: it is known without them that the table has to be copied.
    pub columns: Option<HistorySchema>,
}

/// What the views show of a table besides its state.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// Folder of its history table, once known.
    pub folder: String,
    /// Rows committed since the worker started.
    pub rows_written: u64,
    /// Values since the worker started in which something had no place in UTF-8.
    pub replaced: u64,
    /// Time of the last commit, microseconds since 2000; 0: none.
    pub last_write: i64,
    /// Rows of the last snapshot.
    pub snapshot_rows: u64,
    /// Why it takes no part, by the last look or a later change; a copy waits for that.
    pub skipped: Option<Reason>,
    /// Names and types of its columns, by the last look.
    pub columns: String,
    /// Its name and comments, as the catalog of its feed was told.
    pub comments: Option<(String, String)>,
}

/// Where a table stands.
pub enum State {
    /// It takes no part.
    Skipped(Reason),
    /// Its rows are, or will be, copied.
    Snapshot(Box<Snapshot>),
    /// Its changes are fed.
    Streaming(Box<Stream>),
    /// It waits for another try.
    Failed(Failure),
    /// Its feed is paused.
    Paused(Paused),
}

/// A history table that is there already.
#[derive(Clone, Debug)]
pub struct History {
    /// Folder below the destination.
    pub folder: String,
    /// Its columns.
    pub schema: HistorySchema,
    /// Last `_sort_by` in it; `i64::MIN` if it has no rows of this feed.
    pub sort_by: i64,
    /// How far it had come when it was found.
    pub progress: Option<Progress>,
}

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

/// What has to happen for a failed table to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Decode its changes again, from the slot.
    Redecode,
    /// Copy it again.
    Copy,
}

/// A table that failed.
pub struct Failure {
    /// What failed and what to do.
    pub error: String,
    /// How it goes on.
    pub remedy: Remedy,
    /// Its history, as far as it was known.
    pub history: Option<History>,
    /// Everything before this LSN is in Delta, or `None` if nothing is.
    pub since: Option<u64>,
    /// The slot must not move past this.
    pub pin: Option<u64>,
    /// The LSN of a copy whose commit it was that failed.
    pub tried: Option<u64>,
    /// What has to come before another try; `flush` waits for what mends itself alone.
    pub retry: Retry,
    /// When to try again.
    pub retry_at: Instant,
}

impl Failure {
    /// Whether it is to be tried again by now.
    pub fn due(&self, now: Instant) -> bool {
        self.retry != Retry::AfterResync && self.retry_at <= now
    }

    /// The state in which it is copied again.
    pub fn queued(&mut self, position: u64, why: &'static str) -> State {
        let since = self.pin.or(self.since).unwrap_or(position);
        let mut state = Table::queued(self.history.take(), since, self.pin.is_some(), why);
        if let State::Snapshot(snapshot) = &mut state {
            snapshot.tried = self.tried;
        }
        state
    }
}

/// A table whose feed is paused. What changes meanwhile is decoded again later, from the slot.
pub struct Paused {
    /// Its history, as far as it was known.
    pub history: Option<History>,
    /// Commits that were under way.
    pub in_flight: VecDeque<InFlight>,
    /// The slot must not move past this, whatever becomes of the commits.
    pub pinned: Option<u64>,
}

impl Table {
    /// A table in a state.
    pub fn new(oid: u32, namespace: u32, name: String, generation: u64, state: State) -> Table {
        let mut table = Table {
            oid,
            namespace,
            name,
            generation,
            state,
            shown: Shown::default(),
            compare: false,
            altered: None,
            copies: 0,
            evolves: false,
            patience: Duration::ZERO,
            pause: Duration::ZERO,
            logged: None,
            found_at: 0,
            gone_at: None,
        };
        if let Some(history) = table.history() {
            table.shown.folder = history.folder;
        }
        table
    }

    /// A snapshot that waits for a lane.
    pub fn queued(history: Option<History>, since: u64, pinned: bool, why: &'static str) -> State {
        State::Snapshot(Box::new(Snapshot {
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
        }))
    }

    /// Why it takes no part, or that it does. A fault is said in the log, once.
    pub fn note_reason(&mut self, reason: Option<Reason>) {
        if let Some(failure) = reason.as_ref().filter(|reason| reason.is_failure()) {
            let text = failure.text();
            if self.logged.as_ref() != Some(&text) {
                log!("wal2delta: table \"{}\" failed: {text}", self.name);
                self.logged = Some(text);
            }
        }
        self.shown.skipped = reason;
    }

    /// The writer has opened, or made, the history table.
    pub fn opened(&mut self, folder: String) {
        match &mut self.state {
            State::Streaming(stream) if stream.history.is_none() => {
                stream.opening = None;
                stream.history = stream.schema.clone().map(|schema| History {
                    folder: folder.clone(),
                    schema,
                    sort_by: stream.sort_by,
                    progress: None,
                });
            }
            State::Snapshot(snapshot) => {
                if let Some((schema, sort_by)) = snapshot.opening.take() {
                    snapshot.history = Some(History {
                        folder: folder.clone(),
                        schema,
                        sort_by,
                        progress: None,
                    });
                }
            }
            _ => {}
        }
        self.shown.folder = folder;
    }

    /// Its history with the last `_sort_by` given out for it, if it has one.
    pub fn history(&self) -> Option<History> {
        match &self.state {
            State::Streaming(stream) => stream.history.clone().map(|history| History {
                sort_by: history.sort_by.max(stream.sort_by),
                ..history
            }),
            State::Snapshot(snapshot) => snapshot.history.clone(),
            State::Failed(failure) => failure.history.clone(),
            State::Paused(paused) => paused.history.clone(),
            State::Skipped(_) => None,
        }
    }

    /// The columns that its history has, or will have once it is copied.
    pub fn schema(&self) -> Option<&HistorySchema> {
        match &self.state {
            State::Streaming(stream) => stream.schema.as_ref(),
            State::Snapshot(snapshot) => match &snapshot.phase {
                Phase::Copying(copying) => copying.start.as_ref().map(|start| &start.schema),
                Phase::Queued => None,
            },
            State::Skipped(_) | State::Failed(_) | State::Paused(_) => None,
        }
    }

    /// Whether it has to be kept although it has left its feed: commits of it are under way, or, if the
    /// feed goes on (`fed`), what could not be written is tried again.
    pub fn unfinished(&self, fed: bool) -> bool {
        match &self.state {
            State::Failed(failure) => {
                let mends = failure.retry == Retry::Backoff;
                fed && mends && failure.remedy == Remedy::Redecode
            }
            _ => self.writes(),
        }
    }

    /// Whether commits of it are under way.
    pub fn writes(&self) -> bool {
        match &self.state {
            State::Streaming(stream) => !stream.in_flight.is_empty(),
            State::Paused(paused) => !paused.in_flight.is_empty(),
            _ => false,
        }
    }

    /// The LSN that the slot must not pass because of this table.
    pub fn pin(&self) -> Option<u64> {
        match &self.state {
            State::Streaming(stream) => {
                let first = stream.first_undurable();
                first.into_iter().chain(stream.opening).min()
            }
            State::Snapshot(snapshot) => snapshot.pinned.then_some(snapshot.since),
            State::Failed(failure) => failure.pin,
            State::Paused(paused) => {
                let first = paused.in_flight.front().map(|commit| commit.first);
                first.into_iter().chain(paused.pinned).min()
            }
            State::Skipped(_) => None,
        }
    }

    /// The LSN up to which its changes are in Delta, if that is not all that was decoded.
    pub fn behind(&self) -> Option<u64> {
        match &self.state {
            // Of a first copy nothing is in Delta, however far decoding was when it was queued.
            // One that is skipped is not waited for, once its history says that something is missing:
            // what came before that is in it then.
            State::Snapshot(snapshot) => match snapshot.phase {
                Phase::Queued if self.shown.skipped.is_some() && !snapshot.pinned => None,
                // What made the copy necessary can lie right before where decoding stood then.
                _ if snapshot.pinned => Some(snapshot.since.saturating_sub(1)),
                _ => Some(0),
            },
            State::Streaming(stream)
                if stream.joins_snapshot() || stream.in_flight.iter().any(|commit| commit.bare) =>
            {
                self.pin().map(|lsn| lsn.saturating_sub(1))
            }
            State::Failed(failure) if failure.retry != Retry::Backoff => None,
            State::Failed(failure) => Some(failure.since.unwrap_or(0)),
            State::Paused(_) => None,
            _ => self.pin(),
        }
    }

    /// Memory that its builders hold.
    pub fn building(&self) -> usize {
        let buffer = match &self.state {
            State::Streaming(stream) => stream.buffer.as_ref(),
            State::Snapshot(snapshot) => match &snapshot.phase {
                Phase::Copying(copying) => copying.buffer.as_ref(),
                Phase::Queued => None,
            },
            _ => None,
        };
        buffer
            .filter(|buffer| !buffer.is_empty())
            .map_or(0, Buffer::bytes)
    }

    /// Moves to FAILED. What it held and no commit names is given up; it is decoded or copied
    /// again later.
    pub fn fail(&mut self, error: String, remedy: Remedy, retry: Retry, position: u64) {
        let pin = self.pin();
        let tried = match &self.state {
            State::Streaming(stream) if stream.joins_snapshot() => Some(stream.settled),
            State::Snapshot(snapshot) => snapshot.tried,
            State::Failed(failure) => failure.tried,
            _ => None,
        };
        let (history, since, pin) = match &mut self.state {
            State::Streaming(stream) => {
                if let Some(writer) = &stream.writer {
                    writer.discard();
                }
                let known = stream.history.is_some() || stream.writer.is_some();
                let since = Some(pin.unwrap_or(position)).filter(|lsn| *lsn > 0);
                // 0: a first copy was being committed. Should it be in Delta although it failed, it
                // is gone on with from where it was joined.
                let pin = since.unwrap_or(stream.settled);
                let pinned = remedy == Remedy::Redecode || known;
                (stream.history.take(), since, pinned.then_some(pin))
            }
            State::Snapshot(snapshot) => {
                let history = snapshot.history.take();
                let since = history.as_ref().map(|_| snapshot.since);
                (history, since, pin)
            }
            State::Failed(failure) => (failure.history.take(), failure.since, failure.pin),
            State::Paused(paused) => (paused.history.take(), pin, pin),
            State::Skipped(_) => (None, None, None),
        };
        // A new snapshot will not need the WAL of today.
        let pin = pin.filter(|_| retry != Retry::AfterResync);
        self.pause = match retry {
            Retry::Backoff => (self.pause * 2).clamp(PAUSES.0, PAUSES.1),
            Retry::AfterChange | Retry::AfterResync => PAUSES.1,
        };
        let retry_at = Instant::now() + self.pause;
        self.state = State::Failed(Failure {
            error,
            remedy,
            history,
            since,
            pin,
            tried,
            retry,
            retry_at,
        });
    }

    /// Moves to PAUSED, after everything pending was asked to be committed.
    pub fn pause(&mut self) {
        let pinned = match &self.state {
            State::Streaming(stream) => stream.opening,
            State::Skipped(_) => None,
            State::Snapshot(_) | State::Failed(_) | State::Paused(_) => self.pin(),
        };
        let history = self.history();
        let in_flight = match &mut self.state {
            State::Streaming(stream) => std::mem::take(&mut stream.in_flight),
            _ => VecDeque::new(),
        };
        self.state = State::Paused(Paused {
            history,
            in_flight,
            pinned,
        });
    }
}
