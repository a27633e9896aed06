//! What the processes of one cluster tell each other, in shared memory: which database wants a
//! feed worker, how far each worker is, what the snapshot workers do, and the state of each table
//! for the views. Nothing here is a record of progress: all of it is rebuilt after a restart from
//! the Delta logs and the slot.
//!
//! One lock guards everything. It is held for plain memory accesses only; no Postgres function is
//! called under it, so no error can be raised while it is held.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ops::{Deref, DerefMut};

use crate::settings;

/// Databases with feeds in one cluster.
pub const MAX_DATABASES: usize = 64;
/// Snapshot workers of one database.
pub const MAX_LANES: usize = 16;
/// Calls of `wal2delta.optimize` at the same time.
const MAX_OPTIMIZATIONS: usize = 16;
/// Snapshot lanes of the cluster.
const TOTAL_LANES: usize = 64;

const TRANCHE: &std::ffi::CStr = c"wal2delta";

/// Text of bounded length; longer text is cut at a character boundary.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Text<const N: usize> {
    len: u16,
    bytes: [u8; N],
}

impl<const N: usize> Text<N> {
    /// Replaces the text.
    pub fn set(&mut self, text: &str) {
        let mut end = text.len().min(N);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        self.len = end as u16;
    }

    /// The text as it was set.
    pub fn get(&self) -> String {
        String::from_utf8_lossy(&self.bytes[..self.len as usize]).into_owned()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A database that has feeds, or is about to.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Database {
    /// OID of the database; 0: entry not in use.
    pub oid: u32,
    /// The feed worker's process, 0 while none runs.
    pub worker_pid: i32,
    /// The launcher shall start a worker.
    pub wanted: bool,
    /// Session that needs the database without workers for now; 0: none.
    pub withheld_by: i32,
    /// The worker makes the slot, and waits for all transactions that write now.
    pub creating_slot: bool,
    /// It does so only because of a `start` that has not ended.
    pub for_start_alone: bool,
    /// The slot exists and the worker decodes from it.
    pub ready: bool,
    /// Transactions that called `start` and have not ended.
    pub starters: u32,
    /// Calls of `start` so far.
    pub starts: u64,
    /// Everything committed before this LSN is in Delta.
    pub durable_lsn: u64,
    /// `flush` asks for this LSN.
    pub flush_lsn: u64,
    /// Why the worker could not start or ended, for `start`; empty: no error.
    pub error: Text<512>,
    /// Tables with a row that Postgres could not print when the worker ended of it; the next one
    /// sets them aside. 0: place not in use.
    pub unreadable: [u32; 8],
}

/// State of a snapshot lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LaneState {
    /// No job.
    Free = 0,
    /// The feed worker wrote a job for the snapshot worker.
    Wanted,
    /// The worker has taken its snapshot and written it down; it copies.
    Copying,
    /// All rows are in data files, listed in the answer.
    Done,
    /// The job failed; see `error`.
    Failed,
    /// The table's columns or rows have no place in Delta; see `error`.
    Unfit,
    /// The job was given up because a statement waited for the table.
    GaveWay,
}

/// One snapshot worker's place: the feed worker puts a job here, the snapshot worker answers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Lane {
    /// Database it belongs to; 0: not in use.
    pub database: u32,
    /// Feed worker that owns it; another or none there: the snapshot worker gives up.
    pub owner_pid: i32,
    /// The snapshot worker, 0 while none runs.
    pub worker_pid: i32,
    /// State of the job.
    pub state: LaneState,
    /// Table to copy.
    pub table: u32,
    /// Rows copied so far, those of assistants among them.
    pub rows_done: u64,
    /// Rows expected, by the statistics of the table.
    pub rows_total: u64,
    /// Where several workers copy the table: the next pages, by number, that nobody has taken.
    pub next_chunk: u32,
    /// Bytes of the data files that are stored so far.
    pub staged_bytes: u64,
    /// Why it failed.
    pub error: Text<512>,
}

impl Lane {
    /// A job for this table is there.
    pub fn want(&mut self, table: u32) {
        self.table = table;
        self.rows_done = 0;
        self.rows_total = 0;
        self.staged_bytes = 0;
        self.error.set("");
        self.state = LaneState::Wanted;
    }
}

