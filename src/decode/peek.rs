//! Which tables there were at the point from which a slot decodes.
//!
//! The changes of a table that is created later are all in the WAL that is decoded; one that was
//! there before may have rows that are not. The catalog of today does not tell the two apart, the
//! historic catalog at the first commit after that point does.

use pgrx::pg_sys;
use std::collections::HashSet;
use std::time::Duration;

use super::plugin::{Change, Relation, Sink, Transaction, creating_xid};
use super::stream::Decoder;
use crate::process;

/// Looks at the historic catalog when the first transaction commits, and ignores everything else.
#[derive(Default)]
struct Peek {
    tables: Option<HashSet<u32>>,
}

impl Sink for Peek {
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
    // SAFETY: the historic snapshot of the callback allows catalog scans; without a snapshot
    // given, the scan uses it (genam.c). The fixed part of a tuple is read before the scan goes on.
    unsafe {
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let relation = pg_sys::table_open(pg_sys::RelationRelationId, lock);
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::InvalidOid,
            false,
            std::ptr::null_mut(),
            0,
            std::ptr::null_mut(),
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let class = process::fixed_part::<pg_sys::FormData_pg_class>(tuple);
            let table = (*class).oid.to_u32();
            if (*class).relkind as u8 == pg_sys::RELKIND_RELATION
                && creating_xid(table) != Some(transaction.xid)
            {
                tables.insert(table);
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, lock);
    }
    tables
}
