//! Every type that has no form of its own in Delta: the text of its output function, under the
//! settings that [`fix_output_settings`](super::fix_output_settings) pins.

use std::ffi::CStr;

use arrow::array::ArrayRef;
use pgrx::pg_sys::{self, Datum};

use super::column::{Column, Strings};
use super::encoding::Encoding;
use super::error::Fault;

/// A column that is written as text by its type's output function.
pub(super) struct Output {
    /// Boxed: functions keep pointers to it.
    function: Box<pg_sys::FmgrInfo>,
    values: Strings,
    encoding: Encoding,
}

impl Output {
    /// Looks the output function up.
    ///
    /// # Safety
    /// Catalog access is allowed; `functions` outlives the column.
    pub unsafe fn new(
        typid: pg_sys::Oid,
        functions: pg_sys::MemoryContext,
        encoding: Encoding,
    ) -> Self {
        let mut function = Box::<pg_sys::FmgrInfo>::default();
        let mut oid = pg_sys::InvalidOid;
        let mut is_varlena = false;
        // SAFETY: as the caller vouches; both raise an ERROR for a type that is not there.
        unsafe {
            pg_sys::getTypeOutputInfo(typid, &mut oid, &mut is_varlena);
            pg_sys::fmgr_info_cxt(oid, &mut *function, functions);
        }
        Output {
            function,
            values: Strings::new(),
            encoding,
        }
    }
}

impl Column for Output {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        // SAFETY: the caller vouches for the datum and the memory context; an output function
        // detoasts for itself and returns a C string.
        unsafe {
            let text = CStr::from_ptr(pg_sys::OutputFunctionCall(&mut *self.function, datum));
            self.encoding.push(text.to_bytes(), &mut self.values)
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
