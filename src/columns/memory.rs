//! Where Postgres functions called for a row put what they allocate: a context that is emptied
//! after each row, so that nothing need be freed one by one.

use std::cell::Cell;
use std::ptr;

use pgrx::pg_sys;

thread_local! {
    /// One for the process: no row is begun while another is being appended, and ten thousand
    /// tables would each pay for a block of their own.
    static ROW: Cell<pg_sys::MemoryContext> = const { Cell::new(ptr::null_mut()) };
}

/// While this lives, the row context is Postgres's current one. Dropping it, also by an error
/// passing through, restores the previous one and empties it.
pub(super) struct RowContext {
    row: pg_sys::MemoryContext,
    previous: pg_sys::MemoryContext,
}

impl RowContext {
    /// # Safety
    /// On the main thread of a backend, and not within another row.
    pub unsafe fn enter() -> RowContext {
        let mut row = ROW.get();
        // SAFETY: the caller vouches for the thread; the context hangs below TopMemoryContext and
        // is never deleted.
        unsafe {
            if row.is_null() {
                row = create(c"wal2delta row", 8 * 1024, 8 * 1024 * 1024);
                ROW.set(row);
            }
            RowContext {
                row,
                previous: pg_sys::MemoryContextSwitchTo(row),
            }
        }
    }
}

impl Drop for RowContext {
    fn drop(&mut self) {
        // SAFETY: both contexts outlive the row.
        unsafe {
            pg_sys::MemoryContextSwitchTo(self.previous);
            // Most rows allocate nothing: spare them the call.
            if !(*self.row).isReset || !(*self.row).firstchild.is_null() {
                pg_sys::MemoryContextReset(self.row);
            }
        }
    }
}

/// What output functions keep from call to call (`fn_extra`) lives here, as long as the rows do.
pub(super) struct FunctionContext(pg_sys::MemoryContext);

impl FunctionContext {
    /// # Safety
    /// On the main thread of a backend.
    pub unsafe fn new() -> FunctionContext {
        // SAFETY: as the caller vouches. Small, as there is one for each table that needs it.
        FunctionContext(unsafe { create(c"wal2delta output functions", 1024, 8 * 1024) })
    }

    pub fn get(&self) -> pg_sys::MemoryContext {
        self.0
    }
}

impl Drop for FunctionContext {
    fn drop(&mut self) {
        // SAFETY: made by `new`, deleted nowhere else; raw pointers keep it on its thread.
        unsafe { pg_sys::MemoryContextDelete(self.0) }
    }
}

/// # Safety
/// On the main thread of a backend.
unsafe fn create(name: &'static std::ffi::CStr, init: usize, max: usize) -> pg_sys::MemoryContext {
    // SAFETY: Postgres keeps the name's pointer, which is static.
    unsafe {
        pg_sys::AllocSetContextCreateInternal(pg_sys::TopMemoryContext, name.as_ptr(), 0, init, max)
    }
}
