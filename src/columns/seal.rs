//! From collected columns to a batch of the history table. Safe Rust without Postgres, so that it
//! may run anywhere.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::buffer::ScalarBuffer;
use arrow::compute::FilterBuilder;
use arrow::datatypes::{ArrowPrimitiveType, Int32Type, Int64Type};
use arrow::error::ArrowError;

use super::error::ColumnError;
use crate::lake::HistorySchema;

/// Places of system columns, counted from the end of what [`Rows::take`](super::Rows::take) gives:
/// `_pg_change_type`, `_pg_lsn`, `_pg_xid`, `_timestamp`.
const LSN_FROM_END: usize = 3;
const XID_FROM_END: usize = 2;

/// Adds `_sort_by` to columns as [`Rows::take`](super::Rows::take) gives them: for each row
/// `max(previous + 1, _pg_lsn)`, where `previous` is the last one of the table; it moves on.
///
/// # Errors
/// [`ColumnError::Arrow`] if the columns do not fit the schema; `previous` is unchanged then.
pub fn seal(
    schema: &HistorySchema,
    mut columns: Vec<ArrayRef>,
    previous: &mut i64,
) -> Result<RecordBatch, ColumnError> {
    let lsns = system_column::<Int64Type>(&columns, LSN_FROM_END)?;
    let mut last = *previous;
    let sort_by: Vec<i64> = lsns
        .iter()
        .map(|&lsn| {
            last = lsn.max(last.saturating_add(1));
            last
        })
        .collect();
    columns.push(Arc::new(Int64Array::new(ScalarBuffer::from(sort_by), None)));
    let batch = RecordBatch::try_new(schema.arrow(), columns)?;
    *previous = last;
    Ok(batch)
}

/// Keeps the rows whose transaction `keep` says yes to, by its 32-bit id: after a snapshot those
/// that it did not see.
///
/// # Errors
/// [`ColumnError::Arrow`] if these are not columns as [`Rows::take`](super::Rows::take) gives them.
pub fn retain(
    columns: Vec<ArrayRef>,
    keep: impl Fn(u32) -> bool,
) -> Result<Vec<ArrayRef>, ColumnError> {
    let xids = system_column::<Int32Type>(&columns, XID_FROM_END)?;
    let kept: BooleanArray = xids.iter().map(|&xid| Some(keep(xid as u32))).collect();
    if kept.true_count() == kept.len() {
        return Ok(columns);
    }
    let filter = FilterBuilder::new(&kept).optimize().build();
    Ok(columns
        .iter()
        .map(|column| filter.filter(column))
        .collect::<Result<_, _>>()?)
}

/// A system column's values.
fn system_column<T: ArrowPrimitiveType>(
    columns: &[ArrayRef],
    from_end: usize,
) -> Result<&ScalarBuffer<T::Native>, ColumnError> {
    let column = columns.len().checked_sub(from_end).map(|at| &columns[at]);
    let array = column.and_then(|column| column.as_primitive_opt::<T>());
    let array = array.ok_or_else(|| {
        ArrowError::SchemaError("the system columns are not where they belong".to_owned())
    })?;
    Ok(array.values())
}

#[cfg(test)]
mod tests {
    use super::super::system::{Change, Origin, System};
    use super::*;
    use crate::lake::{DeltaType, Field};
    use arrow::array::{Array, Int32Array};

    /// One source column with the row's number, and the system columns.
    fn columns(origins: &[(u64, u32)]) -> Vec<ArrayRef> {
        let mut system = System::default();
        for &(lsn, xid) in origins {
            system.push(
                Change::Insert,
                &Origin {
                    lsn,
                    xid,
                    timestamp: 0,
                },
            );
        }
        let numbers = Int32Array::from_iter_values(0..origins.len() as i32);
        let mut columns: Vec<ArrayRef> = vec![Arc::new(numbers)];
        columns.extend(system.take());
        columns
    }

    fn schema() -> HistorySchema {
        let data_type = DeltaType::Integer;
        let field = Field {
            name: "n".to_owned(),
            data_type,
            nullable: true,
            number: None,
            added: false,
            output: None,
        };
        HistorySchema::new(vec![field]).unwrap()
    }

    fn sort_by(batch: &RecordBatch) -> Vec<i64> {
        let column = batch.column(batch.num_columns() - 1);
        column.as_primitive::<Int64Type>().values().to_vec()
    }

    #[test]
    fn sort_by_starts_at_the_commit_and_never_goes_back() {
        let mut previous = 0;
        let batch = seal(
            &schema(),
            columns(&[(100, 1), (100, 1), (101, 2), (500, 3)]),
            &mut previous,
        );
        assert_eq!(sort_by(&batch.unwrap()), [100, 101, 102, 500]);
        assert_eq!(previous, 500);
        let batch = seal(&schema(), columns(&[(300, 4)]), &mut previous).unwrap();
        assert_eq!(sort_by(&batch), [501]);
        let batch = seal(&schema(), columns(&[]), &mut previous).unwrap();
        assert_eq!(batch.num_rows(), 0);
        assert_eq!(previous, 501);
    }

    #[test]
    fn a_refused_batch_leaves_previous_alone() {
        let mut previous = 7;
        let mut wrong = columns(&[(100, 1)]);
        wrong.remove(0);
        assert!(matches!(
            seal(&schema(), wrong, &mut previous),
            Err(ColumnError::Arrow(_))
        ));
        assert!(matches!(
            seal(&schema(), vec![], &mut previous),
            Err(ColumnError::Arrow(_))
        ));
        assert_eq!(previous, 7);
    }

    #[test]
    fn rows_a_snapshot_saw_are_dropped() {
        let before = columns(&[(1, 10), (1, u32::MAX), (2, 11), (3, 10)]);
        let kept = retain(before.clone(), |xid| xid != 10).unwrap();
        assert_eq!(kept.len(), before.len());
        assert_eq!(kept[0].as_primitive::<Int32Type>().values(), &[1, 2]);
        assert_eq!(kept[2].as_primitive::<Int64Type>().values(), &[1, 2]);
        assert_eq!(retain(before.clone(), |_| true).unwrap(), before);
        assert_eq!(retain(before, |xid| xid == 999).unwrap()[0].len(), 0);
        assert!(retain(vec![], |_| true).is_err());
    }
}
