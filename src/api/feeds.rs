//! `stop`, `pause`, `resume`, `resync`: what becomes of a feed that is there.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

use super::caller::{check_owner, check_running, check_schema};
use super::catalog::{as_superuser, select_one};
use super::report;
use crate::decode::insert_position;

/// `wal2delta.stop(source_schema)`
#[pg_extern(sql = false)]
fn stop(source_schema: &CStr) {
    let name = source_schema.to_string_lossy().into_owned();
    check_running();
    let namespace = check_schema(source_schema, &name);
    let deleted = as_superuser(|| {
        Spi::connect_mut(|client| {
            client
                .update(
                    "DELETE FROM wal2delta.own_feeds WHERE schema_oid = $1",
                    None,
                    &[pg_sys::Oid::from(namespace).into()],
                )
                .map(|rows| rows.len())
        })
    });
    match deleted {
        Ok(0) => report_not_fed(&name),
        Ok(_) => {}
        Err(error) => error!("could not remove the feed: {error}"),
    }
}

pub(super) fn report_not_fed(schema: &str) -> ! {
    report(
        PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
        format!("schema \"{schema}\" is not fed"),
        "The view wal2delta.schemas shows the feeds of this database.",
    )
}

/// `wal2delta.pause(source_schema)`
#[pg_extern(sql = false)]
fn pause(source_schema: &CStr) {
    set_paused(source_schema, true);
}

/// `wal2delta.resume(source_schema)`
#[pg_extern(sql = false)]
fn resume(source_schema: &CStr) {
    set_paused(source_schema, false);
}

fn set_paused(source_schema: &CStr, paused: bool) {
    let name = source_schema.to_string_lossy().into_owned();
    check_running();
    let namespace = pg_sys::Oid::from(check_schema(source_schema, &name));
    let now: Option<bool> = select_one(
        "SELECT paused FROM wal2delta.own_feeds WHERE schema_oid = $1",
        &[namespace.into()],
    );
    match now {
        None => report_not_fed(&name),
        Some(now) if now == paused => {
            let state = if paused {
                "paused already"
            } else {
                "not paused"
            };
            notice!("feed of schema \"{name}\" is {state}");
        }
        Some(_) => {
            change(
                "UPDATE wal2delta.own_feeds SET paused = $2 WHERE schema_oid = $1",
                &[namespace.into(), paused.into()],
            );
        }
    }
}

/// That a table can have a history, and its schema is fed and is the caller's.
pub(super) fn check_fed_table(source_table: pg_sys::Oid) {
    check_running();
    // SAFETY: catalog look-ups by OID; both tell of a missing relation by a null value.
    let (namespace, schema) = unsafe {
        let namespace = pg_sys::get_rel_namespace(source_table);
        let name = pg_sys::get_namespace_name(namespace);
        if name.is_null() {
            report(
                PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE,
                format!("relation with OID {source_table} does not exist"),
                "Name a table of a schema that is fed.",
            );
        }
        (
            namespace,
            CStr::from_ptr(name).to_string_lossy().into_owned(),
        )
    };
    check_owner(namespace.to_u32(), &schema);
    let fed: Option<bool> = select_one(
        "SELECT true FROM wal2delta.own_feeds WHERE schema_oid = $1",
        &[namespace.into()],
    );
    if fed.is_none() {
        report_not_fed(&schema);
    }
    // SAFETY: catalog look-ups by OID.
    let (kind, is_partition) = unsafe {
        (
            pg_sys::get_rel_relkind(source_table) as u8,
            pg_sys::get_rel_relispartition(source_table),
        )
    };
    let table = kind == pg_sys::RELKIND_RELATION || kind == pg_sys::RELKIND_PARTITIONED_TABLE;
    if !table {
        report(
            PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
            "only tables are fed".to_owned(),
            "The view wal2delta.tables shows the tables of all feeds.",
        );
    }
    if is_partition {
        report(
            PgSqlErrorCode::ERRCODE_WRONG_OBJECT_TYPE,
            "a partition has no history of its own".to_owned(),
            "Name the partitioned table that it belongs to.",
        );
    }
}

/// `wal2delta.resync(source_table)`
#[pg_extern(sql = false)]
fn resync(source_table: pg_sys::Oid) {
    check_fed_table(source_table);
    change(
        "INSERT INTO wal2delta.resyncs (table_oid, generation, asked_at) \
         VALUES ($1, $2, pg_catalog.clock_timestamp()) \
         ON CONFLICT (table_oid) DO UPDATE \
         SET generation = excluded.generation, asked_at = excluded.asked_at, refused = NULL",
        &[source_table.into(), (insert_position() as i64).into()],
    );
}

/// Runs a statement on the extension's tables; how many rows it changed.
pub(super) fn change(statement: &str, arguments: &[pgrx::datum::DatumWithOid<'_>]) -> usize {
    let changed = as_superuser(|| {
        Spi::connect_mut(|client| {
            client
                .update(statement, None, arguments)
                .map(|rows| rows.len())
        })
    });
    changed.unwrap_or_else(|error| error!("could not change the feeds of this database: {error}"))
}
