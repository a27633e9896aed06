//! Whether server and caller may do what is asked for.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::CStr;

use super::{PRELOAD_HINT, WAL_LEVEL_HINT, report};
use crate::foreign_server;
use crate::shared;

pub(super) fn wal_level_is_logical() -> bool {
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

pub(super) fn check_server() {
    check_preloaded();
    if !wal_level_is_logical() {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "wal_level is not logical",
            WAL_LEVEL_HINT,
        );
    }
    check_primary();
}

/// That the library is preloaded, and the server no standby.
pub(super) fn check_running() {
    check_preloaded();
    check_primary();
}

fn check_primary() {
    // SAFETY: reads shared memory.
    if unsafe { pg_sys::RecoveryInProgress() } {
        report(
            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            "there are no feeds on a standby",
            "Call the function on the primary.",
        );
    }
}

/// The schema's OID, after checks that it exists, is no system schema, and is the caller's.
pub(super) fn check_schema(source_schema: &CStr, name: &str) -> u32 {
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
    check_owner(namespace.to_u32(), name);
    namespace.to_u32()
}

/// That the schema is the caller's.
pub(super) fn check_owner(namespace: u32, name: &str) {
    // SAFETY: a privilege check by OIDs.
    let owned = unsafe {
        let namespace = pg_sys::Oid::from(namespace);
        pg_sys::object_ownercheck(pg_sys::NamespaceRelationId, namespace, pg_sys::GetUserId())
    };
    if !owned {
        report(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            format!("must be owner of schema {name}"),
            "A feed reads every table of the schema: have the schema's owner or a superuser call.",
        );
    }
}

/// A folder of the server may be written by those who may write any of its files; so may an object
/// store, with what the server's environment offers.
pub(super) fn check_local_access(folder: bool) {
    // SAFETY: the role that the call is made with.
    if !foreign_server::may_write_files(unsafe { pg_sys::GetUserId() }) {
        let (message, hint) = match folder {
            true => (
                "permission denied to feed to a folder of the server",
                "Only roles with privileges of the role pg_write_server_files may do so.",
            ),
            false => (
                "permission denied to feed to a URL with the credentials of the server",
                "Only roles with privileges of the role pg_write_server_files may do so; \
                 others name a server of the foreign-data wrapper wal2delta.",
            ),
        };
        report(
            PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
            message,
            hint,
        );
    }
}
