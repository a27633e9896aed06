//! A `delete` for each row that lives in a history, for histories that are kept when their content
//! has to be replaced: what replaces it comes behind.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};

use crate::lake::budget::Charged;
use crate::lake::error::LakeError;
use crate::lake::held::Held;
use crate::lake::live_rows::{Identity, LiveRows};
use crate::lake::log::now_ms;
use crate::lake::open::ActiveFile;
use crate::lake::runtime::Shared;
use crate::lake::schema::HistorySchema;
use crate::lake::store::TableStore;
use crate::lake::writer::Clear;

/// Part of the memory allowed that counting rows may take.
const COUNTS: usize = 8;
/// Part of the memory allowed that the deleted rows may take before they are stored.
const ROWS: usize = 16;

/// A history as it was committed last.
pub(crate) struct History<'a> {
    /// Its files, none of which has rows from before and after `after`.
    pub files: Vec<ActiveFile>,
    /// Its columns.
    pub schema: &'a HistorySchema,
    /// The last `_sort_by` by which nothing lived any more.
    pub after: i64,
}

/// Stores the rows in files of `held`; returns the last `_sort_by`.
///
/// # Errors
/// Those of [`LiveRows`].
pub(crate) async fn delete_all(
    shared: &Arc<Shared>,
    store: &TableStore,
    history: History<'_>,
    held: &mut Held,
    clear: Clear,
) -> Result<i64, LakeError> {
    let limit = shared.budget.limit();
    let History {
        files,
        schema,
        after,
    } = history;
    let identity = identity(schema);
    let (budget, memory) = (&shared.replay_budget, limit / COUNTS);
    let mut rows = LiveRows::open(store, budget, files, schema, &identity, after, memory).await?;
    let mut sort_by = clear.sort_by;
    let mut bytes = 0;
    while let Some(live) = rows.next().await? {
        let batch = deleted(schema, &live, &clear, &mut sort_by)?;
        let size = batch.get_array_memory_size();
        bytes += size;
        let charge = shared.budget.charge(size);
        held.add(
            Charged {
                value: batch,
                charge,
            },
            schema,
        )?;
        if bytes > limit / ROWS {
            held.settle().await?;
            bytes = 0;
        }
    }
    // Nothing stays in memory until the copy behind it is there, which may be long.
    held.settle().await?;
    Ok(sort_by)
}

/// Columns that tell rows apart. One that was dropped has NULL in later rows, so it does not. If there
/// are none that every row has, those that were added have to do.
fn identity(schema: &HistorySchema) -> Identity {
    let columns = |added: bool| -> Vec<usize> {
        let fields = schema.source().iter().enumerate();
        fields
            .filter(|(_, field)| field.number.is_some() && field.added == added)
            .map(|(index, _)| index)
            .collect()
    };
    match (columns(false), columns(true)) {
        (certain, added) if certain.is_empty() => Identity {
            certain: added,
            added: certain,
        },
        (certain, added) => Identity { certain, added },
    }
}

/// Rows with the system columns of their end. No transaction has deleted them: `_pg_xid` is 0.
fn deleted(
    schema: &HistorySchema,
    live: &RecordBatch,
    clear: &Clear,
    sort_by: &mut i64,
) -> Result<RecordBatch, LakeError> {
    let rows = live.num_rows();
    let lsn = i64::try_from(clear.lsn).unwrap_or(i64::MAX);
    let first = lsn.max(sort_by.saturating_add(1));
    let after = first.saturating_add(rows as i64);
    *sort_by = after - 1;
    let system: [ArrayRef; 5] = [
        Arc::new(StringArray::from_iter_values(std::iter::repeat_n(
            "delete", rows,
        ))),
        Arc::new(Int64Array::from_value(lsn, rows)),
        Arc::new(Int32Array::from_value(0, rows)),
        Arc::new(TimestampMicrosecondArray::from_value(now_ms() * 1000, rows)),
        Arc::new(Int64Array::from_iter_values(first..after)),
    ];
    let columns = live.columns().iter().cloned().chain(system).collect();
    RecordBatch::try_new(schema.arrow(), columns)
        .map_err(|error| LakeError::internal(format!("deleted rows do not fit: {error}")))
}
