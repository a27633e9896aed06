//! The database's encoding to UTF-8. Bytes that are no text in any encoding become U+FFFD; no
//! value may stop a table because of how it is spelled.

use std::ffi::{CStr, c_int};

use pgrx::pg_sys;

use super::column::Strings;
use super::error::Fault;

/// How the database stores text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// UTF8; also SQL_ASCII, where Postgres knows nothing and UTF-8 is the best guess.
    Utf8,
    /// Any other: converted by Postgres.
    Server,
}

impl Encoding {
    /// # Safety
    /// On the main thread of a backend that is connected to a database.
    pub unsafe fn of_database() -> Encoding {
        // SAFETY: as the caller vouches.
        let encoding = unsafe { pg_sys::GetDatabaseEncoding() };
        if encoding == pg_sys::pg_enc::PG_UTF8 as c_int
            || encoding == pg_sys::pg_enc::PG_SQL_ASCII as c_int
        {
            Encoding::Utf8
        } else {
            Encoding::Server
        }
    }

    /// Appends a value in the database's encoding.
    ///
    /// # Safety
    /// As for [`Encoding::convert`].
    pub unsafe fn push(self, bytes: &[u8], onto: &mut Strings) -> Result<usize, Fault> {
        // SAFETY: as the caller vouches.
        let bytes = unsafe { self.convert(bytes) };
        match std::str::from_utf8(bytes) {
            Ok(text) => onto.push(text),
            Err(_) => onto.push(&String::from_utf8_lossy(bytes)),
        }
    }

    /// A value in the database's encoding, as owned text.
    ///
    /// # Safety
    /// As for [`Encoding::convert`].
    pub unsafe fn to_string(self, bytes: &[u8]) -> String {
        // SAFETY: as the caller vouches.
        String::from_utf8_lossy(unsafe { self.convert(bytes) }).into_owned()
    }

    /// The bytes in what should be UTF-8, living as long as the current memory context.
    ///
    /// # Safety
    /// On the main thread, in a transaction (the conversion is looked up in the catalog), with a
    /// current memory context that lives as long as the result.
    unsafe fn convert(self, bytes: &[u8]) -> &[u8] {
        // In every server encoding bytes below 128 are ASCII (pg_wchar.h).
        if self == Encoding::Utf8 || bytes.is_ascii() {
            return bytes;
        }
        // SAFETY: pg_server_to_any reads `len` bytes, and returns either them (nothing to do) or
        // a new string that ends in NUL. A value is below 1 GiB, so the length fits.
        unsafe {
            let start = bytes.as_ptr().cast();
            let utf8 = pg_sys::pg_enc::PG_UTF8 as c_int;
            let converted = pg_sys::pg_server_to_any(start, bytes.len() as c_int, utf8);
            if std::ptr::eq(converted, start) {
                bytes
            } else {
                CStr::from_ptr(converted).to_bytes()
            }
        }
    }
}
