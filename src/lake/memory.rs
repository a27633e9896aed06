//! Memory and signals of the process that hosts the runtime. With glibc's many arenas and freed
//! memory kept, a worker grew to 600 MB; with one arena and trimming it stays near 40. Signals
//! must only ever reach the Postgres main thread, whose handlers assume it.

#![allow(unsafe_code)]

/// Blocks of this size and more are mapped on their own, so that they go back to the operating
/// system when they are freed. Without a fixed value glibc raises it to the size of the blocks that
/// it sees, up to 32 MB, and keeps large values in the heap.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_BYTES: libc::c_int = 4 << 20;

/// Keeps glibc to one heap arena, without large blocks. To be called before the first thread starts.
pub(crate) fn use_one_arena() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt with valid parameters has no preconditions.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
    }
}

/// Gives freed heap memory back to the operating system.
pub(crate) fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: malloc_trim takes no pointers and may be called from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// All signals blocked in this thread until dropped; threads started meanwhile inherit that.
pub(crate) struct BlockedSignals {
    before: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks all signals in the calling thread.
    pub(crate) fn new() -> Self {
        // SAFETY: both sets are plain memory that sigfillset and pthread_sigmask fill; the calls
        // cannot fail with these arguments.
        unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
            BlockedSignals { before }
        }
    }

    /// Blocks all signals in the calling thread for good.
    pub(crate) fn forever() {
        std::mem::forget(Self::new());
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `before` was filled by pthread_sigmask in `new`.
        unsafe {
            libc::pthread_sigmask(
                libc::SIG_SETMASK,
                &raw const self.before,
                std::ptr::null_mut(),
            );
        }
    }
}
