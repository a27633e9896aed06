//! What the background workers of the extension do alike: registering, signals, waiting.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::Duration;

/// The same functions as in `pg_sys`, but as C symbols: a handler that Postgres itself calls must
/// not be pgrx's Rust wrapper of it.
mod handlers {
    use std::ffi::c_int;
    unsafe extern "C-unwind" {
        pub fn die(signal: c_int);
        pub fn SignalHandlerForConfigReload(signal: c_int);
    }
}

/// How a worker ends and starts again.
#[derive(Clone, Copy)]
pub enum Restart {
    /// By the postmaster, after some seconds.
    After(i32),
    /// Not by the postmaster.
    Never,
}

fn copy_name<const N: usize>(target: &mut [std::ffi::c_char; N], text: &str) {
    for (to, from) in target[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as std::ffi::c_char;
    }
}

/// Describes a background worker of this library.
///
/// `name` is what process lists show, `function` the exported entry point, `argument` is passed
/// to it, `notify` the process that is told (SIGUSR1) of its start and end.
pub fn describe(
    name: &str,
    function: &str,
    argument: u32,
    restart: Restart,
    notify: i32,
) -> pg_sys::BackgroundWorker {
    let mut worker = pg_sys::BackgroundWorker::default();
    copy_name(&mut worker.bgw_name, name);
    copy_name(&mut worker.bgw_type, "wal2delta");
    copy_name(&mut worker.bgw_library_name, "wal2delta");
    copy_name(&mut worker.bgw_function_name, function);
    worker.bgw_flags =
        (pg_sys::BGWORKER_SHMEM_ACCESS | pg_sys::BGWORKER_BACKEND_DATABASE_CONNECTION) as i32;
    // Not during recovery: a standby has no feed until it is promoted.
    worker.bgw_start_time = pg_sys::BgWorkerStartTime::BgWorkerStart_RecoveryFinished;
    worker.bgw_restart_time = match restart {
        Restart::After(seconds) => seconds,
        Restart::Never => pg_sys::BGW_NEVER_RESTART,
    };
    worker.bgw_main_arg = pg_sys::Datum::from(argument);
    worker.bgw_notify_pid = notify;
    worker
}

/// A started background worker.
pub struct Handle(*mut pg_sys::BackgroundWorkerHandle);

impl Handle {
    /// Starts a worker; `None` when the cluster has no place for one (`max_worker_processes`).
    pub fn start(mut worker: pg_sys::BackgroundWorker) -> Option<Handle> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: the handle is allocated in a context that lives as long as the process, so
        // that it can be asked at any time later.
        let started = unsafe {
            let caller = pg_sys::CurrentMemoryContext;
            pg_sys::CurrentMemoryContext = pg_sys::TopMemoryContext;
            let started = pg_sys::RegisterDynamicBackgroundWorker(&mut worker, &mut handle);
            pg_sys::CurrentMemoryContext = caller;
            started
        };
        started.then(|| Handle(handle))
    }

    /// Whether the worker has ended (or will never start).
    pub fn stopped(&self) -> bool {
        let mut pid = 0;
        // SAFETY: the handle came from RegisterDynamicBackgroundWorker and is freed only in drop.
        let status = unsafe { pg_sys::GetBackgroundWorkerPid(self.0, &mut pid) };
        status == pg_sys::BgwHandleStatus::BGWH_STOPPED
            || status == pg_sys::BgwHandleStatus::BGWH_POSTMASTER_DIED
    }

    /// Asks the postmaster to end the worker (SIGTERM); does not wait.
    pub fn terminate(&self) {
        // SAFETY: as in `stopped`.
        unsafe { pg_sys::TerminateBackgroundWorker(self.0) };
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: allocated by palloc in RegisterDynamicBackgroundWorker, freed once.
        unsafe { pg_sys::pfree(self.0.cast()) };
    }
}

