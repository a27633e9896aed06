//! Commands that need a database without other sessions: DROP DATABASE, CREATE DATABASE with it as
//! template, ALTER DATABASE … RENAME and … SET TABLESPACE. Postgres refuses them while a background
//! worker is connected or a replication slot is in use, so the database's workers leave for the time
//! of the command; the launcher starts them again after it, unless the database is gone.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::process;
use crate::shared;

/// Longest wait for the workers. After it the command goes on, and says itself what is in its way.
const LIMIT: Duration = Duration::from_secs(5);

static mut PREVIOUS: pg_sys::ProcessUtility_hook_type = None;

/// Puts the hook in place; called while the library is preloaded.
pub fn watch() {
    // SAFETY: the postmaster is single-threaded here; the hook is chained as Postgres expects.
    unsafe {
        PREVIOUS = pg_sys::ProcessUtility_hook;
        pg_sys::ProcessUtility_hook = Some(utility);
    }
}

/// The hook. It stands in the way of every utility statement of the cluster, so that it must not catch
/// their errors, not even to raise them again: it has nothing to drop, and an ERROR of what it calls
/// passes over it as over a C function.
unsafe extern "C-unwind" fn utility(
    statement: *mut pg_sys::PlannedStmt,
    query: *const std::ffi::c_char,
    read_only: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    parameters: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    receiver: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: the arguments are the server's own and are passed on as they came.
    unsafe {
        if is_of_interest((*statement).utilityStmt) {
            withhold_workers((*statement).utilityStmt);
        }
        let next = PREVIOUS.unwrap_or(standard_utility);
        next(
            statement,
            query,
            read_only,
            context,
            parameters,
            environment,
            receiver,
            completion,
        );
    }
}

/// Sends the workers of the database away that a statement needs without other sessions, until the
/// transaction ends.
#[pg_guard]
unsafe extern "C-unwind" fn withhold_workers(statement: *mut pg_sys::Node) {
    // SAFETY: the caller's node.
    let database = unsafe { emptied(statement) };
    if let Some(database) = database.filter(|database| may_command(*database)) {
        withhold(database);
    }
}

mod symbols {
    use super::pg_sys;
    unsafe extern "C-unwind" {
        /// The same as in `pg_sys`, but as a C symbol that fits the hook's type.
        #[link_name = "standard_ProcessUtility"]
        pub fn standard_utility(
            statement: *mut pg_sys::PlannedStmt,
            query: *const std::ffi::c_char,
            read_only: bool,
            context: pg_sys::ProcessUtilityContext::Type,
            parameters: pg_sys::ParamListInfo,
            environment: *mut pg_sys::QueryEnvironment,
            receiver: *mut pg_sys::DestReceiver,
            completion: *mut pg_sys::QueryCompletion,
        );
    }
}
use symbols::standard_utility;

/// Whether `emptied` has to look at a statement.
///
/// # Safety
/// `statement` must be a utility statement's node, or null.
unsafe fn is_of_interest(statement: *mut pg_sys::Node) -> bool {
    use pg_sys::NodeTag::*;
    // SAFETY: every node begins with its tag.
    !statement.is_null()
        && matches!(
            unsafe { (*statement).type_ },
            T_DropdbStmt | T_RenameStmt | T_CreatedbStmt | T_AlterDatabaseStmt
        )
}

