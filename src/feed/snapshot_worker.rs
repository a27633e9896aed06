//! The snapshot worker: a background worker that copies the rows of one table after another into
//! data files. It commits nothing to Delta; the feed worker does, together with the changes that
//! came meanwhile.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

use super::job::{Answer, Files, Job, Start};
use super::worker::adopt_settings;
use crate::columns::{self, Change, Encoding, Origin, Rows, Shape};
use crate::decode::insert_position;
use crate::fail_point;
use crate::lake::{
    Believed, Charged, DataFile, Destination, Event, HistorySchema, HistoryWriter, Lake,
    LakeConfig, OpenTable, Source, Target,
};
use crate::process;
use crate::settings;
use crate::shared::{self, LaneState};

/// Memory for rows that are not in a file yet.
const MEMORY: usize = 64 << 20;
/// Arrow data in one batch.
const BATCH_BYTES: usize = 8 << 20;
/// Arrow data in one data file.
const FILE_BYTES: usize = 256 << 20;
/// How long a worker whose copy failed takes to remove the data files that it has stored.
const CLEAN_UP: Duration = Duration::from_secs(5);
/// The most rows in one page of a heap (MaxHeapTuplesPerPage, htup_details.h).
const ROWS_PER_PAGE: u64 = 291;
/// Time between two looks for statements that wait for the table.
const LOOK_FOR_WAITERS: Duration = Duration::from_millis(200);
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
            checkpoint_interval: 10,
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
enum End {
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
    let entry = &mut state.lanes[lane];
    entry.worker_pid = 0;
    if entry.owner_pid == 0 {
        entry.database = 0;
    }
}

/// Whether the feed worker that gave the job still runs and still wants it.
fn owned_by(lane: usize, owner: i32) -> bool {
    let owned = shared::lock().lanes[lane].owner_pid == owner;
    owned && process::runs(owner)
}

/// Copies the table of the lane's job.
fn copy(lane: usize, files: &Files, lake: &Lake) -> Result<(), End> {
    let job = files
        .read_job()
        .map_err(|error| format!("could not read the job: {error}"))?;
    // SAFETY: a transaction of this worker's own; every call is made in the order that
    // portions of the server itself use (worker_spi.c, copyto.c). Errors unwind to the caller,
    // which ends the process.
    unsafe {
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        // One snapshot for the whole copy, and taken after the lock.
        pg_sys::XactIsoLevel = pg_sys::XACT_REPEATABLE_READ as i32;
        pg_sys::XactReadOnly = true;
        let relation = pg_sys::try_relation_open(
            pg_sys::Oid::from(job.table),
            pg_sys::AccessShareLock as pg_sys::LOCKMODE,
        );
        if relation.is_null() {
            return Err(End::Failed("the table was dropped".into()));
        }
        let result = copy_relation(lane, files, lake, &job, relation);
        pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        if result.is_ok() {
            pg_sys::CommitTransactionCommand();
        }
        result
    }
}