/// Sets the signal handlers of a worker and unblocks signals.
///
/// SIGTERM goes to `die`, so that CHECK_FOR_INTERRUPTS ends the process wherever it is; pgrx's own
/// handler only sets a flag that nothing in Postgres looks at.
pub fn install_signal_handlers() {
    // SAFETY: the handlers are Postgres' own C functions, meant for this use (bgworker.c).
    unsafe {
        pg_sys::pqsignal(libc::SIGTERM, Some(handlers::die));
        pg_sys::pqsignal(libc::SIGHUP, Some(handlers::SignalHandlerForConfigReload));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Waits until this process' latch is set or the time is over; handles interrupts before and after.
/// Ends the process when the postmaster has died.
pub fn wait(timeout: Duration) {
    pgrx::check_for_interrupts!();
    let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
    // SAFETY: MyLatch is valid in every process with shared memory access.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            events as i32,
            timeout.as_millis().min(60_000) as std::ffi::c_long,
            pg_sys::PG_WAIT_EXTENSION,
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    pgrx::check_for_interrupts!();
}

/// Reads the configuration file again if it was asked for since the last call.
pub fn reload_configuration() {
    // SAFETY: ConfigReloadPending is written by this process' own signal handler only.
    unsafe {
        if pg_sys::ConfigReloadPending != 0 {
            pg_sys::ConfigReloadPending = 0;
            pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        }
    }
}

/// Sets a setting for this process alone.
pub fn set_config(name: &CStr, value: &CStr) {
    // SAFETY: both strings outlive the call, which copies them.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_SESSION,
        );
    }
}

/// The fixed part of a catalog tuple (GETSTRUCT, htup_details.h).
///
/// # Safety
/// The tuple must be one of the catalog whose row type `T` is.
pub unsafe fn fixed_part<T>(tuple: pg_sys::HeapTuple) -> *const T {
    // SAFETY: the data begin `t_hoff` bytes after the header (the caller's promise).
    unsafe {
        let header = (*tuple).t_data;
        header.cast::<u8>().add((*header).t_hoff as usize).cast()
    }
}

/// Whether a server process with this id runs.
pub fn runs(pid: i32) -> bool {
    // SAFETY: a look-up in shared memory; only whether it finds something is used.
    unsafe { !pg_sys::BackendPidGetProc(pid).is_null() }
}

/// Asks a worker of ours, whose handler of SIGTERM is `die`, to end. Should the process have ended
/// since its id was read, the id is not in use again this soon.
pub fn terminate(pid: i32) {
    // SAFETY: a signal; no memory is touched.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}

/// This process' id.
pub fn my_pid() -> i32 {
    // SAFETY: set at process start, never written again.
    unsafe { pg_sys::MyProcPid }
}

/// Runs `work` in a transaction with a snapshot that reads and writes nothing durable unless
/// `work` does.
///
/// An error raised in `work` passes through; the worker's top level ends the process then.
pub fn in_transaction<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: the caller is outside any transaction, as every caller in this crate is; the calls
    // follow worker_spi.c.
    unsafe {
        let caller = pg_sys::CurrentMemoryContext;
        pg_sys::SetCurrentStatementStartTimestamp();
        pg_sys::StartTransactionCommand();
        pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        let result = work();
        pg_sys::PopActiveSnapshot();
        pg_sys::CommitTransactionCommand();
        pg_sys::CurrentMemoryContext = caller;
        result
    }
}

/// A function that other threads may call to set this process' latch.
///
/// Threads must not call Postgres. A signal can come from anywhere: SIGUSR1 is blocked in every
/// thread but the main one, whose handler (`procsignal_sigusr1_handler`) sets the latch.
pub fn waker() -> Box<dyn Fn() + Send + Sync> {
    let pid = my_pid();
    Box::new(move || {
        // SAFETY: a signal to this very process.
        unsafe { libc::kill(pid, libc::SIGUSR1) };
    })
}

/// Identity of the data directory that this server works in: it stays when the directory is moved
/// within its file system or mounted elsewhere, and is another one in a copy of it.
///
/// Inode numbers alone would not do: fresh file systems give them out in the same order.
///
/// Raises an error if the operating system does not tell.
pub fn home() -> String {
    read_home().unwrap_or_else(|error| error!("could not look at the data directory: {error}"))
}

fn read_home() -> std::io::Result<String> {
    use std::os::unix::fs::MetadataExt;
    // Every server process works in the data directory. PG_VERSION is never written again.
    let file = std::fs::metadata("PG_VERSION")?;
    let born = match file.created() {
        Ok(time) => time
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default()
            .as_nanos(),
        // No time of birth on this file system: that of the last change of its inode.
        Err(_) => file.ctime() as u128 * 1_000_000_000 + file.ctime_nsec() as u128,
    };
    let folder = std::fs::metadata(".")?.ino();
    Ok(format!("{folder:x}-{:x}-{born:x}", file.ino()))
}
