//! How the columns of a data file are encoded, decided by its first rows. A dictionary costs a hash
//! for each value and is thrown away when there are too many: on columns where hardly any two values
//! are alike it was half of what a file costs.

use std::hash::BuildHasher;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{Decimal128Type, Float32Type, Float64Type};
use parquet::basic::Encoding;
use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::lake::types::DeltaType;

/// Values looked at: enough to meet two that are alike among two million.
const SAMPLE: usize = 2048;

/// How often each entry of a dictionary must be used, on average, for it to pay.
const USES: usize = 3;

/// Most bytes of a dictionary, by the library's default; past that it gives it up.
const DICTIONARY_BYTES: usize = 1 << 20;

/// How the values of a column are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// As numbers of a dictionary's entries.
    Dictionary,
    /// One by one, in this encoding.
    Each(Encoding),
}

/// The choice for a column by its first values, in a file that will have about `rows`.
pub(crate) fn choose(data_type: DeltaType, values: &ArrayRef, rows: usize) -> Choice {
    let hasher = FxBuildHasher;
    let cost = match data_type {
        // Stored as integers: the difference of two neighbours is as short as the number of an entry,
        // and needs no look-up.
        DeltaType::Short
        | DeltaType::Integer
        | DeltaType::Long
        | DeltaType::Date
        | DeltaType::Timestamp
        | DeltaType::TimestampNtz
        | DeltaType::Decimal {
            precision: ..=18, ..
        } => return Choice::Each(Encoding::DELTA_BINARY_PACKED),
        DeltaType::Boolean => return Choice::Each(Encoding::PLAIN),
        DeltaType::Decimal { .. } => values.as_primitive_opt::<Decimal128Type>().map(|values| {
            let hash = |at| (hasher.hash_one(values.value(at)), size_of::<i128>());
            Cost::of(values, hash)
        }),
        DeltaType::Float => values.as_primitive_opt::<Float32Type>().map(|values| {
            let hash = |at| {
                (
                    hasher.hash_one(values.value(at).to_bits()),
                    size_of::<f32>(),
                )
            };
            Cost::of(values, hash)
        }),
        DeltaType::Double => values.as_primitive_opt::<Float64Type>().map(|values| {
            let hash = |at| {
                (
                    hasher.hash_one(values.value(at).to_bits()),
                    size_of::<f64>(),
                )
            };
            Cost::of(values, hash)
        }),
        DeltaType::String => values.as_string_opt::<i32>().map(|values| {
            let hash = |at| (hasher.hash_one(values.value(at)), values.value(at).len());
            Cost::of(values, hash)
        }),
        DeltaType::Binary => values.as_binary_opt::<i32>().map(|values| {
            let hash = |at| (hasher.hash_one(values.value(at)), values.value(at).len());
            Cost::of(values, hash)
        }),
    };
    match cost {
        Some(cost) if cost.pays(rows) => Choice::Dictionary,
        _ => Choice::Each(Encoding::PLAIN),
    }
}

/// What a dictionary of a column would cost.
#[derive(Debug)]
struct Cost {
    /// Entries.
    distinct: usize,
    /// Bytes of all of them.
    bytes: usize,
}

impl Cost {
    /// By values from all over the array; `hash` gives one's hash and length.
    fn of(values: &dyn Array, hash: impl Fn(usize) -> (u64, usize)) -> Cost {
        let stride = values.len().div_ceil(SAMPLE).max(1);
        let mut seen = FxHashSet::default();
        let (mut looked_at, mut bytes) = (0, 0);
        for at in (0..values.len()).step_by(stride) {
            if values.is_valid(at) {
                let (hash, length) = hash(at);
                seen.insert(hash);
                looked_at += 1;
                bytes += length;
            }
        }
        let distinct = match looked_at - seen.len() {
            _ if stride == 1 => seen.len(),
            0 => usize::MAX,
            // Of n values out of d, n * n / 2d meet one that is alike, as long as those are few.
            alike => (looked_at * looked_at / (2 * alike)).max(seen.len()),
        };
        let each = bytes / looked_at.max(1);
        Cost {
            distinct,
            bytes: distinct.saturating_mul(each),
        }
    }

    fn pays(&self, rows: usize) -> bool {
        self.distinct.saturating_mul(USES) <= rows && self.bytes <= DICTIONARY_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Float64Array, Int64Array, StringArray};
    use std::sync::Arc;

    fn text(values: impl Iterator<Item = usize>) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(
            values.map(|n| format!("value {n}")),
        ))
    }

    const EACH: Choice = Choice::Each(Encoding::PLAIN);

    #[test]
    fn a_dictionary_for_values_that_come_again() {
        let choose = |values, rows| choose(DeltaType::String, &values, rows);
        assert_eq!(
            choose(text((0..50_000).map(|n| n % 7)), 50_000),
            Choice::Dictionary
        );
        // Too many to see most of them twice, but there will be enough rows.
        let many = || text((0..50_000).map(|n| n * 7919 % 10_000));
        assert_eq!(choose(many(), 500_000), Choice::Dictionary);
        assert_eq!(choose(many(), 15_000), EACH);
        assert_eq!(choose(text(0..50_000), 500_000), EACH);
        // Each value twice, one beside the other, as an update writes them.
        assert_eq!(choose(text((0..50_000).map(|n| n / 2)), 500_000), EACH);
    }

    #[test]
    fn small_files_are_looked_at_whole() {
        let choose = |values, rows| choose(DeltaType::String, &values, rows);
        assert_eq!(choose(text([1, 1, 1].into_iter()), 3), Choice::Dictionary);
        assert_eq!(choose(text([1, 2, 3].into_iter()), 3), EACH);
        assert_eq!(choose(text(std::iter::empty()), 0), Choice::Dictionary);
        let nulls: ArrayRef = Arc::new(StringArray::from(vec![None::<&str>; 5]));
        assert_eq!(choose(nulls, 5), Choice::Dictionary);
    }

    #[test]
    fn not_for_large_values() {
        let large = (0..3000).map(|n| format!("{:0>9000}", n % 200));
        let large: ArrayRef = Arc::new(StringArray::from_iter_values(large));
        assert_eq!(choose(DeltaType::String, &large, 3000), EACH);
    }

    #[test]
    fn numbers() {
        let longs: ArrayRef = Arc::new(Int64Array::from(vec![1; 9]));
        let packed = Choice::Each(Encoding::DELTA_BINARY_PACKED);
        assert_eq!(choose(DeltaType::Long, &longs, 9), packed);
        let doubles: ArrayRef = Arc::new(Float64Array::from(vec![1.5; 9]));
        assert_eq!(choose(DeltaType::Double, &doubles, 9), Choice::Dictionary);
    }
}
