//! The Delta types that history tables use, and their names: in Delta's JSON (protocol section
//! "Primitive Types") and in Arrow. No other type may reach `lake/`; what Postgres has more is
//! made into one of these before.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};

/// A Delta primitive type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeltaType {
    /// `boolean`
    Boolean,
    /// `short`: 16 bits
    Short,
    /// `integer`: 32 bits
    Integer,
    /// `long`: 64 bits
    Long,
    /// `float`: 32 bits
    Float,
    /// `double`: 64 bits
    Double,
    /// `decimal(p,s)` with 1 ≤ p ≤ 38 and s ≤ p
    Decimal {
        /// Digits in all.
        precision: u8,
        /// Digits after the point.
        scale: u8,
    },
    /// `date`: days since 1970-01-01
    Date,
    /// `timestamp`: microseconds since 1970-01-01 UTC
    Timestamp,
    /// `timestamp_ntz`: microseconds, no time zone
    TimestampNtz,
    /// `string`: UTF-8
    String,
    /// `binary`
    Binary,
}

impl DeltaType {
    /// The Arrow type whose arrays hold this type, in record batches and in Parquet files.
    pub fn arrow(&self) -> DataType {
        match self {
            DeltaType::Boolean => DataType::Boolean,
            DeltaType::Short => DataType::Int16,
            DeltaType::Integer => DataType::Int32,
            DeltaType::Long => DataType::Int64,
            DeltaType::Float => DataType::Float32,
            DeltaType::Double => DataType::Float64,
            DeltaType::Decimal { precision, scale } => {
                // A scale is at most 38, so that it always fits.
                DataType::Decimal128(*precision, (*scale).cast_signed())
            }
            DeltaType::Date => DataType::Date32,
            DeltaType::Timestamp => {
                DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::from("UTC")))
            }
            DeltaType::TimestampNtz => DataType::Timestamp(TimeUnit::Microsecond, None),
            DeltaType::String => DataType::Utf8,
            DeltaType::Binary => DataType::Binary,
        }
    }

    /// The type of an Arrow array made by [`DeltaType::arrow`]; `None` for any other Arrow type.
    pub fn from_arrow(data_type: &DataType) -> Option<DeltaType> {
        Some(match data_type {
            DataType::Boolean => DeltaType::Boolean,
            DataType::Int16 => DeltaType::Short,
            DataType::Int32 => DeltaType::Integer,
            DataType::Int64 => DeltaType::Long,
            DataType::Float32 => DeltaType::Float,
            DataType::Float64 => DeltaType::Double,
            DataType::Decimal128(precision, scale) => {
                DeltaType::decimal(*precision, u8::try_from(*scale).ok()?)?
            }
            DataType::Date32 => DeltaType::Date,
            DataType::Timestamp(TimeUnit::Microsecond, Some(zone)) if zone.as_ref() == "UTC" => {
                DeltaType::Timestamp
            }
            DataType::Timestamp(TimeUnit::Microsecond, None) => DeltaType::TimestampNtz,
            DataType::Utf8 => DeltaType::String,
            DataType::Binary => DeltaType::Binary,
            _ => return None,
        })
    }

    /// The type with this name in Delta's JSON; `None` if history tables do not use it.
    pub fn from_delta_name(name: &str) -> Option<DeltaType> {
        Some(match name {
            "boolean" => DeltaType::Boolean,
            "short" => DeltaType::Short,
            "integer" => DeltaType::Integer,
            "long" => DeltaType::Long,
            "float" => DeltaType::Float,
            "double" => DeltaType::Double,
            "date" => DeltaType::Date,
            "timestamp" => DeltaType::Timestamp,
            "timestamp_ntz" => DeltaType::TimestampNtz,
            "string" => DeltaType::String,
            "binary" => DeltaType::Binary,
            _ => {
                let inner = name.strip_prefix("decimal(")?.strip_suffix(')')?;
                let (precision, scale) = inner.split_once(',')?;
                DeltaType::decimal(precision.trim().parse().ok()?, scale.trim().parse().ok()?)?
            }
        })
    }

    fn decimal(precision: u8, scale: u8) -> Option<DeltaType> {
        let valid = (1..=38).contains(&precision) && scale <= precision;
        valid.then_some(DeltaType::Decimal { precision, scale })
    }

    /// True if Delta readers can skip files by bounds of this type ("Per-file Statistics").
    pub fn has_bounds(&self) -> bool {
        !matches!(self, DeltaType::Boolean | DeltaType::Binary)
    }
}

/// The name in Delta's JSON.
impl fmt::Display for DeltaType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeltaType::Boolean => "boolean",
            DeltaType::Short => "short",
            DeltaType::Integer => "integer",
            DeltaType::Long => "long",
            DeltaType::Float => "float",
            DeltaType::Double => "double",
            DeltaType::Decimal { precision, scale } => {
                return write!(f, "decimal({precision},{scale})");
            }
            DeltaType::Date => "date",
            DeltaType::Timestamp => "timestamp",
            DeltaType::TimestampNtz => "timestamp_ntz",
            DeltaType::String => "string",
            DeltaType::Binary => "binary",
        })
    }
}

#[cfg(test)]
pub(crate) const ALL_TYPES: [DeltaType; 13] = [
    DeltaType::Boolean,
    DeltaType::Short,
    DeltaType::Integer,
    DeltaType::Long,
    DeltaType::Float,
    DeltaType::Double,
    DeltaType::Decimal {
        precision: 12,
        scale: 2,
    },
    DeltaType::Decimal {
        precision: 38,
        scale: 10,
    },
    DeltaType::Date,
    DeltaType::Timestamp,
    DeltaType::TimestampNtz,
    DeltaType::String,
    DeltaType::Binary,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_arrow_types_lead_back_to_the_type() {
        for data_type in ALL_TYPES {
            assert_eq!(
                DeltaType::from_delta_name(&data_type.to_string()),
                Some(data_type)
            );
            assert_eq!(DeltaType::from_arrow(&data_type.arrow()), Some(data_type));
        }
    }

    #[test]
    fn foreign_types_are_refused() {
        for name in [
            "byte",
            "decimal(39,0)",
            "decimal(3,4)",
            "decimal(0,0)",
            "struct",
            "",
        ] {
            assert_eq!(DeltaType::from_delta_name(name), None, "{name}");
        }
        assert_eq!(DeltaType::from_arrow(&DataType::LargeUtf8), None);
        assert_eq!(DeltaType::from_arrow(&DataType::Decimal128(10, -2)), None);
    }
}
