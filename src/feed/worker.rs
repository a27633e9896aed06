//! The feed worker of one database: owns its slot and runs the main loop.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

use super::catalog::{self, Look};
use super::feeds::{Feeds, StandingPoint};
use super::process_changes::read_when_failed;
use super::publish::Published;
use crate::columns;
use crate::decode::{
    Decoder, Slot, allow_plugin_for_this_process, existing, flush_position, watch_invalidations,
};
use crate::lake::{Lake, LakeConfig};
use crate::process;
use crate::settings;
use crate::shared;

/// Time that decoding may take before the main loop looks after other things.
const SLICE: Duration = Duration::from_millis(50);
/// Longest pause of an idle loop; new WAL is found after it.
const IDLE: Duration = Duration::from_millis(100);
/// Pause while somebody waits, or the next commit is near.
const SOON: Duration = Duration::from_millis(5);
/// Time between two confirmations of the slot, and between two updates of the views.
const CONFIRM_EVERY: Duration = Duration::from_millis(500);
/// Looks at the catalog are not taken more often than this, unless something asks for one.
const LOOK_EVERY_AT_LEAST: Duration = Duration::from_secs(1);
/// How long commits under way are waited for before decoding again.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

/// Why the main loop ended.
enum End {
    /// There is no feed; the slot is to be dropped.
    NoFeeds,
    /// Decoding shall start again from the slot.
    Redecode,
}

/// Entry point of a feed worker; the argument is the database's OID.
#[unsafe(no_mangle)]
#[pg_guard]
pub extern "C-unwind" fn wal2delta_feed_main(argument: pg_sys::Datum) {
    process::install_signal_handlers();
    let database = argument.value() as u32;
    if !register(database) {
        return;
    }
    // SAFETY: the argument is the database; called once.
    unsafe { pg_sys::before_shmem_exit(Some(leave), argument) };
    // SAFETY: once, after the signal handlers, as bgworker.c demands.
    unsafe {
        pg_sys::BackgroundWorkerInitializeConnectionByOid(
            pg_sys::Oid::from(database),
            pg_sys::InvalidOid,
            0,
        );
    }
    PgTryBuilder::new(std::panic::AssertUnwindSafe(|| run(database)))
        .catch_others(|error| remember(database, error))
        .catch_rust_panic(|error| remember(database, error))
        .execute();
}

/// Takes the database's place in shared memory; false if another worker has it, or a session needs
/// the database without workers.
fn register(database: u32) -> bool {
    let withheld_by = shared::lock()
        .database(database)
        .map_or(0, |entry| entry.withheld_by);
    let withheld_by = if process::runs(withheld_by) {
        withheld_by
    } else {
        0
    };
    let mut state = shared::lock();
    let Some(entry) = state.database_or_new(database) else {
        return false;
    };
    if entry.worker_pid != 0 || (entry.withheld_by != 0 && entry.withheld_by == withheld_by) {
        return false;
    }
    entry.worker_pid = process::my_pid();
    entry.wanted = true;
    entry.ready = false;
    entry.creating_slot = false;
    entry.for_start_alone = false;
    entry.durable_lsn = 0;
    true
}

#[pg_guard]
unsafe extern "C-unwind" fn leave(_code: i32, argument: pg_sys::Datum) {
    let database = argument.value() as u32;
    let mut state = shared::lock();
    if let Some(entry) = state.database(database)
        && entry.worker_pid == process::my_pid()
    {
        entry.worker_pid = 0;
        entry.ready = false;
    }
    let launcher = state.launcher_pid;
    for lane in state
        .lanes
        .iter_mut()
        .filter(|lane| lane.owner_pid == process::my_pid())
    {
        lane.owner_pid = 0;
        if lane.worker_pid == 0 {
            lane.database = 0;
        }
    }
    drop(state);
    shared::wake(launcher);
}

