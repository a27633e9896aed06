//! Changes of one table on their way to the writer: builders for its current shape, and the check
//! that the relation still has this shape.

use arrow::array::ArrayRef;
use std::collections::HashMap;
use std::sync::Arc;

use crate::columns::{self, ColumnError, Layout, Origin, Rows, Shape};
use crate::decode::{Change, Relation, Transaction, invalidation_count};
use crate::lake::{Budget, Charged, HistorySchema, SchemaError};

/// Bytes of Arrow data after which a batch is sealed.
const BATCH_BYTES: usize = 8 << 20;

/// Sealed columns without `_sort_by`, charged to the budget.
pub type Held = Charged<Vec<ArrayRef>>;

/// Builders for the changes of one table.
pub struct Buffer {
    shape: Shape,
    schema: HistorySchema,
    rows: Rows,
    /// Count of invalidations at which the shape was compared; it still holds at the same one.
    checked_at: u64,
    /// By partition: where the columns are in its tuples, and the count at which that was looked up.
    layouts: Layouts,
}

type Layouts = HashMap<u32, (u64, Option<Layout>)>;

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
        Ok(Buffer {
            shape,
            schema,
            rows,
            checked_at: invalidation_count(),
            layouts: Layouts::new(),
        })
    }

    /// The history table's schema for this shape.
    pub fn schema(&self) -> &HistorySchema {
        &self.schema
    }

    /// Whether the relation still has the buffer's shape.
    pub fn fits(&mut self, relation: &Relation) -> bool {
        let now = invalidation_count();
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
        let descriptor = relation.tuple_descriptor();
        let layout = layout(&mut self.layouts, &self.shape, relation)?;
        // SAFETY: tuples and descriptor are valid during the callback, and the tuples have the
        // builders' shape, with which `fits` has compared the table's, in the layout.
        let mut append = |kind, tuple, unchanged| unsafe {
            self.rows
                .append(kind, &origin, tuple, descriptor, layout, unchanged)
        };
        match change {
            Change::Insert { new } => append(Kind::Insert, new, None),
            Change::Update {
                old: Some(old),
                new,
            } => {
                append(Kind::UpdatePreimage, old, None)?;
                append(Kind::UpdatePostimage, new, Some(old))
            }
            Change::Preimage { old } => append(Kind::UpdatePreimage, old, None),
            Change::Postimage { old, new } => append(Kind::UpdatePostimage, new, Some(old)),
            Change::Delete { old: Some(old) } => append(Kind::Delete, old, None),
            // The caller lets no change without its old row through.
            Change::Update { old: None, .. } | Change::Delete { old: None } => Ok(()),
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

/// Where the shape's columns are in tuples of the partition that has the row.
fn layout<'a>(
    layouts: &'a mut Layouts,
    shape: &Shape,
    relation: &Relation,
) -> Result<Option<&'a Layout>, ColumnError> {
    let storage = relation.storage_oid();
    if storage == relation.oid() {
        return Ok(None);
    }
    let now = invalidation_count();
    let known = layouts.get(&storage).is_some_and(|(at, _)| *at == now);
    if !known {
        // SAFETY: the descriptor is valid during the callback.
        let layout = unsafe { shape.layout(relation.tuple_descriptor()) }?;
        layouts.insert(storage, (now, layout));
    }
    Ok(layouts
        .get(&storage)
        .and_then(|(_, layout)| layout.as_ref()))
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
                    && table.output == rows.output
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
                added: false,
                output: None,
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
                added: false,
                output: None,
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
