//! Relations whose cached description has become void: what decoding sees change in the catalog.
//!
//! All invalidations of a transaction are executed before its commit callback, because each is in
//! the WAL as a record of its own (inval.c `LogLogicalInvalidations`). What other sessions do now
//! comes along; to look once too often is no harm.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Relations that are kept by name; with more, all count as changed.
const LIMIT: usize = 4096;

static COUNT: AtomicU64 = AtomicU64::new(1);

/// Never contended: only the main thread comes here.
static CHANGED: Mutex<Invalidated> = Mutex::new(Invalidated::All);

/// Relations that were invalidated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invalidated {
    /// Any of them may have been.
    All,
    /// These OIDs.
    These(Vec<u32>),
}

impl Invalidated {
    fn note(&mut self, relation: u32) {
        match self {
            Invalidated::These(relations) if relation != 0 && relations.len() < LIMIT => {
                if relations.last() != Some(&relation) {
                    relations.push(relation);
                }
            }
            _ => *self = Invalidated::All,
        }
    }
}

/// Has invalidations noted in this process; called once.
pub fn watch_invalidations() {
    // SAFETY: the callback is a static function; registered once per process (inval.c).
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(note), pg_sys::Datum::from(0)) };
}

#[pg_guard]
unsafe extern "C-unwind" fn note(_argument: pg_sys::Datum, relation: pg_sys::Oid) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    if let Ok(mut changed) = CHANGED.lock() {
        changed.note(relation.to_u32());
    }
}

/// Grows with each invalidation: what was looked up at this count still holds at the same one.
pub fn invalidation_count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// What was invalidated since the last call.
pub fn take_invalidated() -> Invalidated {
    match CHANGED.lock() {
        Ok(mut changed) => std::mem::replace(&mut *changed, Invalidated::These(Vec::new())),
        Err(_) => Invalidated::All,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_cache_and_too_many_are_all() {
        let mut noted = Invalidated::These(Vec::new());
        noted.note(5);
        noted.note(5);
        noted.note(7);
        assert_eq!(noted, Invalidated::These(vec![5, 7]));
        noted.note(0);
        assert_eq!(noted, Invalidated::All);
        noted.note(5);
        assert_eq!(noted, Invalidated::All);
        let mut many = Invalidated::These(Vec::new());
        (1..=LIMIT as u32 + 1).for_each(|relation| many.note(relation));
        assert_eq!(many, Invalidated::All);
    }
}
