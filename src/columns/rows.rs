//! Collects the rows of one shape, column by column. A row is in every column or in none, also
//! when Postgres raises an error in the middle of it.

use std::ptr;

use arrow::array::ArrayRef;
use pgrx::pg_sys::{self, Datum};

use super::column::Column;
use super::encoding::Encoding;
use super::error::{ColumnError, Fault};
use super::memory::{FunctionContext, RowContext};
use super::shape::{Layout, Shape};
use super::system::{self, Change, Origin, System};
use super::varlena;

/// Rows of one shape, being collected.
pub struct Rows {
    columns: Vec<Source>,
    /// Attributes of the shape.
    natts: usize,
    system: System,
    bytes: usize,
    /// A row was begun and not ended: the columns may be of unequal length.
    torn: bool,
    tuple: Values,
    /// The old tuple of an update whose new one lacks values.
    unchanged: Values,
    /// Last, so that it outlives the columns that use it.
    _functions: Option<FunctionContext>,
}

/// A source column and where it is in a tuple.
struct Source {
    attribute: usize,
    varlena: bool,
    name: String,
    column: Box<dyn Column>,
}

impl Rows {
    /// No rows yet.
    ///
    /// # Safety
    /// On the main thread, with catalog access as for [`Shape::from_tupdesc`]: output functions
    /// are looked up here.
    pub unsafe fn new(shape: &Shape) -> Rows {
        // SAFETY: as the caller vouches; the context is kept beside the columns.
        unsafe {
            let encoding = Encoding::of_database();
            let needed = shape
                .columns()
                .any(|(_, column)| column.kind().needs_function());
            let functions = needed.then(|| FunctionContext::new());
            let context = functions
                .as_ref()
                .map_or(ptr::null_mut(), FunctionContext::get);
            let source = |(attribute, column): (usize, &super::SourceColumn)| Source {
                attribute,
                varlena: column.is_varlena(),
                name: column.name().to_owned(),
                column: column.kind().column(encoding, context),
            };
            Rows {
                columns: shape.columns().map(source).collect(),
                natts: shape.natts(),
                system: System::default(),
                bytes: 0,
                torn: false,
                tuple: Values::default(),
                unchanged: Values::default(),
                _functions: functions,
            }
        }
    }

    /// Appends one row. `unchanged` is the old tuple from which values of unchanged TOASTed
    /// columns are taken: an update's new tuple holds only a pointer into the TOAST table for
    /// them, even under REPLICA IDENTITY FULL, while the old tuple has the values inline.
    ///
    /// Outside of decoding (a snapshot's scan) such pointers are fetched from the table.
    ///
    /// # Errors
    /// [`ColumnError`], naming the column; the row is in no column then. Postgres may also raise
    /// an ERROR for broken data, with the same effect.
    ///
    /// # Safety
    /// On the main thread, in a transaction or a decoding callback. `tuple` and `unchanged` are
    /// valid and of `tupdesc`, which is of the shape given to [`Rows::new`], or has its columns where
    /// `layout` says.
    pub unsafe fn append(
        &mut self,
        change: Change,
        origin: &Origin,
        tuple: pg_sys::HeapTuple,
        tupdesc: pg_sys::TupleDesc,
        layout: Option<&Layout>,
        unchanged: Option<pg_sys::HeapTuple>,
    ) -> Result<(), ColumnError> {
        if self.torn {
            self.cut_back();
        }
        // SAFETY: as the caller vouches; the arrays have as many places as the descriptor.
        unsafe {
            let expected = layout.map_or(self.natts, |layout| layout.natts);
            let found = (*tupdesc).natts as usize;
            if expected != found {
                return Err(ColumnError::Shape { expected, found });
            }
            let _row = RowContext::enter();
            self.torn = true;
            self.tuple.deform(tuple, tupdesc);
            match self.append_source(tupdesc, layout, unchanged) {
                Ok(bytes) => self.bytes += bytes + system::ROW_BYTES,
                Err(error) => {
                    self.cut_back();
                    return Err(error);
                }
            }
        }
        self.system.push(change, origin);
        self.torn = false;
        Ok(())
    }

