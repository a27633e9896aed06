//! The snapshot workers of a database, seen from its feed worker: each has a lane in shared memory,
//! where it is given one job after another.

use std::collections::HashMap;

use super::job::{Files, Job};
use crate::process::{self, Handle, Restart};
use crate::settings;
use crate::shared::{self, LaneState};

/// A snapshot worker of this database.
struct Lane {
    /// Its place in shared memory.
    index: usize,
    handle: Option<Handle>,
    table: Option<u32>,
}

/// The snapshot workers of this database.
pub struct Lanes {
    database: u32,
    lanes: Vec<Lane>,
}

/// How far a copy is.
pub struct Copied {
    /// Rows copied.
    pub rows: u64,
    /// Rows expected, by the statistics of the table.
    pub expected: u64,
    /// Bytes of the data files that are stored so far.
    pub staged_bytes: u64,
}

impl Lanes {
    /// None yet.
    pub fn new(database: u32) -> Lanes {
        Lanes {
            database,
            lanes: Vec::new(),
        }
    }

    /// A lane without a job, if the settings allow one more.
    pub fn free(&mut self) -> Option<usize> {
        if let Some(position) = self.lanes.iter().position(|lane| lane.table.is_none()) {
            return Some(position);
        }
        if self.lanes.len() >= settings::snapshot_workers() {
            return None;
        }
        let mut state = shared::lock();
        let index = state.lanes.iter().position(|lane| {
            lane.database == 0
                || (lane.database == self.database && lane.owner_pid == 0 && lane.worker_pid == 0)
        })?;
        state.lanes[index].database = self.database;
        state.lanes[index].owner_pid = process::my_pid();
        state.lanes[index].state = LaneState::Free;
        drop(state);
        self.lanes.push(Lane {
            index,
            handle: None,
            table: None,
        });
        Some(self.lanes.len() - 1)
    }

    /// Gives a job to a lane and sees that a worker runs there; returns its place in shared memory.
    /// `None` if no worker can be started.
    pub fn give(&mut self, position: usize, job: &Job) -> Option<usize> {
        let lane = &mut self.lanes[position];
        if Files::of(self.database, lane.index).write_job(job).is_err() {
            return None;
        }
        {
            let mut state = shared::lock();
            let entry = &mut state.lanes[lane.index];
            entry.table = job.table;
            entry.rows_done = 0;
            entry.rows_total = 0;
            entry.staged_bytes = 0;
            entry.error.set("");
            entry.state = LaneState::Wanted;
        }
        lane.table = Some(job.table);
        if lane.handle.as_ref().is_none_or(Handle::stopped) {
            let worker = process::describe(
                &format!("wal2delta snapshot worker {}", self.database),
                "wal2delta_snapshot_main",
                lane.index as u32,
                Restart::Never,
                process::my_pid(),
            );
            lane.handle = Handle::start(worker);
        } else {
            let pid = shared::lock().lanes[lane.index].worker_pid;
            shared::wake(pid);
        }
        if lane.handle.is_none() {
            lane.table = None;
            shared::lock().lanes[lane.index].state = LaneState::Free;
        }
        lane.table.map(|_| lane.index)
    }

    /// Takes the job away from the lane that works on a table; its worker notices and ends.
    pub fn cancel(&mut self, table: u32) {
        for lane in self
            .lanes
            .iter_mut()
            .filter(|lane| lane.table == Some(table))
        {
            if let Some(handle) = lane.handle.take() {
                handle.terminate();
            }
            // A new place, so that the ending worker cannot answer for the next job.
            shared::lock().lanes[lane.index].owner_pid = 0;
            lane.table = None;
        }
        self.lanes
            .retain(|lane| lane.table.is_some() || lane.handle.is_some());
    }

    /// Takes all jobs away.
    pub fn cancel_all(&mut self) {
        let tables: Vec<u32> = self.lanes.iter().filter_map(|lane| lane.table).collect();
        for table in tables {
            self.cancel(table);
        }
        self.dismiss_idle();
    }

    /// What a lane has to say.
    pub fn progress(&self, index: usize) -> (LaneState, String) {
        let state = shared::lock();
        let entry = &state.lanes[index];
        (entry.state, entry.error.get())
    }

    /// Whether the worker of a lane has ended.
    pub fn ended(&self, index: usize) -> bool {
        self.lanes
            .iter()
            .find(|lane| lane.index == index)
            .is_none_or(|lane| lane.handle.as_ref().is_none_or(Handle::stopped))
    }

    /// Frees a lane whose job is done.
    pub fn release(&mut self, index: usize) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.index == index) {
            lane.table = None;
            shared::lock().lanes[index].state = LaneState::Free;
            Files::of(self.database, index).remove();
        }
    }

    /// How far the copy of each table is that is being copied.
    pub fn copied(&self) -> HashMap<u32, Copied> {
        let state = shared::lock();
        let copied = |lane: &Lane| {
            let entry = &state.lanes[lane.index];
            let worker = entry.worker_pid;
            let assistants = state.lanes.iter();
            let assistants = assistants.filter(|lane| worker != 0 && lane.owner_pid == worker);
            let copied = Copied {
                rows: entry.rows_done,
                expected: entry.rows_total,
                staged_bytes: entry.staged_bytes
                    + assistants.map(|lane| lane.staged_bytes).sum::<u64>(),
            };
            lane.table.map(|table| (table, copied))
        };
        self.lanes.iter().filter_map(copied).collect()
    }

    /// Ends workers that have no job, so that an idle feed takes no process beside its worker.
    pub fn dismiss_idle(&mut self) {
        for lane in self.lanes.iter().filter(|lane| lane.table.is_none()) {
            let mut state = shared::lock();
            state.lanes[lane.index].owner_pid = 0;
            let pid = state.lanes[lane.index].worker_pid;
            if pid == 0 {
                state.lanes[lane.index].database = 0;
            }
            drop(state);
            shared::wake(pid);
        }
        self.lanes.retain(|lane| lane.table.is_some());
    }
}
