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

use super::buffer::Buffer;
use super::reason::Reason;
use crate::lake::{HistorySchema, Progress, Retry};

mod snapshot;
mod stream;

pub use snapshot::{Clearing, Copying, Phase, Snapshot, Start};
pub use stream::{Boundary, InFlight, Pending, Stream};

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
        State::Snapshot(Box::new(Snapshot::queued(history, since, pinned, why)))
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
