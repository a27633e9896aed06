//! Takes decoded changes into the tables' builders, and keeps what is held in memory bounded.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::buffer::{Buffer, compatible, same_columns};
use super::catalog::FEED_KEY;
use super::feeds::Feeds;
use super::reason::Reason;
use super::table::{Altered, Copying, Pending, Phase, State, Stream, Table};
use crate::columns::{Encoding, take_replaced};
use crate::decode::{
    Change, Relation, Sink, Transaction, fixed_attributes, identity_full, with_relation,
};
use crate::fail_point;
use crate::lake::{HistorySchema, Retry};

/// A change that takes more than this part of the memory allowed is written before the next one is
/// decoded: beside the change itself, Postgres holds it several times over while it decodes, and so
/// does the encoder.
const LARGE_CHANGE: usize = 16;

/// Why a table is copied although its history follows its columns.
const RETYPED: &str = "a column has another type";

/// The table whose row is being read; 0: none. A row that Postgres cannot print (larger than 1 GB as
/// text, not in the database's encoding) raises an error that ends the worker, which finds here
/// whose fault it was.
static READING: AtomicU32 = AtomicU32::new(0);

/// The table whose row was being read when an error ended decoding.
pub fn read_when_failed() -> Option<u32> {
    Some(READING.load(Ordering::Relaxed)).filter(|oid| *oid != 0)
}

/// What became of a change that a table was offered.
enum Outcome {
    /// It is in the builders, or was not needed.
    Taken,
    /// The builders hold enough for a batch.
    Full,
    /// The history has other columns, and no rows yet.
    Reshape,
    /// What is in the builders has to be sealed before others are made.
    Renew,
    /// The history gets other columns, and goes on.
    Evolve(HistorySchema),
    /// The history cannot go on as it is; the table is copied again.
    CopyAgain(&'static str),
    /// The table's data cannot be expressed.
    Failed(String),
}

impl Sink for Feeds {
    fn record(&mut self, end_lsn: u64, crc: u32) {
        if self.next_check <= end_lsn {
            self.check_histories(end_lsn, crc);
        }
        self.last_record = (end_lsn, crc);
    }

    fn change(&mut self, transaction: &Transaction, relation: &Relation, change: Change) {
        let oid = relation.oid();
        if oid == self.feeds_relation {
            self.note_feed(relation, change);
            return;
        }
        if oid == self.resyncs_relation {
            self.look_wanted = true;
            return;
        }
        if let Some(table) = relation.rewrite_of() {
            self.note_rewrite(transaction, table);
            return;
        }
        self.notice_partition(transaction, relation);
        let in_its_feed = self.tables.get(&oid).map(|table| {
            let excluded = matches!(table.state, State::Skipped(Reason::Excluded));
            !excluded && table.namespace == relation.namespace() && relation.is_table()
        });
        let taken = match in_its_feed {
            Some(true) => true,
            Some(false) => {
                self.miss(transaction, oid);
                false
            }
            None => self.adopt(transaction, relation),
        };
        if !taken {
            return;
        }
        let large = self.lake.budget().limit() / LARGE_CHANGE;
        match change.halves(large) {
            None => self.take(transaction, relation, change),
            Some(halves) => halves
                .into_iter()
                .for_each(|half| self.take(transaction, relation, half)),
        }
    }

    fn truncate(&mut self, transaction: &Transaction, relation: &Relation) {
        self.notice_partition(transaction, relation);
        self.copy_anew(relation.oid(), transaction, "truncated");
    }

    fn commit(&mut self, transaction: &Transaction) {
        fail_point::pass("decoded");
        self.unseen.push_back(transaction.xid);
        if self.unseen.len() > 1024 {
            self.all_visible();
        }
        self.settle_unproven(transaction);
        self.notice_partitions(transaction);
        self.open_fresh(transaction);
        if transaction.changes_catalog {
            self.created_since.get_or_insert(transaction.commit_lsn);
        }
        self.open_created(transaction);
    }

    fn wants_pause(&self) -> bool {
        self.look_wanted
    }
}

impl Feeds {
    /// A table that is known was not in its feed when it was changed, so that its history misses the
    /// change: it is excluded, it has left the schema, or a look, ahead of decoding, found that it will
    /// have come to it.
    fn miss(&mut self, transaction: &Transaction, oid: u32) {
        let Some(table) = self.tables.get(&oid) else {
            return;
        };
        let comes = transaction.commit_lsn < table.found_at;
        if matches!(table.state, State::Skipped(Reason::Excluded)) {
            self.note_missed(oid, transaction.end_lsn);
        } else if !comes {
            self.forget_tables(true, |table| table.oid == oid);
            self.note_missed(oid, transaction.end_lsn);
        } else if matches!(&table.state, State::Streaming(stream)
            if transaction.end_lsn > stream.settled)
        {
            self.copy_again(oid, transaction.commit_lsn, "it was not in the schema");
        }
    }

