//! wal2delta: a Postgres 17 extension that turns a schema's tables into append-only Delta Lake
//! history tables.
//!
//! The modules follow the way of a change: [`decode`] reads the write-ahead log in-process,
//! [`columns`] turns tuples into Arrow columns, [`feed`] decides which tables take part and when
//! to flush, [`lake`] writes Parquet files and Delta commits, where a [`foreign_server`] says. [`launcher`] starts the background
//! workers ([`process`] is what they do alike), [`api`] holds the SQL functions, [`shared`] what the
//! processes tell each other, and [`database_commands`] has workers leave a database for DDL of it.
//! At each step of the way a test build can fail ([`fail_point`]).

pub mod api;
pub mod columns;
pub mod database_commands;
pub mod decode;
pub mod fail_point;
pub mod feed;
pub mod foreign_server;
pub mod lake;
pub mod launcher;
pub mod process;
pub mod settings;
pub mod shared;

use pgrx::pg_sys;
use pgrx::prelude::*;

pgrx::pg_module_magic!(name, version);

/// Called by Postgres when the library is loaded.
///
/// Only preloading defines the settings and registers the launcher and the shared memory: a library
/// that one session loads later (by calling a function of it) can have none of them, and [`api`]
/// says so to its caller.
#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    // SAFETY: a plain read of a flag that the postmaster sets while it loads libraries.
    if unsafe { pg_sys::process_shared_preload_libraries_in_progress } {
        settings::define();
        shared::request();
        launcher::register();
        database_commands::watch();
    }
}
