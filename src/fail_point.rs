//! Fail points: named places between the WAL and the confirmed slot where a test can have a process
//! of ours fail. Only the library built for tests has them (package `tests/faults`, feature
//! `fail-points`); in any other these functions do nothing.
//!
//! A file `wal2delta_fail_points/<point>` in the data directory arms a point. Its content is what
//! happens at the next pass, once: the file is gone then, whichever process came by.
//!
//! | action | what happens |
//! |---|---|
//! | `error` | the store answers with an error that may pass |
//! | `exists`, `precondition` | the store says that the object is there already |
//! | `hang` | no answer |
//! | `sleep <ms>` | a late answer |
//! | `panic` | a panic in this thread |
//! | `kill` | SIGKILL of this process |
//! | `exit` | FATAL error; on the main thread alone |

#[cfg(feature = "fail-points")]
mod armed;

#[cfg(feature = "fail-points")]
pub use armed::{pass, pass_on_disk, pass_store};

/// A place on the main thread.
#[cfg(not(feature = "fail-points"))]
#[inline(always)]
pub fn pass(_point: &str) {}

/// A place in a call of an object store.
///
/// # Errors
/// What an armed point says that the store answers.
#[cfg(not(feature = "fail-points"))]
#[inline(always)]
pub async fn pass_store(_point: &str) -> object_store::Result<()> {
    Ok(())
}

/// A place in disk work, on a thread that may block.
///
/// # Errors
/// What an armed point says that the disk answers.
#[cfg(not(feature = "fail-points"))]
#[inline(always)]
pub fn pass_on_disk(_point: &str) -> std::io::Result<()> {
    Ok(())
}
