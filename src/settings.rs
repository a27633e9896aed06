//! The extension's settings (GUCs). They are read on the Postgres main thread only; what writer
//! threads need of them is handed over when the threads start.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::ffi::CString;
use std::time::Duration;

use crate::lake::UpkeepSettings;

static FLUSH_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(15_000);
static MAX_MEMORY: GucSetting<i32> = GucSetting::<i32>::new(256 * 1024);
static STAGING_LIMIT: GucSetting<i32> = GucSetting::<i32>::new(-1);
static SNAPSHOT_WORKERS: GucSetting<i32> = GucSetting::<i32>::new(2);
static CHECKPOINT_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(10);
static TARGET_FILE_SIZE: GucSetting<i32> = GucSetting::<i32>::new(128);
static LOG_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(DAY);
static ORPHAN_RETENTION: GucSetting<i32> = GucSetting::<i32>::new(DAY);
static MAX_TABLES: GucSetting<i32> = GucSetting::<i32>::new(4096);
static DEFAULT_DESTINATION: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c""));

/// Seconds.
const DAY: i32 = 86_400;
/// A commit that hangs in a store may need its files for so long.
const LEAST_ORPHAN_RETENTION: Duration = Duration::from_secs(600);

/// Defines the settings; called once, from `_PG_init`.
pub fn define() {
    GucRegistry::define_int_guc(
        c"wal2delta.flush_interval",
        c"Time between two Delta commits of a table that changes.",
        c"A feed's option of the same name takes precedence.",
        &FLUSH_INTERVAL,
        10,
        3_600_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"wal2delta.max_memory",
        c"Memory that a feed worker may use for changes not yet written.",
        c"Past it, data files are written early; past what the destination takes, decoding waits.",
        &MAX_MEMORY,
        16 * 1024,
        i32::MAX,
        GucContext::Postmaster,
        GucFlags::UNIT_KB,
    );
    GucRegistry::define_int_guc(
        c"wal2delta.staging_limit",
        c"Size of the data files that a worker may store before they are committed.",
        c"A transaction, or the copy of a table, that takes more fails. -1 means no limit.",
        &STAGING_LIMIT,
        -1,
        i32::MAX,
        GucContext::Postmaster,
        GucFlags::UNIT_MB,
    );
    GucRegistry::define_int_guc(
        c"wal2delta.snapshot_workers",
        c"Number of background workers that copy tables of a database at the same time.",
        c"Several share one large table if no other is to be copied.",
        &SNAPSHOT_WORKERS,
        1,
        crate::shared::MAX_LANES as i32,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"wal2delta.checkpoint_interval",
        c"Number of Delta commits of a table between two checkpoints of its log.",
        c"A reader that opens the table reads the commits since the last checkpoint one by one.",
        &CHECKPOINT_INTERVAL,
        1,
        100_000,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"wal2delta.target_file_size",
        c"Size that small data files of a history table are merged up to.",
        c"0: they are not merged.",
        &TARGET_FILE_SIZE,
        0,
        10_240,
        GucContext::Sighup,
        GucFlags::UNIT_MB,
    );
    GucRegistry::define_int_guc(
        c"wal2delta.log_retention",
        c"Time for which each version of a history table can be read.",
        c"Commits, and data files that were replaced, are removed after it. -1: never.",
        &LOG_RETENTION,
        -1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"wal2delta.orphan_retention",
        c"Age from which a data file that belongs to no version of a history table is removed.",
        c"Such files are left by crashes. At least 10 minutes; -1: they are not removed.",
        &ORPHAN_RETENTION,
        -1,
        i32::MAX,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"wal2delta.max_tables",
        c"Number of tables whose state the view wal2delta.tables can show.",
        c"Tables beyond it are fed all the same. Each takes about 1 kB of shared memory.",
        &MAX_TABLES,
        64,
        1_000_000,
        GucContext::Postmaster,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"wal2delta.default_destination",
        c"Destination of feeds that are started without one.",
        c"Empty: the folder wal2delta in the data directory.",
        &DEFAULT_DESTINATION,
        GucContext::Suset,
        GucFlags::SUPERUSER_ONLY,
    );
}

/// Time between two commits of a changing table.
pub fn flush_interval() -> Duration {
    Duration::from_millis(FLUSH_INTERVAL.get().max(1) as u64)
}

/// Bytes that a feed worker may hold in memory.
pub fn max_memory() -> usize {
    MAX_MEMORY.get().max(1) as usize * 1024
}

/// Bytes of data files that one worker may store before they are committed; `None`: any number.
pub fn staging_limit() -> Option<u64> {
    u64::try_from(STAGING_LIMIT.get()).ok().map(|mb| mb << 20)
}

/// How history tables are kept up.
pub fn upkeep() -> UpkeepSettings {
    let seconds = |setting: &GucSetting<i32>| {
        let seconds = u64::try_from(setting.get()).ok();
        seconds.map(Duration::from_secs)
    };
    UpkeepSettings {
        checkpoint_interval: CHECKPOINT_INTERVAL.get().max(1) as u64,
        target_file_size: (TARGET_FILE_SIZE.get().max(0) as u64) << 20,
        retention: seconds(&LOG_RETENTION),
        orphan_retention: seconds(&ORPHAN_RETENTION).map(|age| age.max(LEAST_ORPHAN_RETENTION)),
    }
}

/// Most snapshot workers of one database at the same time.
pub fn snapshot_workers() -> usize {
    SNAPSHOT_WORKERS.get().max(1) as usize
}

/// Number of entries for table states in shared memory.
pub fn max_tables() -> usize {
    MAX_TABLES.get().max(1) as usize
}

/// The setting `wal2delta.default_destination`; `None` when it is empty.
pub fn default_destination() -> Option<String> {
    DEFAULT_DESTINATION
        .get()
        .map(|text| text.to_string_lossy().into_owned())
        .filter(|text| !text.is_empty())
}