/// Copies an open, locked relation.
///
/// # Safety
/// `relation` must be open and locked in the current transaction, which has no snapshot yet.
unsafe fn copy_relation(
    lane: usize,
    files: &Files,
    lake: &Lake,
    job: &Job,
    relation: pg_sys::Relation,
) -> Result<(), End> {
    // SAFETY: the relation is open (the caller's promise), and a transaction allows catalog access.
    let (shape, mut rows, name, descriptor) = unsafe {
        let descriptor = (*relation).rd_att;
        let shape = Shape::from_tupdesc(descriptor);
        let rows = Rows::new(&shape);
        let name = std::ffi::CStr::from_ptr((*(*relation).rd_rel).relname.data.as_ptr());
        let name = Encoding::of_database().to_string(name.to_bytes());
        (shape, rows, name, descriptor)
    };
    let schema =
        HistorySchema::new(shape.fields()).map_err(|error| End::Unfit(error.to_string()))?;
    let mut lock = Waiters::new(job);
    let (writer, folder) = open(lake, job, &name, &schema, &mut lock)?;

    // SAFETY: within the transaction; the first snapshot of it, which stays the only one.
    let snapshot = unsafe {
        let snapshot = pg_sys::GetTransactionSnapshot();
        pg_sys::PushActiveSnapshot(snapshot);
        pg_sys::GetActiveSnapshot()
    };
    let text = current_snapshot()?;
    // SAFETY: the relation is open; reads its size and the clock.
    let (pages, expected, timestamp) = unsafe {
        let pages =
            pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM);
        let expected = (*(*relation).rd_rel).reltuples.max(0.0) as u64;
        (u64::from(pages), expected, pg_sys::GetCurrentTimestamp())
    };
    files
        .write_start(&Start {
            snapshot: text,
            until: insert_position(),
            fields: shape.fields(),
            folder,
            most_rows: pages * ROWS_PER_PAGE,
        })
        .map_err(|error| format!("could not write down the snapshot: {error}"))?;
    let owner = {
        let mut state = shared::lock();
        let entry = &mut state.lanes[lane];
        entry.rows_total = expected;
        entry.state = LaneState::Copying;
        entry.owner_pid
    };
    shared::wake(owner);

    let mut scanned = 0u64;
    let mut sort_by = job.sort_by;
    let mut count = 0u64;
    let mut batch = |rows: &mut Rows, lock: &mut Waiters| -> Result<(), End> {
        fail_point::pass("in_snapshot");
        count += rows.len() as u64;
        let bytes = rows.bytes();
        let batch = columns::seal(&schema, rows.take(), &mut sort_by)
            .map_err(|error| End::Unfit(error.to_string()))?;
        writer.write(Charged {
            value: batch,
            charge: lake.budget().charge(bytes),
        });
        {
            let staged = lake.staged_bytes().values().sum();
            let mut state = shared::lock();
            let entry = &mut state.lanes[lane];
            (entry.rows_done, entry.staged_bytes) = (count, staged);
        }
        if !owned_by(lane, owner) {
            return Err(End::Failed("the feed worker has left".into()));
        }
        lock.give_way()?;
        while lake.budget().used() > MEMORY {
            writer.spill();
            fail_on_error(lake)?;
            process::wait(Duration::from_millis(20));
            lock.give_way()?;
        }
        Ok(())
    };
    // SAFETY: a sequential scan under the active snapshot, as copyto.c does it; the slot's tuple
    // is valid until the next one is fetched, and has the relation's descriptor.
    unsafe {
        let slot = pg_sys::table_slot_create(relation, std::ptr::null_mut());
        let scan = pg_sys::table_beginscan(relation, snapshot, 0, std::ptr::null_mut());
        while pg_sys::table_scan_getnextslot(
            scan,
            pg_sys::ScanDirection::ForwardScanDirection,
            slot,
        ) {
            pgrx::check_for_interrupts!();
            let mut allocated = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, false, &mut allocated);
            let xid = (*(*tuple).t_data).t_choice.t_heap.t_xmin.into_inner();
            let origin = Origin {
                lsn: job.lsn,
                xid,
                timestamp,
            };
            let result = rows.append(Change::Insert, &origin, tuple, descriptor, None);
            if allocated {
                pg_sys::pfree(tuple.cast());
            }
            result.map_err(|error| End::Unfit(error.to_string()))?;
            if rows.bytes() >= BATCH_BYTES {
                batch(&mut rows, &mut lock)?;
            }
            scanned += 1;
            if scanned.is_multiple_of(1024) {
                lock.give_way()?;
            }
        }
        pg_sys::table_endscan(scan);
        pg_sys::ExecDropSingleTupleTableSlot(slot);
    }
    if !rows.is_empty() {
        batch(&mut rows, &mut lock)?;
    }
    let data = staged(lake, &writer, &mut lock)?;
    // SAFETY: pops what was pushed above.
    unsafe { pg_sys::PopActiveSnapshot() };
    files
        .write_answer(&Answer {
            files: data,
            rows: count,
            sort_by,
        })
        .map_err(|error| format!("could not write down the data files: {error}"))?;
    Ok(())
}

