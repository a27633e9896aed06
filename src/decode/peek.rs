//! Which tables there were at the point from which a slot decodes.
//!
//! The changes of a table that is created later are all in the WAL that is decoded; one that was
//! there before may have rows that are not. The catalog of today does not tell the two apart, the
//! historic catalog at the first commit after that point does.

use pgrx::pg_sys;
use std::collections::HashSet;
use std::time::Duration;

use super::historic::{creating_xid, scan_classes};
use super::partitions::{Roots, partition_roots};
use super::plugin::{Change, Relation, Sink, Transaction};
use super::stream::Decoder;
use crate::process;

/// What there was at the point from which a slot decodes.
#[derive(Clone, Debug, Default)]
pub struct Existing {
    /// OIDs of the tables, partitioned ones among them.
    pub tables: HashSet<u32>,
    /// The partitions.
    pub roots: Roots,
}

/// Looks at the historic catalog when the first transaction comes, and ignores everything else.
#[derive(Default)]
struct Peek {
    roots: Option<Roots>,
    existing: Option<Existing>,
}

impl Sink for Peek {
    fn record(&mut self, _: u64, _: u32) {}

    fn begin(&mut self) {
        // What the transaction detaches is not to be seen any more when it commits.
        if self.roots.is_none() {
            self.roots = Some(partition_roots());
        }
    }

    fn change(&mut self, _: &Transaction, _: &Relation, _: Change) {}

    fn truncate(&mut self, _: &Transaction, _: &Relation) {}

    fn commit(&mut self, transaction: &Transaction) {
        if self.existing.is_none() {
            self.existing = Some(Existing {
                tables: tables_before(transaction),
                roots: self.roots.take().unwrap_or_default(),
            });
        }
    }

    fn wants_pause(&self) -> bool {
        self.existing.is_some()
    }
}

/// What existed where the decoder stands, and the decoder, back where it was. `None` if nothing has
/// been committed from there to the end of the WAL, which is waited for until it is at least `until`:
/// then it is what there is today.
pub fn existing(mut decoder: Decoder, until: u64) -> (Decoder, Option<Existing>) {
    let mut peek = Peek::default();
    while peek.existing.is_none() {
        let at_end = decoder.run(&mut peek, Duration::from_secs(1));
        if at_end && decoder.position() >= until {
            break;
        }
        if at_end {
            process::wait(Duration::from_millis(10));
        }
    }
    (decoder.again(), peek.existing)
}

/// The tables of the historic catalog, without those that the transaction created.
///
/// It runs in the transaction's commit callback, where the catalog is as the transaction left it.
fn tables_before(transaction: &Transaction) -> HashSet<u32> {
    let mut tables = HashSet::new();
    scan_classes(|class| {
        let table = class.oid.to_u32();
        let kind = class.relkind as u8;
        if (kind == pg_sys::RELKIND_RELATION || kind == pg_sys::RELKIND_PARTITIONED_TABLE)
            && creating_xid(table) != Some(transaction.xid)
        {
            tables.insert(table);
        }
    });
    tables
}
