//! The database's encoding to UTF-8. Bytes that are no text in any encoding, and characters that
//! UTF-8 has no place for, become U+FFFD; no value may stop a table because of how it is spelled.

use std::borrow::Cow;
use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicU64, Ordering};

use pgrx::pg_sys;

use super::column::Strings;
use super::error::Fault;

/// Values, since it was last asked, in which something had no place in UTF-8. Only the main thread
/// counts.
static REPLACED: AtomicU64 = AtomicU64::new(0);

/// How many values had something replaced by U+FFFD since the last call.
pub fn take_replaced() -> u64 {
    match REPLACED.load(Ordering::Relaxed) {
        0 => 0,
        _ => REPLACED.swap(0, Ordering::Relaxed),
    }
}

/// MAX_CONVERSION_GROWTH (pg_wchar.h).
const GROWTH: usize = 4;

/// How the database stores text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
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
    pub(super) unsafe fn push(self, bytes: &[u8], onto: &mut Strings) -> Result<usize, Fault> {
        // Most text; no look-up, and a faster pass than the one that tells UTF-8. In every server encoding
        // bytes below 128 are ASCII (pg_wchar.h).
        if bytes.is_ascii() {
            return onto.push_ascii(bytes);
        }
        // SAFETY: as the caller vouches.
        let (bytes, replaced) = unsafe { self.convert(bytes) };
        let text = std::str::from_utf8(&bytes);
        if replaced || text.is_err() {
            REPLACED.fetch_add(1, Ordering::Relaxed);
        }
        match text {
            Ok(text) => onto.push(text),
            Err(_) => onto.push(&String::from_utf8_lossy(&bytes)),
        }
    }

    /// A value in the database's encoding, as owned text.
    ///
    /// # Safety
    /// As for [`Encoding::convert`].
    pub unsafe fn to_string(self, bytes: &[u8]) -> String {
        // SAFETY: as the caller vouches.
        String::from_utf8_lossy(&unsafe { self.convert(bytes) }.0).into_owned()
    }

    /// The bytes in what should be UTF-8. Characters that have no equivalent there become U+FFFD;
    /// whether there were any.
    ///
    /// # Safety
    /// On the main thread, in a transaction (the conversion is looked up in the catalog).
    unsafe fn convert(self, bytes: &[u8]) -> (Cow<'_, [u8]>, bool) {
        if self == Encoding::Utf8 || bytes.is_ascii() {
            return (Cow::Borrowed(bytes), false);
        }
        let utf8 = pg_sys::pg_enc::PG_UTF8 as c_int;
        // SAFETY: catalog look-ups, as the caller vouches.
        let (from, procedure) = unsafe {
            let from = pg_sys::GetDatabaseEncoding();
            (from, pg_sys::FindDefaultConversionProc(from, utf8))
        };
        if procedure == pg_sys::InvalidOid {
            return (Cow::Borrowed(bytes), false);
        }
        let mut replaced = false;
        let mut converted = Vec::with_capacity(bytes.len() * 2);
        let mut rest = bytes;
        // Less than this and the call stops early for want of room.
        let mut room = vec![0u8; (bytes.len() + 1) * GROWTH];
        while !rest.is_empty() {
            // SAFETY: the call reads `rest`, which it leaves as it is, and writes a string that ends
            // in NUL into `room`. A value is below 1 GiB, so that lengths fit. With `noError` it ends
            // before a character that it cannot convert, and tells how far it came (mbutils.c).
            let (read, text) = unsafe {
                let read = pg_sys::pg_do_encoding_conversion_buf(
                    procedure,
                    from,
                    utf8,
                    rest.as_ptr().cast_mut(),
                    rest.len() as c_int,
                    room.as_mut_ptr(),
                    c_int::try_from(room.len()).unwrap_or(c_int::MAX),
                    true,
                );
                (read.max(0) as usize, CStr::from_ptr(room.as_ptr().cast()))
            };
            converted.extend_from_slice(text.to_bytes());
            rest = rest.get(read..).unwrap_or_default();
            if !rest.is_empty() {
                replaced = true;
                converted.extend_from_slice("\u{FFFD}".as_bytes());
                // SAFETY: `rest` is not empty, and every encoding that a server can have tells a
                // character's length by its first byte (wchar.c; GB18030 is for clients alone).
                let length = unsafe { pg_sys::pg_encoding_mblen(from, rest.as_ptr().cast()) };
                rest = rest.get(length.max(1) as usize..).unwrap_or_default();
            }
        }
        (Cow::Owned(converted), replaced)
    }
}
