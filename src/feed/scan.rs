//! The relations that hold a table's rows, read page by page under a snapshot: the whole of them by
//! one worker, or ranges of pages by several.

use pgrx::pg_sys;
use serde::{Deserialize, Serialize};
use std::ops::Range;

use super::copy_table::storages;
use super::snapshot_worker::End;
use crate::columns::{Layout, Shape};

/// The most rows in one page of a heap (MaxHeapTuplesPerPage, htup_details.h).
const ROWS_PER_PAGE: u64 = 291;
/// More rows than a relation that is no heap can have.
const ANY_NUMBER_OF_ROWS: u64 = 1 << 48;
/// Pages that one of several workers takes at a time: 16 MiB. Where faults are injected, so few that
/// small tables are shared, too.
const CHUNK: u32 = match cfg!(feature = "fail-points") {
    true => 4,
    false => 2048,
};

/// A relation that holds rows of the table, open and locked.
pub(super) struct Part {
    relation: pg_sys::Relation,
    /// Where the table's columns are in its tuples.
    pub layout: Option<Layout>,
}

/// How large a part was when the snapshot was taken: what came after, the snapshot does not see.
#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
pub(super) struct Extent {
    /// OID of the relation.
    pub storage: u32,
    /// Its pages.
    pub pages: u32,
}

/// Pages of a part that are read at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Number of the part.
    pub part: usize,
    /// Its pages.
    pub pages: Range<u32>,
    /// The most rows that all chunks before it can have.
    pub rows_before: u64,
}

/// The chunks of parts that are heaps.
pub(super) fn chunks(extents: &[Extent]) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    let mut rows_before = 0;
    for (part, extent) in extents.iter().enumerate() {
        for first in (0..extent.pages).step_by(CHUNK as usize) {
            let pages = first..extent.pages.min(first.saturating_add(CHUNK));
            let rows = u64::from(pages.end - first) * ROWS_PER_PAGE;
            chunks.push(Chunk {
                part,
                pages,
                rows_before,
            });
            rows_before += rows;
        }
    }
    chunks
}

/// The parts of a table that the transaction's snapshot sees, of those that were `locked` before it
/// was taken.
pub(super) fn parts(
    table: u32,
    locked: &[(u32, pg_sys::Relation)],
    shape: &Shape,
) -> Result<Vec<Part>, End> {
    let mut parts = Vec::new();
    for storage in storages(table)? {
        let Some((_, relation)) = locked.iter().find(|(oid, _)| *oid == storage) else {
            // It came in between; the next copy has it.
            return Err(End::GaveWay);
        };
        // SAFETY: the caller has opened and locked it.
        parts.push(unsafe { Part::new(*relation, shape) }?);
    }
    Ok(parts)
}

impl Part {
    /// # Safety
    /// The relation is open, and stays so as long as the value is used.
    pub unsafe fn new(relation: pg_sys::Relation, shape: &Shape) -> Result<Part, End> {
        // SAFETY: the relation is open, and its descriptor with it.
        let (kind, layout) = unsafe {
            (
                (*(*relation).rd_rel).relkind as u8,
                shape.layout((*relation).rd_att),
            )
        };
        if kind != pg_sys::RELKIND_RELATION {
            return Err(End::Failed("a partition is no ordinary table".into()));
        }
        Ok(Part {
            relation,
            layout: layout.map_err(|error| End::Unfit(error.to_string()))?,
        })
    }

    pub fn descriptor(&self) -> pg_sys::TupleDesc {
        // SAFETY: the relation is open.
        unsafe { (*self.relation).rd_att }
    }

    /// A heap can be read from any page on, and tells by its pages how many rows it can have.
    pub fn is_heap(&self) -> bool {
        // SAFETY: the relation is open.
        unsafe { (*(*self.relation).rd_rel).relam == pg_sys::HEAP_TABLE_AM_OID }
    }

    pub fn extent(&self) -> Extent {
        // SAFETY: the relation is open.
        unsafe {
            let main = pg_sys::ForkNumber::MAIN_FORKNUM;
            Extent {
                storage: (*self.relation).rd_id.to_u32(),
                pages: pg_sys::RelationGetNumberOfBlocksInFork(self.relation, main),
            }
        }
    }

    /// About how many rows it has, by the statistics.
    pub fn expected_rows(&self) -> u64 {
        // SAFETY: the relation is open.
        unsafe { (*(*self.relation).rd_rel).reltuples.max(0.0) as u64 }
    }

    /// The most rows it can have.
    pub fn most_rows(&self) -> u64 {
        match self.is_heap() {
            true => u64::from(self.extent().pages) * ROWS_PER_PAGE,
            false => ANY_NUMBER_OF_ROWS,
        }
    }

    /// Shows every row that the snapshot sees to `visit`, or those of a heap's pages.
    pub fn scan(
        &self,
        snapshot: pg_sys::Snapshot,
        pages: Option<Range<u32>>,
        visit: impl FnMut(pg_sys::HeapTuple) -> Result<(), End>,
    ) -> Result<(), End> {
        match self.is_heap() {
            true => self.scan_heap(snapshot, pages, visit),
            false => self.scan_rows(snapshot, visit),
        }
    }

    fn scan_heap(
        &self,
        snapshot: pg_sys::Snapshot,
        pages: Option<Range<u32>>,
        mut visit: impl FnMut(pg_sys::HeapTuple) -> Result<(), End>,
    ) -> Result<(), End> {
        let forward = pg_sys::ScanDirection::ForwardScanDirection;
        let null = std::ptr::null_mut();
        // SAFETY: as index builds read ranges of a heap (heapam_handler.c): through a ring of buffers,
        // so that the cache of others stays theirs. A range allows no start in the middle. The tuple
        // is valid until the next one is fetched. An early end is followed by that of the transaction.
        unsafe {
            let synchronized = pages.is_none();
            let scan =
                pg_sys::table_beginscan_strat(self.relation, snapshot, 0, null, true, synchronized);
            if let Some(pages) = pages {
                pg_sys::heap_setscanlimits(scan, pages.start, pages.end - pages.start);
            }
            loop {
                let tuple = pg_sys::heap_getnext(scan, forward);
                if tuple.is_null() {
                    break;
                }
                pgrx::check_for_interrupts!();
                visit(tuple)?;
            }
            pg_sys::table_endscan(scan);
        }
        Ok(())
    }

    fn scan_rows(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_page_once_and_leave_room_for_every_row() {
        let extents = [CHUNK * 2 + 1, 0, 7].map(|pages| Extent { storage: 1, pages });
        let chunks = chunks(&extents);
        let pages: Vec<(usize, Range<u32>)> = chunks
            .iter()
            .map(|chunk| (chunk.part, chunk.pages.clone()))
            .collect();
        let (one, two) = (CHUNK, CHUNK * 2);
        assert_eq!(
            pages,
            [(0, 0..one), (0, one..two), (0, two..two + 1), (2, 0..7)]
        );
        for pair in chunks.windows(2) {
            let rows = u64::from(pair[0].pages.len() as u32) * ROWS_PER_PAGE;
            assert_eq!(pair[1].rows_before, pair[0].rows_before + rows);
        }
    }
}