    /// A row of a table was written anew, with another value in some column: what its history has is
    /// not what the table holds. All rows are, in this transaction; the first one is enough.
    fn note_rewrite(&mut self, transaction: &Transaction, oid: u32) {
        if self.rewriting == Some((transaction.xid, oid)) {
            return;
        }
        self.rewriting = Some((transaction.xid, oid));
        if !self.tables.contains_key(&oid) {
            with_relation(oid, |relation| self.adopt(transaction, relation));
        }
        self.copy_anew(oid, transaction, "its rows were rewritten");
    }

    /// Has a table copied that a transaction made anew, unless its history has the transaction.
    fn copy_anew(&mut self, oid: u32, transaction: &Transaction, why: &'static str) {
        let due = match self.tables.get(&oid).map(|table| &table.state) {
            Some(State::Streaming(stream)) => transaction.end_lsn > stream.settled,
            Some(State::Snapshot(_)) => true,
            _ => false,
        };
        if due {
            self.copy_again(oid, transaction.commit_lsn, why);
        }
    }

    /// Takes a change, or half of one, into its table.
    fn take(&mut self, transaction: &Transaction, relation: &Relation, change: Change) {
        let oid = relation.oid();
        let large = self.lake.budget().limit() / LARGE_CHANGE;
        if transaction.changes_catalog && self.tables.get(&oid).is_some_and(|table| table.evolves) {
            self.mark_boundary(transaction, oid);
        }
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let before = table.building();
        READING.store(oid, Ordering::Relaxed);
        let outcome = match &mut table.state {
            State::Streaming(stream) => {
                match stream.offer(transaction, relation, change, table.evolves) {
                    Outcome::Evolve(schema) => {
                        stream.schema = Some(schema);
                        stream.evolved = true;
                        table.copies += 1;
                        return self.take(transaction, relation, change);
                    }
                    Outcome::Renew => {
                        self.seal(oid, false);
                        self.drop_builders(oid);
                        return self.take(transaction, relation, change);
                    }
                    Outcome::Reshape => {
                        self.reshape(oid, transaction);
                        return self.take(transaction, relation, change);
                    }
                    outcome => outcome,
                }
            }
            State::Snapshot(snapshot) => match &mut snapshot.phase {
                Phase::Queued => Outcome::Taken,
                Phase::Copying(copying) => copying.offer(transaction, relation, change),
            },
            State::Skipped(_) | State::Failed(_) | State::Paused(_) => Outcome::Taken,
        };
        READING.store(0, Ordering::Relaxed);
        table.shown.replaced += take_replaced();
        if let State::Streaming(stream) = &mut table.state
            && let Some(lsn) = stream.rewritten_by.take()
            && !relation.rewritten()
        {
            table.altered = Some(Altered {
                at: lsn,
                copies: table.copies,
                columns: None,
            });
        }
        let grown = table.building().saturating_sub(before);
        self.building = (self.building + table.building()).saturating_sub(before);
        let place = (oid, relation.storage_oid());
        if matches!(&table.state, State::Streaming(stream) if stream.unproven)
            && !self.unproven.contains(&place)
        {
            self.unproven.push(place);
        }
        if matches!(&table.state, State::Streaming(stream)
            if stream.history.is_none() && stream.writer.is_none() && stream.has_rows)
            && !self.fresh.contains(&oid)
        {
            self.fresh.push(oid);
        }
        if matches!(outcome, Outcome::CopyAgain(_)) {
            // The last look may be behind by now, or ahead; without FULL a copy has no use yet.
            let lacks = !relation.identity_full();
            table.note_reason(lacks.then(|| Reason::of_identity(relation)));
        }
        match outcome {
            Outcome::Taken | Outcome::Reshape | Outcome::Renew | Outcome::Evolve(_) => {}
            Outcome::Full => self.batch_full(oid),
            Outcome::CopyAgain(why) => self.copy_again(oid, transaction.commit_lsn, why),
            Outcome::Failed(error) => self.fail(oid, error, Retry::AfterChange),
        }
        if self.over_memory() || grown > large {
            self.relieve_memory();
        }
    }

