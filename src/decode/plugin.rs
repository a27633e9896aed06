//! The output plugin. Its callbacks write nothing: they hand tuples to the [`Sink`] of the decoding
//! loop in the same process. Any other caller of the plugin is refused.

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};

use super::partitions::root_of;

/// A committed transaction.
#[derive(Clone, Copy, Debug)]
pub struct Transaction {
    /// Its top-level id.
    pub xid: u32,
    /// Start of its commit record; a slot confirmed up to here delivers it again.
    pub commit_lsn: u64,
    /// End of its commit record.
    pub end_lsn: u64,
    /// Checksum of its commit record.
    pub crc: u32,
    /// Commit time in microseconds since 2000-01-01 UTC.
    pub timestamp: i64,
    /// It changed the catalog.
    pub changes_catalog: bool,
}

/// A changed row. The tuples are valid until the callback returns.
#[derive(Clone, Copy)]
pub enum Change {
    /// INSERT or COPY.
    Insert {
        /// The row.
        new: pg_sys::HeapTuple,
    },
    /// UPDATE; the old row is whole under REPLICA IDENTITY FULL.
    Update {
        /// The row before, if the WAL has it.
        old: Option<pg_sys::HeapTuple>,
        /// The row after; unchanged out-of-line values are missing.
        new: pg_sys::HeapTuple,
    },
    /// The first half of an update whose halves are taken one by one.
    Preimage {
        /// The row before.
        old: pg_sys::HeapTuple,
    },
    /// The second half.
    Postimage {
        /// The row before.
        old: pg_sys::HeapTuple,
        /// The row after; unchanged out-of-line values are missing.
        new: pg_sys::HeapTuple,
    },
    /// DELETE.
    Delete {
        /// The row, if the WAL has it.
        old: Option<pg_sys::HeapTuple>,
    },
}

impl Change {
    /// The halves of an update whose old row takes more than `bytes`, so that each can be let go
    /// before the other is taken.
    pub fn halves(self, bytes: usize) -> Option<[Change; 2]> {
        match self {
            // SAFETY: the tuple is valid until the callback returns. Under REPLICA IDENTITY FULL
            // all of its values are in it, large ones too (heapam.c ExtractReplicaIdentity).
            Change::Update {
                old: Some(old),
                new,
            } if unsafe { (*old).t_len } as usize > bytes => {
                Some([Change::Preimage { old }, Change::Postimage { old, new }])
            }
            _ => None,
        }
    }
}

/// A table as it was when a change was made, valid until the callback returns. Rows of a partition are
/// changes of the root of its tree.
#[derive(Clone, Copy)]
pub struct Relation {
    table: pg_sys::Relation,
    /// The partition that has the row, else `table`.
    storage: pg_sys::Relation,
}

/// # Safety
/// The relation is open as long as `'a`.
unsafe fn class<'a>(relation: pg_sys::Relation) -> &'a pg_sys::FormData_pg_class {
    // SAFETY: decoding holds the relation open during the callback, and rd_rel with it.
    unsafe { &*(*relation).rd_rel }
}

impl Relation {
    /// An open relation, as a table of its own.
    ///
    /// # Safety
    /// It must stay open as long as the value is used.
    pub(super) unsafe fn of(relation: pg_sys::Relation) -> Relation {
        Relation {
            table: relation,
            storage: relation,
        }
    }

    /// Calls `work` with the table that rows of an open relation belong to.
    ///
    /// # Safety
    /// In a callback, which holds the relation open.
    unsafe fn with_table<R>(relation: pg_sys::Relation, work: impl FnOnce(Relation) -> R) -> R {
        // SAFETY: as the caller vouches. The root is closed again before returning; an ERROR in
        // between ends the worker.
        unsafe {
            let itself = Relation::of(relation);
            if !class(relation).relispartition {
                return work(itself);
            }
            let root = root_of((*relation).rd_id.to_u32());
            let root = root.map(|root| pg_sys::RelationIdGetRelation(pg_sys::Oid::from(root)));
            match root.filter(|root| !root.is_null()) {
                Some(root) => {
                    let result = work(Relation {
                        table: root,
                        storage: relation,
                    });
                    pg_sys::RelationClose(root);
                    result
                }
                None => work(itself),
            }
        }
    }

