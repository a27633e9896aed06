//! Copies the rows of one table into data files, for the snapshot worker: of a partitioned table those
//! of all partitions, under one snapshot.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

use super::job::{Answer, Files, Job, Start};
use super::snapshot_worker::{End, owned_by};
use crate::columns::{self, Change, Encoding, Layout, Origin, Rows, Shape};
use crate::decode::insert_position;
use crate::fail_point;
use crate::lake::{
    Believed, Charged, DataFile, Event, HistorySchema, HistoryWriter, Lake, OpenTable, Source,
    Target,
};
use crate::process;
use crate::shared::{self, LaneState};

/// Memory for rows that are not in a file yet.
pub(super) const MEMORY: usize = 64 << 20;
/// Arrow data in one batch.
const BATCH_BYTES: usize = 8 << 20;
/// The most rows in one page of a heap (MaxHeapTuplesPerPage, htup_details.h).
const ROWS_PER_PAGE: u64 = 291;
/// Time between two looks for statements that wait for the table.
const LOOK_FOR_WAITERS: Duration = Duration::from_millis(200);
/// Time between two looks at the credentials of the destination.
const RENEW: Duration = Duration::from_secs(5);

/// A table and the relations that have its rows, open and locked.
pub(super) struct Locked {
    table: pg_sys::Relation,
    /// With their OIDs; the table itself, if it has no partitions.
    storages: Vec<(u32, pg_sys::Relation)>,
}

/// Opens and locks a table and its partitions before a snapshot is taken, so that no row is rewritten
/// or truncated away under it. One relation is waited for; of several either all are free, or `None`.
pub(super) fn lock(table: u32, storages: &[u32]) -> Result<Option<Locked>, End> {
    if storages == [table] {
        let relation = open_relation(table, false).ok_or_else(dropped)?;
        return Ok(Some(Locked {
            table: relation,
            storages: vec![(table, relation)],
        }));
    }
    if !is_free(table) || !storages.iter().all(|storage| is_free(*storage)) {
        return Ok(None);
    }
    let relation = open_relation(table, true).ok_or_else(dropped)?;
    let storages = storages
        .iter()
        .filter_map(|storage| Some((*storage, open_relation(*storage, true)?)))
        .collect();
    Ok(Some(Locked {
        table: relation,
        storages,
    }))
}

fn dropped() -> End {
    End::Failed("the table was dropped".into())
}

/// Locks a relation if nobody is in the way.
fn is_free(oid: u32) -> bool {
    let lock = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
    // SAFETY: in a transaction, whose end gives the lock back.
    unsafe { pg_sys::ConditionalLockRelationOid(pg_sys::Oid::from(oid), lock) }
}

