//! The validator of the foreign-data wrapper: which options a server and a user mapping may have.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::report;
use crate::lake::{OptionPlace, OptionValues, check_options};

/// `wal2delta.check_options(options, catalog)`
#[pg_extern(sql = false)]
fn check_lake_options(options: Vec<Option<String>>, catalog: pg_sys::Oid) {
    let pairs = options.into_iter().flatten();
    let values: OptionValues = pairs
        .filter_map(|pair| {
            let (name, value) = pair.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        })
        .collect();
    let place = match catalog {
        pg_sys::ForeignServerRelationId => OptionPlace::Server,
        pg_sys::UserMappingRelationId => OptionPlace::UserMapping,
        pg_sys::ForeignTableRelationId => report(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "foreign-data wrapper wal2delta has no foreign tables",
            "Its servers are destinations: SELECT wal2delta.start('schema', 'server').",
        ),
        _ => match values.keys().next() {
            None => return,
            Some(name) => report(
                PgSqlErrorCode::ERRCODE_FDW_INVALID_OPTION_NAME,
                format!("invalid option \"{name}\""),
                "The foreign-data wrapper has no options: its servers and their user mappings do.",
            ),
        },
    };
    if let Err(error) = check_options(place, &values) {
        let code = match error.unknown {
            true => PgSqlErrorCode::ERRCODE_FDW_INVALID_OPTION_NAME,
            false => PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        };
        report(code, error.message, error.hint);
    }
}
