//! What can be wrong with a row. Every error names the column, because it ends up in front of
//! the person who owns the table.

use arrow::error::ArrowError;

/// Why a row or a batch could not be made. The row is in no column then.
#[derive(Debug, thiserror::Error)]
pub enum ColumnError {
    /// The tuple is of another shape than the rows being collected: a caller's mistake.
    #[error("tuple has {found} attributes where {expected} were expected")]
    Shape {
        /// Attributes of the shape the rows were made for.
        expected: usize,
        /// Attributes of the descriptor that came with the tuple.
        found: usize,
    },
    /// A partition does not have a column of its table.
    #[error("column \"{0}\" is missing in a partition")]
    NoColumn(String),
    /// One column's value could not be taken.
    #[error("column \"{column}\": {fault}")]
    Value {
        /// The source column's name.
        column: String,
        /// What is wrong with its value.
        fault: Fault,
    },
    /// Arrow refused a batch: the columns do not fit the history table's schema.
    #[error("columns do not fit the history table: {0}")]
    Arrow(#[from] ArrowError),
}

/// What is wrong with one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An unchanged TOASTed value is not in an update's new tuple, and there was no old tuple to
    /// take it from.
    #[error("the change holds no value, as the table was not REPLICA IDENTITY FULL")]
    Missing,
    /// One batch can hold 2 GiB of a column (Arrow's 32-bit offsets).
    #[error("more than 2 GiB in one batch")]
    TooLarge,
    /// A numeric that its own declared precision and scale cannot hold.
    #[error("numeric value does not fit its declared precision and scale")]
    Decimal,
    /// A jsonb whose stored form is damaged.
    #[error("the stored bytes are no jsonb")]
    Jsonb,
    /// The catalog has no such enum value.
    #[error("no label for enum value with OID {0}")]
    EnumLabel(u32),
}

impl Fault {
    /// The fault as an error of the column it was found in.
    pub(super) fn of(self, column: &str) -> ColumnError {
        ColumnError::Value {
            column: column.to_owned(),
            fault: self,
        }
    }
}
