//! Rows of one table on their way into data files, in one of the processes that copy it.

use pgrx::pg_sys;
use std::ops::Range;
use std::time::Duration;

use super::job::{Answer, Job};
use super::scan::{Chunk, Part};
use super::snapshot_worker::{End, owned_by};
use super::waiters::Waiters;
use crate::columns::{self, Change, Origin, Rows, Shape};
use crate::fail_point;
use crate::lake::{Charged, Event, HistorySchema, HistoryWriter, Lake};
use crate::process;
use crate::shared;

/// Memory for rows that are not in a file yet.
pub(super) const MEMORY: usize = 64 << 20;
/// Arrow data in one batch.
const BATCH_BYTES: usize = 8 << 20;

/// Where a process copies to, and for whom.
pub(super) struct Place<'a> {
    /// Its lane.
    pub lane: usize,
    /// Process that the lane belongs to.
    pub owner: i32,
    /// Lane of the worker that was given the table, where the rows are counted.
    pub leader: usize,
    pub lake: &'a Lake,
}

/// What the rows of a copy have in common.
#[derive(Clone, Copy)]
pub(super) struct Common {
    /// `_pg_lsn`.
    pub lsn: u64,
    /// `_timestamp`, as Postgres has it.
    pub timestamp: i64,
    /// The last `_sort_by` before them.
    pub sort_by: i64,
}

/// Copies rows.
pub(super) struct Copier<'a> {
    place: Place<'a>,
    common: Common,
    snapshot: pg_sys::Snapshot,
    schema: HistorySchema,
    writer: HistoryWriter,
    rows: Rows,
    waiters: Waiters,
    /// `_sort_by` that the next row follows.
    sort_by: i64,
    /// `_sort_by` of the last row.
    last: i64,
    count: u64,
    scanned: u64,
}

impl<'a> Copier<'a> {
    /// Has copied nothing yet.
    ///
    /// # Safety
    /// On the main thread, in a transaction; the snapshot is valid as long as the value is used.
    pub unsafe fn new(
        place: Place<'a>,
        common: Common,
        snapshot: pg_sys::Snapshot,
        (shape, schema): (&Shape, HistorySchema),
        writer: HistoryWriter,
        waiters: Waiters,
    ) -> Copier<'a> {
        // Those of an earlier copy.
        columns::take_replaced();
        Copier {
            place,
            common,
            snapshot,
            schema,
            writer,
            // SAFETY: as the caller vouches.
            rows: unsafe { Rows::new(shape) },
            waiters,
            sort_by: common.sort_by,
            last: common.sort_by,
            count: 0,
            scanned: 0,
        }
    }

    /// Copies a part, or some of its pages.
    pub fn copy(&mut self, part: &Part, pages: Option<Range<u32>>) -> Result<(), End> {
        let snapshot = self.snapshot;
        part.scan(snapshot, pages, |tuple| self.take(part, tuple))
    }

    /// Copies pages that lie between those of other processes: `_sort_by` leaves room for all rows
    /// that come before them.
    pub fn copy_chunk(&mut self, part: &Part, chunk: &Chunk) -> Result<(), End> {
        self.write_batch()?;
        let first = self.common.sort_by.max(self.common.lsn as i64 - 1);
        let before = first.saturating_add(chunk.rows_before as i64);
        self.sort_by = self.sort_by.max(before);
        self.copy(part, Some(chunk.pages.clone()))
    }

    fn take(&mut self, part: &Part, tuple: pg_sys::HeapTuple) -> Result<(), End> {
        // SAFETY: a heap tuple has its header.
        let xid = unsafe { (*(*tuple).t_data).t_choice.t_heap.t_xmin.into_inner() };
        let origin = Origin {
            lsn: self.common.lsn,
            xid,
            timestamp: self.common.timestamp,
        };
        let (descriptor, layout) = (part.descriptor(), part.layout.as_ref());
        // SAFETY: in a transaction; the tuple has the descriptor of the relation it is from, whose
        // columns are where the layout says.
        unsafe {
            self.rows
                .append(Change::Insert, &origin, tuple, descriptor, layout, None)
        }
        .map_err(|error| End::Unfit(error.to_string()))?;
        if self.rows.bytes() >= BATCH_BYTES {
            self.write_batch()?;
        }
        self.scanned += 1;
        if self.scanned.is_multiple_of(1024) {
            self.waiters.give_way()?;
        }
        Ok(())
    }

    /// Hands the rows collected to the writer, and waits if it lags behind.
    fn write_batch(&mut self) -> Result<(), End> {
        if self.rows.is_empty() {
            return Ok(());
        }
        fail_point::pass("in_snapshot");
        let (count, bytes) = (self.rows.len() as u64, self.rows.bytes());
        let batch = columns::seal(&self.schema, self.rows.take(), &mut self.sort_by)
            .map_err(|error| End::Unfit(error.to_string()))?;
        self.last = self.sort_by;
        let lake = self.place.lake;
        self.writer.write(Charged {
            value: batch,
            charge: lake.budget().charge(bytes),
        });
        self.count += count;
        self.show(count);
        self.check()?;
        if lake.budget().used() > MEMORY {
            // The next file is encoded beside this one.
            self.writer.spill();
        }
        while lake.budget().used() > MEMORY {
            fail_on_error(lake)?;
            process::wait(Duration::from_millis(10));
            self.check()?;
        }
        Ok(())
    }

    fn show(&self, rows: u64) {
        let staged = self.place.lake.staged_bytes().values().sum();
        let mut state = shared::lock();
        state.lanes[self.place.leader].rows_done += rows;
        state.lanes[self.place.lane].staged_bytes = staged;
    }

    /// An end, if nobody wants the rows any more, or somebody wants the table more.
    pub fn check(&mut self) -> Result<(), End> {
        if !owned_by(self.place.lane, self.place.owner) {
            return Err(End::Failed("the feed worker has left".into()));
        }
        self.waiters.give_way()
    }

    /// Waits until everything is in data files.
    pub fn finish(mut self) -> Result<Answer, End> {
        self.write_batch()?;
        self.writer.stage(1);
        let lake = self.place.lake;
        loop {
            while let Some(event) = lake.try_event() {
                match event {
                    Event::Staged { files, .. } => {
                        return Ok(Answer {
                            files,
                            rows: self.count,
                            sort_by: self.last,
                            replaced: columns::take_replaced(),
                        });
                    }
                    Event::Failed { error, .. } => return Err(End::Failed(error.with_remedy())),
                    _ => {}
                }
            }
            self.check()?;
            process::wait(Duration::from_millis(50));
        }
    }
}

impl Common {
    /// Those of a job.
    pub fn of(job: &Job, timestamp: i64) -> Common {
        Common {
            lsn: job.lsn,
            timestamp,
            sort_by: job.sort_by,
        }
    }
}

fn fail_on_error(lake: &Lake) -> Result<(), End> {
    while let Some(event) = lake.try_event() {
        if let Event::Failed { error, .. } = event {
            return Err(End::Failed(error.with_remedy()));
        }
    }
    Ok(())
}
