//! A history table as a catalog shows it: its name there, place, columns, comments and properties, and
//! whether an entry that is there says the same.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::lake::create::configure;
use crate::lake::destination::fnv1a;
use crate::lake::schema::{
    CHANGE_TYPE, HistorySchema, LSN, SORT_BY, SYSTEM_COLUMNS, TIMESTAMP, XID,
};
use crate::lake::source::{SOURCE_PROPERTY, Source};
use crate::lake::types::DeltaType;

/// Longest name that the server takes.
const MAX_NAME: usize = 255;

/// A table as the catalog is to show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Name in its schema.
    pub name: String,
    /// URL of its folder.
    pub location: String,
    /// Of the whole table.
    pub comment: String,
    /// Those that follow from the schema, and whose history it is.
    pub properties: BTreeMap<String, String>,
    columns: Vec<Column>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    name: String,
    data_type: DeltaType,
    nullable: bool,
    comment: Option<String>,
}

/// The comments of a source table, as a look has read them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Comments {
    /// Name of the table.
    table_name: String,
    /// By number of the column; 0: of the table itself.
    texts: BTreeMap<u32, String>,
}

impl Comments {
    /// `texts`: JSON, an object from number to comment; empty if there is none.
    pub(crate) fn new(table_name: String, texts: &str) -> Comments {
        let texts = match texts {
            "" => BTreeMap::new(),
            // It was JSON when Postgres made it.
            texts => serde_json::from_str(texts).unwrap_or_default(),
        };
        Comments { table_name, texts }
    }

    pub(crate) fn table_name(&self) -> &str {
        &self.table_name
    }
}

impl Entry {
    pub(crate) fn new(
        folder: &str,
        location: String,
        source: &Source,
        schema: &HistorySchema,
        comments: &Comments,
    ) -> Entry {
        let mut properties = BTreeMap::from([(SOURCE_PROPERTY.to_owned(), source.to_string())]);
        configure(&mut properties, schema);
        let comment = comments.texts.get(&0).cloned().unwrap_or_else(|| {
            format!(
                "History of the PostgreSQL table \"{}\", written by wal2delta",
                comments.table_name
            )
        });
        let of_source = schema.source().iter().map(|field| {
            field
                .number
                .and_then(|number| comments.texts.get(&number).cloned())
        });
        let of_system = SYSTEM_COLUMNS
            .iter()
            .map(|(name, _)| Some(system_comment(name).to_owned()));
        let columns = schema
            .columns()
            .zip(of_source.chain(of_system))
            .map(|((name, data_type, nullable), comment)| Column {
                name: name.to_owned(),
                data_type,
                nullable,
                comment,
            })
            .collect();
        Entry {
            name: catalog_name(folder),
            location,
            comment,
            properties,
            columns,
        }
    }

    /// As the interface for tables of all formats has them.
    pub(crate) fn columns(&self) -> Vec<Value> {
        let columns = self.columns.iter().enumerate();
        columns
            .map(|(position, column)| {
                let (type_name, type_text) = sql_type(column.data_type);
                let (precision, scale) = match column.data_type {
                    DeltaType::Decimal { precision, scale } => (precision, scale),
                    _ => (0, 0),
                };
                let mut shown = json!({
                    "name": column.name,
                    "type_name": type_name,
                    "type_text": type_text,
                    "type_json": column.field().to_string(),
                    "type_precision": precision,
                    "type_scale": scale,
                    "position": position,
                    "nullable": column.nullable,
                });
                if let Some(comment) = &column.comment {
                    shown["comment"] = json!(comment);
                }
                shown
            })
            .collect()
    }

    /// As Delta has them.
    pub(crate) fn fields(&self) -> Vec<Value> {
        self.columns.iter().map(Column::field).collect()
    }
}

impl Column {
    fn field(&self) -> Value {
        let metadata = match &self.comment {
            Some(comment) => json!({"comment": comment}),
            None => json!({}),
        };
        json!({
            "name": self.name,
            "type": self.data_type.to_string(),
            "nullable": self.nullable,
            "metadata": metadata,
        })
    }
}

