//! The SQL functions. They run in foreground backends: they check, write one row, and wait for the
//! feed worker where that is what they promise; none of them decodes or writes to a destination
//! (beyond making and probing it).

mod alter;
mod caller;
mod catalog;
mod check;
mod feeds;
mod flush;
mod optimize;
mod options;
mod place;
mod start;
mod states;
mod worker;

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::time::Duration;

/// Longest wait between two looks at what the worker says.
const POLL: Duration = Duration::from_millis(20);

fn report(code: PgSqlErrorCode, message: impl Into<String>, hint: impl Into<String>) -> ! {
    ErrorReport::new(code, message.into(), "wal2delta")
        .set_hint(hint.into())
        .report(PgLogLevel::ERROR);
    unreachable!("an error report of level ERROR does not return")
}

const PRELOAD_HINT: &str =
    "Add wal2delta to shared_preload_libraries in postgresql.conf and restart the server.";
const WAL_LEVEL_HINT: &str = "Set wal_level = logical in postgresql.conf and restart the server.";
const SLOT_HINT: &str = "Raise max_replication_slots in postgresql.conf and restart the server, or drop a slot that is not used.";
const WORKERS_HINT: &str = "Raise max_worker_processes in postgresql.conf and restart the server.";

fn my_database() -> u32 {
    // SAFETY: set when the session connected.
    unsafe { pg_sys::MyDatabaseId.to_u32() }
}
