//! The fail points of the test build.

use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use object_store::Error;
use pgrx::prelude::*;

use crate::process;

/// Relative to the data directory, where every server process works.
const FOLDER: &str = "wal2delta_fail_points";

/// Longer than any call's limit.
const HANG: Duration = Duration::from_secs(45);

#[derive(Clone, Copy, Debug)]
enum Action {
    Error,
    Exists,
    Precondition,
    Hang,
    Sleep(Duration),
    Panic,
    Kill,
    Exit,
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Action, String> {
        let text = text.trim();
        if let Some(ms) = text.strip_prefix("sleep ") {
            let ms = ms.parse().map_err(|_| text.to_owned())?;
            return Ok(Action::Sleep(Duration::from_millis(ms)));
        }
        Ok(match text {
            "error" => Action::Error,
            "exists" => Action::Exists,
            "precondition" => Action::Precondition,
            "hang" => Action::Hang,
            "panic" => Action::Panic,
            "kill" => Action::Kill,
            "exit" => Action::Exit,
            _ => return Err(text.to_owned()),
        })
    }
}

/// The action of a point that is armed; it is not armed any more then.
fn disarm(point: &str) -> Option<Action> {
    let armed = Path::new(FOLDER).join(point);
    let action = fs::read_to_string(&armed).ok()?;
    // Of several that come by, one gets it.
    fs::remove_file(&armed).ok()?;
    match action.parse() {
        Ok(action) => Some(action),
        Err(text) => panic!("fail point {point}: unknown action \"{text}\""),
    }
}

fn kill_process() -> ! {
    // SAFETY: a signal to this very process.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    loop {
        std::thread::park();
    }
}

/// A place on the main thread.
pub fn pass(point: &str) {
    match disarm(point) {
        None => {}
        Some(Action::Sleep(time)) => {
            let until = Instant::now() + time;
            while Instant::now() < until {
                process::wait(Duration::from_millis(20));
            }
        }
        Some(Action::Panic) => panic!("fail point {point}"),
        Some(Action::Kill) => kill_process(),
        Some(Action::Exit) => {
            ereport!(
                PgLogLevel::FATAL,
                PgSqlErrorCode::ERRCODE_ADMIN_SHUTDOWN,
                format!("fail point {point}")
            );
        }
        Some(action) => panic!("fail point {point} cannot {action:?}"),
    }
}

/// A place in a call of an object store.
pub async fn pass_store(point: &str) -> object_store::Result<()> {
    let source = format!("fail point {point}").into();
    let path = point.to_owned();
    match disarm(point) {
        None => Ok(()),
        Some(Action::Error) => Err(Error::Generic {
            store: "fail point",
            source,
        }),
        Some(Action::Exists) => Err(Error::AlreadyExists { path, source }),
        Some(Action::Precondition) => Err(Error::Precondition { path, source }),
        Some(Action::Hang) => std::future::pending().await,
        Some(Action::Sleep(time)) => {
            tokio::time::sleep(time).await;
            Ok(())
        }
        Some(Action::Panic) => panic!("fail point {point}"),
        Some(Action::Kill) => kill_process(),
        Some(Action::Exit) => panic!("fail point {point} is not on the main thread"),
    }
}

/// A place in disk work, on a thread that may block.
pub fn pass_on_disk(point: &str) -> io::Result<()> {
    match disarm(point) {
        None => Ok(()),
        Some(Action::Error) => Err(io::Error::other(format!("fail point {point}"))),
        Some(Action::Hang) => {
            std::thread::sleep(HANG);
            Ok(())
        }
        Some(Action::Sleep(time)) => {
            std::thread::sleep(time);
            Ok(())
        }
        Some(Action::Panic) => panic!("fail point {point}"),
        Some(Action::Kill) => kill_process(),
        Some(action) => panic!("fail point {point} cannot {action:?}"),
    }
}