    /// Appends the deformed tuple's values to the source columns; returns the bytes they took.
    ///
    /// # Safety
    /// As for [`Rows::append`].
    unsafe fn append_source(
        &mut self,
        tupdesc: pg_sys::TupleDesc,
        layout: Option<&Layout>,
        unchanged: Option<pg_sys::HeapTuple>,
    ) -> Result<usize, ColumnError> {
        let mut bytes = 0;
        let mut old_is_deformed = false;
        for (index, source) in self.columns.iter_mut().enumerate() {
            let at = layout.map_or(source.attribute, |layout| layout.places[index]);
            if self.tuple.nulls[at] {
                bytes += source.column.append_null();
                continue;
            }
            let mut datum = self.tuple.datums[at];
            // SAFETY: as the caller vouches; the value is not null, and of the column's type.
            unsafe {
                if source.varlena && varlena::is_on_disk(datum) {
                    if let Some(old) = unchanged
                        && !old_is_deformed
                    {
                        self.unchanged.deform(old, tupdesc);
                        old_is_deformed = true;
                    }
                    let old = if old_is_deformed {
                        self.unchanged.get(at)
                    } else {
                        None
                    };
                    datum = match old {
                        Some(old) if !varlena::is_on_disk(old) => old,
                        // The TOAST table is as of now, not as of the change: never read it while
                        // decoding.
                        _ if pg_sys::HistoricSnapshotActive() => {
                            return Err(Fault::Missing.of(&source.name));
                        }
                        _ => datum,
                    };
                }
                bytes += source
                    .column
                    .append(datum)
                    .map_err(|fault| fault.of(&source.name))?;
            }
        }
        Ok(bytes)
    }

    /// Takes the begun row out of the columns it is in.
    fn cut_back(&mut self) {
        let rows = self.system.len();
        for source in &mut self.columns {
            source.column.truncate(rows);
        }
        self.torn = false;
    }

    /// Rows collected.
    pub fn len(&self) -> usize {
        self.system.len()
    }

    /// Are there no rows?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Memory that the collected values take. Vectors reserve up to twice that, but what they
    /// have not written to yet is not resident.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the rows collected: the source columns and the first four system columns, without
    /// `_sort_by`, which [`seal`](super::seal) adds. Leaves no rows.
    pub fn take(&mut self) -> Vec<ArrayRef> {
        if self.torn {
            self.cut_back();
        }
        self.bytes = 0;
        let mut columns = Vec::with_capacity(self.columns.len() + 5);
        columns.extend(self.columns.iter_mut().map(|source| source.column.take()));
        columns.extend(self.system.take());
        columns
    }
}

/// Without pgrx's guard, which costs as much as a short row: an ERROR would jump over Rust frames.
mod unguarded {
    use super::{Datum, pg_sys};

    unsafe extern "C-unwind" {
        pub fn heap_deform_tuple(
            tuple: pg_sys::HeapTuple,
            descriptor: pg_sys::TupleDesc,
            values: *mut Datum,
            nulls: *mut bool,
        );
    }
}

/// A tuple's values, in arrays that are used again for each tuple.
#[derive(Default)]
struct Values {
    datums: Vec<Datum>,
    nulls: Vec<bool>,
}

impl Values {
    /// # Safety
    /// `tuple` is of `tupdesc`.
    unsafe fn deform(&mut self, tuple: pg_sys::HeapTuple, tupdesc: pg_sys::TupleDesc) {
        // SAFETY: as the caller vouches.
        let natts = unsafe { (*tupdesc).natts } as usize;
        if self.datums.len() < natts {
            self.datums.resize(natts, Datum::null());
            self.nulls.resize(natts, true);
        }
        // SAFETY: there is a place for each attribute. Values that a tuple is too short for (ADD COLUMN
        // with a constant default) come from the descriptor, which allocates; without them nothing in
        // heaptuple.c raises an error, so that the call needs no guard. There is one for each row.
        unsafe {
            let (datums, nulls) = (self.datums.as_mut_ptr(), self.nulls.as_mut_ptr());
            let stored = (*(*tuple).t_data).t_infomask2 as u32 & pg_sys::HEAP_NATTS_MASK;
            if stored as usize >= natts {
                unguarded::heap_deform_tuple(tuple, tupdesc, datums, nulls);
            } else {
                pg_sys::heap_deform_tuple(tuple, tupdesc, datums, nulls);
            }
        }
    }

    fn get(&self, at: usize) -> Option<Datum> {
        (!self.nulls[at]).then(|| self.datums[at])
    }
}
