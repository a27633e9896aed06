//! The feeds of the database and their tables, and how far the slot may be confirmed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::catalog::{FeedRow, Resync};
use super::commits::Searches;
use super::lanes::Lanes;
use super::options::SchemaChange;
use super::own_wal::Refusal;
use super::registration::Registrars;
use super::table::{State, Table};
use crate::decode::{Existing, Roots};
use crate::lake::{Destination, Found, Lake, Source};
use crate::settings;

/// One source schema and its destination.
pub struct Feed {
    /// As in the catalog.
    pub row: FeedRow,
    /// Where the history tables are.
    pub destination: Destination,
    /// What was there when the worker began with it, by table.
    pub found: HashMap<u32, Found>,
    /// Why it takes no changes; `None`: it does.
    pub halt: Option<Halt>,
    /// Its schema was dropped: it ends once decoding is here.
    pub gone_at: Option<u64>,
}

impl Feed {
    /// Whether histories are kept when columns change.
    pub fn evolves(&self) -> bool {
        self.row.options.on_schema_change == SchemaChange::Evolve
    }
}

/// Why a feed takes no changes. `since`: where decoding stood then; the slot must not move past it.
pub enum Halt {
    /// `wal2delta.pause` was called.
    Paused {
        /// See above.
        since: u64,
    },
    /// Its destination could not be read.
    Unreachable {
        /// Why.
        error: String,
        /// When to try again.
        retry_at: Instant,
        /// See above.
        since: u64,
    },
    /// It was started in another data directory, of which this one is a copy.
    Copied,
}

impl Halt {
    /// The LSN that the slot must not pass.
    pub fn since(&self) -> Option<u64> {
        match self {
            Halt::Paused { since } | Halt::Unreachable { since, .. } => Some(*since),
            Halt::Copied => None,
        }
    }
}

/// `last_error` of the tables of a feed that is another server's.
pub const COPIED: &str = "this server is a copy of the one that the feed was started on, \
    which may still be writing to these history tables. \
    If it does not run any more, stop the feed and start it with option {\"snapshot\": true}.";

/// Where decoding begins.
pub struct StandingPoint {
    /// Everything before this LSN is decoded, or was never asked for.
    pub position: u64,
    /// The WAL is read from here on.
    pub reads_from: u64,
    /// What was there.
    pub existing: Existing,
}

/// The feeds of one database.
pub struct Feeds {
    /// Cluster.
    pub system: u64,
    /// Database.
    pub database: u32,
    /// Identity of the data directory.
    pub home: String,
    /// Writer threads.
    pub lake: Lake,
    /// Feeds by schema.
    pub feeds: HashMap<u32, Feed>,
    /// Their tables.
    pub tables: FxHashMap<u32, Table>,
    /// `wal2delta.feeds`; a change of it starts or stops a feed.
    pub feeds_relation: u32,
    /// `wal2delta.resyncs`; a change of it asks for a new snapshot of a table.
    pub resyncs_relation: u32,
    /// Its content, by the last look.
    pub resyncs: HashMap<u32, Resync>,
    /// A look shall be taken before decoding goes on.
    pub look_wanted: bool,
    /// Feeds whose rows the WAL has shown to come and to go, as schema and generation. The catalog
    /// of a look is ahead of decoding, so a row alone says too early that a feed starts or stops.
    pub started: HashSet<(u32, u64)>,
    /// See `started`.
    pub stopped: HashSet<(u32, u64)>,
    /// Schemas whose feeds the WAL has shown to be altered, likewise.
    pub altered: HashSet<u32>,
    /// No look has been taken yet.
    pub first_look: bool,
    /// Decoded commits that other sessions may not see yet.
    pub unseen: VecDeque<u32>,
    /// Tables that may have rows which are not in the WAL that is decoded: those that were there
    /// before it, and those that had changes while they were in no fed schema.
    pub not_whole: HashSet<u32>,
    /// Partitions, where decoding is.
    pub roots: Roots,
    /// Tables that had changes while they were in no fed schema, by which their histories have a gap.
    pub missed: HashSet<u32>,
    /// Everything before this LSN is decoded.
    pub position: u64,
    /// End and checksum of the last WAL record that was read; at first where reading begins.
    pub last_record: (u64, u32),
    /// A history must be looked at when a record that ends here, or later, is read.
    pub next_check: u64,
    /// Tables that were refused, to be recorded.
    pub refused: Vec<Refusal>,
    /// Tables that had their first row in the current transaction.
    pub fresh: Vec<u32>,
    /// First commit since the last search for new tables that may have created one.
    pub created_since: Option<u64>,
    /// What such searches cost.
    pub searches: Searches,
    /// Where decoding stood at the last look.
    pub looked_at: u64,
    /// Memory in all builders.
    pub building: usize,
    /// Tables with a row that an earlier worker could not read.
    pub unreadable: HashSet<u32>,
    /// Snapshot workers.
    pub lanes: Lanes,
    /// A failed table can be written again; the worker shall decode again from the slot.
    pub redecode: bool,
    /// Transaction and table of the last row that was seen to be rewritten.
    pub rewriting: Option<(u32, u32)>,
    /// Tables with rows that are whole only if the current transaction ends with FULL identity, and
    /// where each such row is: in a partition, or in the table itself.
    pub unproven: Vec<(u32, u32)>,
    /// Tables that left their feed while a last commit is under way.
    pub leaving: Vec<Table>,
    /// Pause and logged error of tables before decoding began again.
    pub failures: HashMap<u32, (Duration, Option<String>)>,
    /// Numbers given to commits and requests so far.
    pub tickets: u64,
    /// Probes under way, and the schema whose feed each is for.
    pub probes: HashMap<u64, u32>,
    /// Catalogs that feeds' tables are registered in.
    pub registrars: Registrars,
}

