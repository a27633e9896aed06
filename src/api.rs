//! The SQL functions. They run in foreground backends: they check, write one row, and wait for the
//! feed worker where that is what they promise; none of them decodes or writes to a destination
//! (beyond making and probing its folder).

use pgrx::pg_sys;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::prelude::*;
use std::ffi::CStr;
use std::time::{Duration, Instant};

use crate::decode::{Slot, insert_position, lsn_text};
use crate::feed::Options;
use crate::lake::{Destination, ErrorKind, LakeError};
use crate::launcher;
use crate::process;
use crate::settings;
use crate::shared::{self, Status};

/// Longest wait between two looks at what the worker says.
const POLL: Duration = Duration::from_millis(20);

fn report(code: PgSqlErrorCode, message: impl Into<String>, hint: impl Into<String>) -> ! {
    ErrorReport::new(code, message.into(), "wal2delta")
        .set_hint(hint.into())
        .report(PgLogLevel::ERROR);
    unreachable!("an error report of level ERROR does not return")
}

fn report_destination(error: &LakeError) -> ! {
    let code = match error.kind() {
        ErrorKind::Config => PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        _ => PgSqlErrorCode::ERRCODE_IO_ERROR,
    };
    let hint = error
        .hint()
        .unwrap_or_else(|| "Check the destination.".into());
    report(code, error.to_string(), hint)
}

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
    let options = Options::parse(&json, parse_interval).unwrap_or_else(|error| {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
            error.message,
            error.hint,
        )
    });
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

/// `wal2delta.stop(source_schema)`
#[pg_extern(sql = false)]
fn stop(source_schema: &CStr) {
    let name = source_schema.to_string_lossy().into_owned();
    check_preloaded();
    let namespace = check_schema(source_schema, &name);
    let deleted = as_superuser(|| {
        Spi::connect_mut(|client| {
            client
                .update(
                    "DELETE FROM wal2delta.feeds WHERE schema_oid = $1",
                    None,
                    &[pg_sys::Oid::from(namespace).into()],
                )
                .map(|rows| rows.len())
        })
    });
    match deleted {
        Ok(0) => report(
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            format!("schema \"{name}\" is not fed"),
            "The view wal2delta.schemas shows the feeds of this database.",
        ),
        Ok(_) => {}
        Err(error) => error!("could not remove the feed: {error}"),
    }
}

/// `wal2delta.flush(timeout)`
#[pg_extern(sql = false)]
fn flush(timeout: pgrx::datum::Interval) -> i64 {
    check_preloaded();
    let database = my_database();
    let feeds = count_feeds();
    if feeds == 0 {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "no schema of this database is fed",
            "Start a feed with wal2delta.start().",
        );
    }
    let deadline = Instant::now() + Duration::from_micros(timeout.as_micros().max(0) as u64);
    let asked = insert_position();
    // A commit may be visible before it is on disk (synchronous_commit = off), and decoding reads
    // only what is on disk.
    // SAFETY: flushes WAL that exists already.
    unsafe { pg_sys::XLogFlush(asked) };
    loop {
        let (durable, worker) = {
            let mut state = shared::lock();
            match state.database_or_new(database) {
                Some(entry) => {
                    entry.flush_lsn = entry.flush_lsn.max(asked);
                    (
                        if entry.ready { entry.durable_lsn } else { 0 },
                        entry.worker_pid,
                    )
                }
                None => (0, 0),
            }
        };
        if durable >= asked {
            break;
        }
        shared::wake(worker);
        if Instant::now() >= deadline {
            ErrorReport::new(
                PgSqlErrorCode::ERRCODE_QUERY_CANCELED,
                "not everything was written to Delta within the timeout",
                "flush",
            )
            .set_detail(behind(database, durable, asked))
            .set_hint(
                "The feed goes on; see the view wal2delta.tables, or call with a longer timeout.",
            )
            .report(PgLogLevel::ERROR);
        }
        process::wait(POLL);
    }
    warn_of_failed(database);
    asked as i64
}

