//! From builders to commits: when tables are flushed, and what the writer threads answer.

use pgrx::prelude::*;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::buffer::Buffer;
use super::feeds::{Feed, Feeds};
use super::optimizing::optimized;
use super::table::{Boundary, InFlight, State, Table};
use crate::columns::{self, ColumnError};
use crate::decode::{Transaction, full_tables, with_relation};
use crate::lake::{Believed, Charged, Event, Lake, OpenTable, Retry, RowsCommit, Source, Target};

/// How much time searches for new tables may take: some at once, and one part in twenty of the time.
pub struct Searches {
    spent: Duration,
    since: Instant,
}

impl Searches {
    const AT_ONCE: Duration = Duration::from_millis(50);
    const SHARE: u32 = 20;

    /// None yet.
    pub fn new() -> Searches {
        Searches {
            spent: Duration::ZERO,
            since: Instant::now(),
        }
    }

    fn allowed(&mut self) -> bool {
        let earned = self.since.elapsed() / Searches::SHARE;
        self.since = Instant::now();
        self.spent = self.spent.saturating_sub(earned);
        self.spent < Searches::AT_ONCE
    }

    fn took(&mut self, time: Duration) {
        self.spent += time;
    }
}

impl Feeds {
    /// Handles one answer of the writer threads.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Opened {
                table: oid,
                folder,
                schema,
                ..
            } => {
                let leaves = self.leaving.iter().any(|leaving| leaving.oid == oid);
                if let Some(table) = self.tables.get_mut(&oid).filter(|_| !leaves) {
                    table.opened(folder);
                    self.note_columns(oid, schema);
                }
            }
            Event::Committed {
                table,
                ticket,
                rows,
                schema,
                ..
            } => {
                self.committed(table, ticket, rows);
                if let Some(schema) = schema {
                    self.note_columns(table, schema);
                }
            }
            Event::Cleared {
                table,
                ticket,
                outcome,
                schema,
            } => self.cleared(table, ticket, outcome, schema),
            Event::Failed { table, error } => self.writer_failed(table, error),
            Event::Probed { request, result } => self.probed(request, result),
            Event::Registration { what, error: None } => {
                log!("wal2delta: {what}: registered again");
            }
            Event::Registration {
                what,
                error: Some(error),
            } => log!("wal2delta: {what}: {}", error.with_remedy()),
            Event::Upkeep { table, error } => match error {
                Some(error) => {
                    let error = error.with_remedy();
                    log!(
                        "wal2delta: upkeep of the history of table with OID {table} fails: {error}"
                    );
                }
                None => {
                    log!("wal2delta: upkeep of the history of table with OID {table} works again")
                }
            },
            Event::Optimized { ticket, result, .. } => optimized(ticket, result),
            // Surveys are waited for where they are asked for; only snapshot workers stage files.
            Event::Surveyed { .. } | Event::Staged { .. } => {}
        }
    }

    fn committed(&mut self, oid: u32, ticket: u64, rows: u64) {
        // One that has come back meanwhile writes nothing before this.
        let leaving = self.leaving.iter_mut().find(|table| table.oid == oid);
        let Some(table) = leaving.or(self.tables.get_mut(&oid)) else {
            return;
        };
        if let State::Snapshot(snapshot) = &mut table.state
            && snapshot.marking == Some(ticket)
        {
            // The history itself says now that it has to be replaced.
            snapshot.marking = None;
            snapshot.pinned = false;
        }
        let in_flight = match &mut table.state {
            State::Streaming(stream) => &mut stream.in_flight,
            State::Paused(paused) => &mut paused.in_flight,
            _ => return,
        };
        if in_flight
            .front()
            .is_some_and(|commit| commit.ticket == ticket)
        {
            in_flight.pop_front();
            table.pause = Duration::ZERO;
            if table.logged.take().is_some() {
                log!("wal2delta: table \"{}\" is written again", table.name);
            }
            table.shown.rows_written += rows;
            // SAFETY: reads the clock.
            table.shown.last_write = unsafe { pgrx::pg_sys::GetCurrentTimestamp() };
        }
        self.leaving.retain(|table| table.unfinished(true));
        self.look_after_the_last();
    }

    /// Hands what a table's builders hold to its writer; with `spill`, to be written to a file
    /// now rather than with the next commit.
    pub fn seal(&mut self, oid: u32, spill: bool) {
        let source = self.source(oid);
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        self.building = self.building.saturating_sub(table.building());
        let Some(feed) = self.feeds.get(&table.namespace) else {
            return;
        };
        let result = seal(table, feed, source, &self.lake);
        if let State::Streaming(stream) = &table.state
            && spill
            && let Some(writer) = &stream.writer
        {
            writer.spill();
        }
        if let Err(error) = result {
            self.fail(oid, error.to_string(), Retry::AfterChange);
        }
    }

    /// Before the first change of a transaction that changes the catalog: should the table have to be
    /// copied for it, its history, if that is kept, has the events of earlier transactions all the same.
    pub fn mark_boundary(&mut self, transaction: &Transaction, oid: u32) {
        let earlier = |table: &Table| match &table.state {
            State::Streaming(stream) => stream
                .pending
                .filter(|pending| pending.last_end < transaction.end_lsn),
            _ => None,
        };
        let Some(pending) = self.tables.get(&oid).and_then(earlier) else {
            return;
        };
        self.seal(oid, false);
        if let Some(table) = self.tables.get_mut(&oid)
            && let State::Streaming(stream) = &mut table.state
        {
            let of = transaction.end_lsn;
            stream.boundary = Some(Boundary { of, pending });
        }
    }

    /// Gives the changes of a transaction up that was committed at `seen_at`, if none of them has been
    /// handed to the writer. Whether nothing of it is pending any more.
    pub fn cut_back(&mut self, oid: u32, seen_at: u64) -> bool {
        let Some(table) = self.tables.get_mut(&oid) else {
            return false;
        };
        let building = table.building();
        let State::Streaming(stream) = &mut table.state else {
            return false;
        };
        match (stream.pending, stream.boundary.take()) {
            (Some(pending), _) if pending.last_end <= seen_at => true,
            (Some(pending), Some(boundary)) if pending.last_end == boundary.of => {
                stream.buffer = None;
                stream.pending = Some(boundary.pending);
                self.building = self.building.saturating_sub(building);
                true
            }
            _ => false,
        }
    }

    /// Makes the history tables of those that had their first row in a transaction that is complete
    /// now, and that were not made before.
    pub fn open_fresh(&mut self, transaction: &Transaction) {
        for oid in std::mem::take(&mut self.fresh) {
            let source = self.source(oid);
            if let Some(table) = self.tables.get_mut(&oid)
                && let Some(feed) = self.feeds.get(&table.namespace)
            {
                open(table, feed, source, &self.lake, transaction.commit_lsn);
            }
        }
    }

    /// Makes the history tables of those that were created, or became FULL, and have no row yet.
    /// Until one is there, the slot does not move past its table's creation; from then on the history
    /// without rows says to a later worker that there was nothing to copy, so that no event of the
    /// table is lost whenever the worker ends.
    ///
    /// It looks through the catalog, so not after every one of many transactions with temporary
    /// tables.
    pub fn open_created(&mut self, transaction: &Transaction) {
        let Some(since) = self.created_since.filter(|_| self.searches.allowed()) else {
            return;
        };
        self.created_since = None;
        let begun = Instant::now();
        let open_feeds: HashSet<u32> = self
            .feeds
            .values()
            .filter(|feed| feed.halt.is_none())
            .map(|feed| feed.row.namespace)
            .collect();
        if open_feeds.is_empty() {
            return;
        }
        for oid in full_tables(|namespace| open_feeds.contains(&namespace), &self.roots) {
            if !self.tables.contains_key(&oid) {
                with_relation(oid, |relation| self.adopt(transaction, relation));
            }
            self.open_empty(oid, since, transaction);
        }
        self.searches.took(begun.elapsed());
    }

    fn open_empty(&mut self, oid: u32, since: u64, transaction: &Transaction) {
        let source = self.source(oid);
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let State::Streaming(stream) = &mut table.state else {
            return;
        };
        if stream.history.is_some() || stream.writer.is_some() || stream.has_rows {
            return;
        }
        // Columns that cannot be kept are an error of the first row.
        let Some(Ok(buffer)) = with_relation(oid, Buffer::new) else {
            return;
        };
        stream.buffer = Some(buffer);
        stream.opening = Some(since);
        if let Some(feed) = self.feeds.get(&table.namespace) {
            open(table, feed, source, &self.lake, transaction.commit_lsn);
        }
    }

    /// Checksum of the record that ends where decoding stands, if one does.
    pub fn crc_here(&self) -> Option<u32> {
        let (end, crc) = self.last_record;
        (end == self.position).then_some(crc)
    }

    /// Asks for a commit of everything a table has pending.
    pub fn flush_table(&mut self, oid: u32) {
        self.seal(oid, false);
        let ticket = self.ticket();
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let State::Streaming(stream) = &mut table.state else {
            return;
        };
        if let (Some(pending), Some(writer)) = (stream.pending.take(), &stream.writer) {
            writer.commit(
                ticket,
                RowsCommit {
                    lsn: pending.last_end,
                    crc: Some(pending.last_crc),
                    sort_by: stream.sort_by,
                },
            );
            stream.in_flight.push_back(InFlight {
                ticket,
                first: pending.first,
                snapshot: false,
                bare: false,
            });
        }
    }

    /// Asks for commits of the tables whose interval is over, and of those with changes from before
    /// the LSN that `flush` asks for. Returns the time until the next interval is over.
    pub fn flush_due(&mut self, asked: Option<u64>) -> Option<Duration> {
        let now = Instant::now();
        let mut due = Vec::new();
        let mut next: Option<Instant> = None;
        for table in self.tables.values() {
            if let State::Streaming(stream) = &table.state
                && let Some(pending) = stream.pending
            {
                let over = pending.came + self.interval(table);
                if over <= now || asked.is_some_and(|lsn| pending.first < lsn) {
                    due.push(table.oid);
                } else {
                    next = Some(next.map_or(over, |next| next.min(over)));
                }
            }
        }
        for oid in due {
            self.flush_table(oid);
        }
        next.map(|next| next - now)
    }
}