/// Looks whether a statement waits for the table that is copied: DDL must not wait for a copy that
/// may take hours, nor what queues up behind it.
struct Waiters {
    table: u32,
    patience: Duration,
    looked: Instant,
    since: Option<Instant>,
}

impl Waiters {
    fn new(job: &Job) -> Waiters {
        Waiters {
            table: job.table,
            patience: Duration::from_millis(job.patience_ms),
            looked: Instant::now(),
            since: None,
        }
    }

    /// An end, if somebody has waited for longer than patience lasts.
    fn give_way(&mut self) -> Result<(), End> {
        if self.looked.elapsed() < LOOK_FOR_WAITERS {
            return Ok(());
        }
        self.looked = Instant::now();
        let waited_for = Spi::connect(|client| {
            client
                .select(
                    "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE NOT l.granted \
                     AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' \
                     AND l.relation = $1 AND l.database = \
                     (SELECT d.oid FROM pg_catalog.pg_database d \
                      WHERE d.datname = pg_catalog.current_database()))",
                    None,
                    &[pg_sys::Oid::from(self.table).into()],
                )?
                .first()
                .get_one::<bool>()
        })
        .map_err(|error| error.to_string())?;
        if waited_for != Some(true) {
            self.since = None;
            return Ok(());
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        match since.elapsed() >= self.patience {
            true => Err(End::GaveWay),
            false => Ok(()),
        }
    }
}

/// Opens the history table's folder, making the table if there is none, and returns its name.
fn open(
    lake: &Lake,
    job: &Job,
    name: &str,
    schema: &HistorySchema,
    lock: &mut Waiters,
) -> Result<(HistoryWriter, String), End> {
    let destination = Destination::parse(&job.destination).map_err(|error| error.to_string())?;
    let writer = lake.open(OpenTable {
        table: job.table,
        source: Source {
            system: job.system,
            database: job.database,
            table: job.table,
        },
        generation: job.generation,
        homes: job.homes.clone(),
        believed: Believed::Nothing,
        destination,
        target: match &job.folder {
            Some(folder) => Target::StageOnly {
                folder: folder.clone(),
            },
            None => Target::New {
                table_name: name.to_owned(),
                whole: None,
            },
        },
        schema: schema.clone(),
    });
    if let Some(folder) = &job.folder {
        return Ok((writer, folder.clone()));
    }
    loop {
        while let Some(event) = lake.try_event() {
            match event {
                Event::Opened { folder, .. } => return Ok((writer, folder)),
                Event::Failed { error, .. } => return Err(End::Failed(error.with_remedy())),
                _ => {}
            }
        }
        lock.give_way()?;
        process::wait(Duration::from_millis(50));
    }
}

/// Waits until everything is in data files and returns them.
fn staged(lake: &Lake, writer: &HistoryWriter, lock: &mut Waiters) -> Result<Vec<DataFile>, End> {
    writer.stage(1);
    loop {
        while let Some(event) = lake.try_event() {
            match event {
                Event::Staged { files, .. } => return Ok(files),
                Event::Failed { error, .. } => return Err(End::Failed(error.with_remedy())),
                _ => {}
            }
        }
        lock.give_way()?;
        process::wait(Duration::from_millis(50));
    }
}

fn fail_on_error(lake: &Lake) -> Result<(), String> {
    while let Some(event) = lake.try_event() {
        if let Event::Failed { error, .. } = event {
            return Err(error.with_remedy());
        }
    }
    Ok(())
}

fn current_snapshot() -> Result<String, String> {
    Spi::connect(|client| {
        client
            .select("SELECT pg_catalog.pg_current_snapshot()::text", None, &[])?
            .first()
            .get_one::<String>()
    })
    .map_err(|error| error.to_string())?
    .ok_or_else(|| "no current snapshot".to_owned())
}
