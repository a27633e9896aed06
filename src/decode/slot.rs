//! The replication slot of a database: `wal2delta_<database oid>`.

use pgrx::pg_sys;
use std::ffi::{CStr, CString};
use std::time::Duration;

use super::plugin;
use super::raw;
use super::stream::insert_position;
use crate::fail_point;
use crate::process;

/// Name of the slot of a database.
pub fn slot_name(database: u32) -> CString {
    CString::new(format!("wal2delta_{database}")).unwrap_or_default()
}

/// Name of the output plugin.
pub const PLUGIN: &CStr = c"wal2delta";

/// The slot, acquired by this process.
///
/// It is released when the process ends (slot.c `ReplicationSlotShmemExit`), on whatever way.
pub struct Slot(());

impl Slot {
    /// Whether the database has a slot that is not just being created.
    pub fn is_persistent(database: u32) -> bool {
        let name = slot_name(database);
        // SAFETY: a search under the slot lock. The field is read without it: the worst that a
        // race does is a wrong answer about a slot that is being created or dropped right now.
        unsafe {
            let slot = pg_sys::SearchNamedReplicationSlot(name.as_ptr(), true);
            !slot.is_null()
                && (*slot).data.persistency == pg_sys::ReplicationSlotPersistency::RS_PERSISTENT
        }
    }

    /// Whether the database has a slot.
    pub fn exists(database: u32) -> bool {
        let name = slot_name(database);
        // SAFETY: a search under the slot lock; only whether it finds something is used.
        unsafe { !pg_sys::SearchNamedReplicationSlot(name.as_ptr(), true).is_null() }
    }

    /// Creates the slot and finds the point from which it can decode. Waits for the transactions
    /// that run now; can be interrupted, and then leaves no slot behind.
    ///
    /// Raises Postgres' errors: no free slot, `wal_level` too low.
    pub fn create(database: u32, failover: bool) -> Slot {
        let name = slot_name(database);
        // SAFETY: the sequence of walsender.c `CreateReplicationSlot`, in a transaction of its own
        // that has done nothing before: a context made outside a transaction would mark this
        // process PROC_IN_LOGICAL_DECODING.
        unsafe {
            let caller = pg_sys::CurrentMemoryContext;
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            pg_sys::CheckLogicalDecodingRequirements();
            // Ephemeral until it can be used: an error or crash before leaves nothing.
            pg_sys::ReplicationSlotCreate(
                name.as_ptr(),
                true,
                pg_sys::ReplicationSlotPersistency::RS_EPHEMERAL,
                false,
                failover,
                false,
            );
            let allowed = plugin::allow();
            let mut routine = raw::waiting_reader();
            let ctx = pg_sys::CreateInitDecodingContext(
                PLUGIN.as_ptr(),
                std::ptr::null_mut(),
                false,
                pg_sys::InvalidXLogRecPtr as u64,
                &mut routine,
                None,
                None,
                None,
            );
            drop(allowed);
            pg_sys::DecodingContextFindStartpoint(ctx);
            pg_sys::FreeDecodingContext(ctx);
            pg_sys::CommitTransactionCommand();
            pg_sys::CurrentMemoryContext = caller;
            let begin = wait_for_right_catalog();
            pg_sys::LogicalConfirmReceivedLocation(begin);
            pg_sys::ReplicationSlotPersist();
        }
        Slot(())
    }

    /// Acquires the database's slot, waiting for a process that still has it.
    pub fn acquire(database: u32) -> Slot {
        let name = slot_name(database);
        // SAFETY: this process holds no slot; an ERROR ends the worker.
        unsafe { pg_sys::ReplicationSlotAcquire(name.as_ptr(), false) };
        Slot(())
    }

    /// Whether it was made for this extension.
    pub fn is_ours(&self) -> bool {
        // SAFETY: the slot is acquired, so that its fields stay as they are; a NameData is
        // NUL-terminated.
        unsafe {
            let data = &(*pg_sys::MyReplicationSlot).data;
            CStr::from_ptr(data.plugin.data.as_ptr()) == PLUGIN
        }
    }

    /// The slot, if it can be decoded from; else it is dropped: one that was invalidated (because it
    /// held back too much WAL, say) or was not made by a feed worker.
    pub fn usable(self) -> Option<Slot> {
        // SAFETY: as in `is_ours`.
        let valid = unsafe {
            let data = &(*pg_sys::MyReplicationSlot).data;
            data.invalidated == pg_sys::ReplicationSlotInvalidationCause::RS_INVAL_NONE
                && data.restart_lsn != pg_sys::InvalidXLogRecPtr as u64
        };
        if valid && self.is_ours() {
            return Some(self);
        }
        self.drop_slot();
        None
    }

    /// Whether standbys keep the slot for the time after their promotion.
    pub fn is_failover(&self) -> bool {
        // SAFETY: the slot is acquired, so that its fields stay as they are.
        unsafe { (*pg_sys::MyReplicationSlot).data.failover }
    }

    /// Whether this server was a standby that kept the slot for its primary.
    pub fn came_by_promotion(&self) -> bool {
        // SAFETY: as in `is_failover`. Promotion leaves the mark as it was (slotsync.c).
        unsafe { (*pg_sys::MyReplicationSlot).data.synced != 0 }
    }