/// What `flush` was waiting for.
fn behind(database: u32, durable: u64, asked: u64) -> String {
    let mut state = shared::lock();
    let running = state.database(database).is_some_and(|entry| entry.ready);
    let mut names = Vec::new();
    for table in state
        .tables()
        .iter()
        .filter(|table| table.database == database)
    {
        let late = table.status == Status::Snapshotting
            || table.status == Status::Failed
            || (table.committed_lsn != 0 && table.committed_lsn < asked);
        if late && names.len() < 10 {
            names.push((table.table, table.status));
        }
    }
    drop(state);
    if !running {
        return "The feed worker of this database does not run.".into();
    }
    let names: Vec<String> = names
        .into_iter()
        .map(|(oid, status)| format!("{} ({})", relation_name(oid), status.word()))
        .collect();
    format!(
        "Written up to {}, asked for {}; behind: {}.",
        lsn_text(durable),
        lsn_text(asked),
        if names.is_empty() {
            "decoding".into()
        } else {
            names.join(", ")
        }
    )
}

fn warn_of_failed(database: u32) {
    let failed: Vec<u32> = shared::lock()
        .tables()
        .iter()
        .filter(|table| table.database == database && table.status == Status::Failed)
        .map(|table| table.table)
        .take(10)
        .collect();
    if !failed.is_empty() {
        let names: Vec<String> = failed.into_iter().map(relation_name).collect();
        warning!(
            "tables that cannot be fed were left out: {}",
            names.join(", ")
        );
    }
}

fn relation_name(oid: u32) -> String {
    // SAFETY: returns a palloc'd string, or null when there is no such relation.
    unsafe {
        let name = pg_sys::get_rel_name(pg_sys::Oid::from(oid));
        if name.is_null() {
            return format!("OID {oid}");
        }
        CStr::from_ptr(name).to_string_lossy().into_owned()
    }
}

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
            ));
        }
    }
    TableIterator::new(rows)
}

/// `wal2delta.feed_error()`
#[pg_extern(sql = false)]
fn feed_error() -> Option<String> {
    if !shared::available() {
        return Some("wal2delta is not in shared_preload_libraries".into());
    }
    let mut state = shared::lock();
    match state.database(my_database()) {
        Some(entry) if entry.ready => None,
        Some(entry) if !entry.error.is_empty() => Some(entry.error.get()),
        _ => Some("the feed worker is not running".into()),
    }
}

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
    for destination in destinations() {
        let result = Destination::parse(&destination).and_then(|place| place.check());
        rows.push((
            format!("destination {destination}"),
            result.is_ok(),
            result.err().map(|error| error.with_remedy()),
        ));
    }
    TableIterator::new(rows)
}

fn row(what: &str, ok: bool, hint: &str) -> (String, bool, Option<String>) {
    (what.into(), ok, (!ok).then(|| hint.into()))
}

const PRELOAD_HINT: &str =
    "Add wal2delta to shared_preload_libraries in postgresql.conf and restart the server.";
const WAL_LEVEL_HINT: &str = "Set wal_level = logical in postgresql.conf and restart the server.";
const SLOT_HINT: &str = "Raise max_replication_slots in postgresql.conf and restart the server, or drop a slot that is not used.";
const WORKERS_HINT: &str = "Raise max_worker_processes in postgresql.conf and restart the server.";

fn my_database() -> u32 {
    // SAFETY: set when the session connected.
    unsafe { pg_sys::MyDatabaseId.to_u32() }
}

fn wal_level_is_logical() -> bool {
    // SAFETY: a setting that is fixed at server start.
    unsafe { pg_sys::wal_level >= pg_sys::WalLevel::WAL_LEVEL_LOGICAL as i32 }
}

fn check_preloaded() {
    if !shared::available() {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "wal2delta must be loaded via \"shared_preload_libraries\"",
            PRELOAD_HINT,
        );
    }
}

fn check_server() {
    check_preloaded();
    if !wal_level_is_logical() {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "wal_level is not logical",
            WAL_LEVEL_HINT,
        );
    }
    // SAFETY: reads shared memory.
    if unsafe { pg_sys::RecoveryInProgress() } {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "a feed cannot be started on a standby",
            "Start it on the primary.",
        );
    }
}

