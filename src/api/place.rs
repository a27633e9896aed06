//! The destination that `start` is given: a path, a URL, or the name of a server.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::ffi::{CStr, CString};

use super::caller::check_local_access;
use super::catalog::select_one;
use super::{POLL, report};
use crate::foreign_server;
use crate::lake::{Asked, Catalog, Destination, ErrorKind, LakeError};
use crate::process;
use crate::settings;

/// A destination, and by whom it is reached.
pub(super) struct Place {
    pub destination: Destination,
    /// The server that was named, if one was.
    pub server: Option<u32>,
    /// The role whose user mapping counts.
    pub role: u32,
    /// The catalog that is to know its tables, if there is one.
    pub catalog: Option<Catalog>,
}

/// Reads what `start` was given, and makes sure that the caller may use it.
pub(super) fn given(text: Option<&str>) -> Place {
    let text = match text {
        Some(text) => text.to_owned(),
        None => settings::default_destination().unwrap_or_else(|| {
            // SAFETY: set once at server start; the path is absolute.
            let folder = unsafe { CStr::from_ptr(pg_sys::DataDir) };
            format!("{}/wal2delta", folder.to_string_lossy())
        }),
    };
    // SAFETY: the role that the call is made with.
    let role = unsafe { pg_sys::GetUserId() }.to_u32();
    if text.is_empty() || text.contains('/') {
        let destination = Destination::parse(&text).unwrap_or_else(|error| refuse(&error));
        check_local_access(destination.is_local());
        return Place {
            destination,
            server: None,
            role,
            catalog: None,
        };
    }
    let name = CString::new(text.as_str()).unwrap_or_default();
    let Some(server) = foreign_server::find(&name) else {
        report(
            PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
            format!("server \"{text}\" does not exist"),
            "A destination is the name of a server of the foreign-data wrapper wal2delta, an absolute path, \
             or a URL such as s3://bucket/folder.",
        );
    };
    let opened = foreign_server::place(server, role)
        .and_then(|(url, access)| Ok((access.catalog()?, Destination::open(&url, access)?)));
    let (catalog, destination) = opened.unwrap_or_else(|error| refuse(&error));
    Place {
        destination,
        server: Some(server),
        role,
        catalog,
    }
}

/// Reports what is wrong with a destination.
pub(super) fn refuse(error: &LakeError) -> ! {
    let code = match error.kind() {
        ErrorKind::Config => PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        // As Postgres itself has it (errcode_for_file_access).
        ErrorKind::Denied => PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE,
        ErrorKind::Missing => PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
        _ => PgSqlErrorCode::ERRCODE_IO_ERROR,
    };
    let hint = error
        .hint()
        .unwrap_or_else(|| "Check the destination.".into());
    report(code, error.to_string(), hint)
}

/// Waits for an answer of the lake; the session can be cancelled meanwhile.
pub(super) fn wait<T>(asked: Result<Asked<T>, LakeError>) -> Result<T, LakeError> {
    let asked = asked?;
    loop {
        if let Some(answer) = asked.answer() {
            return answer;
        }
        process::wait(POLL);
    }
}

/// That no other feed's destination lies inside this one, or the other way round.
pub(super) fn check_overlap(destination: &Destination) {
    let others: Option<String> = select_one(
        "SELECT pg_catalog.jsonb_object_agg(n.nspname, f.destination)::text FROM wal2delta.own_feeds f \
         JOIN pg_catalog.pg_namespace n ON n.oid = f.schema_oid",
        &[],
    );
    let others: std::collections::BTreeMap<String, String> = others
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    for (schema, other) in others {
        if Destination::parse(&other).is_ok_and(|other| other.overlaps(destination)) {
            report(
                PgSqlErrorCode::ERRCODE_OBJECT_IN_USE,
                format!(
                    "destination \"{destination}\" overlaps \"{other}\", to which schema \"{schema}\" is fed"
                ),
                "Give a folder that lies beside it, or the very same one.",
            );
        }
    }
}
