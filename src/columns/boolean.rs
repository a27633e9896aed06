//! boolean.

use std::sync::Arc;

use arrow::array::builder::NullBufferBuilder;
use arrow::array::{ArrayRef, BooleanArray, BooleanBufferBuilder};
use pgrx::pg_sys::Datum;

use super::column::Column;
use super::error::Fault;

/// A boolean column: one bit a value.
pub(super) struct Boolean {
    values: BooleanBufferBuilder,
    nulls: NullBufferBuilder,
}

impl Boolean {
    pub fn new() -> Self {
        Boolean {
            values: BooleanBufferBuilder::new(0),
            nulls: NullBufferBuilder::new(0),
        }
    }
}

impl Column for Boolean {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        self.values.append(datum.value() != 0);
        self.nulls.append_non_null();
        Ok(1)
    }

    fn append_null(&mut self) -> usize {
        self.values.append(false);
        self.nulls.append_null();
        1
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
        self.nulls.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        let mut taken = std::mem::replace(self, Boolean::new());
        Arc::new(BooleanArray::new(
            taken.values.finish(),
            taken.nulls.build(),
        ))
    }
}