/// The schema's OID, after checks that it exists, is no system schema, and is the caller's.
fn check_schema(source_schema: &CStr, name: &str) -> u32 {
    // SAFETY: a catalog look-up by name; missing_ok, so no error is raised.
    let namespace = unsafe { pg_sys::get_namespace_oid(source_schema.as_ptr(), true) };
    if namespace == pg_sys::InvalidOid {
        report(
            PgSqlErrorCode::ERRCODE_INVALID_SCHEMA_NAME,
            format!("schema \"{name}\" does not exist"),
            "Create the schema first, or check the spelling: names are case-sensitive.",
        );
    }
    if name.starts_with("pg_") || name == "information_schema" || name == "wal2delta" {
        report(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!("schema \"{name}\" is a system schema"),
            "Choose a schema that holds tables of yours.",
        );
    }
    // SAFETY: a privilege check by OIDs.
    let owned = unsafe {
        pg_sys::object_ownercheck(pg_sys::NamespaceRelationId, namespace, pg_sys::GetUserId())
    };
    if !owned {
        report(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!("must be owner of schema {name}"),
            "A feed reads every table of the schema: have the schema's owner or a superuser call.",
        );
    }
    namespace.to_u32()
}

/// A folder of the server may be written by those who may write any of its files.
fn check_local_access() {
    // SAFETY: a privilege check by OIDs.
    let allowed = unsafe {
        pg_sys::has_privs_of_role(
            pg_sys::GetUserId(),
            pg_sys::Oid::from(pg_sys::ROLE_PG_WRITE_SERVER_FILES),
        )
    };
    if !allowed {
        report(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            "permission denied to feed to a folder of the server",
            "Only roles with privileges of the role pg_write_server_files may do so.",
        );
    }
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

/// That the database has a slot, or can get one in this transaction.
fn check_slot(database: u32) {
    if Slot::is_persistent(database) {
        return;
    }
    if !Slot::exists(database) && !free_slot() {
        report(
            PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
            "all replication slots are in use",
            SLOT_HINT,
        );
    }
    check_has_not_written();
}

/// A slot cannot be created while this transaction, which waits for it, has written.
fn check_has_not_written() {
    // SAFETY: asks for the transaction's id without assigning one.
    if unsafe { pg_sys::GetTopTransactionIdIfAny() } != pg_sys::InvalidTransactionId {
        report(
            PgSqlErrorCode::ERRCODE_ACTIVE_SQL_TRANSACTION,
            "cannot start the first feed of a database in a transaction that has performed writes",
            "Commit first, then call wal2delta.start() in a transaction of its own: \
             its replication slot has to wait for all transactions that write.",
        );
    }
}

fn free_slot() -> bool {
    // SAFETY: reads the slots' array in shared memory without its lock: a race changes only
    // whether this check or the creation of the slot raises the error.
    unsafe {
        let count = pg_sys::max_replication_slots as usize;
        let first = (&raw const (*pg_sys::ReplicationSlotCtl).replication_slots)
            .cast::<pg_sys::ReplicationSlot>();
        (0..count).any(|index| !(*first.add(index)).in_use)
    }
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

/// Holds the database's worker while this transaction may still bring a feed.
fn wait_for_worker(database: u32) {
    let launcher = {
        let mut state = shared::lock();
        let Some(entry) = state.database_or_new(database) else {
            drop(state);
            report(
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                format!("{} databases have feeds already", shared::MAX_DATABASES),
                "Stop the feeds of another database.",
            );
        };
        entry.wanted = true;
        entry.starters += 1;
        entry.starts += 1;
        if !entry.ready {
            entry.error.set("");
        }
        state.launcher_pid
    };
    STARTING.with(|starting| starting.set(starting.get() + 1));
    register_end_of_transaction();
    shared::wake(launcher);
    loop {
        let (ready, error) = match shared::lock().database(database) {
            Some(entry) => (entry.ready, entry.error.get()),
            None => (false, "the feed worker left".into()),
        };
        if ready {
            return;
        }
        if error == launcher::NO_WORKER {
            report(
                PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                error,
                WORKERS_HINT,
            );
        }
        if !error.is_empty() {
            report(
                PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("the feed worker could not start: {error}"),
                "SELECT * FROM wal2delta.check() tells what is missing; the server log has more.",
            );
        }
        // The slot of an earlier feed may have been dropped since it was checked.
        if !Slot::is_persistent(database) {
            check_has_not_written();
        }
        process::wait(POLL);
    }
}

thread_local! {
    /// Calls of `start` in the current transaction.
    static STARTING: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn register_end_of_transaction() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: a static function, registered once per session (xact.c).
        unsafe { pg_sys::RegisterXactCallback(Some(end_of_transaction), std::ptr::null_mut()) }
    });
}

