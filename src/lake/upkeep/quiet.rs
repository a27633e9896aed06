//! Work that takes the processor for long, on a thread that everything else goes before.

#![allow(unsafe_code)]

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::lake::error::LakeError;
use crate::lake::memory::BlockedSignals;

/// Added to the niceness of the process (setpriority(2); on Linux it is one of each thread).
const NICENESS: libc::c_int = 10;

/// Runs the work to its end; what it awaits is the runtime's.
///
/// # Errors
/// Those of the work; kind `Transient` if the operating system gives no thread.
pub(super) async fn run<T: Send + 'static>(
    work: impl Future<Output = Result<T, LakeError>> + Send + 'static,
) -> Result<T, LakeError> {
    let runtime = Handle::current();
    let (sender, answer) = oneshot::channel();
    let run = move || {
        give_way();
        // It fails only if nobody waits any more.
        let _ = sender.send(runtime.block_on(work));
    };
    // Threads inherit the mask, so that there is no moment in which one could take a signal.
    let blocked = BlockedSignals::new();
    let thread = std::thread::Builder::new()
        .name("wal2delta quiet".into())
        .spawn(run);
    drop(blocked);
    thread.map_err(|error| LakeError::io("start a thread", &error))?;
    answer
        .await
        .map_err(|_| LakeError::internal("upkeep of a history table failed"))?
}

fn give_way() {
    // SAFETY: plain system calls without pointers. That it cannot be had changes no result.
    #[cfg(target_os = "linux")]
    unsafe {
        let now = libc::getpriority(libc::PRIO_PROCESS, 0);
        libc::setpriority(libc::PRIO_PROCESS, 0, now + NICENESS);
    }
}
