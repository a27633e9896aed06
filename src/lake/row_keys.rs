//! Keys of rows: hashes of the values that rows are told apart by, 64 bits of those that are certain
//! and 64 of all. The values are hashed where they lie, so that large ones are not copied.

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};

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

    /// For the keys of rows with these columns, of which the first `certain` are; all values of one
    /// without an array are null.
    ///
    /// # Errors
    /// Kind `Internal` if an array has a type that history tables do not have.
    pub(crate) fn keys(
        &self,
        columns: &[Option<ArrayRef>],
        certain: usize,
    ) -> Result<Keys<'_>, LakeError> {
        let columns = columns.iter().map(|column| match column {
            None => Ok((None, Values::None)),
            Some(array) => Ok((array.nulls().cloned(), values(array)?)),
        });
        Ok(Keys {
            hashes: &self.0,
            columns: columns.collect::<Result<_, LakeError>>()?,
            certain,
            gathered: Vec::new(),
        })
    }
}

/// The keys of some rows.
pub(crate) struct Keys<'a> {
    hashes: &'a [RandomState; 2],
    columns: Vec<(Option<NullBuffer>, Values)>,
    certain: usize,
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
        let [mut kind, mut whole] = [0, 1].map(|which| self.hashes[which].build_hasher());
        let (certain, added) = self.columns.split_at(self.certain.min(self.columns.len()));
        gather(
            certain,
            row,
            &mut self.gathered,
            &mut [&mut kind, &mut whole],
        );
        gather(added, row, &mut self.gathered, &mut [&mut whole]);
        [kind.finish(), whole.finish()]
    }
}

/// Hashes the values of a row.
fn gather(
    columns: &[(Option<NullBuffer>, Values)],
    row: usize,
    gathered: &mut Vec<u8>,
    hashers: &mut [&mut DefaultHasher],
) {
    gathered.clear();
    for (nulls, values) in columns {
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            gathered.push(0);
            continue;
        }
        match values {
            Values::None => gathered.push(0),
            Values::Boolean(bits) => gathered.push(1 + u8::from(bits.value(row))),
            Values::Fixed(width, bytes) => {
                gathered.push(1);
                let value = &bytes[row * width..(row + 1) * width];
                gathered.extend_from_slice(value);
            }
            Values::Bytes(offsets, bytes) => {
                // Offsets are never negative.
                let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                let value = &bytes[start..end];
                gathered.push(1);
                // Where a value ends is part of it.
                gathered.extend_from_slice(&value.len().to_le_bytes());
                if value.len() < LARGE {
                    gathered.extend_from_slice(value);
                } else {
                    for hasher in &mut *hashers {
                        hasher.write(gathered);
                        hasher.write(value);
                    }
                    gathered.clear();
                }
            }
        }
    }
    for hasher in hashers {
        hasher.write(gathered);
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
        let mut keys = maker.keys(&all, 3).unwrap();
        let distinct: HashSet<Key> = (0..6).map(|row| keys.of(row)).collect();
        assert_eq!(distinct.len(), 6);
        let part = columns(2, 3);
        let mut part = maker.keys(&part, 3).unwrap();
        for row in 0..3 {
            assert_eq!(part.of(row), keys.of(row + 2));
        }
    }

    #[test]
    fn the_first_half_tells_what_is_certain() {
        let maker = KeyMaker::new();
        let columns = |added: &str| -> [Option<ArrayRef>; 2] {
            [
                Some(Arc::new(StringArray::from(vec!["a"]))),
                Some(Arc::new(StringArray::from(vec![added]))),
            ]
        };
        let key = |added: &str| maker.keys(&columns(added), 1).unwrap().of(0);
        assert_eq!(key("b")[0], key("c")[0]);
        assert_ne!(key("b")[1], key("c")[1]);
        assert_eq!(key("b"), key("b"));
    }

    #[test]
    fn a_column_without_an_array_is_null() {
        let maker = KeyMaker::new();
        let null: ArrayRef = Arc::new(StringArray::new_null(1));
        let mut missing = maker.keys(&[None], 1).unwrap();
        assert_eq!(missing.of(0), maker.keys(&[Some(null)], 1).unwrap().of(0));
        assert_ne!(missing.of(0), maker.keys(&[], 0).unwrap().of(0));
    }
}