    fn class(&self) -> &pg_sys::FormData_pg_class {
        // SAFETY: open, by the promise of who made it.
        unsafe { class(self.table) }
    }

    fn storage_class(&self) -> &pg_sys::FormData_pg_class {
        // SAFETY: as in `class`.
        unsafe { class(self.storage) }
    }

    /// The table's OID.
    pub fn oid(&self) -> u32 {
        // SAFETY: as in `class`.
        unsafe { (*self.table).rd_id.to_u32() }
    }

    /// OID of the relation that has the row: a partition's, or the table's own.
    pub fn storage_oid(&self) -> u32 {
        // SAFETY: as in `class`.
        unsafe { (*self.storage).rd_id.to_u32() }
    }

    /// Name of the partition that has the row, in the database's encoding; `None`: the table itself.
    pub fn partition(&self) -> Option<CString> {
        (self.table != self.storage).then(|| name_of(self.storage_class()))
    }

    /// OID of the table's schema.
    pub fn namespace(&self) -> u32 {
        self.class().relnamespace.to_u32()
    }

    /// The table's name, in the database's encoding.
    pub fn name(&self) -> CString {
        name_of(self.class())
    }

    /// The table whose rows a statement rewrites into this relation, if it is the transient heap of an
    /// `ALTER TABLE`. Statements that leave the values as they are (CLUSTER, VACUUM FULL) are not
    /// decoded (rewriteheap.c writes with HEAP_INSERT_NO_LOGICAL).
    pub fn rewrite_of(&self) -> Option<u32> {
        let table = self.class().relrewrite.to_u32();
        (table != 0).then(|| root_of(table).unwrap_or(table))
    }

    /// A table whose changes can be fed: an ordinary, logged one that is no partition and no transient
    /// heap of a rewrite, or a partitioned one.
    pub fn is_table(&self) -> bool {
        let class = self.class();
        let stored = class.relkind as u8 == pg_sys::RELKIND_RELATION
            && class.relpersistence as u8 == pg_sys::RELPERSISTENCE_PERMANENT
            && class.relrewrite == pg_sys::InvalidOid;
        (stored || self.is_partitioned()) && !class.relispartition
    }

    /// A partitioned table.
    pub fn is_partitioned(&self) -> bool {
        self.class().relkind as u8 == pg_sys::RELKIND_PARTITIONED_TABLE
    }

    /// Whether old rows are whole: REPLICA IDENTITY FULL where the row is stored.
    pub fn identity_full(&self) -> bool {
        self.storage_class().relreplident as u8 == pg_sys::REPLICA_IDENTITY_FULL
    }

    /// Whether its storage has been replaced since it was created. A partitioned table has none.
    pub fn rewritten(&self) -> bool {
        !self.is_partitioned() && self.class().relfilenode.to_u32() != self.oid()
    }

    /// The table's tuple descriptor.
    pub fn descriptor(&self) -> pg_sys::TupleDesc {
        // SAFETY: as in `class`.
        unsafe { (*self.table).rd_att }
    }

    /// The descriptor of the change's tuples: the table's columns, if in another order, among others
    /// that were dropped.
    pub fn tuple_descriptor(&self) -> pg_sys::TupleDesc {
        // SAFETY: as in `class`.
        unsafe { (*self.storage).rd_att }
    }
}

fn name_of(class: &pg_sys::FormData_pg_class) -> CString {
    // SAFETY: a NameData is NUL-terminated.
    unsafe { CStr::from_ptr(class.relname.data.as_ptr()) }.to_owned()
}

