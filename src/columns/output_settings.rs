//! The settings that output functions look at, pinned: the history table must not change its
//! spelling because somebody changes DateStyle.

use std::ffi::CStr;

use pgrx::pg_sys;

const SETTINGS: &[(&CStr, &CStr)] = &[
    (c"DateStyle", c"ISO, MDY"),
    (c"IntervalStyle", c"postgres"),
    (c"TimeZone", c"UTC"),
    (c"extra_float_digits", c"1"),
    (c"bytea_output", c"hex"),
    // regclass, regproc and the like then come with their schema.
    (c"search_path", c"pg_catalog"),
    (c"lc_monetary", c"C"),
    (c"lc_numeric", c"C"),
    (c"lc_time", c"C"),
    (c"xmlbinary", c"base64"),
    (c"xmloption", c"content"),
    (c"quote_all_identifiers", c"off"),
];

/// Fixes the settings of output functions in this process, whatever the server, the database or
/// the role has. Called once, when a worker has connected.
pub fn fix_output_settings() {
    for (name, value) in SETTINGS {
        // SAFETY: both are C strings. PGC_S_OVERRIDE, as autovacuum uses it for its search_path:
        // above every file, database and role setting, and no transaction's end takes it back.
        unsafe {
            pg_sys::SetConfigOption(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_OVERRIDE,
            );
        }
    }
}
