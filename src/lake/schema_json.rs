//! Delta's `schemaString` of a history table, written and read (protocol section "Schema
//! Serialization Format"). What wal2delta would not have written is refused, not guessed at.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::lake::mapping::{MappedColumn, Mapping};
use crate::lake::schema::{Field, HistorySchema, SchemaError, check_names, split_system_columns};
use crate::lake::types::DeltaType;

const MAPPING_ID: &str = "delta.columnMapping.id";
/// Number of the source table's column.
const NUMBER: &str = "wal2delta.column";
/// Earlier rows have not the value here that they have in the source table.
const ADDED: &str = "wal2delta.added";
/// OID of the source type that prints the values.
const TYPE: &str = "wal2delta.type";
const MAPPING_PHYSICAL_NAME: &str = "delta.columnMapping.physicalName";

impl HistorySchema {
    /// Delta's `schemaString` (protocol section "Schema Serialization Format").
    pub fn to_delta_json(&self) -> String {
        let fields: Vec<Value> = self
            .columns()
            .enumerate()
            .map(|(index, (name, data_type, nullable))| {
                let mut metadata = match &self.mapping {
                    Some(mapping) => json!({
                        MAPPING_ID: mapping.columns[index].id,
                        MAPPING_PHYSICAL_NAME: mapping.columns[index].physical,
                    }),
                    None => json!({}),
                };
                let source = self.source().get(index);
                if let Some(number) = source.and_then(|field| field.number) {
                    metadata[NUMBER] = json!(number);
                }
                if source.is_some_and(|field| field.added) {
                    metadata[ADDED] = json!(true);
                }
                if let Some(output) = source.and_then(|field| field.output) {
                    metadata[TYPE] = json!(output);
                }
                json!({"name": name, "type": data_type.to_string(), "nullable": nullable, "metadata": metadata})
            })
            .collect();
        json!({"type": "struct", "fields": fields}).to_string()
    }

    /// Reads Delta's `schemaString` of a history table, with the mapping if it has one.
    ///
    /// # Errors
    /// [`SchemaError::NotHistory`] if the JSON, a type, the mapping or the system columns are not
    /// as wal2delta writes them.
    pub fn from_delta_json(schema: &str) -> Result<Self, SchemaError> {
        let parsed: DeltaStruct = serde_json::from_str(schema)
            .map_err(|error| SchemaError::NotHistory(error.to_string()))?;
        let mapped: Vec<MappedColumn> = parsed
            .fields
            .iter()
            .filter_map(DeltaField::mapped)
            .collect();
        if !mapped.is_empty() && mapped.len() != parsed.fields.len() {
            return Err(SchemaError::NotHistory(
                "only some columns are mapped".to_owned(),
            ));
        }
        let fields = parsed
            .fields
            .into_iter()
            .map(DeltaField::field)
            .collect::<Result<Vec<_>, _>>()?;
        let source = split_system_columns(fields)?;
        check_names(&source)?;
        let mut schema = Self::without_mapping(source);
        if let Some(max_id) = mapped.iter().map(|column| column.id).max() {
            schema.mapping = Some(Mapping {
                columns: mapped,
                max_id,
            });
        } else if schema.needs_column_mapping() {
            return Err(SchemaError::NotHistory(
                "a name needs column mapping, but there is none".to_owned(),
            ));
        }
        Ok(schema)
    }
}

#[derive(Deserialize)]
struct DeltaStruct {
    fields: Vec<DeltaField>,
}

#[derive(Deserialize)]
struct DeltaField {
    name: String,
    r#type: Value,
    nullable: bool,
    #[serde(default)]
    metadata: HashMap<String, Value>,
}

impl DeltaField {
    fn mapped(&self) -> Option<MappedColumn> {
        let id = u32::try_from(self.metadata.get(MAPPING_ID)?.as_u64()?).ok()?;
        let physical = self
            .metadata
            .get(MAPPING_PHYSICAL_NAME)?
            .as_str()?
            .to_owned();
        Some(MappedColumn { id, physical })
    }

    fn field(self) -> Result<Field, SchemaError> {
        let data_type = self
            .r#type
            .as_str()
            .and_then(DeltaType::from_delta_name)
            .ok_or_else(|| {
                SchemaError::NotHistory(format!(
                    "column \"{}\" has type {}",
                    self.name, self.r#type
                ))
            })?;
        let number = |key: &str| {
            let value = self.metadata.get(key).and_then(Value::as_u64);
            value.and_then(|value| u32::try_from(value).ok())
        };
        Ok(Field {
            added: self.metadata.contains_key(ADDED),
            output: number(TYPE),
            number: number(NUMBER),
            name: self.name,
            data_type,
            nullable: self.nullable,
        })
    }
}
