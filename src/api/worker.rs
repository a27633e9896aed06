//! The database's slot and worker, as `start` needs them.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::{POLL, SLOT_HINT, WORKERS_HINT, my_database, report};
use crate::decode::Slot;
use crate::launcher;
use crate::process;
use crate::shared;

/// That the database has a slot, or can get one in this transaction.
pub(super) fn check_slot(database: u32) {
    if Slot::is_persistent(database) {
        return;
    }
    if !Slot::exists(database) && !free_slot() {
        report(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            "all replication slots are in use",
            SLOT_HINT,
        );
    }
    check_has_not_written();
}

/// A slot cannot be created while this transaction, which waits for it, has written.
fn check_has_not_written() {
    // SAFETY: asks for the transaction's id without assigning one.
    if unsafe { pg_sys::GetTopTransactionIdIfAny() } != pg_sys::InvalidTransactionId {
        report(
            PgSqlErrorCode::ERRCODE_ACTIVE_SQL_TRANSACTION,
            "cannot start the first feed of a database in a transaction that has performed writes",
            "Commit first, then call wal2delta.start() in a transaction of its own: \
             its replication slot has to wait for all transactions that write.",
        );
    }
}

pub(super) fn free_slot() -> bool {
    // SAFETY: reads the slots' array in shared memory without its lock: a race changes only
    // whether this check or the creation of the slot raises the error.
    unsafe {
        let count = pg_sys::max_replication_slots as usize;
        let first = (&raw const (*pg_sys::ReplicationSlotCtl).replication_slots)
            .cast::<pg_sys::ReplicationSlot>();
        (0..count).any(|index| !(*first.add(index)).in_use)
    }
}

/// Holds the database's worker while this transaction may still bring a feed.
pub(super) fn wait_for_worker(database: u32) {
    let launcher = {
        let mut state = shared::lock();
        let Some(entry) = state.database_or_new(database) else {
            drop(state);
            report(
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                format!("{} databases have feeds already", shared::MAX_DATABASES),
                "Stop the feeds of another database.",
            );
        };
        entry.wanted = true;
        entry.starters += 1;
        entry.starts += 1;
        if !entry.ready {
            entry.error.set("");
        }
        state.launcher_pid
    };
    STARTING.with(|starting| starting.set(starting.get() + 1));
    register_end_of_transaction();
    shared::wake(launcher);
    loop {
        let (ready, error) = match shared::lock().database(database) {
            Some(entry) => (entry.ready, entry.error.get()),
            None => (false, "the feed worker left".into()),
        };
        if ready {
            return;
        }
        if error == launcher::NO_WORKER {
            report(
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                error,
                WORKERS_HINT,
            );
        }
        if !error.is_empty() {
            report(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("the feed worker could not start: {error}"),
                "SELECT * FROM wal2delta.check() tells what is missing; the server log has more.",
            );
        }
        // The slot of an earlier feed may have been dropped since it was checked.
        if !Slot::is_persistent(database) {
            check_has_not_written();
        }
        process::wait(POLL);
    }
}

thread_local! {
    /// Calls of `start` in the current transaction.
    static STARTING: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn register_end_of_transaction() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: a static function, registered once per session (xact.c).
        unsafe { pg_sys::RegisterXactCallback(Some(end_of_transaction), std::ptr::null_mut()) }
    });
}

/// Lets the worker go that `start` has held: with a feed committed it stays by itself.
#[pg_guard]
unsafe extern "C-unwind" fn end_of_transaction(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    if event == XACT_EVENT_PRE_PREPARE && STARTING.with(std::cell::Cell::get) > 0 {
        report(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "cannot PREPARE a transaction that has started a feed",
            "COMMIT it, or start the feed in a transaction of its own.",
        );
    }
    if !matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT) {
        return;
    }
    let held = STARTING.with(|starting| starting.replace(0));
    if held == 0 {
        return;
    }
    let mut state = shared::lock();
    let Some(entry) = state.database(my_database()) else {
        return;
    };
    entry.starters = entry.starters.saturating_sub(held);
    // The slot that the worker waits for is of no use any more, and could be long in coming.
    let needless = event == XACT_EVENT_ABORT && entry.starters == 0 && entry.for_start_alone;
    let worker = entry.worker_pid;
    drop(state);
    if needless && worker != 0 {
        process::terminate(worker);
    }
}
