//! The snapshot worker: a background worker that copies the rows of one table after another into
//! data files. It commits nothing to Delta; the feed worker does, together with the changes that
//! came meanwhile.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::time::Duration;

use super::assistants::assist;
use super::copier::MEMORY;
use super::copy_table::{copy_table, lock, storages};
use super::job::Files;
use super::worker::adopt_settings;
use crate::lake::{Lake, LakeConfig};
use crate::process;
use crate::settings;
use crate::shared::{self, LaneState};

/// Arrow data in one data file.
const FILE_BYTES: usize = 256 << 20;
/// How long a worker whose copy failed takes to remove the data files that it has stored.
const CLEAN_UP: Duration = Duration::from_secs(5);
/// Pause before another try to lock a table and its partitions.
const LOCKED: Duration = Duration::from_millis(200);
/// A worker without a job leaves after this time.
const IDLE: Duration = Duration::from_secs(5);

/// Entry point of a snapshot worker; the argument is its lane in shared memory.
#[unsafe(no_mangle)]
#[pg_guard]
pub extern "C-unwind" fn wal2delta_snapshot_main(argument: pg_sys::Datum) {
    process::install_signal_handlers();
    let lane = argument.value();
    let (database, owner) = {
        let mut state = shared::lock();
        let entry = &mut state.lanes[lane];
        if entry.owner_pid == 0 || entry.worker_pid != 0 {
            return;
        }
        entry.worker_pid = process::my_pid();
        (entry.database, entry.owner_pid)
    };
    // SAFETY: the argument is this worker's lane; called once.
    unsafe { pg_sys::before_shmem_exit(Some(leave), argument) };
    // SAFETY: once, after the signal handlers, as bgworker.c demands.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(
            pg_sys::Oid::from(database),
            pg_sys::InvalidOid,
            0,
        );
    }
    adopt_settings();
    let lake = Lake::start(
        LakeConfig {
            home: process::home(),
            max_memory: MEMORY,
            target_file_bytes: FILE_BYTES,
            staging_limit: settings::staging_limit(),
            // It commits nothing.
            upkeep: settings::upkeep(),
        },
        process::waker(),
    )
    .unwrap_or_else(|error| error!("could not start the writer threads: {error}"));
    let files = Files::of(database, lane);
    let mut idle = std::time::Instant::now();
    while owned_by(lane, owner) {
        if shared::lock().lanes[lane].state != LaneState::Wanted {
            if idle.elapsed() > IDLE {
                break;
            }
            process::wait(Duration::from_millis(200));
            continue;
        }
        let outcome = PgTryBuilder::new(std::panic::AssertUnwindSafe(|| copy(lane, &files, &lake)))
            .catch_others(|error| Err(End::Failed(message(&error))))
            .catch_rust_panic(|error| Err(End::Failed(message(&error))))
            .execute();
        if let Err(end) = outcome {
            // Locks go at once; what was stored for nothing after that.
            // SAFETY: outside of any callback; it cleans up whatever the transaction's state is.
            unsafe { pg_sys::AbortOutOfAnyTransaction() };
            let begun = std::time::Instant::now();
            while lake.has_open_tables() && begun.elapsed() < CLEAN_UP {
                process::wait(Duration::from_millis(20));
            }
            let mut state = shared::lock();
            let entry = &mut state.lanes[lane];
            entry.state = match end {
                End::GaveWay => LaneState::GaveWay,
                End::Unfit(error) => {
                    entry.error.set(&error);
                    LaneState::Unfit
                }
                End::Failed(error) => {
                    entry.error.set(&error);
                    LaneState::Failed
                }
            };
            drop(state);
            shared::wake(owner);
            break;
        }
        shared::lock().lanes[lane].state = LaneState::Done;
        shared::wake(owner);
        idle = std::time::Instant::now();
    }
    lake.shutdown();
}

/// Why a copy ended before its time.
pub(super) enum End {
    /// It failed.
    Failed(String),
    /// The table's columns or rows have no place in Delta.
    Unfit(String),
    /// A statement waited for the table's lock.
    GaveWay,
}

impl From<String> for End {
    fn from(error: String) -> End {
        End::Failed(error)
    }
}

fn message(error: &pg_sys::panic::CaughtError) -> String {
    use pg_sys::panic::CaughtError;
    match error {
        CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic {
            ereport: report, ..
        } => match report.detail() {
            Some(detail) => format!("{}: {detail}", report.message()),
            None => report.message().to_owned(),
        },
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, argument: pg_sys::Datum) {
    let lane = argument.value();
    let mut state = shared::lock();
    state.lanes[lane].worker_pid = 0;
    // Assistants of its own leave, too.
    let own = process::my_pid();
    for entry in state
        .lanes
        .iter_mut()
        .filter(|entry| entry.owner_pid == own)
    {
        entry.owner_pid = 0;
    }
    for entry in &mut state.lanes {
        if entry.owner_pid == 0 && entry.worker_pid == 0 {
            entry.database = 0;
        }
    }
}

/// Whether the feed worker that gave the job still runs and still wants it.
pub(super) fn owned_by(lane: usize, owner: i32) -> bool {
    let owned = shared::lock().lanes[lane].owner_pid == owner;
    owned && process::runs(owner)
}

/// Begins the transaction of a copy, which takes its one snapshot after its locks.
fn begin() {
    // SAFETY: a transaction of this worker's own; every call is made in the order that portions of the
    // server itself use (worker_spi.c, copyto.c). Errors unwind to the caller, which ends the process.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::XactIsoLevel = pg_sys::XACT_REPEATABLE_READ as i32;
        pg_sys::XactReadOnly = true;
    }
}

/// Copies the table of the lane's job, or pages of another worker's.
fn copy(lane: usize, files: &Files, lake: &Lake) -> Result<(), End> {
    let job = files
        .read_job()
        .map_err(|error| format!("could not read the job: {error}"))?;
    if let Some(of_another) = &job.assist {
        begin();
        assist(lane, files, lake, &job, of_another)?;
        // SAFETY: ends what was begun above.
        unsafe { pg_sys::CommitTransactionCommand() };
        return Ok(());
    }
    let owner = shared::lock().lanes[lane].owner_pid;
    loop {
        // Of today: what the copy's own snapshot sees must have been locked before that is taken.
        let storages = process::in_transaction(|| storages(job.table))?;
        begin();
        if let Some(locked) = lock(job.table, &storages)? {
            copy_table(lane, files, lake, &job, &locked)?;
            // SAFETY: ends what was begun above.
            unsafe { pg_sys::CommitTransactionCommand() };
            return Ok(());
        }
        // Some are locked by others. To wait for one while holding the rest could be in the way of
        // sessions, and end one of them by a deadlock.
        // SAFETY: ends what was begun above, with all locks.
        unsafe { pg_sys::AbortCurrentTransaction() };
        if !owned_by(lane, owner) {
            return Err(End::Failed("the feed worker has left".into()));
        }
        process::wait(LOCKED);
    }
}
