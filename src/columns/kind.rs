//! The type table: which Postgres type becomes which Delta type, and which column reads it.

use pgrx::pg_sys;

use super::boolean::Boolean;
use super::bytea::Bytea;
use super::column::{Column, Fixed};
use super::datetime::{Date, Timestamp, TimestampNtz};
use super::decimal::{self, Decimal};
use super::encoding::Encoding;
use super::enumeration::Enum;
use super::jsonb::Jsonb;
use super::numbers::{Double, Float, Integer, Long, Short};
use super::numeric_text::NumericText;
use super::output::Output;
use super::text::{Name, Text};
use super::uuid::Uuid;
use crate::lake::DeltaType;

/// What a column's values are, domains resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Boolean,
    Short,
    Integer,
    Long,
    Float,
    Double,
    Decimal {
        precision: u8,
        scale: u8,
    },
    /// numeric that no DECIMAL holds.
    NumericText,
    Date,
    Timestamp,
    TimestampNtz,
    /// Stored as its text, with a length word.
    Text,
    Name,
    Uuid,
    Bytea,
    Jsonb,
    Enum,
    /// Any other type: as its output function writes it.
    Output(pg_sys::Oid),
}

impl Kind {
    /// The kind of a column of this type, a domain as its base type.
    ///
    /// # Safety
    /// On the main thread; catalog access is allowed.
    pub unsafe fn of(typid: pg_sys::Oid, typmod: i32) -> Kind {
        if let Some(kind) = Kind::built_in(typid, typmod) {
            return kind;
        }
        let mut typmod = typmod;
        // SAFETY: as the caller vouches. A column of a domain has no typmod of its own.
        let base = unsafe { pg_sys::getBaseTypeAndTypmod(typid, &mut typmod) };
        if let Some(kind) = Kind::built_in(base, typmod) {
            return kind;
        }
        // SAFETY: as the caller vouches.
        match unsafe { pg_sys::get_typtype(base) } as u8 {
            pg_sys::TYPTYPE_ENUM => Kind::Enum,
            _ => Kind::Output(base),
        }
    }

    /// Types with fixed OIDs need no catalog; none of them is a domain or an enum.
    fn built_in(typid: pg_sys::Oid, typmod: i32) -> Option<Kind> {
        Some(match typid {
            pg_sys::BOOLOID => Kind::Boolean,
            pg_sys::INT2OID => Kind::Short,
            pg_sys::INT4OID => Kind::Integer,
            pg_sys::INT8OID => Kind::Long,
            pg_sys::FLOAT4OID => Kind::Float,
            pg_sys::FLOAT8OID => Kind::Double,
            pg_sys::NUMERICOID => match decimal::precision_and_scale(typmod) {
                Some((precision, scale)) => Kind::Decimal { precision, scale },
                None => Kind::NumericText,
            },
            pg_sys::DATEOID => Kind::Date,
            pg_sys::TIMESTAMPTZOID => Kind::Timestamp,
            pg_sys::TIMESTAMPOID => Kind::TimestampNtz,
            pg_sys::TEXTOID | pg_sys::VARCHAROID | pg_sys::BPCHAROID | pg_sys::JSONOID => {
                Kind::Text
            }
            pg_sys::NAMEOID => Kind::Name,
            pg_sys::UUIDOID => Kind::Uuid,
            pg_sys::BYTEAOID => Kind::Bytea,
            pg_sys::JSONBOID => Kind::Jsonb,
            // initdb gives OIDs from here on (transam.h).
            other if other.to_u32() < pg_sys::FirstGenbkiObjectId => Kind::Output(other),
            _ => return None,
        })
    }

    /// The type in the history table.
    pub fn delta_type(self) -> DeltaType {
        match self {
            Kind::Boolean => DeltaType::Boolean,
            Kind::Short => DeltaType::Short,
            Kind::Integer => DeltaType::Integer,
            Kind::Long => DeltaType::Long,
            Kind::Float => DeltaType::Float,
            Kind::Double => DeltaType::Double,
            Kind::Decimal { precision, scale } => DeltaType::Decimal { precision, scale },
            Kind::Date => DeltaType::Date,
            Kind::Timestamp => DeltaType::Timestamp,
            Kind::TimestampNtz => DeltaType::TimestampNtz,
            Kind::Bytea => DeltaType::Binary,
            Kind::NumericText
            | Kind::Text
            | Kind::Name
            | Kind::Uuid
            | Kind::Jsonb
            | Kind::Enum
            | Kind::Output(_) => DeltaType::String,
        }
    }

    /// Has the source values that are NULL in the history table, such as `infinity`?
    pub fn has_inexpressible_values(self) -> bool {
        matches!(
            self,
            Kind::Decimal { .. } | Kind::Date | Kind::Timestamp | Kind::TimestampNtz
        )
    }

    /// Does writing such a value need an output function?
    pub fn needs_function(self) -> bool {
        matches!(self, Kind::Output(_))
    }

    /// The type that such a value is written as the text of, where others are written as text too.
    pub fn output(self) -> Option<u32> {
        match self {
            Kind::Output(typid) => Some(typid.to_u32()),
            Kind::Jsonb => Some(pg_sys::JSONBOID.to_u32()),
            _ => None,
        }
    }

    /// An empty column of this kind. `functions` is where output functions keep their state.
    ///
    /// # Safety
    /// On the main thread; catalog access is allowed; `functions` outlives the column.
    pub unsafe fn column(
        self,
        encoding: Encoding,
        functions: pg_sys::MemoryContext,
    ) -> Box<dyn Column> {
        match self {
            Kind::Boolean => Box::new(Boolean::new()),
            Kind::Short => Box::new(Fixed::<Short>::new()),
            Kind::Integer => Box::new(Fixed::<Integer>::new()),
            Kind::Long => Box::new(Fixed::<Long>::new()),
            Kind::Float => Box::new(Fixed::<Float>::new()),
            Kind::Double => Box::new(Fixed::<Double>::new()),
            Kind::Decimal { precision, scale } => Box::new(Decimal::new(precision, scale)),
            Kind::NumericText => Box::new(NumericText::new()),
            Kind::Date => Box::new(Fixed::<Date>::new()),
            Kind::Timestamp => Box::new(Fixed::<Timestamp>::new()),
            Kind::TimestampNtz => Box::new(Fixed::<TimestampNtz>::new()),
            Kind::Text => Box::new(Text::new(encoding)),
            Kind::Name => Box::new(Name::new(encoding)),
            Kind::Uuid => Box::new(Uuid::new()),
            Kind::Bytea => Box::new(Bytea::new()),
            Kind::Jsonb => Box::new(Jsonb::new(encoding)),
            // SAFETY: as the caller vouches.
            Kind::Enum => Box::new(unsafe { Enum::new(encoding) }),
            // SAFETY: as the caller vouches.
            Kind::Output(typid) => Box::new(unsafe { Output::new(typid, functions, encoding) }),
        }
    }
}
