//! How a table takes part: it goes on where its history ends, it is whole in the WAL that is decoded,
//! or it is copied.

use pgrx::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::catalog::Resync;
use super::feeds::{Feed, Feeds};
use super::table::{Clearing, Failure, History, Phase, Remedy, Snapshot, State, Stream, Table};
use crate::decode::{insert_position, lsn_text};
use crate::lake::{Found, Retry};

/// Why a table is copied after `resync`.
const ASKED_FOR: &str = "a new snapshot was asked for";

impl Feeds {
    /// Whether every change of a table is in the WAL that is decoded.
    pub fn whole(&self, table: u32, feed: &Feed) -> bool {
        !feed.found.contains_key(&table) && !self.not_whole.contains(&table)
    }

    /// The state in which a table takes part: it goes on where its history ends, it is whole in the
    /// WAL, or it is copied.
    pub fn resume(&self, table: u32, rewritten: bool, feed: &Feed) -> State {
        // Storage that was replaced may have had rows which WAL does not show.
        if self.whole(table, feed) && !rewritten {
            return State::Streaming(Box::new(Stream::new(None, 0)));
        }
        let Some(history_found) = feed.found.get(&table) else {
            return Table::queued(None, self.position, false, "");
        };
        let history = match history(history_found) {
            Ok(history) => Some(history),
            Err(error) => {
                return State::Failed(Failure {
                    error,
                    remedy: Remedy::Redecode,
                    history: None,
                    since: Some(self.position),
                    pin: Some(self.position),
                    tried: None,
                    retry: Retry::AfterChange,
                    retry_at: Instant::now() + Duration::from_secs(300),
                });
            }
        };
        let generation = self.generation(table, feed);
        // What was asked for by `resync` is a new snapshot in any case.
        let continues = feed.row.continues && generation == feed.row.generation;
        let goes_on = history_found
            .progress
            .is_some_and(|progress| progress.generation == generation || continues);
        if let Some((error, retry)) = self.refused_by(table, feed, history_found, goes_on) {
            return State::Failed(Failure {
                error,
                remedy: Remedy::Copy,
                since: history_found.progress.map(|progress| progress.lsn),
                history,
                pin: None,
                tried: None,
                retry,
                retry_at: Instant::now(),
            });
        }
        let copied = |why| Table::queued(history.clone(), self.position, false, why);
        if history_found.gap || self.missed.contains(&table) {
            return copied("changes were missing in its history");
        }
        if history_found.progress.is_none() && history_found.whole >= Some(feed.row.generation) {
            // It was made for the first row of the table, which is still in the WAL or to come.
            let mut stream = Stream::new(history, 0);
            stream.has_rows = false;
            stream.rewritten_by = rewritten.then(insert_position);
            return State::Streaming(Box::new(stream));
        }
        let progress = match &history_found.progress {
            Some(progress) if goes_on => progress,
            _ if generation > feed.row.generation => return copied(ASKED_FOR),
            Some(_) if self.first_look => return copied("the replication slot was lost"),
            _ => return copied(""),
        };
        let mut stream = Stream::new(history, progress.lsn);
        // Where the record was read already, or will not be, there is nothing to look at.
        let comes = progress.lsn > self.last_record.0;
        stream.unchecked = progress.crc.filter(|_| comes);
        State::Streaming(Box::new(stream))
    }

    /// Takes up new snapshots that were asked for.
    pub fn apply_resyncs(&mut self, asked: HashMap<u32, Resync>) {
        self.resyncs = asked;
        let position = self.position;
        let mut due = Vec::new();
        for table in self.tables.values_mut() {
            let asked = self
                .resyncs
                .get(&table.oid)
                .map_or(0, |resync| resync.generation);
            // The end of a halt sees to it.
            let feed = self.feeds.get(&table.namespace);
            let halted = feed.is_none_or(|feed| feed.halt.is_some());
            if asked <= table.generation || halted {
                continue;
            }
            table.generation = asked;
            match &mut table.state {
                State::Failed(failure) => {
                    table.state = failure.queued(position, ASKED_FOR);
                }
                State::Streaming(stream) if stream.history.is_none() && stream.writer.is_none() => {
                }
                _ => due.push(table.oid),
            }
        }
        for oid in due {
            self.copy_again(oid, position, ASKED_FOR);
        }
    }

    /// Has a table copied (again). `seen_at`: commit record that made it necessary.
    pub fn copy_again(&mut self, oid: u32, seen_at: u64, why: &'static str) {
        if self.cut_back(oid, seen_at) {
            // Earlier transactions still go out as they were; only rows of the one that brought the
            // change, if it has any, are given up.
            self.flush_table(oid);
        }
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        table.copies += 1;
        self.building = self.building.saturating_sub(table.building());
        let first = table.pin().unwrap_or(seen_at).min(seen_at);
        match &mut table.state {
            State::Streaming(stream) => {
                if let Some(writer) = &stream.writer {
                    writer.discard();
                }
                let mut history = stream.history.take();
                if let Some(history) = &mut history {
                    history.sort_by = history.sort_by.max(stream.sort_by);
                }
                debug1!(
                    "wal2delta: table \"{}\" at {}: {why}",
                    table.name,
                    lsn_text(seen_at)
                );
                // A history that is just being made must be known before it can be replaced.
                let opening = match (&history, &stream.writer, stream.schema.take()) {
                    (None, Some(_), Some(schema)) => Some((schema, stream.sort_by)),
                    _ => None,
                };
                let pinned = history.is_some() || opening.is_some();
                table.state = State::Snapshot(Box::new(Snapshot {
                    history,
                    opening,
                    writer: stream.writer.take(),
                    marking: None,
                    clearing: Clearing::Not,
                    tried: None,
                    since: first,
                    pinned,
                    why: if pinned { why } else { "" },
                    phase: Phase::Queued,
                }));
            }
            State::Snapshot(snapshot) => {
                // The copy may have been taken before the change; it starts anew.
                if let Phase::Copying(copying) = &mut snapshot.phase
                    && let Some((writer, _)) = copying.spilled.take()
                {
                    writer.discard();
                    snapshot.writer = Some(writer);
                    snapshot.clearing = Clearing::Not;
                }
                snapshot.phase = Phase::Queued;
                self.lanes.cancel(oid);
            }
            State::Skipped(_) | State::Failed(_) | State::Paused(_) => {}
        }
    }
}

/// The history that a survey found, or why its columns could not be read.
pub fn history(found: &Found) -> Result<History, String> {
    let schema = found.schema.as_ref().map_err(ToString::to_string)?.clone();
    let sort_by = found
        .progress
        .as_ref()
        .map_or(i64::MIN, |progress| progress.sort_by);
    Ok(History {
        folder: found.folder.clone(),
        schema,
        sort_by,
        progress: found.progress,
    })
}
