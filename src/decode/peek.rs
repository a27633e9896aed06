//! Which tables there were at the point from which a slot decodes.
//!
//! The changes of a table that is created later are all in the WAL that is decoded; one that was
//! there before may have rows that are not. The catalog of today does not tell the two apart, the
//! historic catalog at the first commit after that point does.

use pgrx::pg_sys;
use std::collections::HashSet;
use std::time::Duration;

use super::historic::{creating_xid, scan_classes};
use super::plugin::{Change, Relation, Sink, Transaction};
use super::stream::Decoder;
use crate::process;

/// Looks at the historic catalog when the first transaction commits, and ignores everything else.
#[derive(Default)]
struct Peek {
    tables: Option<HashSet<u32>>,
}

impl Sink for Peek {
    fn record(&mut self, _: u64, _: u32) {}

    fn change(&mut self, _: &Transaction, _: &Relation, _: Change) {}

    fn truncate(&mut self, _: &Transaction, _: &[Relation]) {}

    fn commit(&mut self, transaction: &Transaction) {
        if self.tables.is_none() {
            self.tables = Some(tables_before(transaction));
        }
    }

    fn wants_pause(&self) -> bool {
        self.tables.is_some()
    }
}

/// OIDs of the tables that existed where the decoder stands, and the decoder, back where it was.
/// `None` if nothing has been committed from there to the end of the WAL, which is waited for until
/// it is at least `until`: then they are the tables of today.
pub fn existing_tables(mut decoder: Decoder, until: u64) -> (Decoder, Option<HashSet<u32>>) {
    let mut peek = Peek::default();
    while peek.tables.is_none() {
        let at_end = decoder.run(&mut peek, Duration::from_secs(1));
        if at_end && decoder.position() >= until {
            break;
        }
        if at_end {
            process::wait(Duration::from_millis(10));
        }
    }
    (decoder.again(), peek.tables)
}

/// The ordinary tables of the historic catalog, without those that the transaction created.
///
/// It runs in the transaction's commit callback, where the catalog is as the transaction left it.
fn tables_before(transaction: &Transaction) -> HashSet<u32> {
    let mut tables = HashSet::new();
    scan_classes(|class| {
        let table = class.oid.to_u32();
        if class.relkind as u8 == pg_sys::RELKIND_RELATION
            && creating_xid(table) != Some(transaction.xid)
        {
            tables.insert(table);
        }
    });
    tables
}
