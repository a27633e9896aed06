//! `optimize`.

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;

use super::feeds::check_fed_table;
use super::{POLL, my_database, report};
use crate::process;
use crate::shared::{self, Optimization, Optimizing};

/// `wal2delta.optimize(source_table)`
#[pg_extern(sql = false)]
fn optimize(source_table: pg_sys::Oid) {
    check_fed_table(source_table);
    let database = my_database();
    let mut asked = Asked::new(database, source_table.to_u32());
    loop {
        let worker = {
            let mut state = shared::lock();
            state
                .database(database)
                .map_or(0, |entry| if entry.ready { entry.worker_pid } else { 0 })
        };
        if worker == 0 {
            report(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the feed worker of this database does not run",
                "SELECT * FROM wal2delta.check() says why.",
            );
        }
        // A worker that has started anew does not know of it.
        if asked.worker != worker {
            asked.ask(worker);
        }
        match asked.outcome() {
            None => process::wait(POLL),
            Some(Ok(())) => return,
            Some(Err(error)) => ErrorReport::new(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the history was not optimized",
                "optimize",
            )
            .set_detail(error)
            .set_hint("The feed goes on; see the view wal2delta.tables, and call again later.")
            .report(PgLogLevel::ERROR),
        }
    }
}

/// A place in shared memory, free again when this is dropped: also when the session is cancelled.
struct Asked {
    place: usize,
    /// The worker that was asked; 0: none yet.
    worker: i32,
}

impl Asked {
    fn new(database: u32, table: u32) -> Asked {
        loop {
            let mut state = shared::lock();
            let places = state.optimizations.iter();
            let free = places
                .map(|place| place.state == Optimizing::Free || !process::runs(place.pid))
                .position(|free| free);
            if let Some(place) = free {
                // SAFETY: all-zero bytes are a valid entry (shared.rs).
                let mut entry: Optimization = unsafe { std::mem::zeroed() };
                entry.database = database;
                entry.table = table;
                entry.pid = process::my_pid();
                // Taken, and not asked for yet.
                entry.state = Optimizing::Running;
                state.optimizations[place] = entry;
                return Asked { place, worker: 0 };
            }
            drop(state);
            process::wait(POLL);
        }
    }

    fn ask(&mut self, worker: i32) {
        let mut state = shared::lock();
        state.last_optimization += 1;
        let ticket = state.last_optimization;
        let entry = &mut state.optimizations[self.place];
        entry.ticket = ticket;
        entry.state = Optimizing::Wanted;
        drop(state);
        self.worker = worker;
        shared::wake(worker);
    }

    fn outcome(&self) -> Option<Result<(), String>> {
        let state = shared::lock();
        let entry = &state.optimizations[self.place];
        match entry.state {
            Optimizing::Done => Some(Ok(())),
            Optimizing::Failed => Some(Err(entry.error.get())),
            Optimizing::Free | Optimizing::Wanted | Optimizing::Running => None,
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        shared::lock().optimizations[self.place].state = Optimizing::Free;
    }
}
