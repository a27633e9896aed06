//! `flush`.

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::{Duration, Instant};

use super::caller::check_running;
use super::catalog::count_feeds;
use super::{POLL, my_database, report};
use crate::decode::{insert_position, lsn_text};
use crate::process;
use crate::shared::{self, Status};

/// `wal2delta.flush(timeout)`
#[pg_extern(sql = false)]
fn flush(timeout: pgrx::datum::Interval) -> i64 {
    check_running();
    let database = my_database();
    let feeds = count_feeds();
    if feeds == 0 {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "no schema of this database is fed",
            "Start a feed with wal2delta.start().",
        );
    }
    let deadline = Instant::now() + Duration::from_micros(timeout.as_micros().max(0) as u64);
    let asked = insert_position();
    // A commit may be visible before it is on disk (synchronous_commit = off), and decoding reads
    // only what is on disk.
    // SAFETY: flushes WAL that exists already.
    unsafe { pg_sys::XLogFlush(asked) };
    loop {
        let (durable, worker) = {
            let mut state = shared::lock();
            match state.database_or_new(database) {
                Some(entry) => {
                    entry.flush_lsn = entry.flush_lsn.max(asked);
                    (
                        if entry.ready { entry.durable_lsn } else { 0 },
                        entry.worker_pid,
                    )
                }
                None => (0, 0),
            }
        };
        if durable >= asked {
            break;
        }
        shared::wake(worker);
        if Instant::now() >= deadline {
            ErrorReport::new(
                PgSqlErrorCode::ERRCODE_QUERY_CANCELED,
                "not everything was written to Delta within the timeout",
                "flush",
            )
            .set_detail(behind(database, durable, asked))
            .set_hint(
                "The feed goes on; see the view wal2delta.tables, or call with a longer timeout.",
            )
            .report(PgLogLevel::ERROR);
        }
        process::wait(POLL);
    }
    warn_of_left_out(database);
    asked as i64
}

/// What `flush` was waiting for.
fn behind(database: u32, durable: u64, asked: u64) -> String {
    let mut state = shared::lock();
    let running = state.database(database).is_some_and(|entry| entry.ready);
    let mut names = Vec::new();
    for table in state
        .tables()
        .iter()
        .filter(|table| table.database == database)
    {
        let late = table.status == Status::Snapshotting
            || table.status == Status::Failed
            || (table.committed_lsn != 0 && table.committed_lsn < asked);
        if late && names.len() < 10 {
            names.push((table.table, table.status));
        }
    }
    drop(state);
    if !running {
        return "The feed worker of this database does not run.".into();
    }
    let names: Vec<String> = names
        .into_iter()
        .map(|(oid, status)| format!("{} ({})", relation_name(oid), status.word()))
        .collect();
    format!(
        "Written up to {}, asked for {}; behind: {}.",
        lsn_text(durable),
        lsn_text(asked),
        if names.is_empty() {
            "decoding".into()
        } else {
            names.join(", ")
        }
    )
}

fn warn_of_left_out(database: u32) {
    for (status, which) in [
        (Status::Failed, "tables that cannot be fed"),
        (Status::Paused, "tables of paused feeds"),
    ] {
        let left_out: Vec<u32> = shared::lock()
            .tables()
            .iter()
            .filter(|table| table.database == database && table.status == status)
            .map(|table| table.table)
            .take(10)
            .collect();
        if !left_out.is_empty() {
            let names: Vec<String> = left_out.into_iter().map(relation_name).collect();
            warning!("{which} were left out: {}", names.join(", "));
        }
    }
}

fn relation_name(oid: u32) -> String {
    // SAFETY: returns a palloc'd string, or null when there is no such relation.
    unsafe {
        let name = pg_sys::get_rel_name(pg_sys::Oid::from(oid));
        if name.is_null() {
            return format!("OID {oid}");
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}
