//! The catalog as of the change that is being decoded. Everything here is called where a historic
//! snapshot is set and allows catalog access: within a callback (reorderbuffer.c), or with
//! `Decoder::with_historic_catalog`.

use pgrx::pg_sys;
use std::collections::HashSet;

use super::partitions::Roots;
use super::plugin::Relation;
use crate::process;

/// Shows every row of `pg_class` to `visit`.
pub(super) fn scan_classes(mut visit: impl FnMut(&pg_sys::FormData_pg_class)) {
    // SAFETY: without a snapshot given, the scan uses the historic one (genam.c). The fixed part of
    // a tuple is read before the scan goes on.
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
            visit(&*process::fixed_part::<pg_sys::FormData_pg_class>(tuple));
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, lock);
    }
}

/// OIDs of the tables in schemas that `of_interest` says yes to whose changes are whole in the WAL:
/// ordinary ones with REPLICA IDENTITY FULL, and partitioned ones that have partitions, all with it.
/// `roots`: the partitions of now.
pub fn full_tables(of_interest: impl Fn(u32) -> bool, roots: &Roots) -> Vec<u32> {
    let mut tables = Vec::new();
    let divided: HashSet<u32> = roots.values().copied().collect();
    let mut lacking: HashSet<u32> = HashSet::new();
    scan_classes(|class| {
        let (oid, kind) = (class.oid.to_u32(), class.relkind as u8);
        let full = class.relreplident as u8 == pg_sys::REPLICA_IDENTITY_FULL
            && class.relpersistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT
            && kind == pg_sys::RELKIND_RELATION;
        let partitioned = kind == pg_sys::RELKIND_PARTITIONED_TABLE;
        if class.relispartition {
            if !full && !partitioned {
                lacking.extend(roots.get(&oid));
            }
        } else if (full || partitioned && divided.contains(&oid))
            && of_interest(class.relnamespace.to_u32())
        {
            tables.push(oid);
        }
    });
    tables.retain(|table| !lacking.contains(table));
    tables
}

/// Reads the row of `pg_class` of a relation; `None` if there is none.
fn with_class<R>(relation: u32, read: impl FnOnce(&pg_sys::FormData_pg_class) -> R) -> Option<R> {
    // SAFETY: a catalog look-up; the tuple is released after it was read.
    unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID as i32,
            pg_sys::Datum::from(relation),
        );
        if tuple.is_null() {
            return None;
        }
        let result = read(&*process::fixed_part::<pg_sys::FormData_pg_class>(tuple));
        pg_sys::ReleaseSysCache(tuple);
        Some(result)
    }
}

/// Whether a relation has REPLICA IDENTITY FULL.
pub fn identity_full(relation: u32) -> bool {
    let full = |class: &pg_sys::FormData_pg_class| {
        class.relreplident as u8 == pg_sys::REPLICA_IDENTITY_FULL
    };
    with_class(relation, full).unwrap_or(false)
}

/// Whether a relation is a partitioned table.
pub fn is_partitioned(relation: u32) -> bool {
    let kind = with_class(relation, |class| class.relkind as u8);
    kind == Some(pg_sys::RELKIND_PARTITIONED_TABLE)
}

/// Whether the storage of a relation has been replaced since it was created.
pub fn rewritten(relation: u32) -> bool {
    with_class(relation, |class| class.relfilenode != class.oid).unwrap_or(false)
}

/// Opens a relation for `work`; `None` if the catalog does not have it.
pub fn with_relation<R>(relation: u32, work: impl FnOnce(&Relation) -> R) -> Option<R> {
    // SAFETY: as decoding itself opens relations; it is closed again before returning. An ERROR in
    // between ends the worker.
    unsafe {
        let opened = pg_sys::RelationIdGetRelation(pg_sys::Oid::from(relation));
        if opened.is_null() {
            return None;
        }
        let result = work(&Relation::of(opened));
        pg_sys::RelationClose(opened);
        Some(result)
    }
}