/// Notes why the worker ends, for `start` and the views, and lets the error pass.
fn remember(database: u32, error: pg_sys::panic::CaughtError) {
    use pg_sys::panic::CaughtError;
    let (CaughtError::PostgresError(report)
    | CaughtError::ErrorReport(report)
    | CaughtError::RustPanic {
        ereport: report, ..
    }) = &error;
    let text = match report.hint() {
        Some(hint) => format!("{}. {hint}", report.message()),
        None => report.message().to_owned(),
    };
    let table = read_when_failed();
    if let Some(entry) = shared::lock().database(database) {
        entry.error.set(&text);
        if let Some(table) = table
            && let Some(place) = entry.unreadable.iter_mut().find(|place| **place == 0)
        {
            *place = table;
        }
    }
    error.rethrow();
}

/// Settings of a worker process, whatever the server, database or role settings are.
pub fn adopt_settings() {
    columns::fix_output_settings();
    for (name, value) in [
        (c"statement_timeout", c"0"),
        (c"lock_timeout", c"0"),
        (c"idle_in_transaction_session_timeout", c"0"),
        (c"transaction_timeout", c"0"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_read_only", c"off"),
        (c"row_security", c"off"),
        // What decoding holds of large transactions comes on top of max_memory.
        (c"logical_decoding_work_mem", c"16MB"),
        // A commit of this process must never wait for a standby.
        (c"synchronous_commit", c"local"),
        (c"jit", c"off"),
    ] {
        process::set_config(name, value);
    }
}

fn run(database: u32) {
    adopt_settings();
    allow_plugin_for_this_process();
    watch_invalidations();
    // SAFETY: reads the control file's copy in shared memory.
    let system = unsafe { pg_sys::GetSystemIdentifier() };
    let home = process::home();
    let starts = Starts::before_look(database);
    let first = catalog::look(system, database, &[]);
    let has_feeds = first.as_ref().is_some_and(|look| !look.feeds.is_empty());
    if !has_feeds && starts.none() {
        // The last feed may have gone while no worker ran.
        if Slot::exists(database) {
            let slot = Slot::acquire(database);
            match slot.is_ours() {
                true => slot.drop_slot(),
                false => slot.release(),
            }
        }
        if starts.forget_if_unwanted() {
            return;
        }
    }
    let usable = Slot::exists(database)
        .then(|| Slot::acquire(database))
        .and_then(Slot::usable);
    let mut first = first;
    if let Some(slot) = usable.as_ref().filter(|slot| slot.came_by_promotion()) {
        catalog::adopt_home(system, database, &home);
        slot.own();
        first = catalog::look(system, database, &[]);
    }
    let failover = first.is_some_and(|look| look.wants_failover(&home));
    let slot = usable.map(|slot| slot.set_failover(database, failover));
    let slot = slot.unwrap_or_else(|| {
        if has_feeds {
            log!("wal2delta: this database has no usable replication slot; tables are copied anew");
            catalog::begin_new_generation(system, database, &home);
        }
        let note = |creating| {
            if let Some(entry) = shared::lock().database(database) {
                entry.creating_slot = creating;
                entry.for_start_alone = creating && !has_feeds;
            }
        };
        note(true);
        let slot = Slot::create(database, failover);
        note(false);
        slot
    });
    let (decoder, start) = standing_point(Decoder::new(slot));
    let lake = Lake::start(
        LakeConfig {
            home: home.clone(),
            max_memory: settings::max_memory(),
            // A file is encoded in memory.
            target_file_bytes: settings::max_memory() / 2,
            staging_limit: settings::staging_limit(),
            upkeep: settings::upkeep(),
        },
        process::waker(),
    )
    .unwrap_or_else(|error| error!("could not start the writer threads: {error}"));
    let mut feeds = Feeds::new(system, database, home, lake, start);
    let launcher = {
        let mut state = shared::lock();
        if let Some(entry) = state.database(database) {
            feeds.unreadable.extend(
                std::mem::take(&mut entry.unreadable)
                    .iter()
                    .filter(|table| **table != 0),
            );
            entry.error.set("");
            entry.ready = true;
        }
        state.launcher_pid
    };
    // It may have more databases to look into.
    shared::wake(launcher);
    let mut worker = Worker {
        decoder,
        feeds,
        published: Published::default(),
        looked: None,
        confirmed: Instant::now(),
        warned_of_tables: false,
    };
    loop {
        match worker.feed() {
            End::NoFeeds => {
                worker.decoder.drop_slot();
                worker.feeds.lake.shutdown();
                return;
            }
            End::Redecode => worker = worker.again(),
        }
    }
}

/// The decoder, and where it stands.
fn standing_point(decoder: Decoder) -> (Decoder, StandingPoint) {
    let (decoder, existing) = existing(decoder);
    let start = StandingPoint {
        position: decoder.position(),
        reads_from: decoder.slot().restart(),
        existing,
    };
    (decoder, start)
}

/// Calls of `start` before a look at the catalog.
///
/// A look that finds no feed may be older than a feed: only when no transaction with a `start` was
/// open before it, and none has come since, may the worker leave. A transaction counts as open
/// until others can see what it wrote (xact.c: the callback comes after that).
struct Starts {
    database: u32,
    open: u32,
    count: u64,
}

impl Starts {
    fn before_look(database: u32) -> Starts {
        let mut state = shared::lock();
        let (open, count) = state
            .database(database)
            .map_or((0, 0), |entry| (entry.starters, entry.starts));
        Starts {
            database,
            open,
            count,
        }
    }

    /// Whether nothing wants a worker, after a look without feeds.
    fn none(&self) -> bool {
        self.open == 0
            && shared::lock()
                .database(self.database)
                .is_none_or(|entry| entry.starters == 0 && entry.starts == self.count)
    }

    /// After a look without feeds: gives the database's place up if nothing wants a worker.
    fn forget_if_unwanted(&self) -> bool {
        let mut state = shared::lock();
        let unwanted = self.open == 0
            && state
                .database(self.database)
                .is_none_or(|entry| entry.starters == 0 && entry.starts == self.count);
        if unwanted {
            state.forget_database(self.database);
        }
        unwanted
    }
}

struct Worker {
    decoder: Decoder,
    feeds: Feeds,
    published: Published,
    looked: Option<Instant>,
    confirmed: Instant,
    warned_of_tables: bool,
}

impl Worker {
    /// The same, decoding again from the slot.
    fn again(self) -> Worker {
        log!("wal2delta: decoding again from the slot");
        let slot = self.decoder.into_slot();
        let slot = slot.set_failover(self.feeds.database, self.feeds.wants_failover());
        let (decoder, start) = standing_point(Decoder::new(slot));
        let feeds = self.feeds.again(start);
        Worker {
            decoder,
            feeds,
            looked: None,
            ..self
        }
    }

    /// The main loop.
    fn feed(&mut self) -> End {
        loop {
            process::reload_configuration();
            self.feeds.lake.keep_up(settings::upkeep());
            while let Some(event) = self.feeds.lake.try_event() {
                self.feeds.handle(event);
            }
            if let Some(end) = self.look_if_due() {
                return end;
            }
            let at_end = self.feeds.look_wanted || {
                let at_end = self.decoder.run(&mut self.feeds, SLICE);
                self.feeds.position = self.decoder.position();
                at_end
            };
            self.feeds.tend_snapshots();
            self.feeds.tend_optimizations();
            self.feeds.retry();
            if self.feeds.redecode {
                self.settle();
                return End::Redecode;
            }
            let asked = self.flush_asked();
            let next_flush = self.feeds.flush_due(asked);
            self.confirm(asked.is_some() || self.flush_waits());
            if at_end {
                let pause = self.pause(asked.is_some());
                let until_flush = next_flush.map(|next| next.max(Duration::from_millis(1)));
                process::wait(pause.min(until_flush.unwrap_or(pause)));
            }
        }
    }

    /// Has everything pending committed, as far as that is quick: it would be decoded again.
    fn settle(&mut self) {
        self.feeds.flush_due(Some(u64::MAX));
        let begun = Instant::now();
        while self.feeds.writes() && begun.elapsed() < SETTLE_LIMIT {
            process::wait(Duration::from_millis(20));
            while let Some(event) = self.feeds.lake.try_event() {
                self.feeds.handle(event);
            }
        }
        self.decoder.slot().confirm(self.feeds.confirmable());
    }

    /// LSN that `flush` asks for, if it is not durable yet and decoding has got there.
    fn flush_asked(&self) -> Option<u64> {
        let asked = shared::lock()
            .database(self.feeds.database)
            .map_or(0, |entry| entry.flush_lsn);
        (asked > self.feeds.durable() && self.feeds.position >= asked).then_some(asked)
    }

    /// Whether a `flush` waits for something that is durable by now.
    fn flush_waits(&self) -> bool {
        let mut state = shared::lock();
        let waits = state
            .database(self.feeds.database)
            .is_some_and(|entry| entry.flush_lsn > entry.durable_lsn);
        drop(state);
        waits
    }

    /// Takes a look at the catalog if one is due and possible.
    fn look_if_due(&mut self) -> Option<End> {
        let interval = self.feeds.shortest_interval().max(LOOK_EVERY_AT_LEAST);
        let due = self.looked.is_none_or(|at| at.elapsed() >= interval);
        let asked = self
            .flush_asked()
            .is_some_and(|lsn| self.feeds.looked_at < lsn);
        if !(due || asked || self.feeds.look_wanted) || !self.feeds.all_visible() {
            return None;
        }
        self.feeds.record_refusals();
        let starts = Starts::before_look(self.feeds.database);
        let look = catalog::look(
            self.feeds.system,
            self.feeds.database,
            &self.feeds.schemas(),
        );
        self.looked = Some(Instant::now());
        let look = look.unwrap_or_else(Look::nothing);
        // Rows of feeds that the WAL has not shown yet keep the worker too.
        let none_left = look.feeds.is_empty();
        self.feeds.apply(look);
        if self.decoder.slot().is_failover() != self.feeds.wants_failover() {
            // The slot can be changed only while nobody decodes from it.
            self.feeds.redecode = true;
        }
        if none_left && self.feeds.finished() && starts.forget_if_unwanted() {
            return Some(End::NoFeeds);
        }
        None
    }

    /// Confirms to the slot what is durable, and updates the views.
    fn confirm(&mut self, now: bool) {
        if !now && self.confirmed.elapsed() < CONFIRM_EVERY {
            return;
        }
        self.confirmed = Instant::now();
        if self.looked.is_none() {
            return;
        }
        let slot = self.decoder.slot();
        self.feeds.assert_invariants(slot.confirmed());
        slot.confirm(self.feeds.confirmable());
        self.published.write(&self.feeds);
        if self.published.take_full() && !self.warned_of_tables {
            self.warned_of_tables = true;
            warning!(
                "wal2delta.tables cannot show all tables of this database; \
                 raise wal2delta.max_tables"
            );
        }
    }

    /// How long to wait at the end of the WAL.
    fn pause(&self, flush_asked: bool) -> Duration {
        match self.feeds.snapshot_wait() {
            Some(wait) => wait,
            None if self.feeds.look_wanted || flush_asked => SOON,
            // Sessions that write keep the processors busy: what they have written in a while is decoded at
            // once, rather than a transaction at a time.
            None if flush_position() > self.feeds.position => {
                (self.feeds.shortest_interval() / 20).clamp(SOON, IDLE)
            }
            None if self.feeds.writes() => Duration::from_millis(20),
            // New WAL is found in time for the interval.
            None => (self.feeds.shortest_interval() / 2).clamp(SOON, IDLE),
        }
    }
}