/// Attributes of a tuple that are passed by value, by number from 1; `None`: NULL.
///
/// For the extension's own table of feeds, whose columns are known.
///
/// # Safety
/// The tuple must be one of the relation's, and both must be of the running callback.
pub unsafe fn fixed_attributes<const N: usize>(
    relation: &Relation,
    tuple: pg_sys::HeapTuple,
    numbers: [usize; N],
) -> [Option<u64>; N] {
    let descriptor = relation.tuple_descriptor();
    // SAFETY: tuple and descriptor belong together (the caller's promise); the arrays have room
    // for all attributes.
    unsafe {
        let count = (*descriptor).natts as usize;
        let mut values = vec![pg_sys::Datum::from(0); count];
        let mut nulls = vec![false; count];
        pg_sys::heap_deform_tuple(tuple, descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
        numbers.map(|number| {
            let index = number - 1;
            (index < count && !nulls[index]).then(|| values[index].value() as u64)
        })
    }
}

/// Receives what is decoded, in commit order, one transaction after another.
///
/// It is called inside a transaction with a historic snapshot: catalog look-ups see the time of
/// the change; no SQL, no writes.
pub trait Sink {
    /// A WAL record is about to be decoded; it ends at `end_lsn` and has the checksum `crc`.
    fn record(&mut self, end_lsn: u64, crc: u32);
    /// A row of the transaction was changed.
    fn change(&mut self, transaction: &Transaction, relation: &Relation, change: Change);
    /// A table, or some of its partitions, were truncated.
    fn truncate(&mut self, transaction: &Transaction, relation: &Relation);
    /// The transaction is complete.
    fn commit(&mut self, transaction: &Transaction);
    /// Whether decoding shall return to its caller before the next record.
    fn wants_pause(&self) -> bool;
}

/// Where a decoding context finds its sink while a record is processed.
pub(super) type SinkPointer<'a> = *mut &'a mut dyn Sink;

static ALLOWED: AtomicBool = AtomicBool::new(false);

/// While it lives, this process may create decoding contexts with the plugin.
pub(super) struct Allowed(());

pub(super) fn allow() -> Allowed {
    ALLOWED.store(true, Ordering::Relaxed);
    Allowed(())
}

impl Drop for Allowed {
    fn drop(&mut self) {
        ALLOWED.store(false, Ordering::Relaxed);
    }
}

/// Entry point that the server looks up when a slot names this library as its plugin.
#[unsafe(no_mangle)]
#[pg_guard]
pub unsafe extern "C-unwind" fn _PG_output_plugin_init(
    callbacks: *mut pg_sys::OutputPluginCallbacks,
) {
    // SAFETY: the server passes its own callback table (output_plugin.h).
    let callbacks = unsafe { &mut *callbacks };
    callbacks.startup_cb = Some(startup);
    callbacks.begin_cb = Some(begin);
    callbacks.change_cb = Some(change);
    callbacks.truncate_cb = Some(truncate);
    callbacks.commit_cb = Some(commit);
}

#[pg_guard]
unsafe extern "C-unwind" fn startup(
    ctx: *mut pg_sys::LogicalDecodingContext,
    options: *mut pg_sys::OutputPluginOptions,
    _is_init: bool,
) {
    if !ALLOWED.load(Ordering::Relaxed) {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "output plugin \"wal2delta\" can be used by its own background worker only",
            "startup",
        )
        .set_hint("Start a feed with wal2delta.start(), which creates and reads the slot itself.")
        .report(PgLogLevel::ERROR);
    }
    // SAFETY: both pointers are the server's own for this call.
    unsafe {
        (*options).output_type = pg_sys::OutputPluginOutputType::OUTPUT_PLUGIN_BINARY_OUTPUT;
        // The rows of a rewritten table tell that their values may be others now.
        (*options).receive_rewrites = true;
        (*ctx).output_plugin_private = std::ptr::null_mut();
    }
}

