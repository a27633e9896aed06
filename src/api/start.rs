//! `start`.

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::Duration;

use super::caller::{check_local_access, check_schema, check_server};
use super::catalog::{as_superuser, select_one};
use super::worker::{check_slot, wait_for_worker};
use super::{my_database, report};
use crate::decode::insert_position;
use crate::feed::Options;
use crate::lake::{Destination, ErrorKind, LakeError};
use crate::process;
use crate::settings;

/// `wal2delta.start(source_schema, destination, options)`
#[pg_extern(sql = false)]
fn start(source_schema: Option<&CStr>, destination: Option<&str>, options: Option<pgrx::JsonB>) {
    let Some(source_schema) = source_schema else {
        report(
            PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
            "source_schema must not be NULL",
            "Name the schema whose tables shall be fed.",
        );
    };
    let name = source_schema.to_string_lossy().into_owned();
    check_server();
    let namespace = check_schema(source_schema, &name);
    let json = options.map_or_else(|| serde_json::json!({}), |json| json.0);
    let options = parse_options(&json);
    let destination = parse_destination(destination);
    check_local_access();
    if let Some(fed_to) = feed_destination(namespace) {
        report(
            PgSqlErrorCode::ERRCODE_DUPLICATE_OBJECT,
            format!("schema \"{name}\" is already fed to \"{fed_to}\""),
            format!("Stop that feed first: SELECT wal2delta.stop('{name}')."),
        );
    }
    let database = my_database();
    check_slot(database);
    if let Err(error) = destination.prepare() {
        report_destination(&error);
    }
    wait_for_worker(database);
    insert_feed(namespace, &destination, &json, &options);
    if !options.snapshot && holds_history_of(&destination, namespace) {
        ErrorReport::new(
            PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
            format!("the histories of schema \"{name}\" in \"{destination}\" are gone on with; \
                     changes made while it was not fed are missing in them"),
            "start",
        )
        .set_hint("To replace them by a new snapshot, stop the feed and start it with option {\"snapshot\": true}.")
        .report(PgLogLevel::NOTICE);
    }
}

/// Reads options, or refuses them.
pub(super) fn parse_options(json: &serde_json::Value) -> Options {
    Options::parse(json, parse_interval).unwrap_or_else(|error| {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            error.message,
            error.hint,
        )
    })
}

fn report_destination(error: &LakeError) -> ! {
    let code = match error.kind() {
        ErrorKind::Config => PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        // As Postgres itself has it (errcode_for_file_access).
        ErrorKind::Denied => PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
        _ => PgSqlErrorCode::ERRCODE_IO_ERROR,
    };
    let hint = error
        .hint()
        .unwrap_or_else(|| "Check the destination.".into());
    report(code, error.to_string(), hint)
}

fn parse_destination(text: Option<&str>) -> Destination {
    let text = match text {
        Some(text) => text.to_owned(),
        None => settings::default_destination().unwrap_or_else(|| {
            // SAFETY: set once at server start; the path is absolute.
            let folder = unsafe { CStr::from_ptr(pg_sys::DataDir) };
            format!("{}/wal2delta", folder.to_string_lossy())
        }),
    };
    Destination::parse(&text).unwrap_or_else(|error| report_destination(&error))
}

/// An interval as Postgres reads it; `None` for text that is none.
fn parse_interval(text: &str) -> Option<Duration> {
    use std::str::FromStr;
    let interval = PgTryBuilder::new(|| pgrx::datum::Interval::from_str(text).ok())
        .catch_others(|_| None)
        .execute()?;
    u64::try_from(interval.as_micros())
        .ok()
        .map(Duration::from_micros)
}

fn feed_destination(namespace: u32) -> Option<String> {
    select_one(
        "SELECT destination FROM wal2delta.own_feeds WHERE schema_oid = $1",
        &[pg_sys::Oid::from(namespace).into()],
    )
}

fn insert_feed(
    namespace: u32,
    destination: &Destination,
    json: &serde_json::Value,
    options: &Options,
) {
    // SAFETY: reads the control file's copy in shared memory.
    let system = unsafe { pg_sys::GetSystemIdentifier() };
    let home = process::home();
    let result = as_superuser(|| {
        Spi::connect_mut(|client| {
            // A row that came with a copy of the database is not a feed of this one.
            client.update(
                "DELETE FROM wal2delta.feeds WHERE schema_oid = $1",
                None,
                &[pg_sys::Oid::from(namespace).into()],
            )?;
            client
                .update(
                    "INSERT INTO wal2delta.feeds (schema_oid, destination, options, generation, \
                         continues, system_identifier, database_oid, homes, started_at) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7, ARRAY[$8], \
                             pg_catalog.clock_timestamp())",
                    None,
                    &[
                        pg_sys::Oid::from(namespace).into(),
                        destination.to_string().into(),
                        pgrx::JsonB(json.clone()).into(),
                        (insert_position() as i64).into(),
                        (!options.snapshot).into(),
                        (system as i64).into(),
                        pg_sys::Oid::from(my_database()).into(),
                        home.into(),
                    ],
                )
                .map(|_| ())
        })
    });
    if let Err(error) = result {
        error!("could not write the feed: {error}");
    }
}

/// Whether the destination has histories of tables that are in the schema.
fn holds_history_of(destination: &Destination, namespace: u32) -> bool {
    // SAFETY: reads the control file's copy in shared memory.
    let system = unsafe { pg_sys::GetSystemIdentifier() };
    let database = my_database();
    destination
        .sources()
        .into_iter()
        .filter(|source| source.system == system && source.database == database)
        // SAFETY: a catalog look-up by OID.
        .any(|source| unsafe {
            pg_sys::get_rel_namespace(pg_sys::Oid::from(source.table)).to_u32() == namespace
        })
}
