//! `start`.

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::Duration;

use super::caller::{check_schema, check_server};
use super::catalog::{as_superuser, select_one};
use super::place::{self, Place, check_overlap, refuse, wait};
use super::worker::{check_slot, wait_for_worker};
use super::{my_database, report};
use crate::decode::insert_position;
use crate::feed::Options;
use crate::lake::{Destination, ask};
use crate::process;

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
    let place = place::given(destination);
    let destination = &place.destination;
    if let Some(fed_to) = feed_destination(namespace) {
        report(
            PgSqlErrorCode::ERRCODE_DUPLICATE_OBJECT,
            format!("schema \"{name}\" is already fed to \"{fed_to}\""),
            format!("Stop that feed first: SELECT wal2delta.stop('{name}')."),
        );
    }
    let database = my_database();
    check_slot(database);
    check_overlap(destination);
    let (catalog, prepared) = (place.catalog.clone(), destination.clone());
    let prepare = async move {
        if let Some(catalog) = catalog {
            catalog.check().await?;
        }
        prepared.prepare().await
    };
    if let Err(error) = wait(ask(prepare)) {
        refuse(&error);
    }
    wait_for_worker(database);
    insert_feed(namespace, &place, &json, &options);
    if !options.snapshot && holds_history_of(destination, namespace) {
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

fn insert_feed(namespace: u32, place: &Place, json: &serde_json::Value, options: &Options) {
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
                         continues, system_identifier, database_oid, homes, started_at, \
                         server_oid, role_oid) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7, ARRAY[$8], \
                             pg_catalog.clock_timestamp(), $9, $10)",
                    None,
                    &[
                        pg_sys::Oid::from(namespace).into(),
                        place.destination.to_string().into(),
                        pgrx::JsonB(json.clone()).into(),
                        (insert_position() as i64).into(),
                        (!options.snapshot).into(),
                        (system as i64).into(),
                        pg_sys::Oid::from(my_database()).into(),
                        home.into(),
                        place.server.map(pg_sys::Oid::from).into(),
                        pg_sys::Oid::from(place.role).into(),
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
    let asked = destination.clone();
    let sources = wait(ask(async move { asked.sources().await }));
    sources
        .unwrap_or_default()
        .into_iter()
        .filter(|source| source.system == system && source.database == database)
        // SAFETY: a catalog look-up by OID.
        .any(|source| unsafe {
            pg_sys::get_rel_namespace(pg_sys::Oid::from(source.table)).to_u32() == namespace
        })
}
