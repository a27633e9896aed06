//! text, varchar, char(n), json, name: the stored bytes, blanks of char(n) included.

use std::ffi::CStr;

use arrow::array::ArrayRef;
use pgrx::pg_sys::Datum;

use super::column::{Column, Strings};
use super::encoding::Encoding;
use super::error::Fault;
use super::varlena;

/// A column of a type that is stored as its text.
pub(super) struct Text {
    values: Strings,
    encoding: Encoding,
}

impl Text {
    pub fn new(encoding: Encoding) -> Self {
        Text {
            values: Strings::new(),
            encoding,
        }
    }
}

impl Column for Text {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        // SAFETY: the caller vouches for the datum and the memory context.
        unsafe {
            self.encoding
                .push(varlena::payload(datum), &mut self.values)
        }
    }

    fn append_null(&mut self) -> usize {
        self.values.push_null()
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        self.values.take()
    }
}

/// A column of type name: 64 bytes, ended by NUL.
pub(super) struct Name {
    values: Strings,
    encoding: Encoding,
}

impl Name {
    pub fn new(encoding: Encoding) -> Self {
        Name {
            values: Strings::new(),
            encoding,
        }
    }
}

impl Column for Name {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        // SAFETY: the caller vouches for the datum; a name always holds its NUL.
        unsafe {
            let name = CStr::from_ptr(datum.cast_mut_ptr());
            self.encoding.push(name.to_bytes(), &mut self.values)
        }
    }

    fn append_null(&mut self) -> usize {
        self.values.push_null()
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        self.values.take()
    }
}
