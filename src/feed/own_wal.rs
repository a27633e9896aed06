//! Whether the rows of a history came from the WAL that this server has.
//!
//! A history tells with which WAL record its last rows ended, and the checksum of that record. A
//! server that was restored to an earlier time, or was promoted without having followed to the end,
//! writes other WAL from there on, soon with the same LSNs: to go on with such a history would leave
//! out what happened instead, without a word. So decoding, which reads the WAL from before that
//! record, looks whether it is there. A table whose history fails this is refused until a person
//! takes a new snapshot; that it was refused is kept in `wal2delta.resyncs`, because the slot moves
//! on and no later worker could find it out again.

use super::catalog;
use super::feeds::{Feed, Feeds};
use super::table::{State, Table};
use crate::decode::flush_position;
use crate::lake::{Found, LakeError, Retry};

/// A table that must not be gone on with, to be recorded.
pub struct Refusal {
    /// OID of the relation.
    pub table: u32,
    /// What failed and what to do.
    pub error: String,
    /// The slot must not move past this LSN before it is recorded.
    pub pin: u64,
}

impl Feeds {
    /// Takes a table in.
    pub fn insert(&mut self, mut table: Table) {
        let feed = self.feeds.get(&table.namespace);
        table.evolves = feed.is_some_and(Feed::evolves);
        if let State::Streaming(stream) = &table.state
            && stream.unchecked.is_some()
        {
            self.next_check = self.next_check.min(stream.settled);
        }
        self.missed.remove(&table.oid);
        self.tables.insert(table.oid, table);
    }

    /// Why a history must not be gone on with, nor be replaced by a new snapshot that no person has
    /// asked for since. `goes_on`: it would be gone on with.
    pub fn refused_by(
        &self,
        table: u32,
        feed: &Feed,
        found: &Found,
        goes_on: bool,
    ) -> Option<(String, Retry)> {
        let resync = self.resyncs.get(&table);
        let asked_ms = resync
            .filter(|resync| resync.refused.is_none())
            .map_or(0, |resync| resync.asked_ms)
            .max(feed.row.started_ms);
        if let Some(resync) = resync
            && let Some(error) = &resync.refused
            && (goes_on || asked_ms <= resync.asked_ms)
        {
            return Some((error.clone(), Retry::AfterResync));
        }
        let error = found
            .refuses(&feed.row.homes)
            .or_else(|| self.is_ahead(found).then(|| not_of_this_wal(&found.folder)))?;
        let asked = asked_ms > found.writer.time_ms();
        (goes_on || !asked).then(|| (error.with_remedy(), error.kind().retry()))
    }

    /// Whether a history has more than this server has ever written.
    fn is_ahead(&self, found: &Found) -> bool {
        let end = flush_position();
        found.progress.is_some_and(|progress| progress.lsn > end)
    }

    /// Has a refusal recorded that nothing but the end of the WAL has shown.
    pub fn note_refusal(&mut self, table: u32, namespace: u32) {
        let feed = self.feeds.get(&namespace);
        let found = feed.and_then(|feed| feed.found.get(&table));
        let known = self.resyncs.get(&table);
        let known = known.is_some_and(|resync| resync.refused.is_some());
        if let Some(found) = found.filter(|found| !known && self.is_ahead(found)) {
            let error = not_of_this_wal(&found.folder).with_remedy();
            self.have_recorded(table, error);
        }
    }

    fn have_recorded(&mut self, table: u32, error: String) {
        let pin = self.position;
        self.refused.push(Refusal { table, error, pin });
        self.look_wanted = true;
    }

    /// Looks at the histories whose last rows ended at or before a record that is read now.
    pub fn check_histories(&mut self, end_lsn: u64, crc: u32) {
        let mut foreign = Vec::new();
        self.next_check = u64::MAX;
        for table in self.tables.values_mut() {
            let State::Streaming(stream) = &mut table.state else {
                continue;
            };
            let Some(expected) = stream.unchecked else {
                continue;
            };
            if stream.settled > end_lsn {
                self.next_check = self.next_check.min(stream.settled);
            } else if stream.settled == end_lsn && expected == crc {
                stream.unchecked = None;
            } else {
                foreign.push(table.oid);
            }
        }
        for oid in foreign {
            let table = self.tables.get(&oid);
            let folder = table.map_or(String::new(), |table| table.shown.folder.clone());
            let error = not_of_this_wal(&folder).with_remedy();
            self.have_recorded(oid, error.clone());
            self.fail(oid, error, Retry::AfterResync);
        }
    }

    /// Records what was refused, so that no later worker goes on with it either.
    pub fn record_refusals(&mut self) {
        if !self.refused.is_empty() {
            catalog::record_refusals(&std::mem::take(&mut self.refused));
        }
    }
}

/// The history in `folder` has rows that did not come from the WAL of this server.
fn not_of_this_wal(folder: &str) -> LakeError {
    LakeError::conflict(format!(
        "history table \"{folder}\" has changes that this server has not made: \
         another server writes to it, or this one was restored to an earlier time"
    ))
}
