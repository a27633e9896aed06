//! Postgres types to Arrow columns: tuples in, record batches out.
//!
//! A [`Shape`] says what a relation's columns were at one point in the WAL; [`Rows`] collects
//! tuples of that shape; [`seal`] turns what was collected into a batch of the history table.
//! Runs on the main thread only, since it calls Postgres; it knows nothing of feeds or of Delta
//! commits. The snapshot and the stream use the same code, so that a value looks the same however
//! it came.

mod boolean;
mod bytea;
mod column;
mod datetime;
mod decimal;
mod encoding;
mod enumeration;
mod error;
mod jsonb;
mod kind;
mod memory;
mod numbers;
mod numeric;
mod numeric_text;
mod output;
mod output_settings;
mod rows;
mod seal;
mod shape;
mod system;
mod text;
mod uuid;
mod varlena;

pub use encoding::{Encoding, take_replaced};
pub use error::ColumnError;
pub use output_settings::fix_output_settings;
pub use rows::Rows;
pub use seal::{retain, seal};
pub use shape::{Layout, Shape, SourceColumn};
pub use system::{Change, Origin};
