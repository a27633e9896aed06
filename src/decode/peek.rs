//! Which tables there were at the point from which a slot decodes.
//!
//! The changes of a table that is created later are all in the WAL that is decoded; one that was
//! there before may have rows that are not. The catalog of today does not tell the two apart, the
//! historic catalog at that point does.

use pgrx::pg_sys;
use std::collections::HashSet;

use super::historic::scan_classes;
use super::partitions::{Roots, partition_roots};
use super::plugin::{Change, Relation, Sink, Transaction};
use super::stream::Decoder;

/// What there was at the point from which a slot decodes.
#[derive(Clone, Debug, Default)]
pub struct Existing {
    /// OIDs of the tables, partitioned ones among them.
    pub tables: HashSet<u32>,
    /// The partitions.
    pub roots: Roots,
}

/// Of what is before that point nothing is handed over (snapbuild.c `SnapBuildXactNeedsSkip`).
struct Nothing;

impl Sink for Nothing {
    fn record(&mut self, _: u64, _: u32) {}

    fn change(&mut self, _: &Transaction, _: &Relation, _: Change) {}

    fn truncate(&mut self, _: &Transaction, _: &Relation) {}

    fn commit(&mut self, _: &Transaction) {}

    fn wants_pause(&self) -> bool {
        false
    }
}

/// What existed where the slot of a new decoder stands, and a decoder that has decoded nothing: its user
/// has to see the records before that point, too.
pub fn existing(mut decoder: Decoder) -> (Decoder, Existing) {
    decoder.pass_confirmed(&mut Nothing);
    let existing = decoder.with_historic_catalog(|| Existing {
        tables: tables(),
        roots: partition_roots(),
    });
    (decoder.again(), existing)
}

/// The tables of the historic catalog.
fn tables() -> HashSet<u32> {
    let mut tables = HashSet::new();
    scan_classes(|class| {
        let kind = class.relkind as u8;
        if kind == pg_sys::RELKIND_RELATION || kind == pg_sys::RELKIND_PARTITIONED_TABLE {
            tables.insert(class.oid.to_u32());
        }
    });
    tables
}