/// Where a call of `wal2delta.optimize` stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Optimizing {
    /// The place is free.
    Free = 0,
    /// A session asks for it.
    Wanted,
    /// The feed worker has taken it up.
    Running,
    /// All is done.
    Done,
    /// Not all is done; see `error`.
    Failed,
}

/// A call of `wal2delta.optimize`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Optimization {
    /// Where it stands.
    pub state: Optimizing,
    /// Database of the table.
    pub database: u32,
    /// OID of the table.
    pub table: u32,
    /// The session.
    pub pid: i32,
    /// Tells it from earlier calls in this place.
    pub ticket: u64,
    /// Why it failed.
    pub error: Text<512>,
}

/// What `wal2delta.tables` shows of one table.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct TableStatus {
    /// Database of the table; 0: entry not in use.
    pub database: u32,
    /// OID of the table.
    pub table: u32,
    /// OID of its schema.
    pub namespace: u32,
    /// Status word.
    pub status: Status,
    /// LSN before which everything is in Delta; 0: not known (first snapshot).
    pub committed_lsn: u64,
    /// Time of the last Delta commit, as Postgres counts it; 0: none yet.
    pub last_write: i64,
    /// Rows committed since the worker started.
    pub rows_written: u64,
    /// Rows of the running or last snapshot.
    pub snapshot_done: u64,
    /// Rows expected of it.
    pub snapshot_total: u64,
    /// Bytes of data files that are not committed yet.
    pub staged_bytes: u64,
    /// Values in which something had no place in UTF-8.
    pub replaced_values: u64,
    /// Folder of the history table below the destination.
    pub folder: Text<272>,
    /// Why the table is skipped.
    pub reason: Text<128>,
    /// What failed last.
    pub error: Text<640>,
}

/// Status of a table, as `wal2delta.tables` names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Status {
    /// Its rows are being copied.
    Snapshotting = 0,
    /// Its changes are being fed.
    Streaming,
    /// It takes no part, for a reason.
    Skipped,
    /// It is retried after an error.
    Failed,
    /// Its feed is paused.
    Paused,
}

impl Status {
    /// The word that the views show.
    pub fn word(self) -> &'static str {
        match self {
            Status::Snapshotting => "SNAPSHOTTING",
            Status::Streaming => "STREAMING",
            Status::Skipped => "SKIPPED",
            Status::Failed => "FAILED",
            Status::Paused => "PAUSED",
        }
    }
}

/// The part of fixed size; the table states follow it in memory.
#[repr(C)]
pub struct Fixed {
    /// The launcher's process, 0 while none runs.
    pub launcher_pid: i32,
    /// Databases with feeds.
    pub databases: [Database; MAX_DATABASES],
    /// Snapshot lanes.
    pub lanes: [Lane; TOTAL_LANES],
    /// Calls of `wal2delta.optimize` at the same time.
    pub optimizations: [Optimization; MAX_OPTIMIZATIONS],
    /// Calls of it so far.
    pub last_optimization: u64,
    table_count: usize,
}

static mut STATE: *mut Fixed = std::ptr::null_mut();
static mut LOCK: *mut pg_sys::LWLock = std::ptr::null_mut();
static mut PREVIOUS_REQUEST_HOOK: pg_sys::shmem_request_hook_type = None;
static mut PREVIOUS_STARTUP_HOOK: pg_sys::shmem_startup_hook_type = None;

fn size() -> usize {
    size_of::<Fixed>() + settings::max_tables() * size_of::<TableStatus>()
}

