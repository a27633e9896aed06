//! Work of the lake for a foreground backend, which has no runtime: on a thread of its own, within a
//! bound, so that the session that asks can be cancelled meanwhile. Like all threads of the lake it
//! never calls Postgres and takes no signal.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use crate::lake::error::LakeError;
use crate::lake::memory::BlockedSignals;

/// Longest time of everything that is asked at once.
const LIMIT: Duration = Duration::from_secs(60);

/// An answer that is still to come.
#[derive(Debug)]
pub struct Asked<T>(Receiver<Result<T, LakeError>>);

impl<T> Asked<T> {
    /// The answer, if it is there. Never blocks.
    pub fn answer(&self) -> Option<Result<T, LakeError>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(LakeError::internal("looking at a destination failed")))
            }
        }
    }
}

/// Begins the work.
///
/// # Errors
/// Kind `Transient` if the operating system gives no thread.
pub fn ask<T: Send + 'static>(
    work: impl Future<Output = Result<T, LakeError>> + Send + 'static,
) -> Result<Asked<T>, LakeError> {
    let (sender, answer) = channel();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(4)
            .enable_all()
            .build();
        let result = match runtime {
            Ok(runtime) => {
                let result = runtime.block_on(async { tokio::time::timeout(LIMIT, work).await });
                runtime.shutdown_background();
                result.unwrap_or_else(|_| {
                    Err(LakeError::transient(format!(
                        "the destination did not answer within {} s",
                        LIMIT.as_secs()
                    )))
                })
            }
            Err(error) => Err(LakeError::io("start a thread", &error)),
        };
        // It fails only if nobody waits any more.
        let _ = sender.send(result);
    };
    // Threads inherit the mask, so that there is no moment in which one could take a signal.
    let blocked = BlockedSignals::new();
    let thread = std::thread::Builder::new()
        .name("wal2delta".into())
        .spawn(run);
    drop(blocked);
    match thread {
        Ok(_) => Ok(Asked(answer)),
        Err(error) => Err(LakeError::io("start a thread", &error)),
    }
}
