//! The one shape of every column: values in, an Arrow array out. The stores below hold what the
//! families of types have read; unlike Arrow's own builders they can be cut back, so that a row
//! which fails in its last column is in none of them.
//!
//! Nothing is kept back by `take`: ten thousand idle tables must not hold memory for rows they do
//! not have.

use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::builder::NullBufferBuilder;
use arrow::array::{ArrayRef, ArrowPrimitiveType, BinaryArray, PrimitiveArray, StringArray};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::DataType;
use pgrx::pg_sys::Datum;

use super::error::Fault;

/// One source column being collected.
pub(super) trait Column {
    /// Appends a value and says how many bytes it took.
    ///
    /// # Safety
    /// `datum` is a non-null value of the column's type, its memory valid during the call.
    /// Postgres's current memory context is one that is reset after the row.
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault>;

    /// Appends NULL and says how many bytes it took.
    fn append_null(&mut self) -> usize;

    /// Takes back what was appended after the first `rows`, if anything.
    fn truncate(&mut self, rows: usize);

    /// What was collected; the column is empty afterwards.
    fn take(&mut self) -> ArrayRef;
}

/// Values of one width, with their nulls.
pub(super) struct Values<N> {
    values: Vec<N>,
    nulls: NullBufferBuilder,
}

impl<N: Copy + Default> Values<N> {
    pub fn new() -> Self {
        Values {
            values: Vec::new(),
            nulls: NullBufferBuilder::new(0),
        }
    }

    #[inline]
    pub fn push(&mut self, value: N) -> usize {
        self.values.push(value);
        self.nulls.append_non_null();
        size_of::<N>()
    }

    #[inline]
    pub fn push_null(&mut self) -> usize {
        self.values.push(N::default());
        self.nulls.append_null();
        size_of::<N>()
    }

    pub fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
        self.nulls.truncate(rows);
    }

    pub fn take(&mut self) -> (Vec<N>, Option<NullBuffer>) {
        let taken = std::mem::replace(self, Values::new());
        (taken.values, taken.nulls.build())
    }
}

/// How a type of fixed width is read from its datum.
pub(super) trait Read {
    /// The Arrow type of the column.
    type Arrow: ArrowPrimitiveType;

    /// The Arrow type with its parameters, such as the time zone.
    fn data_type() -> DataType {
        Self::Arrow::DATA_TYPE
    }

    /// The value; `None` where Delta cannot express it and the design has NULL.
    fn read(datum: Datum) -> Option<<Self::Arrow as ArrowPrimitiveType>::Native>;
}

/// A column of a type that is passed by value.
pub(super) struct Fixed<R: Read> {
    values: Values<<R::Arrow as ArrowPrimitiveType>::Native>,
    read: PhantomData<R>,
}

impl<R: Read> Fixed<R> {
    pub fn new() -> Self {
        Fixed {
            values: Values::new(),
            read: PhantomData,
        }
    }
}

impl<R: Read> Column for Fixed<R> {
    unsafe fn append(&mut self, datum: Datum) -> Result<usize, Fault> {
        Ok(match R::read(datum) {
            Some(value) => self.values.push(value),
            None => self.values.push_null(),
        })
    }

    fn append_null(&mut self) -> usize {
        self.values.push_null()
    }

    fn truncate(&mut self, rows: usize) {
        self.values.truncate(rows);
    }

    fn take(&mut self) -> ArrayRef {
        let (values, nulls) = self.values.take();
        let array = PrimitiveArray::<R::Arrow>::new(ScalarBuffer::from(values), nulls);
        Arc::new(array.with_data_type(R::data_type()))
    }
}

/// Values of any length, end to end, with their nulls.
pub(super) struct Bytes {
    bytes: Vec<u8>,
    offsets: Vec<i32>,
    nulls: NullBufferBuilder,
}

/// What a value costs beside its bytes.
const OFFSET: usize = size_of::<i32>();

impl Bytes {
    pub fn new() -> Self {
        Bytes {
            bytes: Vec::new(),
            offsets: vec![0],
            nulls: NullBufferBuilder::new(0),
        }
    }

    #[inline]
    pub fn push(&mut self, value: &[u8]) -> Result<usize, Fault> {
        let end = self.bytes.len() + value.len();
        let end = i32::try_from(end).map_err(|_| Fault::TooLarge)?;
        self.bytes.extend_from_slice(value);
        self.offsets.push(end);
        self.nulls.append_non_null();
        Ok(value.len() + OFFSET)
    }

    #[inline]
    pub fn push_null(&mut self) -> usize {
        self.offsets.push(self.bytes.len() as i32);
        self.nulls.append_null();
        OFFSET
    }

    pub fn truncate(&mut self, rows: usize) {
        // One offset more than rows; they start with 0 and are never empty.
        self.offsets.truncate(rows + 1);
        self.bytes
            .truncate(self.offsets[self.offsets.len() - 1] as usize);
        self.nulls.truncate(rows);
    }

    fn take(&mut self) -> (OffsetBuffer<i32>, Buffer, Option<NullBuffer>) {
        let taken = std::mem::replace(self, Bytes::new());
        let offsets = OffsetBuffer::new(ScalarBuffer::from(taken.offsets));
        (offsets, Buffer::from_vec(taken.bytes), taken.nulls.build())
    }

    pub fn take_binary(&mut self) -> ArrayRef {
        let (offsets, values, nulls) = self.take();
        Arc::new(BinaryArray::new(offsets, values, nulls))
    }
}

/// Like [`Bytes`], but every value is UTF-8.
pub(super) struct Strings(Bytes);

impl Strings {
    pub fn new() -> Self {
        Strings(Bytes::new())
    }

    #[inline]
    pub fn push(&mut self, value: &str) -> Result<usize, Fault> {
        self.0.push(value.as_bytes())
    }

    /// Appends ASCII text.
    #[inline]
    pub fn push_ascii(&mut self, value: &[u8]) -> Result<usize, Fault> {
        debug_assert!(value.is_ascii());
        self.0.push(value)
    }

    #[inline]
    pub fn push_null(&mut self) -> usize {
        self.0.push_null()
    }

    pub fn truncate(&mut self, rows: usize) {
        self.0.truncate(rows);
    }

    pub fn take(&mut self) -> ArrayRef {
        let (offsets, values, nulls) = self.0.take();
        // SAFETY: `push` takes str alone, and the offsets lie between values. Checking the whole
        // buffer again would be a second pass over all text.
        Arc::new(unsafe { StringArray::new_unchecked(offsets, values, nulls) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Array, AsArray};

    #[test]
    fn strings_are_cut_back() {
        let mut strings = Strings::new();
        strings.push("one").unwrap();
        strings.push_null();
        strings.push("three").unwrap();
        strings.truncate(7);
        strings.truncate(2);
        strings.push("").unwrap();
        let array = strings.take();
        let array = array.as_string::<i32>();
        assert_eq!(
            array.iter().collect::<Vec<_>>(),
            [Some("one"), None, Some("")]
        );
        assert_eq!(strings.take().len(), 0);
    }

    #[test]
    fn values_are_cut_back() {
        let mut values = Values::<i32>::new();
        values.push(1);
        values.push(2);
        values.truncate(1);
        values.push_null();
        values.push(3);
        values.truncate(2);
        let (values, nulls) = values.take();
        assert_eq!(values, [1, 0]);
        assert_eq!(nulls.unwrap().null_count(), 1);
    }
}