/// Asks for the shared memory; called while the postmaster preloads the library.
pub fn request() {
    // SAFETY: the postmaster is single-threaded here, and the hooks are chained as Postgres
    // expects of every preloaded library (ipci.c).
    unsafe {
        PREVIOUS_REQUEST_HOOK = pg_sys::shmem_request_hook;
        pg_sys::shmem_request_hook = Some(request_hook);
        PREVIOUS_STARTUP_HOOK = pg_sys::shmem_startup_hook;
        pg_sys::shmem_startup_hook = Some(startup_hook);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn request_hook() {
    // SAFETY: called once by the postmaster, the only time the two requests are allowed.
    unsafe {
        if let Some(previous) = PREVIOUS_REQUEST_HOOK {
            previous();
        }
        pg_sys::RequestAddinShmemSpace(size());
        pg_sys::RequestNamedLWLockTranche(TRANCHE.as_ptr(), 1);
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn startup_hook() {
    // SAFETY: runs in the postmaster (and again after a crash of a child), before any process
    // uses the memory. All-zero bytes are a valid value of every field: integers, booleans, and
    // enums whose first variant is 0.
    unsafe {
        if let Some(previous) = PREVIOUS_STARTUP_HOOK {
            previous();
        }
        let mut found = false;
        let memory = pg_sys::ShmemInitStruct(TRANCHE.as_ptr(), size(), &mut found);
        if !found {
            std::ptr::write_bytes(memory.cast::<u8>(), 0, size());
        }
        STATE = memory.cast();
        (*STATE).table_count = settings::max_tables();
        LOCK = &raw mut (*pg_sys::GetNamedLWLockTranche(TRANCHE.as_ptr())).lock;
    }
}

/// Whether the library was preloaded, so that the shared memory is there.
pub fn available() -> bool {
    // SAFETY: written once before any child process exists.
    unsafe { !STATE.is_null() }
}

/// Exclusive access to the shared state, until it is dropped.
pub struct Guard(());

/// Locks the shared state.
///
/// # Panics
/// When the library was not preloaded; callers ask [`available`] first where that can be.
pub fn lock() -> Guard {
    assert!(available(), "wal2delta is not preloaded");
    // SAFETY: LOCK was set together with STATE.
    unsafe { pg_sys::LWLockAcquire(LOCK, pg_sys::LWLockMode::LW_EXCLUSIVE) };
    Guard(())
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: a Guard exists only while this process holds the lock.
        unsafe { pg_sys::LWLockRelease(LOCK) };
    }
}

impl Deref for Guard {
    type Target = Fixed;
    fn deref(&self) -> &Fixed {
        // SAFETY: the lock is held, and STATE points to initialised shared memory.
        unsafe { &*STATE }
    }
}

impl DerefMut for Guard {
    fn deref_mut(&mut self) -> &mut Fixed {
        // SAFETY: the lock is held exclusively.
        unsafe { &mut *STATE }
    }
}

impl Guard {
    /// All entries for table states.
    pub fn tables(&mut self) -> &mut [TableStatus] {
        // SAFETY: `table_count` entries lie behind the fixed part (see `size`), and the lock is
        // held. TableStatus needs no stricter alignment than Fixed, whose size is a multiple of
        // its own.
        unsafe {
            let first = STATE.add(1).cast::<TableStatus>();
            std::slice::from_raw_parts_mut(first, (*STATE).table_count)
        }
    }

    /// The entry of a database, if it has one.
    pub fn database(&mut self, oid: u32) -> Option<&mut Database> {
        self.databases.iter_mut().find(|entry| entry.oid == oid)
    }

    /// The entry of a database, made if there is none; `None` when all are taken.
    pub fn database_or_new(&mut self, oid: u32) -> Option<&mut Database> {
        let index = self
            .databases
            .iter()
            .position(|entry| entry.oid == oid)
            .or_else(|| self.databases.iter().position(|entry| entry.oid == 0))?;
        let entry = &mut self.databases[index];
        entry.oid = oid;
        Some(entry)
    }

    /// Snapshot workers of a database that copy, or are about to.
    pub fn copying(&self, database: u32) -> usize {
        let lanes = self.lanes.iter().filter(|lane| {
            let busy = matches!(lane.state, LaneState::Wanted | LaneState::Copying);
            lane.database == database && lane.owner_pid != 0 && busy
        });
        lanes.count()
    }

    /// Forgets a database: its entry, its lanes and its tables.
    pub fn forget_database(&mut self, oid: u32) {
        for entry in self.databases.iter_mut().filter(|entry| entry.oid == oid) {
            // SAFETY: all-zero bytes are a valid, unused entry (see `startup_hook`).
            *entry = unsafe { std::mem::zeroed() };
        }
        for entry in self
            .tables()
            .iter_mut()
            .filter(|entry| entry.database == oid)
        {
            entry.database = 0;
        }
    }
}

/// Sets the latch of a process, if it is still there.
pub fn wake(pid: i32) {
    if pid == 0 {
        return;
    }
    // SAFETY: BackendPidGetProc returns a PGPROC in shared memory or null; the latch in it may be
    // set even if the process has ended meanwhile (latch.c: a spurious wake-up of its successor).
    unsafe {
        let process = pg_sys::BackendPidGetProc(pid);
        if !process.is_null() {
            pg_sys::SetLatch(&raw mut (*process).procLatch);
        }
    }
}
