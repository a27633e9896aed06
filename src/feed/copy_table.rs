//! Copies the rows of one table into data files, for the snapshot worker: of a partitioned table those
//! of all partitions, under one snapshot.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::time::Duration;

use super::assistants::Assistants;
use super::copier::{Common, Copier, Place};
use super::job::{Files, Job, Start};
use super::scan::{Part, parts};
use super::snapshot_worker::End;
use super::waiters::Waiters;
use crate::columns::{Encoding, Shape};
use crate::decode::insert_position;
use crate::lake::{Believed, Event, HistorySchema, HistoryWriter, Lake, OpenTable, Source, Target};
use crate::process;
use crate::shared::{self, LaneState};

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
    lock_free(table, storages)
}

/// Opens and locks a table and its partitions if nobody is in the way.
pub(super) fn lock_free(table: u32, storages: &[u32]) -> Result<Option<Locked>, End> {
    if !is_free(table) || !storages.iter().all(|storage| is_free(*storage)) {
        return Ok(None);
    }
    let relation = open_relation(table, true).ok_or_else(dropped)?;
    let open = |storage: &u32| match *storage == table {
        true => Some((table, relation)),
        false => Some((*storage, open_relation(*storage, true)?)),
    };
    let storages = storages.iter().filter_map(open).collect();
    Ok(Some(Locked {
        table: relation,
        storages,
    }))
}

impl Locked {
    /// The table's columns.
    ///
    /// # Safety
    /// In a transaction.
    pub unsafe fn shape(&self) -> Shape {
        // SAFETY: as the caller vouches; the relation is open.
        unsafe { Shape::from_tupdesc((*self.table).rd_att) }
    }

    /// The relations that have its rows.
    pub fn oids(&self) -> impl Iterator<Item = u32> {
        self.storages.iter().map(|(oid, _)| *oid)
    }

    /// One of the relations that have its rows.
    pub fn storage(&self, oid: u32) -> Option<pg_sys::Relation> {
        let mut storages = self.storages.iter();
        storages
            .find(|(storage, _)| *storage == oid)
            .map(|(_, relation)| *relation)
    }

    /// Ends the use of the transaction's snapshot and of the relations.
    pub fn release(&self) {
        // SAFETY: pops what the copy has pushed; the relations were opened for it and are not used any
        // more.
        unsafe {
            pg_sys::PopActiveSnapshot();
            let partitions = self.storages.iter().map(|(_, relation)| *relation);
            for relation in partitions
                .filter(|relation| *relation != self.table)
                .chain([self.table])
            {
                pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            }
        }
    }
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
    let owner = shared::lock().lanes[lane].owner_pid;
    // SAFETY: the relation is open, and a transaction allows catalog access.
    let (shape, name) = unsafe { (locked.shape(), name_of(locked.table)) };
    let schema =
        HistorySchema::new(shape.fields()).map_err(|error| End::Unfit(error.to_string()))?;
    let mut waiters = Waiters::new(job, locked.oids());
    let target = match &job.folder {
        Some(folder) => Target::StageOnly {
            folder: folder.clone(),
        },
        None => Target::New {
            table_name: name,
            whole: None,
        },
    };
    let writer = open(lake, job, &schema, target)?;
    let folder = opened(lake, job.folder.as_ref(), &mut waiters)?;

    // SAFETY: within the transaction; the first snapshot of it, which stays the only one.
    let (snapshot, timestamp) = unsafe {
        let snapshot = pg_sys::GetTransactionSnapshot();
        pg_sys::PushActiveSnapshot(snapshot);
        (pg_sys::GetActiveSnapshot(), pg_sys::GetCurrentTimestamp())
    };
    let text = current_snapshot()?;
    let parts = parts(job.table, &locked.storages, &shape)?;
    files
        .write_start(&Start {
            snapshot: text,
            until: insert_position(),
            fields: shape.fields(),
            folder: folder.clone(),
            most_rows: parts.iter().map(Part::most_rows).sum(),
        })
        .map_err(|error| format!("could not write down the snapshot: {error}"))?;
    {
        let mut state = shared::lock();
        let entry = &mut state.lanes[lane];
        entry.rows_total = parts.iter().map(Part::expected_rows).sum();
        entry.state = LaneState::Copying;
    }
    shared::wake(owner);

    let assistants = Assistants::call(lane, job, (&parts, &shape), &folder, snapshot, timestamp)?;
    let place = Place {
        lane,
        owner,
        leader: lane,
        lake,
    };
    let common = Common::of(job, timestamp);
    // SAFETY: in the transaction of the snapshot.
    let mut copier =
        unsafe { Copier::new(place, common, snapshot, (&shape, schema), writer, waiters) };
    let answer = match assistants {
        None => {
            for part in &parts {
                copier.copy(part, None)?;
            }
            copier.finish()?
        }
        Some(mut assistants) => {
            while let Some(chunk) = assistants.claim() {
                copier.copy_chunk(&parts[chunk.part], &chunk)?;
            }
            assistants.wait(|| copier.check())?;
            let mut answer = copier.finish()?;
            assistants.add_to(&mut answer);
            answer
        }
    };
    locked.release();
    files
        .write_answer(&answer)
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

/// Opens the history table's folder, or makes the table.
pub(super) fn open(
    lake: &Lake,
    job: &Job,
    schema: &HistorySchema,
    target: Target,
) -> Result<HistoryWriter, End> {
    let destination = job.destination().map_err(|error| error.with_remedy())?;
    Ok(lake.open(OpenTable {
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
        target,
        schema: schema.clone(),
        evolves: job.evolves,
    }))
}

/// The history table's folder; one that is made is waited for.
fn opened(lake: &Lake, folder: Option<&String>, waiters: &mut Waiters) -> Result<String, End> {
    if let Some(folder) = folder {
        return Ok(folder.clone());
    }
    loop {
        while let Some(event) = lake.try_event() {
            match event {
                Event::Opened { folder, .. } => return Ok(folder),
                Event::Failed { error, .. } => return Err(End::Failed(error.with_remedy())),
                _ => {}
            }
        }
        waiters.give_way()?;
        process::wait(Duration::from_millis(50));
    }
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
