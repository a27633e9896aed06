//! The decoding loop: reads WAL records up to the flushed end and has each decoded.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

use super::plugin::{self, Sink, SinkPointer};
use super::raw;
use super::slot::Slot;
use crate::process;

/// PROC_IN_LOGICAL_DECODING (proc.h), which pgrx does not bind.
const IN_LOGICAL_DECODING: u8 = 0x10;

/// End of the WAL that is on disk, up to which decoding can read.
pub fn flush_position() -> u64 {
    // SAFETY: reads shared memory under its own spinlock.
    unsafe { pg_sys::GetFlushRecPtr(std::ptr::null_mut()) }
}

/// Decodes from a slot.
pub struct Decoder {
    slot: Slot,
    ctx: *mut pg_sys::LogicalDecodingContext,
    memory: pg_sys::MemoryContext,
    position: u64,
    /// The reader holds a record that was not decoded yet.
    read: bool,
    standbys: Standbys,
}

/// How far standbys have followed that may be promoted: what they have not, must not get into
/// Delta, since after a promotion it never was. Only a slot with the property `failover`, on a
/// server with `synchronized_standby_slots`, waits for them.
#[derive(Default)]
struct Standbys {
    /// They have everything before this LSN.
    reached: u64,
    /// They are asked whether they have this; 0: nothing is asked.
    asked: u64,
}

impl Standbys {
    fn look(&mut self) {
        if self.asked == 0 {
            self.asked = flush_position();
        }
        // SAFETY: reads the slots of the setting, under their locks; does not wait.
        if unsafe { pg_sys::StandbySlotsHaveCaughtup(self.asked, pg_sys::DEBUG1 as i32) } {
            self.reached = self.asked;
            self.asked = 0;
        }
    }
}

impl Decoder {
    /// Prepares decoding from where the slot stands.
    ///
    /// Raises Postgres' errors, above all that the slot was invalidated.
    pub fn new(slot: Slot) -> Decoder {
        // SAFETY: the context is created inside a short transaction, so that this process is not
        // marked PROC_IN_LOGICAL_DECODING (logical.c StartupDecodingContext): SQL that runs here
        // later would else be invisible to other backends' horizons. Its memory outlives the
        // transaction.
        // Decoding may begin earlier than where it, or a look, was last: caches are of another time.
        let (ctx, memory) = unsafe {
            pg_sys::InvalidateSystemCaches();
            let memory = pg_sys::AllocSetContextCreateInternal(
                pg_sys::TopMemoryContext,
                c"wal2delta decoding".as_ptr(),
                pg_sys::ALLOCSET_DEFAULT_MINSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_INITSIZE as usize,
                pg_sys::ALLOCSET_DEFAULT_MAXSIZE as usize,
            );
            pg_sys::StartTransactionCommand();
            pg_sys::CurrentMemoryContext = memory;
            let allowed = plugin::allow();
            let mut routine = raw::reader_to_flushed_end();
            let ctx = pg_sys::CreateDecodingContext(
                pg_sys::InvalidXLogRecPtr as u64,
                std::ptr::null_mut(),
                false,
                &mut routine,
                None,
                None,
                None,
            );
            drop(allowed);
            pg_sys::CommitTransactionCommand();
            pg_sys::CurrentMemoryContext = memory;
            assert_eq!(
                (*pg_sys::MyProc).statusFlags & IN_LOGICAL_DECODING,
                0,
                "the process must not be marked as decoding"
            );
            pg_sys::XLogBeginRead((*ctx).reader, slot.restart());
            (ctx, memory)
        };
        let position = slot.confirmed();
        Decoder {
            slot,
            ctx,
            memory,
            position,
            read: false,
            standbys: Standbys::default(),
        }
    }

    /// The slot.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// Everything committed before this LSN has been handed over.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Decodes until the flushed end of the WAL, until `slice` is over, or until the sink wants a
    /// pause, whichever comes first. Returns whether the end was reached.
    pub fn run(&mut self, sink: &mut dyn Sink, slice: Duration) -> bool {
        let started = Instant::now();
        let mut records = 0u32;
        let limit = match self.slot.is_failover() {
            true => {
                self.standbys.look();
                self.standbys.reached
            }
            false => u64::MAX,
        };
        loop {
            pgrx::check_for_interrupts!();
            if !self.next(sink, limit) {
                return true;
            }
            records += 1;
            if sink.wants_pause() || (records.is_multiple_of(64) && started.elapsed() > slice) {
                return false;
            }
        }
    }

    /// Decodes one record; false if there is none yet that ends at or before `limit`.
    fn next(&mut self, mut sink: &mut dyn Sink, limit: u64) -> bool {
        if !self.has_record() {
            return false;
        }
        // SAFETY: the context and its reader live as long as `self`. The sink pointer is set for
        // the time of the call only; an ERROR in between ends the worker, so that a dangling
        // pointer is never used. After each record the memory context is restored: on 17
        // decoding a commit leaves TopMemoryContext behind (reorderbuffer.c).
        unsafe {
            let reader = (*self.ctx).reader;
            let end = (*reader).EndRecPtr;
            if end > limit {
                return false;
            }
            sink.record(end, (*(*reader).record).header.xl_crc);
            let pointer: SinkPointer = &raw mut sink;
            (*self.ctx).output_plugin_private = pointer.cast();
            self.read = raw::process_and_read(self.ctx, reader);
            (*self.ctx).output_plugin_private = std::ptr::null_mut();
            pg_sys::CurrentMemoryContext = self.memory;
            self.position = self.position.max(end);
        }
        true
    }

