//! Writes the tables' states to shared memory, where the views read them.

use std::collections::HashMap;

use super::feeds::{Feeds, Halt};
use super::lanes::Copied;
use super::reason::{EMPTY, Reason};
use super::table::{Phase, State, Table};
use crate::shared::{self, Status, TableStatus};

/// Places of the tables in shared memory.
#[derive(Default)]
pub struct Published {
    places: HashMap<u32, usize>,
    adopted: bool,
    full: bool,
}

impl Published {
    /// Writes what has changed since the last call, and the worker's own progress.
    pub fn write(&mut self, feeds: &Feeds) {
        let durable = feeds.durable();
        let copied = feeds.lanes.copied();
        let staged = feeds.lake.staged_bytes();
        let unregistered = feeds.unregistered();
        let mut state = shared::lock();
        if let Some(entry) = state.database(feeds.database) {
            entry.durable_lsn = durable;
        }
        let entries = state.tables();
        if !self.adopted {
            // What an earlier worker wrote was shown until now.
            let of_database = |entry: &TableStatus| entry.database == feeds.database;
            let found = entries
                .iter()
                .enumerate()
                .filter(|(_, entry)| of_database(entry));
            self.places = found.map(|(place, entry)| (entry.table, place)).collect();
            self.adopted = true;
        }
        self.places.retain(|oid, place| {
            let known = feeds.tables.contains_key(oid);
            if !known {
                entries[*place].database = 0;
            }
            known
        });
        let mut free = Vec::new();
        if self.places.len() < feeds.tables.len() {
            free.extend(
                (0..entries.len())
                    .rev()
                    .filter(|place| entries[*place].database == 0),
            );
        }
        for table in feeds.tables.values() {
            let place = match self.places.get(&table.oid) {
                Some(place) => *place,
                None => match free.pop() {
                    Some(place) => {
                        self.places.insert(table.oid, place);
                        // SAFETY: all-zero bytes are a valid entry (shared.rs).
                        entries[place] = unsafe { std::mem::zeroed() };
                        place
                    }
                    None => {
                        self.full = true;
                        continue;
                    }
                },
            };
            let copied = copied.get(&table.oid);
            let entry = &mut entries[place];
            describe(table, feeds, copied, entry);
            if entry.error.is_empty()
                && let Some(error) = unregistered.get(&table.oid)
            {
                entry.error.set(error);
            }
            entry.staged_bytes = staged.get(&table.oid).copied().unwrap_or(0)
                + copied.map_or(0, |copied| copied.staged_bytes);
        }
    }

    /// Whether some table found no place since the last call.
    pub fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.full)
    }
}

fn describe(table: &Table, feeds: &Feeds, copied: Option<&Copied>, entry: &mut TableStatus) {
    entry.database = feeds.database;
    entry.table = table.oid;
    entry.namespace = table.namespace;
    entry.rows_written = table.shown.rows_written;
    entry.last_write = table.shown.last_write;
    entry.replaced_values = table.shown.replaced;
    entry.snapshot_done = table.shown.snapshot_rows;
    entry.snapshot_total = table.shown.snapshot_rows;
    entry.folder.set(&table.shown.folder);
    let mut reason = String::new();
    let mut error = String::new();
    let (status, committed) = match &table.state {
        State::Skipped(why) if why.is_failure() => {
            error = why.text();
            (Status::Failed, None)
        }
        State::Skipped(why) => {
            reason = why.text();
            (Status::Skipped, None)
        }
        State::Streaming(stream) if stream.joins_snapshot() => (Status::Snapshotting, None),
        State::Streaming(stream) => {
            let committed = stream.first_undurable().unwrap_or(feeds.position);
            let skipped = table.shown.skipped.as_ref();
            if let Some(why) = skipped.filter(|why| why.is_failure()) {
                error = why.text();
                (Status::Failed, Some(committed))
            } else if !stream.has_rows {
                reason = table
                    .shown
                    .skipped
                    .as_ref()
                    .map_or(EMPTY.into(), Reason::text);
                (Status::Skipped, Some(committed))
            } else {
                (Status::Streaming, Some(committed))
            }
        }
        State::Snapshot(snapshot) => {
            if let Phase::Copying(_) = &snapshot.phase
                && let Some(copied) = copied
            {
                (entry.snapshot_done, entry.snapshot_total) = (copied.rows, copied.expected);
            }
            let committed = snapshot.history.as_ref().map(|_| snapshot.since);
            match &table.shown.skipped {
                None => {
                    reason = snapshot.why.to_owned();
                    (Status::Snapshotting, committed)
                }
                Some(why) if why.is_failure() => {
                    error = why.text();
                    (Status::Failed, committed)
                }
                Some(why) => {
                    reason = why.text();
                    (Status::Skipped, committed)
                }
            }
        }
        State::Paused(paused) => {
            let since = feeds
                .feeds
                .get(&table.namespace)
                .and_then(|feed| feed.halt.as_ref())
                .and_then(Halt::since);
            let known = paused.history.is_some();
            (Status::Paused, table.pin().or(since).filter(|_| known))
        }
        State::Failed(failure) => {
            error = failure.error.clone();
            (
                Status::Failed,
                failure.since.filter(|_| failure.history.is_some()),
            )
        }
    };
    entry.status = status;
    entry.committed_lsn = committed.unwrap_or(0);
    entry.reason.set(&reason);
    entry.error.set(&error);
}