/// The type's name among those of the catalog, and as SQL writes it.
fn sql_type(data_type: DeltaType) -> (&'static str, String) {
    let (name, text) = match data_type {
        DeltaType::Boolean => ("BOOLEAN", "boolean"),
        DeltaType::Short => ("SHORT", "smallint"),
        DeltaType::Integer => ("INT", "int"),
        DeltaType::Long => ("LONG", "bigint"),
        DeltaType::Float => ("FLOAT", "float"),
        DeltaType::Double => ("DOUBLE", "double"),
        DeltaType::Decimal { .. } => return ("DECIMAL", data_type.to_string()),
        DeltaType::Date => ("DATE", "date"),
        DeltaType::Timestamp => ("TIMESTAMP", "timestamp"),
        DeltaType::TimestampNtz => ("TIMESTAMP_NTZ", "timestamp_ntz"),
        DeltaType::String => ("STRING", "string"),
        DeltaType::Binary => ("BINARY", "binary"),
    };
    (name, text.to_owned())
}

/// What Delta calls a type of SQL.
fn delta_name(text: &str) -> &str {
    match text {
        "smallint" => "short",
        "int" => "integer",
        "bigint" => "long",
        other => other,
    }
}

fn system_comment(column: &str) -> &'static str {
    match column {
        CHANGE_TYPE => "insert, delete, update_preimage or update_postimage",
        LSN => "LSN of the transaction's commit, for rows of a snapshot of the snapshot",
        XID => "Id of the transaction",
        TIMESTAMP => "Time of the commit in UTC, for rows of a snapshot of the snapshot",
        SORT_BY => {
            "Order of the changes: by commit, within a transaction as they were made; never repeats"
        }
        _ => "",
    }
}

/// A table's name in the catalog: its folder's, if that has nothing but small letters, digits, `_`, `-`
/// and `@`. Otherwise letters become small and all else `_`, and a hash of the folder's name is at the
/// end: catalogs that do not tell case apart would take two tables for one.
fn catalog_name(folder: &str) -> String {
    let fits =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-' | '@');
    if folder.chars().all(fits) && folder.len() <= MAX_NAME {
        return folder.to_owned();
    }
    let hash = format!("_{:08x}", fnv1a(folder.as_bytes()) >> 32);
    let small = folder.chars().flat_map(char::to_lowercase);
    let mut name: String = small
        .map(|c| if fits(c) { c } else { '_' })
        .take(MAX_NAME - hash.len())
        .collect();
    name.push_str(&hash);
    name
}

/// A table as the catalog shows it now.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Registered {
    #[serde(rename = "table_id")]
    pub id: Option<String>,
    storage_location: Option<String>,
    comment: Option<String>,
    properties: Option<BTreeMap<String, String>>,
    columns: Option<Vec<RegisteredColumn>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RegisteredColumn {
    name: String,
    type_text: Option<String>,
    type_json: Option<String>,
    position: Option<u32>,
    nullable: Option<bool>,
    comment: Option<String>,
}

impl Registered {
    /// What cannot be read is another table's, or is written anew.
    pub(crate) fn read(answer: Value) -> Registered {
        serde_json::from_value(answer).unwrap_or_default()
    }

    pub(crate) fn is_at(&self, location: &str) -> bool {
        let plain = |url: &str| {
            let url = url.trim_end_matches('/');
            let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
            let scheme = if scheme == "s3a" { "s3" } else { scheme };
            format!("{scheme}:{}", rest.trim_start_matches('/'))
        };
        self.storage_location
            .as_deref()
            .is_some_and(|at| plain(at) == plain(location))
    }

    pub(crate) fn shows(&self, entry: &Entry) -> bool {
        let properties = self.properties.as_ref();
        let has = |(name, value): (&String, &String)| {
            properties.and_then(|known| known.get(name)) == Some(value)
        };
        let mut columns: Vec<&RegisteredColumn> = self.columns.iter().flatten().collect();
        columns.sort_by_key(|column| column.position);
        let columns = columns.into_iter().map(RegisteredColumn::column);
        self.comment.as_ref() == Some(&entry.comment)
            && entry.properties.iter().all(has)
            && columns.eq(entry.columns.iter().cloned().map(Some))
    }
}

impl RegisteredColumn {
    /// `None` if it is none that a history can have. Type and comment are in Delta's JSON where the
    /// server has it, which not every one keeps the other fields in line with.
    fn column(&self) -> Option<Column> {
        let json = self.type_json.as_deref();
        let json = json.and_then(|json| serde_json::from_str::<Value>(json).ok());
        let json = json.unwrap_or_default();
        let name = match json["type"].as_str() {
            Some(name) => name,
            None => delta_name(self.type_text.as_deref()?),
        };
        let comment = json["metadata"]["comment"].as_str();
        Some(Column {
            name: self.name.clone(),
            data_type: DeltaType::from_delta_name(name)?,
            nullable: json["nullable"].as_bool().or(self.nullable)?,
            comment: comment.map(str::to_owned).or_else(|| self.comment.clone()),
        })
    }
}
