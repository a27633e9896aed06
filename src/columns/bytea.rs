//! bytea.

use arrow::array::ArrayRef;
use pgrx::pg_sys::Datum;

use super::column::{Bytes, Column};
use super::error::Fault;
use super::varlena;

/// A bytea column.
pub(super) struct Bytea(Bytes);

impl Bytea {
    pub fn new() -> Self {
        Bytea(Bytes::new())
    }
}

impl Column for Bytea {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        // SAFETY: the caller vouches for the datum and the memory context.
        self.0.push(unsafe { varlena::payload(datum) })
    }

    fn append_null(&mut self) -> usize {
        self.0.push_null()
    }

    fn truncate(&mut self, rows: usize) {
        self.0.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        self.0.take_binary()
    }
}
