//! The schema of a history table: the source table's columns, then five system columns. It knows
//! which names Delta accepts, writes and reads Delta's `schemaString`, and keeps the column
//! mapping of a table that needs one. It may not know anything about Postgres types.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{Field as ArrowField, Schema as ArrowSchema, SchemaRef};
use parquet::arrow::PARQUET_FIELD_ID_META_KEY;
use serde::{Deserialize, Serialize};

use crate::lake::error::LakeError;
use crate::lake::mapping::Mapping;
use crate::lake::types::DeltaType;

/// `insert`, `delete`, `update_preimage` or `update_postimage`.
pub const CHANGE_TYPE: &str = "_pg_change_type";
/// LSN of the transaction's commit record.
pub const LSN: &str = "_pg_lsn";
/// The top-level transaction's 32-bit id.
pub const XID: &str = "_pg_xid";
/// Commit time, UTC.
pub const TIMESTAMP: &str = "_timestamp";
/// Strictly increasing in each table.
pub const SORT_BY: &str = "_sort_by";

/// The system columns in their order: name and type. None of them is ever null.
pub const SYSTEM_COLUMNS: [(&str, DeltaType); 5] = [
    (CHANGE_TYPE, DeltaType::String),
    (LSN, DeltaType::Long),
    (XID, DeltaType::Integer),
    (TIMESTAMP, DeltaType::TimestampNtz),
    (SORT_BY, DeltaType::Long),
];

/// System columns with bounds in the statistics: those that readers filter by.
pub const SKIPPING_SYSTEM_COLUMNS: [&str; 3] = [LSN, TIMESTAMP, SORT_BY];

/// Delta keeps statistics for 32 columns by default; three of them are for system columns.
const SKIPPING_SOURCE_COLUMNS: usize = 29;

/// A column of the source table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// The column's name in Postgres and in Delta.
    pub name: String,
    /// Its Delta type.
    #[serde(with = "type_name")]
    pub data_type: DeltaType,
    /// False only if no row, not even one written from an old version, can be null.
    pub nullable: bool,
    /// Its number in the source table, which no rename changes and no other column ever gets
    /// (`pg_attribute.attnum`); `None` where it is not known.
    pub number: Option<u32>,
    /// It came to the history after rows had been written without it, which may have another value than
    /// NULL there in the source table: its default of then. (The source table cannot be asked whether they
    /// have: VACUUM FULL and the like make it forget, and of partitions only they themselves know.)
    pub added: bool,
    /// The source type whose output function writes the values (`pg_type.oid`); `None` for those that
    /// have a form of their own in Delta.
    pub output: Option<u32>,
}

mod type_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::lake::types::DeltaType;

    pub fn serialize<S: Serializer>(value: &DeltaType, out: S) -> Result<S::Ok, S::Error> {
        out.collect_str(value)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(input: D) -> Result<DeltaType, D::Error> {
        let name = String::deserialize(input)?;
        DeltaType::from_delta_name(&name)
            .ok_or_else(|| D::Error::custom(format!("unknown Delta type \"{name}\"")))
    }
}

/// Why a schema cannot be a history table's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A source column has the name of a system column.
    #[error(
        "column \"{column}\" has the name of the history table's system column \"{system}\"; rename it"
    )]
    SystemName {
        /// The source column.
        column: String,
        /// The system column.
        system: &'static str,
    },
    /// Delta does not tell names apart by case.
    #[error(
        "columns \"{first}\" and \"{second}\" differ only in case, which Delta does not tell apart; rename one of them"
    )]
    SameButForCase {
        /// The column that comes first.
        first: String,
        /// The column that clashes with it.
        second: String,
    },
    /// A schema read from a Delta log is not that of a history table.
    #[error("the schema is not that of a history table: {0}")]
    NotHistory(String),
}

impl From<SchemaError> for LakeError {
    fn from(error: SchemaError) -> Self {
        match error {
            SchemaError::NotHistory(_) => LakeError::config(
                error.to_string(),
                "Move the folder away: wal2delta did not write this table.",
            ),
            _ => LakeError::data(error.to_string())
                .with_hint("Rename the column with ALTER TABLE ... RENAME COLUMN."),
        }
    }
}

/// The schema of a history table. Two are equal if their columns are: the column mapping, which
/// only says where the values lie in files, is not compared.
#[derive(Debug, Clone)]
pub struct HistorySchema {
    source: Vec<Field>,
    arrow: SchemaRef,
    pub(crate) mapping: Option<Mapping>,
}

impl PartialEq for HistorySchema {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Eq for HistorySchema {}

impl HistorySchema {
    /// The history of a table with these columns. A column mapping is made if a name needs it.
    ///
    /// # Errors
    /// A name equal to a system column's, or two names equal but for case.
    pub fn new(source: Vec<Field>) -> Result<Self, SchemaError> {
        check_names(&source)?;
        let mut schema = Self::without_mapping(source);
        if schema.needs_column_mapping() {
            schema.mapping = Some(Mapping::assign(schema.names(), &HashMap::new(), 0));
        }
        Ok(schema)
    }