    /// Notes that a feed starts or stops here; the look that follows does the rest.
    fn note_feed(&mut self, relation: &Relation, change: Change) {
        // SAFETY: the tuples are this change's.
        let key = |tuple| match unsafe { fixed_attributes(relation, tuple, FEED_KEY) } {
            [Some(namespace), Some(generation)] => Some((namespace as u32, generation)),
            _ => None,
        };
        let (old, new) = match change {
            Change::Insert { new } => (None, Some(new)),
            Change::Update { old, new } => (old, Some(new)),
            Change::Delete { old } => (old, None),
            // Rows of feeds are small.
            Change::Preimage { .. } | Change::Postimage { .. } => (None, None),
        };
        let (old, new) = (old.and_then(key), new.and_then(key));
        if old != new {
            self.stopped.extend(old);
            self.started.extend(new);
        } else {
            self.altered.extend(new.map(|(namespace, _)| namespace));
        }
        self.look_wanted = true;
    }

    /// Takes in a relation that no look has found yet, if all of its changes are in the WAL that is
    /// decoded, or its history tells where to go on. Any other is left to the next look.
    pub fn adopt(&mut self, transaction: &Transaction, relation: &Relation) -> bool {
        let oid = relation.oid();
        // One that is no table may become one, by DETACH PARTITION, say; then, as after a move from
        // another schema, its rows so far have to be copied.
        let feed = self.feeds.get(&relation.namespace());
        let Some(feed) = feed.filter(|_| relation.is_table()) else {
            self.not_whole.insert(oid);
            self.note_missed(oid, transaction.end_lsn);
            return false;
        };
        // SAFETY: in a decoding callback, which has a transaction.
        let name = unsafe { Encoding::of_database().to_string(relation.name().to_bytes()) };
        let state = self.resume(oid, relation.rewritten(), feed);
        let taken = matches!(&state, State::Streaming(_));
        if !taken
            || self.unreadable.contains(&oid)
            || feed.halt.is_some()
            || feed.row.options.exclude.contains(&name)
        {
            self.not_whole.insert(oid);
            return false;
        }
        let generation = self.generation(oid, feed);
        self.insert(Table::new(
            oid,
            relation.namespace(),
            name,
            generation,
            state,
        ));
        true
    }

    /// Tables whose rows came while their identity was not FULL: if it is at the end of the
    /// transaction (a table created from a query, say), nothing is missing; else they take no part.
    fn settle_unproven(&mut self, transaction: &Transaction) {
        for (oid, storage) in std::mem::take(&mut self.unproven) {
            let full = identity_full(storage);
            let Some(table) = self.tables.get_mut(&oid) else {
                continue;
            };
            let building = table.building();
            let State::Streaming(stream) = &mut table.state else {
                continue;
            };
            stream.unproven = false;
            if full {
                continue;
            }
            let reason = match storage == oid {
                true => Reason::NotFull,
                false => with_relation(storage, Reason::of_identity).unwrap_or(Reason::NotFull),
            };
            let begun = stream.history.is_some() || stream.writer.is_some();
            table.note_reason(Some(reason.clone()));
            if begun {
                self.copy_again(oid, transaction.commit_lsn, "replica identity is not FULL");
            } else {
                table.state = State::Skipped(reason);
                self.building = self.building.saturating_sub(building);
            }
        }
    }

    fn drop_builders(&mut self, oid: u32) {
        if let Some(table) = self.tables.get_mut(&oid)
            && let State::Streaming(stream) = &mut table.state
        {
            stream.buffer = None;
        }
    }