/// Copies the table of a job. It runs in a transaction that has no snapshot yet; what is open is closed
/// with that, or by an error.
pub(super) fn copy_table(
    lane: usize,
    files: &Files,
    lake: &Lake,
    job: &Job,
    locked: &Locked,
) -> Result<(), End> {
    let Locked {
        table,
        storages: locked,
    } = locked;
    let table = *table;
    // SAFETY: the relation is open, and a transaction allows catalog access.
    let (shape, mut rows, name) = unsafe {
        let shape = Shape::from_tupdesc((*table).rd_att);
        let rows = Rows::new(&shape);
        (shape, rows, name_of(table))
    };
    let schema =
        HistorySchema::new(shape.fields()).map_err(|error| End::Unfit(error.to_string()))?;
    let mut lock = Waiters::new(job, locked);
    let (writer, folder) = open(lake, job, &name, &schema, &mut lock)?;

    // SAFETY: within the transaction; the first snapshot of it, which stays the only one.
    let snapshot = unsafe {
        let snapshot = pg_sys::GetTransactionSnapshot();
        pg_sys::PushActiveSnapshot(snapshot);
        pg_sys::GetActiveSnapshot()
    };
    let text = current_snapshot()?;
    let parts = parts(job.table, locked, &shape)?;
    let measure = |part: &Part| part.size();
    let (pages, expected) = parts
        .iter()
        .map(measure)
        .fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
    files
        .write_start(&Start {
            snapshot: text,
            until: insert_position(),
            fields: shape.fields(),
            folder,
            most_rows: pages * ROWS_PER_PAGE,
        })
        .map_err(|error| format!("could not write down the snapshot: {error}"))?;
    let owner = {
        let mut state = shared::lock();
        let entry = &mut state.lanes[lane];
        entry.rows_total = expected;
        entry.state = LaneState::Copying;
        entry.owner_pid
    };
    shared::wake(owner);

    // Those of an earlier copy.
    columns::take_replaced();
    // SAFETY: reads the clock.
    let timestamp = unsafe { pg_sys::GetCurrentTimestamp() };
    let mut sort_by = job.sort_by;
    let mut count = 0u64;
    let mut batch = |rows: &mut Rows, lock: &mut Waiters| -> Result<(), End> {
        fail_point::pass("in_snapshot");
        count += rows.len() as u64;
        let bytes = rows.bytes();
        let batch = columns::seal(&schema, rows.take(), &mut sort_by)
            .map_err(|error| End::Unfit(error.to_string()))?;
        writer.write(Charged {
            value: batch,
            charge: lake.budget().charge(bytes),
        });
        {
            let staged = lake.staged_bytes().values().sum();
            let mut state = shared::lock();
            let entry = &mut state.lanes[lane];
            (entry.rows_done, entry.staged_bytes) = (count, staged);
        }
        if !owned_by(lane, owner) {
            return Err(End::Failed("the feed worker has left".into()));
        }
        lock.give_way()?;
        while lake.budget().used() > MEMORY {
            writer.spill();
            fail_on_error(lake)?;
            process::wait(Duration::from_millis(20));
            lock.give_way()?;
        }
        Ok(())
    };
    let mut scanned = 0u64;
    for part in &parts {
        part.scan(snapshot, |tuple| {
            // SAFETY: a heap tuple has its header.
            let xid = unsafe { (*(*tuple).t_data).t_choice.t_heap.t_xmin.into_inner() };
            let origin = Origin {
                lsn: job.lsn,
                xid,
                timestamp,
            };
            let (descriptor, layout) = (part.descriptor(), part.layout.as_ref());
            // SAFETY: in a transaction; the tuple has the descriptor of the relation it is from,
            // whose columns are where the layout says.
            unsafe { rows.append(Change::Insert, &origin, tuple, descriptor, layout, None) }
                .map_err(|error| End::Unfit(error.to_string()))?;
            if rows.bytes() >= BATCH_BYTES {
                batch(&mut rows, &mut lock)?;
            }
            scanned += 1;
            if scanned.is_multiple_of(1024) {
                lock.give_way()?;
            }
            Ok(())
        })?;
    }
    if !rows.is_empty() {
        batch(&mut rows, &mut lock)?;
    }
    let data = staged(lake, &writer, &mut lock)?;
    // SAFETY: pops what was pushed above; the relations were opened here and are not used any more.
    unsafe {
        pg_sys::PopActiveSnapshot();
        let partitions = locked.iter().map(|(_, relation)| *relation);
        for relation in partitions
            .filter(|relation| *relation != table)
            .chain([table])
        {
            pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        }
    }
    files
        .write_answer(&Answer {
            files: data,
            rows: count,
            sort_by,
            replaced: columns::take_replaced(),
        })
        .map_err(|error| format!("could not write down the data files: {error}"))?;
    Ok(())
}

/// OIDs of the relations that hold the rows of a table: itself, or the leaves below it. In a
/// transaction, as of its snapshot.
pub(super) fn storages(table: u32) -> Result<Vec<u32>, String> {
    let read = || -> pgrx::spi::SpiResult<Vec<u32>> {
        Spi::connect(|client| {
            let rows = client.select(
                "WITH RECURSIVE tree (relation, kind) AS ( \
                     SELECT c.oid, c.relkind FROM pg_catalog.pg_class c WHERE c.oid = $1 \
                     UNION ALL \
                     SELECT c.oid, c.relkind FROM tree t \
                     JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relation \
                     JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid \
                     WHERE t.kind = 'p' AND NOT i.inhdetachpending) \
                 SELECT t.relation FROM tree t WHERE t.kind <> 'p' ORDER BY t.relation",
                None,
                &[pg_sys::Oid::from(table).into()],
            )?;
            rows.map(|row| Ok(row.get::<pg_sys::Oid>(1)?.map_or(0, pg_sys::Oid::to_u32)))
                .collect()
        })
    };
    read().map_err(|error| error.to_string())
}