    /// Makes it a slot of this server's own, after a promotion: a copy of the data directory must not
    /// take itself for another promoted standby.
    pub fn own(&self) {
        // SAFETY: the slot is acquired, so that nobody else writes its data; others read the flag,
        // one byte, under a lock that is not needed to write it whole.
        unsafe {
            (*pg_sys::MyReplicationSlot).data.synced = 0;
            pg_sys::ReplicationSlotMarkDirty();
            pg_sys::ReplicationSlotSave();
        }
    }

    /// Gives the slot back as it is.
    pub fn release(self) {
        // SAFETY: `self` says that this process has acquired it.
        unsafe { pg_sys::ReplicationSlotRelease() };
    }

    /// Has standbys keep the slot, or not.
    pub fn set_failover(self, database: u32, failover: bool) -> Slot {
        if self.is_failover() == failover {
            return self;
        }
        let name = slot_name(database);
        // SAFETY: the slot is acquired; altering it acquires and releases it by itself (slot.c).
        unsafe {
            pg_sys::ReplicationSlotRelease();
            pg_sys::ReplicationSlotAlter(name.as_ptr(), failover);
        }
        Slot::acquire(database)
    }

    /// Drops the slot.
    pub fn drop_slot(self) {
        // SAFETY: `self` says that this process has acquired it.
        unsafe { pg_sys::ReplicationSlotDropAcquired() };
    }

    /// LSN up to which everything is durable at the destination, as the slot has it.
    pub fn confirmed(&self) -> u64 {
        // SAFETY: the slot is ours, nobody else writes the field.
        unsafe { (*pg_sys::MyReplicationSlot).data.confirmed_flush }
    }

    /// LSN from which the WAL is kept and read again after a restart.
    pub fn restart(&self) -> u64 {
        // SAFETY: as in `confirmed`.
        unsafe { (*pg_sys::MyReplicationSlot).data.restart_lsn }
    }

    /// Confirms that everything before `lsn` is durable. Never moves back.
    pub fn confirm(&self, lsn: u64) {
        if lsn > self.confirmed() {
            fail_point::pass("before_confirm");
            // SAFETY: the slot is acquired. Marking it dirty has the next checkpoint write it:
            // the call itself does so only when xmin or the restart LSN move (logical.c).
            unsafe {
                pg_sys::LogicalConfirmReceivedLocation(lsn);
                pg_sys::ReplicationSlotMarkDirty();
            }
            fail_point::pass("after_confirm");
        }
    }
}

/// Waits until decoding has a right catalog for every transaction that commits later, and returns the
/// end of the WAL then.
///
/// What was committed while the starting point was being found is not tracked (snapbuild.c), and
/// decoding takes it for committed only once a record of running transactions has shown that it
/// cannot run any more. So: all that ran at first must end, then such a record is written, then all
/// must end that may have begun before it. None of them has to be decoded: tables that are there by
/// now are copied.
///
/// Such a record leaves the snapshot that decoding has made before as it is, and a change of any row
/// has it made as soon as all that ran at first have ended. A commit that changes the catalog has it
/// made anew (`SnapBuildCommitTxn`).
fn wait_for_right_catalog() -> u64 {
    wait_for_running_transactions();
    // SAFETY: as pg_log_standby_snapshot() does it.
    unsafe { pg_sys::LogStandbySnapshot() };
    wait_for_running_transactions();
    commit_catalog_change();
    let end = insert_position();
    // SAFETY: flushes WAL that exists already; a slot must not be ahead of it after a crash.
    unsafe { pg_sys::XLogFlush(end) };
    end
}

/// Commits what decoding takes for a change of the catalog, and what changes nothing.
fn commit_catalog_change() {
    process::in_transaction(|| {
        // SAFETY: in a transaction, which gets an id and has every process forget what it knows of a
        // catalog that is hardly used; the commit writes that to the WAL (xact.c
        // `RecordTransactionCommit`).
        unsafe {
            pg_sys::GetCurrentTransactionId();
            pg_sys::CacheInvalidateRelcacheByRelid(pg_sys::SecLabelRelationId);
        }
    });
}

/// Waits until every transaction that runs now has ended.
fn wait_for_running_transactions() {
    // SAFETY: reads shared memory under its lock.
    let next = unsafe { pg_sys::ReadNextFullTransactionId().value as u32 };
    loop {
        // SAFETY: as above.
        let oldest = unsafe { pg_sys::GetOldestActiveTransactionId() }.into_inner();
        if (oldest.wrapping_sub(next) as i32) >= 0 {
            return;
        }
        process::wait(Duration::from_millis(20));
    }
}

/// Lets this process use the output plugin, which the server refuses unless it is listed in
/// `output_plugin_libraries` (since 17.11). Preloading the library was the superuser's decision;
/// the setting changes for this process alone. Older servers do not know it.
pub fn allow_plugin_for_this_process() {
    let name = c"output_plugin_libraries";
    // SAFETY: a look-up by name that returns null where there is no such setting.
    let known = unsafe { !pg_sys::GetConfigOption(name.as_ptr(), true, false).is_null() };
    if known {
        process::set_config(name, PLUGIN);
    }
}