/// The database that a statement needs without other sessions, if it exists.
///
/// # Safety
/// `statement` must be a utility statement's node.
unsafe fn emptied(statement: *mut pg_sys::Node) -> Option<u32> {
    use pg_sys::NodeTag;
    // SAFETY: the tag says which struct the node is (parsenodes.h).
    unsafe {
        let name = match (*statement).type_ {
            NodeTag::T_DropdbStmt => (*statement.cast::<pg_sys::DropdbStmt>()).dbname,
            NodeTag::T_RenameStmt => {
                let rename = statement.cast::<pg_sys::RenameStmt>();
                match (*rename).renameType {
                    pg_sys::ObjectType::OBJECT_DATABASE => (*rename).subname,
                    _ => return None,
                }
            }
            NodeTag::T_CreatedbStmt => {
                let create = statement.cast::<pg_sys::CreatedbStmt>();
                option((*create).options, c"template")?
            }
            NodeTag::T_AlterDatabaseStmt => {
                let alter = statement.cast::<pg_sys::AlterDatabaseStmt>();
                option((*alter).options, c"tablespace")?;
                (*alter).dbname
            }
            _ => return None,
        };
        let database = pg_sys::get_database_oid(name, true);
        (database != pg_sys::InvalidOid).then(|| database.to_u32())
    }
}

/// The value of an option in a list of DefElem.
///
/// # Safety
/// `options` must be such a list, or null.
unsafe fn option(options: *mut pg_sys::List, name: &CStr) -> Option<*mut std::ffi::c_char> {
    // SAFETY: a List has `length` elements, and these are DefElem nodes (the caller's promise).
    unsafe {
        let count = options.as_ref().map_or(0, |list| list.length) as usize;
        (0..count)
            .map(|index| (*(*options).elements.add(index)).ptr_value)
            .map(|element| element.cast::<pg_sys::DefElem>())
            .find(|element| CStr::from_ptr((**element).defname) == name)
            .filter(|element| !(**element).arg.is_null())
            .map(|element| pg_sys::defGetString(element))
    }
}

/// Whether the command will be let through as far as rights go; the others leave no trace.
fn may_command(database: u32) -> bool {
    // SAFETY: a privilege check by OIDs.
    unsafe {
        let database = pg_sys::Oid::from(database);
        pg_sys::object_ownercheck(pg_sys::DatabaseRelationId, database, pg_sys::GetUserId())
    }
}

thread_local! {
    /// This transaction holds a database without workers.
    static WITHHOLDS: Cell<bool> = const { Cell::new(false) };
}

/// Sends the database's workers away and waits until they are gone.
fn withhold(database: u32) {
    if !shared::available() || shared::lock().database(database).is_none() {
        return;
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a static function, registered once per session (xact.c).
        unsafe { pg_sys::RegisterXactCallback(Some(end_of_transaction), std::ptr::null_mut()) }
    });
    WITHHOLDS.set(true);
    if let Some(entry) = shared::lock().database(database) {
        entry.withheld_by = process::my_pid();
    }
    let begun = Instant::now();
    let mut told = Vec::new();
    loop {
        let running = workers(database);
        for pid in running.iter().filter(|pid| !told.contains(*pid)) {
            process::terminate(*pid);
        }
        told.extend(running);
        told.retain(|pid| process::runs(*pid));
        if told.is_empty() || begun.elapsed() > LIMIT {
            return;
        }
        process::wait(Duration::from_millis(10));
    }
}

/// Lets the workers come back.
#[pg_guard]
unsafe extern "C-unwind" fn end_of_transaction(
    event: pg_sys::XactEvent::Type,
    _argument: *mut std::ffi::c_void,
) {
    use pg_sys::XactEvent::*;
    if !matches!(
        event,
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE
    ) {
        return;
    }
    if !WITHHOLDS.replace(false) {
        return;
    }
    let mut state = shared::lock();
    let me = process::my_pid();
    for entry in &mut state.databases {
        if entry.withheld_by == me {
            entry.withheld_by = 0;
        }
    }
    let launcher = state.launcher_pid;
    drop(state);
    shared::wake(launcher);
}

/// Process ids of a database's feed worker and snapshot workers.
fn workers(database: u32) -> Vec<i32> {
    let mut state = shared::lock();
    let feed = state.database(database).map(|entry| entry.worker_pid);
    let lanes = state.lanes.iter().filter(|lane| lane.database == database);
    let snapshots = lanes.map(|lane| lane.worker_pid);
    snapshots.chain(feed).filter(|pid| *pid != 0).collect()
}
