//! The server's functions for decoding that pgrx 0.18 does not bind, and the C callbacks of the WAL
//! reader. Each call goes through pgrx's guard, so that an ERROR becomes an unwinding panic.

use pgrx::pg_sys;
use std::ffi::{c_char, c_int};

mod symbols {
    use super::*;
    unsafe extern "C-unwind" {
        pub fn LogicalDecodingProcessRecord(
            ctx: *mut pg_sys::LogicalDecodingContext,
            record: *mut pg_sys::XLogReaderState,
        );
        pub fn XLogReadRecord(
            state: *mut pg_sys::XLogReaderState,
            message: *mut *mut c_char,
        ) -> *mut pg_sys::XLogRecord;
        pub fn read_local_xlog_page(
            state: *mut pg_sys::XLogReaderState,
            target_page: pg_sys::XLogRecPtr,
            length: c_int,
            target: pg_sys::XLogRecPtr,
            page: *mut c_char,
        ) -> c_int;
        pub fn wal_segment_open(
            state: *mut pg_sys::XLogReaderState,
            segment: pg_sys::XLogSegNo,
            timeline: *mut pg_sys::TimeLineID,
        );
        pub fn wal_segment_close(state: *mut pg_sys::XLogReaderState);
        pub fn SnapBuildCurrentState(builder: *mut pg_sys::SnapBuild) -> c_int;
        pub fn SnapBuildGetOrBuildSnapshot(builder: *mut pg_sys::SnapBuild) -> pg_sys::Snapshot;
        pub fn GetFlushRecPtr(timeline: *mut pg_sys::TimeLineID) -> pg_sys::XLogRecPtr;
    }
}

/// Decodes the record that was read (decode.c) and reads the next one, both under one guard, which costs
/// as much as a small record. Whether there is one: if not, reading it again tells why.
///
/// # Safety
/// `ctx` must be a decoding context, `reader` its reader, positioned by `XLogReadRecord`.
pub unsafe fn process_and_read(
    ctx: *mut pg_sys::LogicalDecodingContext,
    reader: *mut pg_sys::XLogReaderState,
) -> bool {
    let mut message = std::ptr::null_mut();
    // SAFETY: the caller's promise; the closure holds nothing that has a destructor.
    let record = unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            symbols::LogicalDecodingProcessRecord(ctx, reader);
            symbols::XLogReadRecord(reader, &mut message)
        })
    };
    !record.is_null()
}

/// The catalog as of the records that a context has decoded so far; `None` if it does not know it yet
/// (snapbuild.c).
///
/// # Safety
/// `ctx` must be a decoding context.
pub unsafe fn historic_snapshot(
    ctx: *mut pg_sys::LogicalDecodingContext,
) -> Option<pg_sys::Snapshot> {
    /// SNAPBUILD_CONSISTENT (snapbuild.h).
    const CONSISTENT: c_int = 2;
    // SAFETY: the caller's promise; the closure holds nothing that has a destructor.
    unsafe {
        let builder = (*ctx).snapshot_builder;
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            (symbols::SnapBuildCurrentState(builder) == CONSISTENT)
                .then(|| symbols::SnapBuildGetOrBuildSnapshot(builder))
        })
    }
}

/// Reads a WAL page, but never waits for WAL that is not flushed yet: then -1, on which
/// `XLogReadRecord` returns NULL without an error and can be called again.
///
/// `read_local_xlog_page` alone would poll until the WAL comes, and `read_local_xlog_page_no_wait`
/// writes through the reader's `private_data`, which is the decoding context here.
///
/// It owns nothing with a destructor and calls C functions only, so that an ERROR may pass.
unsafe extern "C-unwind" fn read_page(
    state: *mut pg_sys::XLogReaderState,
    target_page: pg_sys::XLogRecPtr,
    length: c_int,
    target: pg_sys::XLogRecPtr,
    page: *mut c_char,
) -> c_int {
    // SAFETY: called by the WAL reader with its own arguments.
    unsafe {
        if target_page + length as u64 > symbols::GetFlushRecPtr(std::ptr::null_mut()) {
            return -1;
        }
        symbols::read_local_xlog_page(state, target_page, length, target, page)
    }
}

/// Callbacks for reading up to the flushed end without waiting.
pub fn reader_to_flushed_end() -> pg_sys::XLogReaderRoutine {
    pg_sys::XLogReaderRoutine {
        page_read: Some(read_page),
        segment_open: Some(symbols::wal_segment_open),
        segment_close: Some(symbols::wal_segment_close),
    }
}

/// Callbacks for reading with waiting, as the search for a slot's starting point needs it.
pub fn waiting_reader() -> pg_sys::XLogReaderRoutine {
    pg_sys::XLogReaderRoutine {
        page_read: Some(symbols::read_local_xlog_page),
        segment_open: Some(symbols::wal_segment_open),
        segment_close: Some(symbols::wal_segment_close),
    }
}
