//! Commands that need a database without other sessions: DROP DATABASE, CREATE DATABASE with it as
//! template, ALTER DATABASE … RENAME and … SET TABLESPACE. Postgres refuses them while a background
//! worker is connected or a replication slot is in use, so the database's workers leave for the time
//! of the command; the launcher starts them again after it, unless the database is gone.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;
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

#[pg_guard]
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
    // SAFETY: the arguments are the server's own and are passed on as they came. The previous hook
    // is foreign C code: its errors have to become unwinding here.
    unsafe {
        let _released = emptied((*statement).utilityStmt)
            .filter(|database| may_command(*database))
            .and_then(Released::new);
        let next = PREVIOUS.unwrap_or(standard_utility);
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            next(
                statement,
                query,
                read_only,
                context,
                parameters,
                environment,
                receiver,
                completion,
            )
        });
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

/// The database that a statement needs without other sessions, if it exists.
///
/// # Safety
/// `statement` must be a utility statement's node, or null.
unsafe fn emptied(statement: *mut pg_sys::Node) -> Option<u32> {
    use pg_sys::NodeTag;
    if statement.is_null() {
        return None;
    }
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

/// A database that the workers have left; they may come back when it is dropped.
struct Released(u32);

impl Released {
    /// Sends the database's workers away and waits until they are gone. `None` if it has none.
    fn new(database: u32) -> Option<Released> {
        if !shared::available() {
            return None;
        }
        shared::lock().database(database)?.withheld_by = process::my_pid();
        let released = Released(database);
        let begun = Instant::now();
        let mut told = Vec::new();
        loop {
            let running = workers(database);
            for pid in running.iter().filter(|pid| !told.contains(*pid)) {
                // SAFETY: a signal to a worker of ours, whose handler is `die`. Should the process
                // have ended since, its id is not in use again this soon.
                unsafe { libc::kill(*pid, libc::SIGTERM) };
            }
            told.extend(running);
            told.retain(|pid| process::runs(*pid));
            if told.is_empty() || begun.elapsed() > LIMIT {
                return Some(released);
            }
            process::wait(Duration::from_millis(10));
        }
    }
}

impl Drop for Released {
    fn drop(&mut self) {
        let mut state = shared::lock();
        if let Some(entry) = state.database(self.0) {
            entry.withheld_by = 0;
        }
        let launcher = state.launcher_pid;
        drop(state);
        shared::wake(launcher);
    }
}

/// Process ids of a database's feed worker and snapshot workers.
fn workers(database: u32) -> Vec<i32> {
    let mut state = shared::lock();
    let feed = state.database(database).map(|entry| entry.worker_pid);
    let lanes = state.lanes.iter().filter(|lane| lane.database == database);
    let snapshots = lanes.map(|lane| lane.worker_pid);
    snapshots.chain(feed).filter(|pid| *pid != 0).collect()
}
