//! uuid, written as uuid_out does: 36 characters, lower case.

use arrow::array::ArrayRef;
use pgrx::pg_sys::Datum;

use super::column::{Column, Strings};
use super::error::Fault;

/// A uuid column.
pub(super) struct Uuid(Strings);

impl Uuid {
    pub fn new() -> Self {
        Uuid(Strings::new())
    }
}

impl Column for Uuid {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        // SAFETY: a uuid is a pointer to 16 bytes (pg_uuid_t), of any alignment.
        let bytes = unsafe { datum.cast_mut_ptr::<[u8; 16]>().read_unaligned() };
        let mut text = [0; ::uuid::fmt::Hyphenated::LENGTH];
        self.0.push(
            ::uuid::Uuid::from_bytes(bytes)
                .hyphenated()
                .encode_lower(&mut text),
        )
    }

    fn append_null(&mut self) -> usize {
        self.0.push_null()
    }

    fn truncate(&mut self, rows: usize) {
        self.0.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        self.0.take()
    }
}