    pub(crate) fn without_mapping(source: Vec<Field>) -> Self {
        let system = SYSTEM_COLUMNS
            .iter()
            .map(|(name, data_type)| ArrowField::new(*name, data_type.arrow(), false));
        let fields: Vec<ArrowField> = source
            .iter()
            .map(|field| ArrowField::new(&field.name, field.data_type.arrow(), field.nullable))
            .chain(system)
            .collect();
        HistorySchema {
            source,
            arrow: Arc::new(ArrowSchema::new(fields)),
            mapping: None,
        }
    }

    /// The schema of record batches that have the Arrow schema of some history table.
    ///
    /// # Errors
    /// [`SchemaError::NotHistory`] if it is another one; name errors as in [`HistorySchema::new`].
    pub fn from_arrow(schema: &ArrowSchema) -> Result<Self, SchemaError> {
        let fields = schema
            .fields()
            .iter()
            .map(|field| {
                let data_type = DeltaType::from_arrow(field.data_type()).ok_or_else(|| {
                    SchemaError::NotHistory(format!(
                        "column \"{}\" has Arrow type {}",
                        field.name(),
                        field.data_type()
                    ))
                })?;
                Ok(Field {
                    name: field.name().clone(),
                    data_type,
                    nullable: field.is_nullable(),
                    number: None,
                    added: false,
                    output: None,
                })
            })
            .collect::<Result<Vec<Field>, SchemaError>>()?;
        Self::new(split_system_columns(fields)?)
    }

    /// The source table's columns.
    pub fn source(&self) -> &[Field] {
        &self.source
    }

    /// Source columns, then system columns: the schema of record batches, with the columns' names
    /// as readers see them.
    pub fn arrow(&self) -> SchemaRef {
        Arc::clone(&self.arrow)
    }

    /// All columns as (name, type, nullable), in order.
    pub(crate) fn columns(&self) -> impl Iterator<Item = (&str, DeltaType, bool)> {
        self.source
            .iter()
            .map(|field| (field.name.as_str(), field.data_type, field.nullable))
            .chain(
                SYSTEM_COLUMNS
                    .iter()
                    .map(|(name, data_type)| (*name, *data_type, false)),
            )
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.columns().map(|(name, _, _)| name)
    }

    /// True if Delta forbids a name unless columns are mapped (protocol section "Column Mapping").
    pub fn needs_column_mapping(&self) -> bool {
        self.source.iter().any(|field| {
            field
                .name
                .contains([' ', ',', ';', '{', '}', '(', ')', '=', '\t', '\n'])
        })
    }

    /// True if the table has column mapping, needed or not.
    pub fn is_mapped(&self) -> bool {
        self.mapping.is_some()
    }

    /// The largest column id ever given, for the property `delta.columnMapping.maxColumnId`.
    pub fn max_column_id(&self) -> Option<u32> {
        self.mapping.as_ref().map(|mapping| mapping.max_id)
    }

    /// This schema as the next one of a table that has schema `table`: a mapped table stays
    /// mapped, its columns keep their ids and physical names, new ones get new ones.
    pub fn adopt(&self, table: &HistorySchema) -> HistorySchema {
        let mapping = match &table.mapping {
            Some(mapping) => {
                let known = table.names().zip(&mapping.columns).collect();
                Some(Mapping::assign(self.names(), &known, mapping.max_id))
            }
            None if self.needs_column_mapping() => {
                Some(Mapping::assign(self.names(), &HashMap::new(), 0))
            }
            None => None,
        };
        HistorySchema {
            mapping,
            ..self.clone()
        }
    }

    /// The same columns, with NULL where this or `other`, of the same columns, allows it.
    pub fn with_nulls_of(&self, other: &HistorySchema) -> HistorySchema {
        let columns = self.source.iter().zip(&other.source);
        let source = columns
            .map(|(field, other)| Field {
                nullable: field.nullable || other.nullable,
                ..field.clone()
            })
            .collect();
        HistorySchema {
            mapping: self.mapping.clone(),
            ..Self::without_mapping(source)
        }
    }

    /// Names of all columns inside Parquet files and statistics, in order.
    pub(crate) fn physical_names(&self) -> Vec<&str> {
        match &self.mapping {
            Some(mapping) => mapping
                .columns
                .iter()
                .map(|column| column.physical.as_str())
                .collect(),
            None => self.names().collect(),
        }
    }