/// Opens a relation, and locks it unless that was done; `None`: it was dropped.
fn open_relation(oid: u32, locked: bool) -> Option<pg_sys::Relation> {
    let lock = match locked {
        true => pg_sys::NoLock,
        false => pg_sys::AccessShareLock,
    } as pg_sys::LOCKMODE;
    // SAFETY: in a transaction, whose end gives the lock back.
    let relation = unsafe { pg_sys::try_relation_open(pg_sys::Oid::from(oid), lock) };
    (!relation.is_null()).then_some(relation)
}

/// # Safety
/// The relation is open, in a transaction.
unsafe fn name_of(relation: pg_sys::Relation) -> String {
    // SAFETY: the caller's promise; a NameData is NUL-terminated.
    unsafe {
        let name = std::ffi::CStr::from_ptr((*(*relation).rd_rel).relname.data.as_ptr());
        Encoding::of_database().to_string(name.to_bytes())
    }
}

/// A relation that holds rows of the table, open and locked.
struct Part {
    relation: pg_sys::Relation,
    /// Where the table's columns are in its tuples.
    layout: Option<Layout>,
}

/// The parts of a table that the transaction's snapshot sees, of those that were `locked` before it
/// was taken.
fn parts(table: u32, locked: &[(u32, pg_sys::Relation)], shape: &Shape) -> Result<Vec<Part>, End> {
    let mut parts = Vec::new();
    for storage in storages(table)? {
        let Some((_, relation)) = locked.iter().find(|(oid, _)| *oid == storage) else {
            // It came in between; the next copy has it.
            return Err(End::GaveWay);
        };
        // SAFETY: the relation is open, and its descriptor with it.
        let (kind, layout) = unsafe {
            (
                (*(**relation).rd_rel).relkind as u8,
                shape.layout((**relation).rd_att),
            )
        };
        if kind != pg_sys::RELKIND_RELATION {
            return Err(End::Failed("a partition is no ordinary table".into()));
        }
        parts.push(Part {
            relation: *relation,
            layout: layout.map_err(|error| End::Unfit(error.to_string()))?,
        });
    }
    Ok(parts)
}

impl Part {
    fn descriptor(&self) -> pg_sys::TupleDesc {
        // SAFETY: the relation is open.
        unsafe { (*self.relation).rd_att }
    }

    /// Pages, and about how many rows.
    fn size(&self) -> (u64, u64) {
        // SAFETY: the relation is open.
        unsafe {
            let main = pg_sys::ForkNumber::MAIN_FORKNUM;
            let pages = pg_sys::RelationGetNumberOfBlocksInFork(self.relation, main);
            let rows = (*(*self.relation).rd_rel).reltuples.max(0.0) as u64;
            (u64::from(pages), rows)
        }
    }

    /// Shows every row that the snapshot sees to `visit`.
    fn scan(
        &self,
        snapshot: pg_sys::Snapshot,
        mut visit: impl FnMut(pg_sys::HeapTuple) -> Result<(), End>,
    ) -> Result<(), End> {
        // SAFETY: a sequential scan under the active snapshot, as copyto.c does it; the slot's tuple
        // is valid until the next one is fetched, and has the relation's descriptor. An early end is
        // followed by that of the transaction.
        unsafe {
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            let slot = pg_sys::table_slot_create(self.relation, std::ptr::null_mut());
            let scan = pg_sys::table_beginscan(self.relation, snapshot, 0, std::ptr::null_mut());
            while pg_sys::table_scan_getnextslot(scan, forward, slot) {
                pgrx::check_for_interrupts!();
                let mut allocated = false;
                let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, false, &mut allocated);
                let result = visit(tuple);
                if allocated {
                    pg_sys::pfree(tuple.cast());
                }
                result?;
            }
            pg_sys::table_endscan(scan);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
        }
        Ok(())
    }
}

