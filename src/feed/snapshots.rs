//! Copies of tables, seen from the feed worker: gives jobs to snapshot workers, holds the changes
//! that come meanwhile, and joins both into one commit (rule 5 of the design).
//!
//! A copy begins when every decoded commit is visible, so that its snapshot sees all of them: what
//! was decoded before is in the copy. From then on changes are held. Once the snapshot is known,
//! the transactions it sees are dropped, exactly. The commit waits until everything that the
//! snapshot sees has been decoded: then no such transaction can come later, not even after a
//! restart.

use std::sync::Arc;
use std::time::Duration;

use super::buffer::{Buffer, Held, compatible};
use super::clearing::open_existing;
use super::feeds::Feeds;
use super::job::{Files, Job};
use super::table::{
    Clearing, Copying, History, InFlight, Phase, Snapshot, Start, State, Stream, Table,
};
use super::visibility::Visibility;
use crate::columns;
use crate::decode::flush_position;
use crate::fail_point;
use crate::lake::{
    Charged, Content, HistorySchema, HistoryWriter, Lake, Replace, Retry, RowsCommit,
};
use crate::shared::LaneState;

/// How long a statement may wait for a table because it is copied, after one that was given up for
/// it and at most.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

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
                // Another table may hold decoding back to before what the history has: a copy of now
                // would bear an earlier LSN.
                Phase::Queued if snapshot.is_ahead(self.position) => {}
                Phase::Queued if table.shown.skipped.is_none() && snapshot.opening.is_none() => {
                    match (
                        table.evolves && snapshot.history.is_some(),
                        snapshot.clearing,
                    ) {
                        (true, Clearing::Not) => self.begin_clearing(oid),
                        (_, Clearing::Asked(_)) => {}
                        _ => self.begin_copy(oid),
                    }
                }
                Phase::Queued => self.mark_gap(oid),
                Phase::Copying(copying) => {
                    let lane = copying.lane;
                    self.follow_copy(oid, lane);
                }
            }
        }
    }

    fn begin_copy(&mut self, oid: u32) {
        // What was written of the table before it left its feed, and came back, must have ended.
        let leaves = self.leaving.iter().any(|table| table.oid == oid);
        if leaves || !self.all_visible() {
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
        if feed.halt.is_some() {
            return;
        }
        let history = snapshot.history.as_ref();
        let job = Job {
            table: oid,
            system: self.system,
            database: self.database,
            generation: table.generation,
            homes: feed.row.homes.clone(),
            destination: feed.row.destination.clone(),
            server: feed.row.server,
            role: feed.row.role,
            folder: history.map(|history| history.folder.clone()),
            lsn: self.position,
            sort_by: snapshot.last_sort_by(),
            patience_ms: table.patience.as_millis() as u64,
            evolves: matches!(snapshot.clearing, Clearing::Done(_)),
            assist: None,
            opened: Arc::default(),
        };
        let Some(lane) = self.lanes.give(position, &job) else {
            let error = "no background worker is free for its snapshot. \
                         Raise max_worker_processes and restart the server.";
            self.fail(oid, error.into(), Retry::Backoff);
            return;
        };
        snapshot.phase = Phase::Copying(Box::new(Copying {
            lane,
            lsn: job.lsn,
            ..Copying::default()
        }));
    }

    fn follow_copy(&mut self, oid: u32, lane: usize) {
        let (state, error) = self.lanes.progress(lane);
        let result = match state {
            LaneState::Unfit => return self.fail(oid, error, Retry::AfterChange),
            LaneState::Failed => Err(error),
            LaneState::Copying | LaneState::Done => {
                self.learn_start(oid, lane).and_then(|()| match state {
                    LaneState::Done => self.join(oid, lane),
                    _ => Ok(()),
                })
            }
            LaneState::GaveWay => {
                self.give_way(oid);
                return;
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
            self.fail(oid, error, Retry::Backoff);
        }
    }

    /// Begins a copy anew that was given up for somebody else's lock. The next one has more patience,
    /// so that it ends some time however often the table is locked.
    fn give_way(&mut self, oid: u32) {
        if let Some(table) = self.tables.get_mut(&oid) {
            table.patience = (table.patience * 2).clamp(PATIENCE.0, PATIENCE.1);
        }
        self.copy_again(oid, self.position, "a statement waited for the table");
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
        let generation = table.generation;
        let State::Snapshot(snapshot) = &mut table.state else {
            return;
        };
        let (evolved, before) = (snapshot.evolved(), snapshot.last_sort_by());
        let Snapshot {
            writer,
            phase: Phase::Copying(copying),
            ..
        } = &mut **snapshot
        else {
            return;
        };
        if copying.held.is_empty() && building == 0 {
            return;
        }
        let Some(start) = &copying.start else { return };
        let schema = start.schema.clone();
        if copying.spilled.is_none() {
            let behind = before
                .max(copying.lsn as i64)
                .saturating_add(start.most_rows as i64);
            let writer = writer.take().unwrap_or_else(|| {
                open_existing(lake, feed, source, generation, &start.folder, &schema)
            });
            if let Some(evolved) = evolved {
                writer.evolve(evolved);
            }
            copying.spilled = Some((writer, behind));
        }
        copying.hold(lake);
        self.building = self.building.saturating_sub(building);
        let held = std::mem::take(&mut copying.held);
        let Some((writer, sort_by)) = &mut copying.spilled else {
            return;
        };
        if let Err(error) = write_held(held, &schema, sort_by, writer) {
            self.fail(oid, error, Retry::Backoff);
        } else {
            writer.spill();
        }
    }

    /// Commits snapshot and held changes together, once everything that the snapshot sees has
    /// been decoded.
    fn join(&mut self, oid: u32, lane: usize) -> Result<(), String> {
        let (position, crc) = (self.position, self.crc_here());
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
        let generation = table.generation;
        let State::Snapshot(snapshot) = &mut table.state else {
            return Ok(());
        };
        let first = if snapshot.pinned { snapshot.since } else { 0 };
        let (evolved, before) = (snapshot.evolved(), snapshot.last_sort_by());
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
            let writer = writer.take().unwrap_or_else(|| {
                let (folder, schema) = (&start.folder, &start.schema);
                open_existing(lake, feed, source, generation, folder, schema)
            });
            if let Some(evolved) = &evolved {
                writer.evolve(evolved.clone());
            }
            (writer, answer.sort_by)
        });
        let kept = evolved.is_some();
        let has_rows = kept || answer.rows > 0 || !held.is_empty() || copying.last_end > 0;
        fail_point::pass("before_join");
        write_held(held, &start.schema, &mut sort_by, &writer)?;
        let content = match (&history, &evolved) {
            (None, _) => Content::First,
            (Some(_), Some(_)) => Content::Behind(before),
            (Some(_), None) => Content::Instead,
        };
        let schema = evolved.unwrap_or_else(|| start.schema.clone());
        writer.replace(
            ticket,
            Replace {
                generation,
                schema: schema.clone(),
                files: answer.files,
                content,
                commit: RowsCommit {
                    lsn: position,
                    crc,
                    sort_by,
                },
            },
        );
        let history = History {
            folder: start.folder.clone(),
            schema,
            sort_by,
            progress: None,
        };
        let mut stream = Stream::new(Some(history), position);
        stream.writer = Some(writer);
        stream.has_rows = has_rows;
        stream.in_flight.push_back(InFlight {
            ticket,
            first,
            snapshot: true,
            bare: false,
        });
        table.shown.snapshot_rows = answer.rows;
        table.shown.replaced += answer.replaced;
        table.patience = Duration::ZERO;
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

impl Snapshot {
    /// Whether the history has more than was decoded, of what this server has written.
    fn is_ahead(&self, position: u64) -> bool {
        let progress = self.history.as_ref().and_then(|history| history.progress);
        progress.is_some_and(|progress| progress.lsn > position && progress.lsn <= flush_position())
    }

    /// The last `_sort_by` before the rows of the copy.
    fn last_sort_by(&self) -> i64 {
        match (self.clearing, &self.history) {
            (Clearing::Done(sort_by), _) => sort_by,
            (_, Some(history)) => history.sort_by,
            (_, None) => i64::MIN,
        }
    }

    /// The columns of a history that is kept, with those of the copy; `None`: it is not kept, or the
    /// copy's are not known yet.
    fn evolved(&self) -> Option<HistorySchema> {
        let kept = matches!(self.clearing, Clearing::Done(_));
        let history = self.history.as_ref().filter(|_| kept)?;
        match &self.phase {
            Phase::Copying(copying) => {
                let start = copying.start.as_ref()?;
                let evolved = history.schema.evolve(&start.schema).schema;
                Some(evolved.written_anew())
            }
            Phase::Queued => None,
        }
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
