//! `check`.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

use super::caller::wal_level_is_logical;
use super::catalog::{count_feeds, select_one};
use super::place::wait;
use super::states::feed_error;
use super::worker::free_slot;
use super::{PRELOAD_HINT, SLOT_HINT, WAL_LEVEL_HINT, WORKERS_HINT, my_database};
use crate::decode::Slot;
use crate::foreign_server;
use crate::lake::{Destination, ask};
use crate::shared;

/// `wal2delta.check()`
#[pg_extern(sql = false)]
fn check() -> TableIterator<
    'static,
    (
        name!(what, String),
        name!(ok, bool),
        name!(what_to_do, Option<String>),
    ),
> {
    let mut rows = vec![
        row(
            "wal2delta in shared_preload_libraries",
            shared::available(),
            PRELOAD_HINT,
        ),
        row(
            "wal_level = logical",
            wal_level_is_logical(),
            WAL_LEVEL_HINT,
        ),
    ];
    let database = my_database();
    rows.push(row(
        "a replication slot for this database",
        Slot::exists(database) || free_slot(),
        SLOT_HINT,
    ));
    rows.push(row("background workers", enough_workers(), WORKERS_HINT));
    // Not wrong without it: feeds do not need it.
    rows.push((
        "wal2delta in output_plugin_libraries, for pg_upgrade".into(),
        true,
        (!plugin_listed()).then(|| {
            "Nothing for feeds. Before pg_upgrade, set output_plugin_libraries = \
             'pgoutput, test_decoding, wal2delta' in postgresql.conf of the new cluster."
                .into()
        }),
    ));
    if count_feeds() > 0 {
        let error = feed_error();
        rows.push((
            "feed worker of this database".into(),
            error.is_none(),
            error.map(|error| format!("{error}. See the server log.")),
        ));
    }
    for fed in destinations() {
        let access = foreign_server::access(&fed.destination, fed.server, fed.role);
        if let Ok(Some(catalog)) = access.catalog() {
            let what = catalog.to_string();
            let result = wait(ask(async move { catalog.check().await }));
            rows.push((
                what,
                result.is_ok(),
                result.err().map(|error| error.with_remedy()),
            ));
        }
        let result = Destination::open(&fed.destination, access)
            .and_then(|place| wait(ask(async move { place.check().await })));
        rows.push((
            format!("destination {}", fed.destination),
            result.is_ok(),
            result.err().map(|error| error.with_remedy()),
        ));
    }
    TableIterator::new(rows)
}

fn row(what: &str, ok: bool, hint: &str) -> (String, bool, Option<String>) {
    (what.into(), ok, (!ok).then(|| hint.into()))
}

/// Whether launcher, feed worker and one snapshot worker have a place.
fn enough_workers() -> bool {
    // SAFETY: a setting that is fixed at server start.
    unsafe { pg_sys::max_worker_processes >= 3 }
}

fn plugin_listed() -> bool {
    // SAFETY: a look-up that returns null where the server does not know the setting.
    unsafe {
        let value = pg_sys::GetConfigOption(c"output_plugin_libraries".as_ptr(), true, false);
        value.is_null()
            || CStr::from_ptr(value)
                .to_string_lossy()
                .split(',')
                .any(|name| name.trim().trim_matches('"') == "wal2delta")
    }
}

/// A destination, and by whom it is reached.
#[derive(serde::Deserialize)]
struct Fed {
    destination: String,
    server: Option<u32>,
    role: u32,
}

fn destinations() -> Vec<Fed> {
    let text: Option<String> = select_one(
        "SELECT pg_catalog.jsonb_agg(DISTINCT pg_catalog.jsonb_build_object( \
             'destination', destination, 'server', server_oid::bigint, 'role', role_oid::bigint))::text \
         FROM wal2delta.own_feeds",
        &[],
    );
    text.and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}
