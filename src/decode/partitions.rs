//! Which partition belongs to which partitioned table, in the catalog as of the change that is being
//! decoded. Only leaves have rows; to a reader of changes they are rows of the root.

use pgrx::pg_sys;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::HashMap;

use super::historic::is_partitioned;
use super::invalidations::invalidation_count;
use crate::process;

/// pg_inherits and its index by child (pg_inherits.h), which pgrx does not bind.
const INHERITS: u32 = 2611;
const INHERITS_BY_CHILD: u32 = 2680;

/// The fixed part of a row of pg_inherits (pg_inherits.h).
#[repr(C)]
struct Inherits {
    child: pg_sys::Oid,
    parent: pg_sys::Oid,
    number: i32,
    detach_pending: bool,
}

/// Partitions, each with the root of its tree. Looked up for each change.
pub type Roots = FxHashMap<u32, u32>;

/// The roots of partitions that had changes, and the count of invalidations at which they were looked
/// up.
type Known = (u64, HashMap<u32, Option<u32>>);

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::new((0, HashMap::new()));
}

/// The root of the tree that a partition is in; `None` if it is in none, or is being detached
/// concurrently. Within a callback.
pub(super) fn root_of(partition: u32) -> Option<u32> {
    let count = invalidation_count();
    let known = KNOWN.with_borrow(|(at, roots)| match *at == count {
        true => roots.get(&partition).copied(),
        false => None,
    });
    if let Some(root) = known {
        return root;
    }
    let mut root = None;
    let mut child = partition;
    while let Some(parent) = parent_of(child) {
        root = Some(parent);
        child = parent;
    }
    KNOWN.with_borrow_mut(|(at, roots)| {
        // The look-up itself may have brought invalidations.
        if *at != count {
            roots.clear();
            *at = count;
        }
        roots.insert(partition, root);
    });
    root
}

fn parent_of(child: u32) -> Option<u32> {
    let mut parent = None;
    scan(Some(child), |row| {
        parent = Some(row.parent.to_u32());
    });
    parent.filter(|parent| is_partitioned(*parent))
}

/// All partitions of tables, with their roots. Those being detached concurrently are not in it.
/// With a historic snapshot.
pub fn partition_roots() -> Roots {
    let mut parents = Vec::new();
    scan(None, |row| {
        parents.push((row.child.to_u32(), row.parent.to_u32()));
    });
    let mut partitioned = HashMap::new();
    let of_table = |(_, parent): &(u32, u32)| {
        *partitioned
            .entry(*parent)
            .or_insert_with(|| is_partitioned(*parent))
    };
    roots(parents.into_iter().filter(of_table).collect())
}

/// From each one's parent to its root.
fn roots(parents: HashMap<u32, u32>) -> Roots {
    let root = |child: &u32| {
        let mut top = *child;
        while let Some(parent) = parents.get(&top) {
            top = *parent;
        }
        top
    };
    parents.keys().map(|child| (*child, root(child))).collect()
}

/// Shows rows of pg_inherits whose child is not being detached.
fn scan(child: Option<u32>, mut visit: impl FnMut(&Inherits)) {
    // SAFETY: without a snapshot given, the scan uses the historic one (genam.c). The fixed part of a
    // tuple is read before the scan goes on. A child that is a partition has one parent.
    unsafe {
        let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
        let relation = pg_sys::table_open(pg_sys::Oid::from(INHERITS), lock);
        let mut key: pg_sys::ScanKeyData = std::mem::zeroed();
        let keys = match child {
            Some(child) => {
                pg_sys::ScanKeyInit(
                    &mut key,
                    1,
                    pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
                    pg_sys::RegProcedure::from(pg_sys::F_OIDEQ),
                    pg_sys::Datum::from(child),
                );
                1
            }
            None => 0,
        };
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::Oid::from(INHERITS_BY_CHILD),
            child.is_some(),
            std::ptr::null_mut(),
            keys,
            &mut key,
        );
        loop {
            let tuple = pg_sys::systable_getnext(scan);
            if tuple.is_null() {
                break;
            }
            let row = &*process::fixed_part::<Inherits>(tuple);
            if !row.detach_pending {
                visit(row);
            }
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(relation, lock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_the_top() {
        let found = roots(HashMap::from([(2, 1), (3, 1), (4, 3), (5, 4), (20, 10)]));
        assert_eq!(
            found,
            Roots::from_iter([(2, 1), (3, 1), (4, 1), (5, 1), (20, 10)])
        );
    }
}