impl Feeds {
    /// No feeds yet; decoding stands where `start` says.
    pub fn new(
        system: u64,
        database: u32,
        home: String,
        lake: Lake,
        start: StandingPoint,
    ) -> Feeds {
        Feeds {
            system,
            database,
            home,
            lake,
            feeds: HashMap::new(),
            tables: FxHashMap::default(),
            feeds_relation: 0,
            resyncs_relation: 0,
            resyncs: HashMap::new(),
            look_wanted: true,
            started: HashSet::new(),
            stopped: HashSet::new(),
            altered: HashSet::new(),
            first_look: true,
            unseen: VecDeque::new(),
            not_whole: start.existing.tables,
            roots: start.existing.roots,
            missed: HashSet::new(),
            position: start.position,
            last_record: (start.reads_from, 0),
            next_check: u64::MAX,
            refused: Vec::new(),
            looked_at: 0,
            building: 0,
            unreadable: HashSet::new(),
            lanes: Lanes::new(database),
            redecode: false,
            rewriting: None,
            unproven: Vec::new(),
            leaving: Vec::new(),
            failures: HashMap::new(),
            tickets: 0,
            fresh: Vec::new(),
            created_since: None,
            searches: Searches::new(),
            probes: HashMap::new(),
            registrars: HashMap::new(),
        }
    }

    /// The same feeds, all to be taken up again from `start`. Pauses after failures go on.
    pub fn again(mut self, start: StandingPoint) -> Feeds {
        self.lanes.cancel_all();
        let failures: HashMap<u32, (Duration, Option<String>)> = self
            .tables
            .into_values()
            .map(|table| (table.oid, (table.pause, table.logged)))
            .collect();
        let lake = self.lake;
        let mut again = Feeds::new(self.system, self.database, self.home, lake, start);
        again.refused = self.refused;
        again.tickets = self.tickets;
        again.failures = failures;
        again.registrars = self.registrars;
        again
    }

    /// A number for the next commit.
    pub fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    /// Whether every commit that was decoded can be seen by SQL.
    ///
    /// A commit is in the WAL before its transaction leaves the list of running ones (procarray.c),
    /// and decoding can be faster. Only when this holds is the catalog, or a new snapshot, at least
    /// as far as the decoded changes.
    pub fn all_visible(&mut self) -> bool {
        // SAFETY: reads the shared list of running transactions under its lock.
        self.unseen.retain(|xid| unsafe {
            pgrx::pg_sys::TransactionIdIsInProgress(pgrx::pg_sys::TransactionId::from(*xid))
        });
        self.unseen.is_empty()
    }

    pub fn interval(&self, table: &Table) -> Duration {
        self.feeds
            .get(&table.namespace)
            .and_then(|feed| feed.row.options.flush_interval)
            .unwrap_or_else(settings::flush_interval)
    }

