//! What is written to a history before, or instead of, a copy: that it misses changes, or that what
//! lives in it is deleted.

use pgrx::prelude::*;

use super::feeds::{Feed, Feeds};
use super::resume::history;
use super::table::{Clearing, InFlight, State, Stream, Table};
use crate::lake::{
    Believed, Clear, Cleared, HistorySchema, HistoryWriter, Lake, OpenTable, Source, Target,
};

impl Feeds {
    /// A table that is not FULL cannot be copied now, and perhaps never: instead of holding back the
    /// WAL, what made the copy necessary is recorded in its history.
    pub fn mark_gap(&mut self, oid: u32) {
        let ticket = self.ticket();
        let lake = &self.lake;
        let source = self.source(oid);
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let Some(feed) = self.feeds.get(&table.namespace) else {
            return;
        };
        let generation = table.generation;
        let State::Snapshot(snapshot) = &mut table.state else {
            return;
        };
        let Some(history) = &snapshot.history else {
            return;
        };
        if table.shown.skipped.is_none() || !snapshot.pinned || snapshot.marking.is_some() {
            return;
        }
        let writer = snapshot.writer.get_or_insert_with(|| {
            open_existing(
                lake,
                feed,
                source,
                generation,
                &history.folder,
                &history.schema,
            )
        });
        writer.mark_gap(ticket);
        snapshot.marking = Some(ticket);
    }

    /// A transaction that ended at `end_lsn` has changed a table that was in no feed. If the table comes
    /// back, whenever that is, its history has to be replaced: that is recorded in the history itself.
    /// What the history has already, as after a restart, is not missed.
    pub fn note_missed(&mut self, oid: u32, end_lsn: u64) {
        if self.missed.contains(&oid) {
            return;
        }
        let (ticket, first) = (self.ticket(), self.position);
        let commit = InFlight {
            ticket,
            first,
            snapshot: false,
            bare: false,
        };
        if let Some(table) = self.leaving.iter_mut().find(|table| table.oid == oid) {
            // One that has failed decodes its last changes again, and comes by here again.
            if let State::Streaming(stream) = &mut table.state
                && let Some(writer) = &stream.writer
            {
                writer.mark_gap(ticket);
                stream.in_flight.push_back(commit);
                self.missed.insert(oid);
            }
            return;
        }
        let Some((feed, found)) = self.feeds.values().find_map(|feed| {
            let found = feed.found.get(&oid)?;
            let missed = match found.progress {
                Some(progress) => {
                    let own = progress.generation == self.generation(oid, feed);
                    (own || feed.row.continues) && progress.lsn < end_lsn
                }
                // Made for its first rows, of which this was one.
                None => found.whole.is_some(),
            };
            (missed && feed.halt.is_none()).then_some((feed, found))
        }) else {
            return;
        };
        let Ok(history) = history(found) else {
            return;
        };
        let generation = self.generation(oid, feed);
        let writer = open_existing(
            &self.lake,
            feed,
            self.source(oid),
            generation,
            &history.folder,
            &history.schema,
        );
        writer.mark_gap(ticket);
        let namespace = feed.row.namespace;
        let mut stream = Stream::new(Some(history), first);
        stream.writer = Some(writer);
        stream.in_flight.push_back(commit);
        let state = State::Streaming(Box::new(stream));
        let table = Table::new(oid, namespace, format!("OID {oid}"), generation, state);
        self.leaving.push(table);
        self.missed.insert(oid);
    }

    /// Has a `delete` written for each row that lives in a history that is kept.
    pub fn begin_clearing(&mut self, oid: u32) {
        if self.leaving.iter().any(|table| table.oid == oid) {
            return;
        }
        let (ticket, source) = (self.ticket(), self.source(oid));
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let State::Snapshot(snapshot) = &mut table.state else {
            return;
        };
        let feed = self.feeds.get(&table.namespace);
        let Some(feed) = feed.filter(|feed| feed.halt.is_none()) else {
            return;
        };
        let Some(history) = &snapshot.history else {
            return;
        };
        let (lake, generation) = (&self.lake, table.generation);
        let writer = snapshot.writer.get_or_insert_with(|| {
            let (folder, schema) = (&history.folder, &history.schema);
            open_existing(lake, feed, source, generation, folder, schema)
        });
        let clear = Clear {
            lsn: self.position,
            sort_by: history.sort_by,
            // What was decoded since is in no copy yet.
            tried: snapshot.tried.filter(|lsn| *lsn == self.position),
        };
        writer.clear(ticket, clear);
        snapshot.clearing = Clearing::Asked(ticket);
    }

    /// The writer has deleted what lives in a history, or says why not.
    pub fn cleared(&mut self, oid: u32, ticket: u64, outcome: Cleared, schema: HistorySchema) {
        let position = self.position;
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let State::Snapshot(snapshot) = &mut table.state else {
            return;
        };
        let Some(history) = &mut snapshot.history else {
            return;
        };
        if snapshot.clearing != Clearing::Asked(ticket) {
            return;
        }
        history.schema = schema;
        snapshot.clearing = match outcome {
            Cleared::Deleted(sort_by) => Clearing::Done(sort_by),
            Cleared::Unreadable => {
                log!(
                    "wal2delta: the history of table \"{}\" cannot be read back; it is replaced",
                    table.name
                );
                Clearing::Impossible
            }
            Cleared::Landed if snapshot.tried != Some(position) => {
                // More was decoded meanwhile: it is copied again, at a later position.
                snapshot.tried = None;
                Clearing::Not
            }
            Cleared::Landed => {
                let mut stream = Stream::new(snapshot.history.take(), position);
                stream.writer = snapshot.writer.take();
                table.state = State::Streaming(Box::new(stream));
                return;
            }
        };
    }
}

/// Opens the writer of a history table that is there, and is to be replaced or marked.
pub fn open_existing(
    lake: &Lake,
    feed: &Feed,
    source: Source,
    generation: u64,
    folder: &str,
    schema: &HistorySchema,
) -> HistoryWriter {
    let believed = Believed::Nothing;
    open_believing(lake, feed, source, generation, folder, schema, believed)
}

/// Opens the writer of a history table that is there.
pub fn open_believing(
    lake: &Lake,
    feed: &Feed,
    source: Source,
    generation: u64,
    folder: &str,
    schema: &HistorySchema,
    believed: Believed,
) -> HistoryWriter {
    lake.open(OpenTable {
        table: source.table,
        source,
        generation,
        homes: feed.row.homes.clone(),
        believed,
        destination: feed.destination.clone(),
        target: Target::Existing {
            folder: folder.to_owned(),
        },
        schema: schema.clone(),
        evolves: false,
    })
}
