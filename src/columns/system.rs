//! The columns each history row has beside the source's own: what happened, where in the WAL,
//! in which transaction, when. `_sort_by` is not here: it depends on what the table already has,
//! so it is set when a batch is sealed.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};

use super::datetime;

/// What happened to a row: the value of `_pg_change_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new row, or a row of a snapshot.
    Insert,
    /// A deleted row, whole.
    Delete,
    /// A row before an update.
    UpdatePreimage,
    /// A row after an update.
    UpdatePostimage,
}

impl Change {
    /// The text in the history table.
    pub fn as_str(self) -> &'static str {
        match self {
            Change::Insert => "insert",
            Change::Delete => "delete",
            Change::UpdatePreimage => "update_preimage",
            Change::UpdatePostimage => "update_postimage",
        }
    }
}

/// Values common to a transaction's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// LSN of the commit record.
    pub lsn: u64,
    /// The top-level transaction's 32-bit id.
    pub xid: u32,
    /// Commit time as Postgres has it: microseconds since 2000, UTC.
    pub timestamp: i64,
}

/// Memory one row takes in these columns: three fixed values, an offset, and the change's text.
pub(super) const ROW_BYTES: usize = 8 + 4 + 8 + 4 + 12;

/// The system columns being collected.
#[derive(Default)]
pub(super) struct System {
    changes: Vec<Change>,
    lsns: Vec<i64>,
    xids: Vec<i32>,
    timestamps: Vec<i64>,
}

impl System {
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    pub fn push(&mut self, change: Change, origin: &Origin) {
        self.changes.push(change);
        // Delta has no unsigned types: the same 64 and 32 bits.
        self.lsns.push(origin.lsn as i64);
        self.xids.push(origin.xid as i32);
        self.timestamps
            .push(datetime::unix_micros(origin.timestamp).unwrap_or(i64::MAX));
    }

    /// In the schema's order.
    pub fn take(&mut self) -> [ArrayRef; 4] {
        let System {
            changes,
            lsns,
            xids,
            timestamps,
        } = std::mem::take(self);
        let text = changes.iter().map(|change| change.as_str().len()).sum();
        let mut values = Vec::with_capacity(text);
        for change in &changes {
            values.extend_from_slice(change.as_str().as_bytes());
        }
        let offsets = OffsetBuffer::from_lengths(changes.iter().map(|c| c.as_str().len()));
        [
            Arc::new(StringArray::new(offsets, values.into(), None)),
            Arc::new(Int64Array::new(ScalarBuffer::from(lsns), None)),
            Arc::new(Int32Array::new(ScalarBuffer::from(xids), None)),
            Arc::new(TimestampMicrosecondArray::new(
                ScalarBuffer::from(timestamps),
                None,
            )),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::datatypes::{Int32Type, Int64Type, TimestampMicrosecondType};

    #[test]
    fn columns_in_schema_order() {
        let mut system = System::default();
        let origin = Origin {
            lsn: 0x1_0000_0000,
            xid: u32::MAX,
            timestamp: 0,
        };
        system.push(Change::UpdatePreimage, &origin);
        system.push(Change::UpdatePostimage, &origin);
        assert_eq!(system.len(), 2);
        let [change, lsn, xid, timestamp] = system.take();
        assert_eq!(change.as_string::<i32>().value(0), "update_preimage");
        assert_eq!(change.as_string::<i32>().value(1), "update_postimage");
        assert_eq!(lsn.as_primitive::<Int64Type>().value(1), 0x1_0000_0000);
        assert_eq!(xid.as_primitive::<Int32Type>().value(1), -1);
        let timestamp = timestamp.as_primitive::<TimestampMicrosecondType>();
        assert_eq!(timestamp.value(0), 946_684_800_000_000);
        assert_eq!(system.len(), 0);
    }
}