    fn batch_full(&mut self, oid: u32) {
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        match &mut table.state {
            State::Streaming(_) => self.seal(oid, false),
            State::Snapshot(snapshot) => {
                if let Phase::Copying(copying) = &mut snapshot.phase {
                    let bytes = copying.buffer.as_ref().map_or(0, Buffer::bytes);
                    copying.hold(&self.lake);
                    self.building = self.building.saturating_sub(bytes);
                }
            }
            _ => {}
        }
    }
}

impl Stream {
    fn offer(
        &mut self,
        transaction: &Transaction,
        relation: &Relation,
        change: Change,
        evolves: bool,
    ) -> Outcome {
        if transaction.end_lsn <= self.settled {
            return Outcome::Taken;
        }
        match change {
            Change::Insert { .. } if !relation.identity_full() => self.unproven = true,
            Change::Update { old: None, .. } | Change::Delete { old: None } => {
                return Outcome::CopyAgain("a change without its old row");
            }
            Change::Insert { .. } => {}
            _ if !relation.identity_full() => {
                return Outcome::CopyAgain("replica identity is not FULL");
            }
            _ => {}
        }
        if let Some(buffer) = &mut self.buffer
            && !buffer.fits(relation)
        {
            if self.has_rows {
                return self.renew(relation, evolves);
            }
            self.buffer = None;
        }
        if self.buffer.is_none() {
            match Buffer::new(relation) {
                Ok(buffer) => self.buffer = Some(buffer),
                Err(error) => return Outcome::Failed(error.to_string()),
            }
            if let (Some(schema), Some(buffer)) = (&self.schema, &self.buffer)
                && evolves
                && !schema.holds(buffer.schema())
            {
                let evolved = schema.evolve(buffer.schema());
                return match evolved.retyped && self.has_rows {
                    true => Outcome::CopyAgain(RETYPED),
                    false => Outcome::Evolve(evolved.schema),
                };
            }
            if let (Some(schema), Some(buffer)) = (&self.schema, &self.buffer)
                && !evolves
                && !compatible(schema, buffer.schema())
            {
                if !same_columns(schema, buffer.schema()) {
                    return match self.has_rows {
                        true => Outcome::CopyAgain("its columns have changed"),
                        false => Outcome::Reshape,
                    };
                }
                self.schema = Some(schema.with_nulls_of(buffer.schema()));
                self.evolved = true;
            }
        }
        let Some(buffer) = &mut self.buffer else {
            return Outcome::Taken;
        };
        if let Err(error) = buffer.append(transaction, relation, change) {
            return Outcome::Failed(error.to_string());
        }
        self.has_rows = true;
        let pending = self.pending.get_or_insert_with(|| Pending {
            first: transaction.commit_lsn,
            last_end: transaction.end_lsn,
            last_crc: transaction.crc,
            came: Instant::now(),
        });
        pending.last_end = transaction.end_lsn;
        pending.last_crc = transaction.crc;
        if buffer.is_full() {
            Outcome::Full
        } else {
            Outcome::Taken
        }
    }

    /// The relation is not as it was when the builders were made.
    fn renew(&self, relation: &Relation, evolves: bool) -> Outcome {
        let schema = self.schema.as_ref();
        let schema = schema.or(self.buffer.as_ref().map(Buffer::schema));
        match (Buffer::new(relation), schema) {
            (Ok(next), Some(schema)) if evolves => match schema.evolve(next.schema()).retyped {
                true => Outcome::CopyAgain(RETYPED),
                false => Outcome::Renew,
            },
            (Ok(next), Some(schema)) if same_columns(schema, next.schema()) => Outcome::Renew,
            (Ok(_), _) => Outcome::CopyAgain("its columns have changed"),
            (Err(error), _) => Outcome::Failed(error.to_string()),
        }
    }
}

impl Copying {
    fn offer(&mut self, transaction: &Transaction, relation: &Relation, change: Change) -> Outcome {
        if self
            .start
            .as_ref()
            .is_some_and(|start| start.seen.sees(transaction.xid))
        {
            return Outcome::Taken;
        }
        let lossy = match change {
            Change::Insert { .. } => false,
            // Under another identity the old row has its key columns only.
            Change::Update { old, .. } | Change::Delete { old } => {
                old.is_none() || !relation.identity_full()
            }
            Change::Preimage { .. } | Change::Postimage { .. } => !relation.identity_full(),
        };
        if lossy {
            return Outcome::CopyAgain("a change without its old row");
        }
        if self
            .buffer
            .as_mut()
            .is_some_and(|buffer| !buffer.fits(relation))
        {
            return Outcome::CopyAgain("its columns have changed");
        }
        if self.buffer.is_none() {
            match Buffer::new(relation) {
                Ok(buffer) => self.buffer = Some(buffer),
                Err(error) => return Outcome::Failed(error.to_string()),
            }
        }
        let Some(buffer) = &mut self.buffer else {
            return Outcome::Taken;
        };
        if let Err(error) = buffer.append(transaction, relation, change) {
            return Outcome::Failed(error.to_string());
        }
        self.last_end = transaction.end_lsn;
        if buffer.is_full() {
            Outcome::Full
        } else {
            Outcome::Taken
        }
    }
}