/// Lets the worker go that `start` has held: with a feed committed it stays by itself.
#[pg_guard]
unsafe extern "C-unwind" fn end_of_transaction(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    if event == XACT_EVENT_PRE_PREPARE && STARTING.with(std::cell::Cell::get) > 0 {
        report(
            PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
            "cannot PREPARE a transaction that has started a feed",
            "COMMIT it, or start the feed in a transaction of its own.",
        );
    }
    if !matches!(event, XACT_EVENT_COMMIT | XACT_EVENT_ABORT) {
        return;
    }
    let held = STARTING.with(|starting| starting.replace(0));
    if held == 0 {
        return;
    }
    let mut state = shared::lock();
    if let Some(entry) = state.database(my_database()) {
        entry.starters = entry.starters.saturating_sub(held);
    }
}

/// Runs `work` as the owner of the extension's tables, whatever the caller's rights; the caller's
/// rights were checked before.
fn as_superuser<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: the user is set back after `work`; should it raise an error, the end of the
    // (sub)transaction does it (xact.c).
    unsafe {
        let mut user = pg_sys::InvalidOid;
        let mut context = 0;
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        let change = pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION;
        pg_sys::SetUserIdAndSecContext(
            pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID),
            context | change as i32,
        );
        // No function or operator of the caller's search_path may run with these rights.
        let settings = pg_sys::NewGUCNestLevel();
        pg_sys::RestrictSearchPath();
        let result = work();
        pg_sys::AtEOXact_GUC(false, settings);
        pg_sys::SetUserIdAndSecContext(user, context);
        result
    }
}

fn feed_destination(namespace: u32) -> Option<String> {
    select_one(
        "SELECT destination FROM wal2delta.feeds WHERE schema_oid = $1",
        &[pg_sys::Oid::from(namespace).into()],
    )
}

fn count_feeds() -> i64 {
    select_one(
        "SELECT count(*) FROM wal2delta.feeds f \
         JOIN pg_catalog.pg_namespace n ON n.oid = f.schema_oid \
         JOIN pg_catalog.pg_database d ON d.oid = f.database_oid \
         WHERE d.datname = pg_catalog.current_database()",
        &[],
    )
    .unwrap_or(0)
}

fn destinations() -> Vec<String> {
    let text: Option<String> = select_one(
        "SELECT jsonb_agg(DISTINCT destination)::text FROM wal2delta.feeds",
        &[],
    );
    text.and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}

fn select_one<T: IntoDatum + FromDatum>(
    query: &str,
    arguments: &[pgrx::datum::DatumWithOid<'_>],
) -> Option<T> {
    let result = as_superuser(|| {
        Spi::connect(|client| {
            let rows = client.select(query, Some(1), arguments)?;
            if rows.is_empty() {
                Ok(None)
            } else {
                rows.first().get_one::<T>()
            }
        })
    });
    result.unwrap_or_else(|error: pgrx::spi::SpiError| {
        error!("could not read the feeds of this database: {error}")
    })
}

fn insert_feed(
    namespace: u32,
    destination: &Destination,
    json: &serde_json::Value,
    options: &Options,
) {
    // SAFETY: reads the control file's copy in shared memory.
    let system = unsafe { pg_sys::GetSystemIdentifier() };
    let result = as_superuser(|| {
        Spi::connect_mut(|client| {
            client
                .update(
                    "INSERT INTO wal2delta.feeds (schema_oid, destination, options, generation, \
                         continues, system_identifier, database_oid, started_at) \
                     VALUES ($1, $2, $3, $4, $5, $6, $7, pg_catalog.clock_timestamp())",
                    None,
                    &[
                        pg_sys::Oid::from(namespace).into(),
                        destination.to_string().into(),
                        pgrx::JsonB(json.clone()).into(),
                        (insert_position() as i64).into(),
                        (!options.snapshot).into(),
                        (system as i64).into(),
                        pg_sys::Oid::from(my_database()).into(),
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