    /// Identity of a source table.
    pub fn source(&self, table: u32) -> Source {
        Source {
            system: self.system,
            database: self.database,
            table,
        }
    }

    /// Schemas that are fed.
    pub fn schemas(&self) -> Vec<u32> {
        self.feeds.keys().copied().collect()
    }

    /// Whether a feed asks for a slot that standbys keep.
    pub fn wants_failover(&self) -> bool {
        let own = |feed: &&Feed| !matches!(feed.halt, Some(Halt::Copied));
        let mut feeds = self.feeds.values().filter(own);
        feeds.any(|feed| feed.row.options.failover)
    }

    /// The shortest flush interval of all feeds.
    pub fn shortest_interval(&self) -> Duration {
        self.feeds
            .values()
            .filter_map(|feed| feed.row.options.flush_interval)
            .chain([settings::flush_interval()])
            .min()
            .unwrap_or(Duration::from_secs(15))
    }

    /// The LSN up to which the slot may be confirmed.
    pub fn confirmable(&self) -> u64 {
        let tables = self
            .tables
            .values()
            .chain(&self.leaving)
            .filter_map(Table::pin);
        tables
            .chain(self.halts().filter_map(Halt::since))
            .chain(self.created_since)
            .chain(self.refused.iter().map(|refusal| refusal.pin))
            .fold(self.position, u64::min)
    }

    fn halts(&self) -> impl Iterator<Item = &Halt> {
        self.feeds.values().filter_map(|feed| feed.halt.as_ref())
    }

    /// The LSN before which everything is in Delta: what `flush` waits for. Paused feeds and tables
    /// that only a person can mend are left out.
    pub fn durable(&self) -> u64 {
        let tables = self.tables.values().chain(&self.leaving);
        let tables = tables.filter_map(Table::behind);
        let unreachable = self.halts().filter_map(|halt| match halt {
            Halt::Unreachable { since, .. } => Some(*since),
            Halt::Paused { .. } | Halt::Copied => None,
        });
        tables.chain(unreachable).fold(self.looked_at, u64::min)
    }

    /// Which life of a table's rows is written.
    pub fn generation(&self, table: u32, feed: &Feed) -> u64 {
        let resync = self.resyncs.get(&table);
        let asked = resync.map_or(0, |resync| resync.generation);
        feed.row.generation.max(asked)
    }

    /// What must hold whenever the slot is confirmed; `confirmed`: where it stands.
    ///
    /// # Panics
    /// In builds with debug assertions, if it does not.
    pub fn assert_invariants(&self, confirmed: u64) {
        if !cfg!(debug_assertions) {
            return;
        }
        let building: usize = self.tables.values().map(Table::building).sum();
        assert_eq!(building, self.building, "memory in builders");
        for table in self.tables.values().chain(&self.leaving) {
            // 0: the first copy of a table, of which the WAL shows nothing.
            if let Some(pin) = table.pin().filter(|pin| *pin > 0) {
                assert!(
                    (confirmed..=self.position).contains(&pin),
                    "\"{}\" needs WAL from {pin:X}, confirmed is {confirmed:X}, decoded {:X}",
                    table.name,
                    self.position
                );
            }
            if let State::Streaming(stream) = &table.state {
                let firsts = stream.in_flight.iter().map(|commit| commit.first);
                let pending = stream.pending.iter().map(|pending| pending.first);
                assert!(
                    firsts.chain(pending).is_sorted(),
                    "\"{}\": commits out of order",
                    table.name
                );
                let written = stream.history.as_ref().map(|history| history.sort_by);
                assert!(
                    written.is_none_or(|written| written <= stream.sort_by),
                    "\"{}\": _sort_by goes back",
                    table.name
                );
            }
        }
    }

    /// Whether no feed is left and nothing is still being written.
    pub fn finished(&self) -> bool {
        self.feeds.is_empty() && self.leaving.is_empty()
    }

    /// With the last commit of the last feed the slot can go; the look that finds that is due now.
    pub fn look_after_the_last(&mut self) {
        self.look_wanted |= self.finished();
    }

    /// Whether commits are under way.
    pub fn writes(&self) -> bool {
        self.tables.values().chain(&self.leaving).any(Table::writes)
    }
}
