//! Named lakes: servers of the foreign-data wrapper `wal2delta`, whose options say where a destination
//! is, and the user mappings that hold the credentials. Read from the catalog on the main thread, in a
//! transaction; what is secret goes to the lake and nowhere else.

use pgrx::pg_sys;
use std::ffi::CStr;

use crate::lake::{Access, Destination, ErrorKind, LakeError, OptionValues};

/// Name of the wrapper.
pub const WRAPPER: &CStr = c"wal2delta";

/// The OID of a server of any wrapper; `None` if there is none of that name.
pub fn find(name: &CStr) -> Option<u32> {
    // SAFETY: a catalog look-up by name; missing_ok, so no error is raised.
    let oid = unsafe { pg_sys::get_foreign_server_oid(name.as_ptr(), true) };
    (oid != pg_sys::InvalidOid).then_some(oid.to_u32())
}

/// The URL of a server, and how a role reaches it.
///
/// # Errors
/// With the remedy, if there is no such server, it is none of wal2delta's, or the role may not use it.
pub fn place(server: u32, role: u32) -> Result<(String, Access), LakeError> {
    let (server, role) = (pg_sys::Oid::from(server), pg_sys::Oid::from(role));
    // SAFETY: catalog look-ups by OID in a transaction; each tells of what is missing by a null value
    // or false, and what it returns lives as long as the caller's memory context.
    unsafe {
        let found = pg_sys::GetForeignServerExtended(server, pg_sys::FSV_MISSING_OK as u16);
        if found.is_null() {
            return Err(LakeError::of(
                ErrorKind::Missing,
                "the server of the feed does not exist any more",
                "Stop the feed, create the server again, and start the feed to it.",
            ));
        }
        let found = &*found;
        let name = text(pg_sys::quote_identifier(found.servername));
        if found.fdwid != pg_sys::get_foreign_data_wrapper_oid(WRAPPER.as_ptr(), true) {
            return Err(LakeError::of(
                ErrorKind::Config,
                format!("server {name} is not one of the foreign-data wrapper wal2delta"),
                "Create one: CREATE SERVER … FOREIGN DATA WRAPPER wal2delta OPTIONS (url 's3://bucket/folder').",
            ));
        }
        let usage = pg_sys::ACL_USAGE as pg_sys::AclMode;
        let acl = pg_sys::object_aclcheck(pg_sys::ForeignServerRelationId, server, role, usage);
        if acl != pg_sys::AclResult::ACLCHECK_OK {
            return Err(LakeError::of(
                ErrorKind::Denied,
                format!("permission denied for foreign server {name}"),
                format!(
                    "GRANT USAGE ON FOREIGN SERVER {name} TO {}.",
                    role_name(role)
                ),
            ));
        }
        let options = values(found.options);
        let Some(url) = options.get("url").cloned() else {
            return Err(LakeError::of(
                ErrorKind::Config,
                format!("server {name} has no url"),
                format!("ALTER SERVER {name} OPTIONS (ADD url 's3://bucket/folder')."),
            ));
        };
        if Destination::parse(&url).is_ok_and(|place| place.is_local()) && !may_write_files(role) {
            return Err(LakeError::of(
                ErrorKind::Denied,
                "permission denied to feed to a folder of the server",
                "Only roles with privileges of the role pg_write_server_files may do so.",
            ));
        }
        if has_mapping(role, server) {
            let mapping = values((*pg_sys::GetUserMapping(role, server)).options);
            return Ok((url, Access::with_mapping(&name, options, mapping)));
        }
        // What the machine may do is not for everybody who may create a server.
        if !pg_sys::superuser_arg(found.owner) {
            return Err(LakeError::of(
                ErrorKind::Denied,
                format!(
                    "there is no user mapping of role {} for server {name}",
                    role_name(role)
                ),
                format!(
                    "CREATE USER MAPPING FOR {} SERVER {name} OPTIONS (…). Only for servers that a superuser owns \
                     the environment of the Postgres server is asked for credentials.",
                    role_name(role)
                ),
            ));
        }
        Ok((url, Access::without_mapping(&name, options)))
    }
}

/// How a feed's destination is reached now.
pub fn access(destination: &str, server: Option<u32>, role: u32) -> Access {
    let Some(server) = server else {
        return Access::environment();
    };
    let reached = place(server, role).and_then(|(url, access)| {
        let now = Destination::parse(&url)?.to_string();
        if now == destination {
            return Ok(access);
        }
        Err(LakeError::of(
            ErrorKind::Missing,
            format!(
                "the server's url is \"{now}\" now, the feed's histories are in \"{destination}\""
            ),
            "Set the url back, or stop the feed and start it again.",
        ))
    });
    reached.unwrap_or_else(Access::refused)
}

/// Whether a role may write any file of the server, so a folder of it too.
pub fn may_write_files(role: pg_sys::Oid) -> bool {
    let writers = pg_sys::Oid::from(pg_sys::ROLE_PG_WRITE_SERVER_FILES);
    // SAFETY: a privilege check by OIDs.
    unsafe { pg_sys::has_privs_of_role(role, writers) }
}

/// Whether there is a user mapping, of the role's own or for all.
unsafe fn has_mapping(role: pg_sys::Oid, server: pg_sys::Oid) -> bool {
    let cache = pg_sys::SysCacheIdentifier::USERMAPPINGUSERSERVER as i32;
    let none = pg_sys::Datum::from(0);
    // SAFETY: the cache has two keys of these types.
    [role, pg_sys::InvalidOid].into_iter().any(|role| unsafe {
        pg_sys::SearchSysCacheExists(cache, role.into(), server.into(), none, none)
    })
}

/// Options as the catalog has them.
unsafe fn values(list: *mut pg_sys::List) -> OptionValues {
    // SAFETY: the options of servers and user mappings are lists of DefElem.
    unsafe {
        let list = pgrx::PgList::<pg_sys::DefElem>::from_pg(list);
        let pairs = list.iter_ptr();
        pairs
            .map(|option| (text((*option).defname), text(pg_sys::defGetString(option))))
            .collect()
    }
}

unsafe fn role_name(role: pg_sys::Oid) -> String {
    // SAFETY: no error is raised for a role that is gone: a null pointer says so.
    unsafe {
        match pg_sys::GetUserNameFromId(role, true) {
            name if name.is_null() => format!("with OID {role}"),
            name => text(pg_sys::quote_identifier(name)),
        }
    }
}

unsafe fn text(text: *const std::ffi::c_char) -> String {
    // SAFETY: a string of the catalog, which ends with a zero byte.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}
