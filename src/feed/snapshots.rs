//! Copies of tables, seen from the feed worker: gives jobs to snapshot workers, holds the changes
//! that come meanwhile, and joins both into one commit (rule 5 of the design).
//!
//! A copy begins when every decoded commit is visible, so that its snapshot sees all of them: what
//! was decoded before is in the copy. From then on changes are held. Once the snapshot is known,
//! the transactions it sees are dropped, exactly. The commit waits until everything that the
//! snapshot sees has been decoded: then no such transaction can come later, not even after a
//! restart.

use std::collections::HashMap;
use std::time::Duration;

use super::buffer::{Buffer, Held, compatible};
use super::feeds::{Feed, Feeds};
use super::job::{Files, Job};
use super::table::{Copying, History, InFlight, Phase, Snapshot, Start, State, Stream, Table};
use super::visibility::Visibility;
use crate::columns;
use crate::lake::{
    Charged, HistorySchema, HistoryWriter, Lake, OpenTable, Replace, RowsCommit, Source, Target,
};
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

impl Lanes {
    /// None yet.
    pub fn new(database: u32) -> Lanes {
        Lanes {
            database,
            lanes: Vec::new(),
        }
    }

    /// A lane without a job, if the settings allow one more.
    fn free(&mut self) -> Option<usize> {
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

    /// Gives a job to a lane and sees that a worker runs there. False if none can be started.
    fn give(&mut self, position: usize, job: &Job) -> bool {
        let lane = &mut self.lanes[position];
        if Files::of(self.database, lane.index).write_job(job).is_err() {
            return false;
        }
        {
            let mut state = shared::lock();
            let entry = &mut state.lanes[lane.index];
            entry.table = job.table;
            entry.rows_done = 0;
            entry.rows_total = 0;
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
        lane.table.is_some()
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
    fn progress(&self, index: usize) -> (LaneState, u64, u64, String) {
        let state = shared::lock();
        let entry = &state.lanes[index];
        (
            entry.state,
            entry.rows_done,
            entry.rows_total,
            entry.error.get(),
        )
    }

    /// Whether the worker of a lane has ended.
    fn ended(&self, index: usize) -> bool {
        self.lanes
            .iter()
            .find(|lane| lane.index == index)
            .is_none_or(|lane| lane.handle.as_ref().is_none_or(Handle::stopped))
    }

    /// Frees a lane whose job is done.
    fn release(&mut self, index: usize) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.index == index) {
            lane.table = None;
            shared::lock().lanes[index].state = LaneState::Free;
            Files::of(self.database, index).remove();
        }
    }

    /// Rows copied and expected of each table that is being copied.
    pub fn rows(&self) -> HashMap<u32, (u64, u64)> {
        let state = shared::lock();
        let rows = |lane: &Lane| {
            let entry = &state.lanes[lane.index];
            lane.table
                .map(|table| (table, (entry.rows_done, entry.rows_total)))
        };
        self.lanes.iter().filter_map(rows).collect()
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

impl Feeds {
    /// Moves all copies on.
    pub fn tend_snapshots(&mut self) {
        let snapshots: Vec<u32> = self
            .tables
            .values()
            .filter(|table| matches!(table.state, State::Snapshot(_)))
            .map(|table| table.oid)
            .collect();
        if snapshots.is_empty() {
            self.lanes.dismiss_idle();
            return;
        }
        for oid in snapshots {
            let Some(table) = self.tables.get(&oid) else {
                continue;
            };
            let State::Snapshot(snapshot) = &table.state else {
                continue;
            };
            match &snapshot.phase {
                Phase::Queued if table.shown.skipped.is_none() && snapshot.opening.is_none() => {
                    self.begin_copy(oid);
                }
                Phase::Queued => self.mark_gap(oid),
                Phase::Copying(copying) => {
                    let lane = copying.lane;
                    self.follow_copy(oid, lane);
                }
            }
        }
    }

    /// A table that is not FULL cannot be copied now, and perhaps never: instead of holding back the
    /// WAL, what made the copy necessary is recorded in its history.
    fn mark_gap(&mut self, oid: u32) {
        let ticket = self.ticket();
        let lake = &self.lake;
        let source = self.source(oid);
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let Some(feed) = self.feeds.get(&table.namespace) else {
            return;
        };
        let State::Snapshot(snapshot) = &mut table.state else {
            return;
        };
        let Some(history) = &snapshot.history else {
            return;
        };
        if table.shown.skipped.is_none() || !snapshot.pinned || snapshot.marking.is_some() {
            return;
        }
        let writer = snapshot
            .writer
            .get_or_insert_with(|| open(lake, feed, source, &history.folder, &history.schema));
        writer.mark_gap(ticket);
        snapshot.marking = Some(ticket);
    }

    fn begin_copy(&mut self, oid: u32) {
        if !self.all_visible() {
            return;
        }
        let Some(position) = self.lanes.free() else {
            return;
        };
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let State::Snapshot(snapshot) = &mut table.state else {
            return;
        };
        let Some(feed) = self.feeds.get(&table.namespace) else {
            return;
        };
        let history = snapshot.history.as_ref();
        let job = Job {
            table: oid,
            system: self.system,
            database: self.database,
            generation: feed.row.generation,
            destination: feed.row.destination.clone(),
            folder: history.map(|history| history.folder.clone()),
            lsn: self.position,
            sort_by: history.map_or(i64::MIN, |history| history.sort_by),
        };
        if !self.lanes.give(position, &job) {
            self.fail(
                oid,
                "no background worker is free for its snapshot. \
                Raise max_worker_processes and restart the server."
                    .into(),
                false,
            );
            return;
        }
        let lane = self.lanes.lanes[position].index;
        snapshot.phase = Phase::Copying(Box::new(Copying {
            lane,
            lsn: job.lsn,
            ..Copying::default()
        }));
    }

    fn follow_copy(&mut self, oid: u32, lane: usize) {
        let (state, _, _, error) = self.lanes.progress(lane);
        let result = match state {
            LaneState::Failed => Err(error),
            LaneState::Copying | LaneState::Done => {
                self.learn_start(oid, lane).and_then(|()| match state {
                    LaneState::Done => self.join(oid, lane),
                    _ => Ok(()),
                })
            }
            LaneState::Free | LaneState::Wanted => Ok(()),
        };
        let result = match result {
            Ok(()) if state != LaneState::Done && self.lanes.ended(lane) => {
                Err("its snapshot worker ended".to_owned())
            }
            result => result,
        };
        if let Err(error) = result {
            self.fail(oid, error, false);
        }
    }

    fn copying(&mut self, oid: u32) -> Option<&mut Copying> {
        match &mut self.tables.get_mut(&oid)?.state {
            State::Snapshot(snapshot) => match &mut snapshot.phase {
                Phase::Copying(copying) => Some(copying),
                Phase::Queued => None,
            },
            _ => None,
        }
    }

    /// Reads what the snapshot sees and drops the held changes that it does.
    fn learn_start(&mut self, oid: u32, lane: usize) -> Result<(), String> {
        let database = self.database;
        let mut bytes = 0;
        let budget = self.lake.budget().clone();
        let Some(copying) = self.copying(oid) else {
            return Ok(());
        };
        if copying.start.is_some() {
            return Ok(());
        }
        let start = Files::of(database, lane)
            .read_start()
            .map_err(|error| error.to_string())?;
        let seen = Visibility::parse(&start.snapshot)
            .ok_or_else(|| format!("cannot read snapshot \"{}\"", start.snapshot))?;
        if let Some(buffer) = copying.buffer.as_mut().filter(|buffer| !buffer.is_empty()) {
            bytes = buffer.bytes();
            copying.held.push(buffer.take(&budget));
        }
        for held in std::mem::take(&mut copying.held) {
            let kept = columns::retain(held.value, |xid| !seen.sees(xid))
                .map_err(|error| error.to_string())?;
            if kept.first().is_some_and(|column| !column.is_empty()) {
                copying.held.push(Charged {
                    value: kept,
                    charge: held.charge,
                });
            }
        }
        let schema = HistorySchema::new(start.fields).map_err(|error| error.to_string())?;
        copying.start = Some(Start {
            seen,
            until: start.until,
            schema,
            folder: start.folder.clone(),
            most_rows: start.most_rows,
        });
        self.building = self.building.saturating_sub(bytes);
        if let Some(table) = self.tables.get_mut(&oid) {
            table.shown.folder = start.folder;
        }
        Ok(())
    }

    /// Writes held changes to files, under memory pressure. Their `_sort_by` then starts behind the
    /// most rows that the snapshot can have, since these are not counted yet.
    pub fn spill_held(&mut self, oid: u32) {
        let lake = &self.lake;
        let source = self.source(oid);
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let Some(feed) = self.feeds.get(&table.namespace) else {
            return;
        };
        let building = table.building();
        let State::Snapshot(snapshot) = &mut table.state else {
            return;
        };
        let Snapshot {
            history,
            writer,
            phase: Phase::Copying(copying),
            ..
        } = &mut **snapshot
        else {
            return;
        };
        let Some(start) = &copying.start else { return };
        let schema = start.schema.clone();
        if copying.spilled.is_none() {
            let before = history.as_ref().map_or(i64::MIN, |history| history.sort_by);
            let behind = before
                .max(copying.lsn as i64)
                .saturating_add(start.most_rows as i64);
            let writer = writer
                .take()
                .unwrap_or_else(|| open(lake, feed, source, &start.folder, &schema));
            copying.spilled = Some((writer, behind));
        }
        copying.hold(lake);
        self.building = self.building.saturating_sub(building);
        let held = std::mem::take(&mut copying.held);
        let Some((writer, sort_by)) = &mut copying.spilled else {
            return;
        };
        if let Err(error) = write_held(held, &schema, sort_by, writer) {
            self.fail(oid, error, false);
        } else {
            writer.spill();
        }
    }

    /// Commits snapshot and held changes together, once everything that the snapshot sees has
    /// been decoded.
    fn join(&mut self, oid: u32, lane: usize) -> Result<(), String> {
        let position = self.position;
        let database = self.database;
        let ticket = self.ticket();
        let building = self.tables.get(&oid).map_or(0, Table::building);
        let Some(copying) = self.copying(oid) else {
            return Ok(());
        };
        let Some(start) = &copying.start else {
            return Ok(());
        };
        if position < start.until {
            return Ok(());
        }
        if let Some(buffer) = &copying.buffer
            && !compatible(&start.schema, buffer.schema())
        {
            self.lanes.cancel(oid);
            self.copy_again(oid, position, "its columns have changed");
            return Ok(());
        }
        let answer = Files::of(database, lane)
            .read_answer()
            .map_err(|error| error.to_string())?;
        let lake = &self.lake;
        let source = self.source(oid);
        let Some(table) = self.tables.get_mut(&oid) else {
            return Ok(());
        };
        let Some(feed) = self.feeds.get(&table.namespace) else {
            return Ok(());
        };
        let State::Snapshot(snapshot) = &mut table.state else {
            return Ok(());
        };
        let first = if snapshot.pinned { snapshot.since } else { 0 };
        let Snapshot {
            history,
            writer,
            phase: Phase::Copying(copying),
            ..
        } = &mut **snapshot
        else {
            return Ok(());
        };
        copying.hold(lake);
        let held = std::mem::take(&mut copying.held);
        let Some(start) = copying.start.take() else {
            return Ok(());
        };
        let (writer, mut sort_by) = copying.spilled.take().unwrap_or_else(|| {
            let writer = writer
                .take()
                .unwrap_or_else(|| open(lake, feed, source, &start.folder, &start.schema));
            (writer, answer.sort_by)
        });
        let has_rows = answer.rows > 0 || !held.is_empty() || copying.last_end > 0;
        write_held(held, &start.schema, &mut sort_by, &writer)?;
        writer.replace(
            ticket,
            Replace {
                schema: start.schema.clone(),
                files: answer.files,
                keep_existing: history.is_none(),
                commit: RowsCommit {
                    lsn: position,
                    sort_by,
                },
            },
        );
        let history = History {
            folder: start.folder.clone(),
            schema: start.schema.clone(),
            sort_by,
        };
        let mut stream = Stream::new(Some(history), position);
        stream.writer = Some(writer);
        stream.has_rows = has_rows;
        stream.in_flight.push_back(InFlight {
            ticket,
            first,
            snapshot: true,
        });
        table.shown.snapshot_rows = answer.rows;
        table.state = State::Streaming(Box::new(stream));
        self.building = self.building.saturating_sub(building);
        self.lanes.release(lane);
        Ok(())
    }

    /// How long the main loop may wait while copies run.
    pub fn snapshot_wait(&self) -> Option<Duration> {
        // One that waits for FULL identity is moved on by a look, not by waiting.
        let copying = self.tables.values().any(|table| match &table.state {
            State::Snapshot(snapshot) => {
                table.shown.skipped.is_none() || matches!(snapshot.phase, Phase::Copying(_))
            }
            _ => false,
        });
        copying.then_some(Duration::from_millis(20))
    }
}

impl Copying {
    /// Moves what the builders hold to the held batches.
    pub fn hold(&mut self, lake: &Lake) {
        if let Some(buffer) = self.buffer.as_mut().filter(|buffer| !buffer.is_empty()) {
            let held = buffer.take(lake.budget());
            self.held.push(held);
        }
    }

    /// Memory of changes that cannot be written yet, because the snapshot is not known.
    pub fn held_bytes(&self) -> usize {
        match self.start {
            Some(_) => 0,
            None => {
                let building = self.buffer.as_ref().map_or(0, Buffer::bytes);
                building
                    + self
                        .held
                        .iter()
                        .map(|held| held.charge.bytes())
                        .sum::<usize>()
            }
        }
    }
}

/// Opens the writer of a history table that is there.
fn open(
    lake: &Lake,
    feed: &Feed,
    source: Source,
    folder: &str,
    schema: &HistorySchema,
) -> HistoryWriter {
    lake.open(OpenTable {
        table: source.table,
        source,
        generation: feed.row.generation,
        destination: feed.destination.clone(),
        target: Target::Existing {
            folder: folder.to_owned(),
        },
        schema: schema.clone(),
    })
}

/// Hands held changes to the writer, with the `_sort_by` that follows.
fn write_held(
    held: Vec<Held>,
    schema: &HistorySchema,
    sort_by: &mut i64,
    writer: &HistoryWriter,
) -> Result<(), String> {
    for batch in held {
        let sealed =
            columns::seal(schema, batch.value, sort_by).map_err(|error| error.to_string())?;
        writer.write(Charged {
            value: sealed,
            charge: batch.charge,
        });
    }
    Ok(())
}
