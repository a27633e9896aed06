//! Delta Lake: Parquet files, commits, checkpoints, and the stores they go to. Pure Rust without
//! Postgres: nothing in here may call it, and nothing in here blocks the thread that uses it,
//! except where a function says so. The door is [`Lake`].

mod access;
mod actions;
mod answer;
mod ask;
mod bucket;
mod bucket_client;
pub mod budget;
mod clear;
mod commit;
mod connection;
mod create;
mod data_file;
mod data_reader;
mod destination;
mod encodings;
pub mod error;
mod event;
mod evolve;
mod folder;
mod held;
mod live_rows;
mod local;
mod location;
mod log;
mod mapping;
mod memory;
mod open;
mod options;
mod parquet;
mod row_keys;
mod runtime;
pub mod schema;
mod schema_json;
mod source;
mod sources;
mod staged;
mod stats;
mod store;
mod survey;
mod table;
mod tally;
pub mod types;
mod unity;
mod upkeep;
mod upload;
mod writer;
mod writers;

#[cfg(test)]
mod tests;

pub use access::Access;
pub use ask::{Asked, ask};
pub use budget::{Budget, Charge, Charged};
pub use destination::{Destination, folder_name};
pub use error::{ErrorKind, LakeError, Retry};
pub use event::{Cleared, DataFile, Event, Found};
pub use evolve::Evolved;
pub use options::{OptionError, OptionPlace, OptionValues, check_options};
pub use runtime::{Lake, LakeConfig};
pub use schema::{Field, HistorySchema, SYSTEM_COLUMNS, SchemaError};
pub use source::{Progress, Source};
pub use types::DeltaType;
pub use unity::{Catalog, Registrar};
pub use upkeep::UpkeepSettings;
pub use writer::{Believed, Clear, Content, HistoryWriter, OpenTable, Replace, RowsCommit, Target};
pub use writers::Writer;