    /// Decodes the records before the point from which the slot hands over, which hand nothing over. They
    /// are all there: no slot is confirmed up to WAL that is not flushed.
    ///
    /// The first record is decoded wherever it is: a slot is read from a record of running transactions,
    /// from which the catalog is known, and can be confirmed up to there.
    pub(super) fn pass_confirmed(&mut self, sink: &mut dyn Sink) {
        let confirmed = self.slot.confirmed();
        let mut first = true;
        loop {
            pgrx::check_for_interrupts!();
            if !self.has_record() {
                return;
            }
            // SAFETY: the context and its reader live as long as `self`.
            let start = unsafe { (*(*self.ctx).reader).ReadRecPtr };
            if start >= confirmed && !first {
                return;
            }
            first = false;
            self.next(sink, u64::MAX);
        }
    }

    /// Runs `work` with the catalog as of the records decoded so far.
    ///
    /// Raises an error if the slot does not have it there: what was committed next could not be decoded.
    pub(super) fn with_historic_catalog<R>(&self, work: impl FnOnce() -> R) -> R {
        // SAFETY: the context lives as long as `self`.
        let snapshot = unsafe { raw::historic_snapshot(self.ctx) };
        let snapshot = snapshot.unwrap_or_else(|| {
            error!(
                "the replication slot has no consistent catalog at {}; \
                 once it is dropped, a new one is made and all tables are copied anew",
                lsn_text(self.slot.confirmed())
            )
        });
        let result = process::in_transaction(|| {
            // SAFETY: as decoding itself looks at the catalog (reorderbuffer.c
            // `ReorderBufferProcessTXN`), in caches of this time alone. No transaction is being decoded,
            // so that none sees its own changes and needs their order. An ERROR in between ends the
            // worker.
            unsafe {
                pg_sys::InvalidateSystemCaches();
                pg_sys::SetupHistoricSnapshot(snapshot, std::ptr::null_mut());
                let result = work();
                pg_sys::TeardownHistoricSnapshot(false);
                result
            }
        });
        // SAFETY: a plain call outside any transaction and callback.
        unsafe { pg_sys::InvalidateSystemCaches() };
        result
    }

    /// Whether the reader holds a record that was not decoded yet; reads one if it does not.
    fn has_record(&mut self) -> bool {
        self.read = self.read || self.read_first();
        self.read
    }

    /// Reads a record where none could be read before; false if there is none yet.
    fn read_first(&mut self) -> bool {
        let mut message = std::ptr::null_mut();
        // SAFETY: the context and its reader live as long as `self`; a message does until the next read.
        unsafe {
            let reader = (*self.ctx).reader;
            let record = pg_sys::XLogReadRecord(reader, &mut message);
            if record.is_null() && !message.is_null() {
                let message = std::ffi::CStr::from_ptr(message)
                    .to_string_lossy()
                    .into_owned();
                error!(
                    "could not read WAL at {}: {message}",
                    lsn_text((*reader).EndRecPtr)
                );
            }
            !record.is_null()
        }
    }

    /// The same, back where the slot stands.
    pub fn again(self) -> Decoder {
        Decoder::new(self.into_slot())
    }

    /// Ends decoding, and gives the slot back.
    pub fn into_slot(self) -> Slot {
        // SAFETY: the context is not used after this, nor its memory; the slot stays acquired.
        unsafe {
            pg_sys::FreeDecodingContext(self.ctx);
            pg_sys::CurrentMemoryContext = pg_sys::TopMemoryContext;
            pg_sys::MemoryContextDelete(self.memory);
        }
        self.slot
    }

    /// Ends decoding and drops the slot.
    pub fn drop_slot(self) {
        self.into_slot().drop_slot();
    }
}

/// An LSN as Postgres prints it.
pub fn lsn_text(lsn: u64) -> String {
    format!("{:X}/{:X}", lsn >> 32, lsn as u32)
}

/// End of the WAL that has been written by any session so far, flushed or not: everything that is
/// visible now was committed before it.
///
/// The server tells where the next record will start, which at the start of a page is behind the
/// page's header; what is read ends before it (xlog.c `XLogBytePosToEndRecPtr`).
pub fn insert_position() -> u64 {
    /// Sizes of the page headers, XLogShortPHD and XLogLongPHD (xlog_internal.h).
    const HEADERS: (u64, u64) = (24, 40);
    // SAFETY: reads shared memory under its own lock, and a setting fixed at server start.
    let (lsn, segment) = unsafe {
        (
            pg_sys::GetXLogInsertRecPtr(),
            pg_sys::wal_segment_size as u64,
        )
    };
    let in_page = lsn % u64::from(pg_sys::XLOG_BLCKSZ);
    if in_page == HEADERS.0 || lsn % segment == HEADERS.1 {
        lsn - in_page
    } else {
        lsn
    }
}
