//! What the views show.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::my_database;
use crate::shared;

/// `wal2delta.table_states()`
#[pg_extern(sql = false)]
#[allow(clippy::type_complexity)]
fn table_states() -> TableIterator<
    'static,
    (
        name!(table_oid, pg_sys::Oid),
        name!(schema_oid, pg_sys::Oid),
        name!(status, String),
        name!(committed_lsn, Option<i64>),
        name!(last_write_time, Option<TimestampWithTimeZone>),
        name!(folder, Option<String>),
        name!(reason, Option<String>),
        name!(rows_written, i64),
        name!(snapshot_rows_done, i64),
        name!(snapshot_rows_total, i64),
        name!(last_error, Option<String>),
        name!(staged_bytes, i64),
        name!(replaced_values, i64),
    ),
> {
    let database = my_database();
    let mut rows = Vec::new();
    if shared::available() {
        let states: Vec<shared::TableStatus> = shared::lock()
            .tables()
            .iter()
            .filter(|table| table.database == database)
            .copied()
            .collect();
        let some = |text: String| (!text.is_empty()).then_some(text);
        for state in states {
            rows.push((
                pg_sys::Oid::from(state.table),
                pg_sys::Oid::from(state.namespace),
                state.status.word().to_owned(),
                (state.committed_lsn != 0).then_some(state.committed_lsn as i64),
                (state.last_write != 0)
                    .then(|| TimestampWithTimeZone::try_from(state.last_write).ok())
                    .flatten(),
                some(state.folder.get()),
                some(state.reason.get()),
                state.rows_written as i64,
                state.snapshot_done as i64,
                state.snapshot_total as i64,
                some(state.error.get()),
                state.staged_bytes as i64,
                state.replaced_values as i64,
            ));
        }
    }
    TableIterator::new(rows)
}

/// `wal2delta.feed_error()`
#[pg_extern(sql = false)]
pub(super) fn feed_error() -> Option<String> {
    if !shared::available() {
        return Some("wal2delta is not in shared_preload_libraries".into());
    }
    let mut state = shared::lock();
    match state.database(my_database()) {
        Some(entry) if entry.ready => None,
        Some(entry) if entry.creating_slot => Some(
            "the replication slot is being made, which waits for the transactions that write now"
                .into(),
        ),
        Some(entry) if !entry.error.is_empty() => Some(entry.error.get()),
        _ => Some("the feed worker is not running".into()),
    }
}
