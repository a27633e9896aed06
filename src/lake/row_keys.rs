//! Keys of rows: 128-bit hashes of the values that rows are told apart by. The values are hashed
//! where they lie, so that large ones are not copied.

use std::hash::{BuildHasher, Hasher, RandomState};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::DataType;

use crate::lake::error::LakeError;
use crate::lake::tally::Key;

/// Values from this size on are hashed by themselves; smaller ones are gathered first.
const LARGE: usize = 1 << 10;

/// Makes keys. Two hash functions of 64 bits with random keys of their own make up one: nobody
/// can find two kinds of rows with the same.
pub(crate) struct KeyMaker([RandomState; 2]);

impl KeyMaker {
    /// Keys are the same for the same maker only.
    pub(crate) fn new() -> KeyMaker {
        KeyMaker([RandomState::new(), RandomState::new()])
    }

    /// For the keys of rows with these columns; all values of one without an array are null.
    ///
    /// # Errors
    /// Kind `Internal` if an array has a type that history tables do not have.
    pub(crate) fn keys(&self, columns: &[Option<ArrayRef>]) -> Result<Keys<'_>, LakeError> {
        let columns = columns.iter().map(|column| match column {
            None => Ok((None, Values::None)),
            Some(array) => Ok((array.nulls().cloned(), values(array)?)),
        });
        Ok(Keys {
            hashes: &self.0,
            columns: columns.collect::<Result<_, LakeError>>()?,
            gathered: Vec::new(),
        })
    }
}

/// The keys of some rows.
pub(crate) struct Keys<'a> {
    hashes: &'a [RandomState; 2],
    columns: Vec<(Option<NullBuffer>, Values)>,
    gathered: Vec<u8>,
}

enum Values {
    None,
    Boolean(BooleanBuffer),
    /// Of a fixed width in bytes.
    Fixed(usize, Buffer),
    /// Of any length.
    Bytes(OffsetBuffer<i32>, Buffer),
}

impl Keys<'_> {
    /// The key of a row.
    pub(crate) fn of(&mut self, row: usize) -> Key {
        let mut hashers = [self.hashes[0].build_hasher(), self.hashes[1].build_hasher()];
        self.gathered.clear();
        for (nulls, values) in &self.columns {
            if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
                self.gathered.push(0);
                continue;
            }
            match values {
                Values::None => self.gathered.push(0),
                Values::Boolean(bits) => self.gathered.push(1 + u8::from(bits.value(row))),
                Values::Fixed(width, bytes) => {
                    self.gathered.push(1);
                    let value = &bytes[row * width..(row + 1) * width];
                    self.gathered.extend_from_slice(value);
                }
                Values::Bytes(offsets, bytes) => {
                    // Offsets are never negative.
                    let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                    let value = &bytes[start..end];
                    self.gathered.push(1);
                    // Where a value ends is part of it.
                    self.gathered.extend_from_slice(&value.len().to_le_bytes());
                    if value.len() < LARGE {
                        self.gathered.extend_from_slice(value);
                    } else {
                        for hasher in &mut hashers {
                            hasher.write(&self.gathered);
                            hasher.write(value);
                        }
                        self.gathered.clear();
                    }
                }
            }
        }
        hashers.map(|mut hasher| {
            hasher.write(&self.gathered);
            hasher.finish()
        })
    }
}

fn values(array: &ArrayRef) -> Result<Values, LakeError> {
    let data_type = array.data_type();
    Ok(match data_type {
        DataType::Boolean => Values::Boolean(array.as_boolean().values().clone()),
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            Values::Bytes(array.offsets().clone(), array.values().clone())
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            Values::Bytes(array.offsets().clone(), array.values().clone())
        }
        _ => {
            let data = array.to_data();
            match (data_type.primitive_width(), data.buffers()) {
                (Some(width), [bytes]) => Values::Fixed(width, bytes.slice(data.offset() * width)),
                _ => return Err(LakeError::internal(format!("a history has no {data_type}"))),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use arrow::array::{Float64Array, StringArray};

    use super::*;

    #[test]
    fn rows_have_the_same_key_exactly_if_they_are_equal() {
        let long = "x".repeat(LARGE);
        let texts = vec![
            Some("a"),
            Some("ab"),
            None,
            Some(""),
            Some(&long),
            Some(&long[1..]),
        ];
        let other = vec![Some("bc"), Some("c"), Some(""), None, None, Some("x")];
        let floats = vec![0.0, 0.0, -0.0, f64::NAN, 1.0, 1.0];
        let columns = |at: usize, rows: usize| {
            let arrays: [ArrayRef; 3] = [
                Arc::new(StringArray::from(texts.clone())),
                Arc::new(StringArray::from(other.clone())),
                Arc::new(Float64Array::from(floats.clone())),
            ];
            arrays.map(|array| Some(array.slice(at, rows)))
        };
        let maker = KeyMaker::new();
        let all = columns(0, 6);
        let mut keys = maker.keys(&all).unwrap();
        let distinct: HashSet<Key> = (0..6).map(|row| keys.of(row)).collect();
        assert_eq!(distinct.len(), 6);
        let part = columns(2, 3);
        let mut part = maker.keys(&part).unwrap();
        for row in 0..3 {
            assert_eq!(part.of(row), keys.of(row + 2));
        }
    }

    #[test]
    fn a_column_without_an_array_is_null() {
        let maker = KeyMaker::new();
        let null: ArrayRef = Arc::new(StringArray::new_null(1));
        let mut missing = maker.keys(&[None]).unwrap();
        assert_eq!(missing.of(0), maker.keys(&[Some(null)]).unwrap().of(0));
        assert_ne!(missing.of(0), maker.keys(&[]).unwrap().of(0));
    }
}