/// The server wants it of every plugin.
unsafe extern "C-unwind" fn begin(
    _ctx: *mut pg_sys::LogicalDecodingContext,
    _transaction: *mut pg_sys::ReorderBufferTXN,
) {
}

/// The transaction of a callback.
///
/// # Safety
/// `ctx` and `transaction` must be the context and the top-level transaction that a callback got.
unsafe fn describe(
    ctx: *mut pg_sys::LogicalDecodingContext,
    transaction: *mut pg_sys::ReorderBufferTXN,
) -> Transaction {
    // SAFETY: the caller's promise; without streaming and two-phase callbacks every callback
    // comes at commit, so that the union holds the commit time (reorderbuffer.c), and the reader
    // stands at the commit record.
    unsafe {
        Transaction {
            crc: (*(*(*ctx).reader).record).header.xl_crc,
            xid: (*transaction).xid.into_inner(),
            commit_lsn: (*transaction).final_lsn,
            end_lsn: (*transaction).end_lsn,
            timestamp: (*transaction).xact_time.commit_time,
            changes_catalog: (*transaction).txn_flags & pg_sys::RBTXN_HAS_CATALOG_CHANGES != 0,
        }
    }
}

/// The sink of the decoding loop that is processing a record right now.
///
/// # Safety
/// `ctx` must be the context that a callback got.
unsafe fn sink<'a>(ctx: *mut pg_sys::LogicalDecodingContext) -> &'a mut dyn Sink {
    // SAFETY: `Decoder` sets the pointer for the time of each record and holds the only reference.
    unsafe {
        let pointer: SinkPointer = (*ctx).output_plugin_private.cast();
        assert!(!pointer.is_null(), "decoding without a sink");
        *pointer
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn change(
    ctx: *mut pg_sys::LogicalDecodingContext,
    transaction: *mut pg_sys::ReorderBufferTXN,
    relation: pg_sys::Relation,
    change: *mut pg_sys::ReorderBufferChange,
) {
    use pg_sys::ReorderBufferChangeType as Kind;
    // SAFETY: all pointers are valid for the time of the callback; for these three actions the
    // union holds `tp`.
    unsafe {
        let tuples = (*change).data.tp;
        let old = (!tuples.oldtuple.is_null()).then_some(tuples.oldtuple);
        let change = match (*change).action {
            Kind::REORDER_BUFFER_CHANGE_INSERT => Change::Insert {
                new: tuples.newtuple,
            },
            Kind::REORDER_BUFFER_CHANGE_UPDATE => Change::Update {
                old,
                new: tuples.newtuple,
            },
            Kind::REORDER_BUFFER_CHANGE_DELETE => Change::Delete { old },
            // Speculative insertions reach a plugin as inserts; there are no others.
            _ => return,
        };
        let transaction = describe(ctx, transaction);
        Relation::with_table(relation, |relation| {
            sink(ctx).change(&transaction, &relation, change);
        });
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn truncate(
    ctx: *mut pg_sys::LogicalDecodingContext,
    transaction: *mut pg_sys::ReorderBufferTXN,
    count: i32,
    relations: *mut pg_sys::Relation,
    _change: *mut pg_sys::ReorderBufferChange,
) {
    // SAFETY: the server passes `count` open relations.
    unsafe {
        let transaction = describe(ctx, transaction);
        let mut seen = HashSet::new();
        for relation in std::slice::from_raw_parts(relations, count as usize) {
            Relation::with_table(*relation, |relation| {
                // Of a partitioned table every partition is named, and the table itself.
                if seen.insert(relation.oid()) {
                    sink(ctx).truncate(&transaction, &relation);
                }
            });
        }
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn commit(
    ctx: *mut pg_sys::LogicalDecodingContext,
    transaction: *mut pg_sys::ReorderBufferTXN,
    _commit_lsn: pg_sys::XLogRecPtr,
) {
    // SAFETY: as in `change`.
    unsafe { sink(ctx).commit(&describe(ctx, transaction)) };
}
