//! Changes of one table on their way to the writer: builders for its current shape, and the check
//! that the relation still has this shape.

use arrow::array::ArrayRef;
use pgrx::pg_sys;
use pgrx::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::columns::{self, ColumnError, Origin, Rows, Shape};
use crate::decode::{Change, Relation, Transaction};
use crate::lake::{Budget, Charged, HistorySchema, SchemaError};

/// Bytes of Arrow data after which a batch is sealed.
const BATCH_BYTES: usize = 8 << 20;

/// Counts relation cache invalidations; a shape checked at the current count still holds.
static INVALIDATIONS: AtomicU64 = AtomicU64::new(1);

/// Has invalidations counted in this process; called once.
pub fn watch_invalidations() {
    // SAFETY: the callback is a static function; registered once per process (inval.c).
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(count_invalidation), pg_sys::Datum::from(0))
    };
}

#[pg_guard]
unsafe extern "C-unwind" fn count_invalidation(_argument: pg_sys::Datum, _relation: pg_sys::Oid) {
    INVALIDATIONS.fetch_add(1, Ordering::Relaxed);
}

/// Sealed columns without `_sort_by`, charged to the budget.
pub type Held = Charged<Vec<ArrayRef>>;

/// Builders for the changes of one table.
pub struct Buffer {
    shape: Shape,
    schema: HistorySchema,
    rows: Rows,
    checked_at: u64,
}

impl Buffer {
    /// A buffer for a relation as it is at this change.
    ///
    /// # Errors
    /// When a column's name cannot be kept; the message says what to rename.
    pub fn new(relation: &Relation) -> Result<Buffer, SchemaError> {
        // SAFETY: called in a decoding callback, where the descriptor is valid and the historic
        // snapshot allows catalog access.
        let (shape, rows) = unsafe {
            let shape = Shape::from_tupdesc(relation.descriptor());
            let rows = Rows::new(&shape);
            (shape, rows)
        };
        let schema = HistorySchema::new(shape.fields())?;
        let checked_at = INVALIDATIONS.load(Ordering::Relaxed);
        Ok(Buffer {
            shape,
            schema,
            rows,
            checked_at,
        })
    }

    /// The history table's schema for this shape.
    pub fn schema(&self) -> &HistorySchema {
        &self.schema
    }

    /// Whether the relation still has the buffer's shape.
    pub fn fits(&mut self, relation: &Relation) -> bool {
        let now = INVALIDATIONS.load(Ordering::Relaxed);
        if self.checked_at == now {
            return true;
        }
        // SAFETY: the descriptor is valid during the callback.
        let fits = unsafe { self.shape.matches(relation.descriptor()) };
        if fits {
            self.checked_at = now;
        }
        fits
    }

    /// Appends a change: one row, or preimage and postimage of an update.
    pub fn append(
        &mut self,
        transaction: &Transaction,
        relation: &Relation,
        change: Change,
    ) -> Result<(), ColumnError> {
        use columns::Change as Kind;
        let origin = Origin {
            lsn: transaction.commit_lsn,
            xid: transaction.xid,
            timestamp: transaction.timestamp,
        };
        let descriptor = relation.descriptor();
        // SAFETY: tuples and descriptor are valid during the callback, and the tuples have the
        // descriptor's shape, which `fits` has compared with the builders'.
        unsafe {
            match change {
                Change::Insert { new } => {
                    self.rows
                        .append(Kind::Insert, &origin, new, descriptor, None)
                }
                Change::Update {
                    old: Some(old),
                    new,
                } => {
                    self.rows
                        .append(Kind::UpdatePreimage, &origin, old, descriptor, None)?;
                    self.rows
                        .append(Kind::UpdatePostimage, &origin, new, descriptor, Some(old))
                }
                Change::Preimage { old } => {
                    self.rows
                        .append(Kind::UpdatePreimage, &origin, old, descriptor, None)
                }
                Change::Postimage { old, new } => {
                    self.rows
                        .append(Kind::UpdatePostimage, &origin, new, descriptor, Some(old))
                }
                Change::Delete { old: Some(old) } => {
                    self.rows
                        .append(Kind::Delete, &origin, old, descriptor, None)
                }
                // The caller lets no change without its old row through.
                Change::Update { old: None, .. } | Change::Delete { old: None } => Ok(()),
            }
        }
    }

    /// Memory that the builders hold.
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Whether nothing is in the builders.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether enough is collected for a batch.
    pub fn is_full(&self) -> bool {
        self.rows.bytes() >= BATCH_BYTES
    }

    /// Takes what is collected; from now on it counts against the budget as a batch.
    pub fn take(&mut self, budget: &Arc<Budget>) -> Held {
        let bytes = self.rows.bytes();
        Charged {
            value: self.rows.take(),
            charge: budget.charge(bytes),
        }
    }
}

/// Whether rows of a shape can be written to a table with this schema: the same columns, where the
/// table may allow NULL in more of them.
pub fn compatible(table: &HistorySchema, rows: &HistorySchema) -> bool {
    let mut columns = table.source().iter().zip(rows.source());
    same_columns(table, rows) && columns.all(|(table, rows)| table.nullable || !rows.nullable)
}

/// Whether two schemas have the same columns, not just ones of the same names, if perhaps with NULL
/// in more of them.
pub fn same_columns(table: &HistorySchema, rows: &HistorySchema) -> bool {
    table.source().len() == rows.source().len()
        && table
            .source()
            .iter()
            .zip(rows.source())
            .all(|(table, rows)| {
                let numbers = table.number.zip(rows.number);
                table.name == rows.name
                    && table.data_type == rows.data_type
                    && numbers.is_none_or(|(table, rows)| table == rows)
            })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lake::{DeltaType, Field};

    fn schema(fields: &[(&str, DeltaType, bool)]) -> HistorySchema {
        let fields = fields
            .iter()
            .map(|(name, data_type, nullable)| Field {
                name: (*name).into(),
                data_type: *data_type,
                nullable: *nullable,
                number: None,
            })
            .collect();
        HistorySchema::new(fields).unwrap()
    }

    #[test]
    fn compatible_allows_more_nulls_in_the_table() {
        let strict = schema(&[("a", DeltaType::Long, false)]);
        let loose = schema(&[("a", DeltaType::Long, true)]);
        assert!(compatible(&loose, &strict));
        assert!(compatible(&strict, &strict));
        assert!(!compatible(&strict, &loose));
    }

    #[test]
    fn another_column_of_the_same_name() {
        let numbered = |number| {
            HistorySchema::new(vec![Field {
                name: "a".into(),
                data_type: DeltaType::Long,
                nullable: true,
                number,
            }])
            .unwrap()
        };
        assert!(compatible(&numbered(Some(1)), &numbered(Some(1))));
        assert!(compatible(&numbered(None), &numbered(Some(1))));
        assert!(!compatible(&numbered(Some(1)), &numbered(Some(2))));
    }

    #[test]
    fn incompatible_columns() {
        let table = schema(&[("a", DeltaType::Long, true), ("b", DeltaType::Date, true)]);
        for other in [
            schema(&[("a", DeltaType::Long, true)]),
            schema(&[("b", DeltaType::Date, true), ("a", DeltaType::Long, true)]),
            schema(&[
                ("a", DeltaType::Integer, true),
                ("b", DeltaType::Date, true),
            ]),
        ] {
            assert!(!compatible(&table, &other));
        }
    }
}