    /// The name in files of a column of the table; as it is if there is no such column.
    pub(crate) fn physical_name_of<'a>(&'a self, name: &'a str) -> &'a str {
        let mut names = self.columns().zip(self.physical_names());
        let found = names.find(|((logical, _, _), _)| *logical == name);
        found.map_or(name, |(_, physical)| physical)
    }

    /// The Arrow schema of the table's Parquet files: physical names, and field ids if mapped.
    pub(crate) fn parquet_arrow(&self) -> SchemaRef {
        let Some(mapping) = &self.mapping else {
            return self.arrow();
        };
        let fields: Vec<ArrowField> = self
            .columns()
            .zip(&mapping.columns)
            .map(|((_, data_type, nullable), column)| {
                let id =
                    HashMap::from([(PARQUET_FIELD_ID_META_KEY.to_owned(), column.id.to_string())]);
                ArrowField::new(&column.physical, data_type.arrow(), nullable).with_metadata(id)
            })
            .collect();
        Arc::new(ArrowSchema::new(fields))
    }

    /// Names where the values lie in Parquet files, and their types. Two processes that write files
    /// for one commit must agree on it: a column under another name would read as null.
    pub(crate) fn layout(&self) -> Vec<String> {
        let columns = self.physical_names().into_iter().zip(self.columns());
        columns
            .map(|(physical, (_, data_type, _))| format!("{physical} {data_type}"))
            .collect()
    }

    /// Whether a file with this layout can be part of the table: it has no other columns, and all in
    /// which the table allows no NULL.
    pub(crate) fn accepts(&self, layout: &[String]) -> bool {
        let own = self.layout();
        if *layout == own {
            return true;
        }
        let nullable: HashMap<&str, bool> = own
            .iter()
            .zip(self.columns())
            .map(|(place, (_, _, nullable))| (place.as_str(), nullable))
            .collect();
        let required = nullable.values().filter(|nullable| !**nullable).count();
        let places = layout.iter().map(|place| nullable.get(place.as_str()));
        let found: Option<Vec<&bool>> = places.collect();
        found.is_some_and(|found| found.iter().filter(|nullable| !***nullable).count() == required)
    }

    /// Indexes of the columns that get statistics: the first 29 source columns that can have
    /// bounds, and the system columns that readers filter by.
    pub(crate) fn skipping_columns(&self) -> Vec<usize> {
        let sources = self
            .source
            .iter()
            .enumerate()
            .filter(|(_, field)| field.data_type.has_bounds());
        let system = SYSTEM_COLUMNS
            .iter()
            .enumerate()
            .filter(|(_, (name, _))| SKIPPING_SYSTEM_COLUMNS.contains(name));
        sources
            .map(|(index, _)| index)
            .take(SKIPPING_SOURCE_COLUMNS)
            .chain(system.map(|(index, _)| self.source.len() + index))
            .collect()
    }

    /// The property `delta.dataSkippingStatsColumns`. Names that need quoting are left out: not
    /// all readers unquote them.
    pub(crate) fn skipping_property(&self) -> String {
        let names: Vec<&str> = self.names().collect();
        let plain = |name: &&str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let listed: Vec<&str> = self
            .skipping_columns()
            .into_iter()
            .map(|index| names[index])
            .filter(plain)
            .collect();
        listed.join(",")
    }

    /// Takes over the table's `delta.columnMapping.maxColumnId`, which can be larger than any id
    /// still in use.
    pub(crate) fn with_max_column_id(mut self, max_id: u32) -> Self {
        if let Some(mapping) = &mut self.mapping {
            mapping.max_id = mapping.max_id.max(max_id);
        }
        self
    }
}

/// Takes the system columns off the end of `fields`.
pub(crate) fn split_system_columns(mut fields: Vec<Field>) -> Result<Vec<Field>, SchemaError> {
    let system: Vec<Field> = SYSTEM_COLUMNS
        .iter()
        .map(|(name, data_type)| Field {
            name: (*name).to_owned(),
            data_type: *data_type,
            nullable: false,
            number: None,
            added: false,
            output: None,
        })
        .collect();
    let at = fields
        .len()
        .checked_sub(system.len())
        .filter(|at| fields[*at..] == system);
    let at = at.ok_or_else(|| {
        SchemaError::NotHistory("it does not end with the system columns".to_owned())
    })?;
    fields.truncate(at);
    Ok(fields)
}

pub(crate) fn check_names(source: &[Field]) -> Result<(), SchemaError> {
    let mut seen: HashMap<String, &str> = HashMap::new();
    for field in source {
        let folded = field.name.to_lowercase();
        if let Some((system, _)) = SYSTEM_COLUMNS.iter().find(|(system, _)| *system == folded) {
            return Err(SchemaError::SystemName {
                column: field.name.clone(),
                system,
            });
        }
        if let Some(first) = seen.insert(folded, &field.name) {
            return Err(SchemaError::SameButForCase {
                first: first.to_owned(),
                second: field.name.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
