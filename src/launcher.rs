//! The launcher: one background worker per cluster that keeps a feed worker running in each
//! database that has feeds. It connects to no database.
//!
//! After a start of the server it cannot know which databases have feeds, so it starts a feed
//! worker in each, one after another; one that finds no feeds leaves at once.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use crate::process::{self, Handle, Restart};
use crate::shared::{self, Database};

/// First and longest pause before a feed worker that ended is started again.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Error of a database whose worker found no place.
pub const NO_WORKER: &str = "no background worker is free for the feed worker";

/// How long the next database waits for the worker of the one before.
const LOOK_LIMIT: Duration = Duration::from_secs(10);

/// Registers the launcher with the postmaster; called while the library is preloaded.
pub fn register() {
    let mut worker = process::describe(
        "wal2delta launcher",
        "wal2delta_launcher_main",
        0,
        Restart::After(1),
        0,
    );
    // SAFETY: called from _PG_init under shared_preload_libraries, the only place allowed.
    unsafe { pg_sys::RegisterBackgroundWorker(&mut worker) };
}

/// A feed worker as the launcher sees it.
struct Child {
    handle: Option<Handle>,
    started: Instant,
    pause: Duration,
}

/// Entry point of the launcher process.
#[unsafe(no_mangle)]
#[pg_guard]
pub extern "C-unwind" fn wal2delta_launcher_main(_argument: pg_sys::Datum) {
    process::install_signal_handlers();
    // SAFETY: first thing after the handlers, once, as bgworker.c demands; no database, only the
    // shared catalogs.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(
            pg_sys::InvalidOid,
            pg_sys::InvalidOid,
            0,
        );
        pg_sys::before_shmem_exit(Some(forget_launcher), pg_sys::Datum::from(0));
    }
    shared::lock().launcher_pid = process::my_pid();

    let mut unseen: VecDeque<u32> = databases().into();
    let mut looking: Option<u32> = None;
    let mut children: HashMap<u32, Child> = HashMap::new();
    loop {
        process::reload_configuration();
        look_into_next(&mut looking, &mut unseen, &children);
        let next = tend(&mut children);
        process::wait(if looking.is_some() {
            next.min(PAUSES.0)
        } else {
            next
        });
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn forget_launcher(_code: i32, _argument: pg_sys::Datum) {
    shared::lock().launcher_pid = 0;
}

/// Has a worker look for feeds in one more database, if no such look is under way: until the worker
/// found feeds, left, or failed.
fn look_into_next(
    looking: &mut Option<u32>,
    unseen: &mut VecDeque<u32>,
    children: &HashMap<u32, Child>,
) {
    // One that waits for long, for transactions to end, does not hold up the others.
    let child = looking.and_then(|database| children.get(&database));
    let ended = child.is_some_and(|child| {
        child.started.elapsed() > LOOK_LIMIT || child.handle.as_ref().is_some_and(Handle::stopped)
    });
    let mut state = shared::lock();
    let under_way = looking.is_some_and(|database| {
        let waits = state
            .database(database)
            .is_some_and(|entry| !entry.ready && entry.error.is_empty());
        waits && !ended
    });
    if under_way {
        return;
    }
    *looking = unseen.pop_front();
    if let Some(database) = *looking
        && let Some(entry) = state.database_or_new(database)
    {
        // Without an entry left, that many databases have feeds already.
        entry.wanted = true;
    }
}

/// Starts what is wanted and not running; returns how long to wait at most.
fn tend(children: &mut HashMap<u32, Child>) -> Duration {
    let entries: Vec<Database> = shared::lock()
        .databases
        .iter()
        .filter(|entry| entry.oid != 0 && entry.wanted)
        .copied()
        .collect();
    let wanted: Vec<(u32, bool, bool)> = entries
        .iter()
        .filter(|entry| entry.withheld_by == 0 || !process::runs(entry.withheld_by))
        .map(|entry| (entry.oid, entry.worker_pid != 0, entry.ready))
        .collect();
    children.retain(|oid, child| {
        wanted.iter().any(|(wanted, ..)| wanted == oid)
            || child
                .handle
                .as_ref()
                .is_some_and(|handle| !handle.stopped())
    });
    let mut next = PAUSES.1;
    for (database, running, ready) in wanted {
        let child = children.entry(database).or_insert_with(|| Child {
            handle: None,
            started: Instant::now(),
            pause: Duration::ZERO,
        });
        let stopped = child.handle.as_ref().is_none_or(Handle::stopped);
        if running || !stopped {
            // A worker that got to decoding has earned a quick restart.
            if ready {
                child.pause = PAUSES.0;
            }
            continue;
        }
        let waited = child.started.elapsed();
        if child.handle.is_some() && waited < child.pause {
            next = next.min(child.pause - waited);
            continue;
        }
        if child.handle.is_some() && !databases().contains(&database) {
            shared::lock().forget_database(database);
            continue;
        }
        child.pause = (child.pause * 2).clamp(PAUSES.0, PAUSES.1);
        child.started = Instant::now();
        start_feed_worker(database, child);
        next = next.min(child.pause);
    }
    next
}

fn start_feed_worker(database: u32, child: &mut Child) {
    let worker = process::describe(
        &format!("wal2delta feed worker {database}"),
        "wal2delta_feed_main",
        database,
        Restart::Never,
        process::my_pid(),
    );
    child.handle = Handle::start(worker);
    if child.handle.is_none()
        && let Some(entry) = shared::lock().database(database)
    {
        entry.error.set(NO_WORKER);
    }
}

/// OIDs of the databases that may be connected to and are no templates.
fn databases() -> Vec<u32> {
    // SAFETY: a scan of a shared catalog as autovacuum.c get_database_list does it; the tuple's
    // fixed part is read before the scan goes on.
    process::in_transaction(|| unsafe {
        let mut found = Vec::new();
        let relation = pg_sys::table_open(
            pg_sys::DatabaseRelationId,
            pg_sys::AccessShareLock as pg_sys::LOCKMODE,
        );
        let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let row = process::fixed_part::<pg_sys::FormData_pg_database>(tuple);
            // An interrupted DROP DATABASE leaves a limit of -2 (pg_database.h).
            let valid = (*row).datconnlimit != -2;
            if valid && (*row).datallowconn && !(*row).datistemplate {
                found.push((*row).oid.to_u32());
            }
        }
        pg_sys::table_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        found
    })
}