/// Looks whether a statement waits for the table that is copied: DDL must not wait for a copy that
/// may take hours, nor what queues up behind it.
struct Waiters {
    /// Its credentials may be changed meanwhile.
    job: Job,
    renewed: Instant,
    relations: Vec<i64>,
    patience: Duration,
    looked: Instant,
    since: Option<Instant>,
}

impl Waiters {
    fn new(job: &Job, locked: &[(u32, pg_sys::Relation)]) -> Waiters {
        let locked = locked.iter().map(|(oid, _)| *oid);
        Waiters {
            job: job.clone(),
            renewed: Instant::now(),
            relations: locked.chain([job.table]).map(i64::from).collect(),
            patience: Duration::from_millis(job.patience_ms),
            looked: Instant::now(),
            since: None,
        }
    }

    /// An end, if somebody has waited for longer than patience lasts.
    fn give_way(&mut self) -> Result<(), End> {
        if self.looked.elapsed() < LOOK_FOR_WAITERS {
            return Ok(());
        }
        self.looked = Instant::now();
        if self.renewed.elapsed() > RENEW {
            self.renewed = self.looked;
            self.job.renew();
        }
        let waited_for = Spi::connect(|client| {
            client
                .select(
                    "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE NOT l.granted \
                     AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' \
                     AND l.relation = ANY ($1::bigint[]::oid[]) AND l.database = \
                     (SELECT d.oid FROM pg_catalog.pg_database d \
                      WHERE d.datname = pg_catalog.current_database()))",
                    None,
                    &[self.relations.clone().into()],
                )?
                .first()
                .get_one::<bool>()
        })
        .map_err(|error| error.to_string())?;
        if waited_for != Some(true) {
            self.since = None;
            return Ok(());
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        match since.elapsed() >= self.patience {
            true => Err(End::GaveWay),
            false => Ok(()),
        }
    }
}

/// Opens the history table's folder, making the table if there is none, and returns its name.
fn open(
    lake: &Lake,
    job: &Job,
    name: &str,
    schema: &HistorySchema,
    lock: &mut Waiters,
) -> Result<(HistoryWriter, String), End> {
    let destination = job.destination().map_err(|error| error.with_remedy())?;
    let writer = lake.open(OpenTable {
        table: job.table,
        source: Source {
            system: job.system,
            database: job.database,
            table: job.table,
        },
        generation: job.generation,
        homes: job.homes.clone(),
        believed: Believed::Nothing,
        destination,
        target: match &job.folder {
            Some(folder) => Target::StageOnly {
                folder: folder.clone(),
            },
            None => Target::New {
                table_name: name.to_owned(),
                whole: None,
            },
        },
        schema: schema.clone(),
        evolves: job.evolves,
    });
    if let Some(folder) = &job.folder {
        return Ok((writer, folder.clone()));
    }
    loop {
        while let Some(event) = lake.try_event() {
            match event {
                Event::Opened { folder, .. } => return Ok((writer, folder)),
                Event::Failed { error, .. } => return Err(End::Failed(error.with_remedy())),
                _ => {}
            }
        }
        lock.give_way()?;
        process::wait(Duration::from_millis(50));
    }
}

/// Waits until everything is in data files and returns them.
fn staged(lake: &Lake, writer: &HistoryWriter, lock: &mut Waiters) -> Result<Vec<DataFile>, End> {
    writer.stage(1);
    loop {
        while let Some(event) = lake.try_event() {
            match event {
                Event::Staged { files, .. } => return Ok(files),
                Event::Failed { error, .. } => return Err(End::Failed(error.with_remedy())),
                _ => {}
            }
        }
        lock.give_way()?;
        process::wait(Duration::from_millis(50));
    }
}

fn fail_on_error(lake: &Lake) -> Result<(), String> {
    while let Some(event) = lake.try_event() {
        if let Event::Failed { error, .. } = event {
            return Err(error.with_remedy());
        }
    }
    Ok(())
}

fn current_snapshot() -> Result<String, String> {
    Spi::connect(|client| {
        client
            .select("SELECT pg_catalog.pg_current_snapshot()::text", None, &[])?
            .first()
            .get_one::<String>()
    })
    .map_err(|error| error.to_string())?
    .ok_or_else(|| "no current snapshot".to_owned())
}