/// Opens a table's writer, if it has none. `whole`: no row of the table is before this LSN.
pub fn open(table: &mut Table, feed: &Feed, source: Source, lake: &Lake, whole: u64) {
    let State::Streaming(stream) = &mut table.state else {
        return;
    };
    let (None, Some(buffer)) = (&stream.writer, &stream.buffer) else {
        return;
    };
    let schema = stream.schema.get_or_insert_with(|| buffer.schema().clone());
    stream.writer = Some(lake.open(OpenTable {
        table: table.oid,
        source,
        generation: table.generation,
        homes: feed.row.homes.clone(),
        believed: match &stream.history {
            Some(history) => Believed::Progress(history.progress),
            None => Believed::Nothing,
        },
        destination: feed.destination.clone(),
        target: match &stream.history {
            Some(history) => Target::Existing {
                folder: history.folder.clone(),
            },
            None => Target::New {
                table_name: table.name.clone(),
                whole: Some(whole),
            },
        },
        schema: schema.clone(),
        evolves: false,
    }));
}

/// Seals what the table's builders hold and hands it to the writer, which is opened on first use.
fn seal(table: &mut Table, feed: &Feed, source: Source, lake: &Lake) -> Result<(), ColumnError> {
    let State::Streaming(stream) = &mut table.state else {
        return Ok(());
    };
    let Some(buffer) = stream.buffer.as_mut().filter(|buffer| !buffer.is_empty()) else {
        return Ok(());
    };
    let held = buffer.take(lake.budget());
    stream.boundary = None;
    // The table may have more columns than these rows.
    let batch = columns::seal(buffer.schema(), held.value, &mut stream.sort_by)?;
    let whole = stream.pending.map_or(0, |pending| pending.first);
    open(table, feed, source, lake, whole);
    let State::Streaming(stream) = &mut table.state else {
        return Ok(());
    };
    let Some(writer) = &stream.writer else {
        return Ok(());
    };
    if let Some(schema) = stream.schema.clone().filter(|_| stream.evolved) {
        writer.evolve(schema);
        stream.evolved = false;
    }
    writer.write(Charged {
        value: batch,
        charge: held.charge,
    });
    Ok(())
}
