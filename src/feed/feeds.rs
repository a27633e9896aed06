//! All feeds of the database and their tables: what a look at the catalog changes, what the writer
//! answers, when tables are flushed, and how far the slot may be confirmed.

use pgrx::prelude::*;
use std::collections::{HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::catalog::{CatalogTable, FeedRow, Look};
use super::snapshots::Lanes;
use super::table::{
    Failure, History, InFlight, Phase, Reason, Remedy, Snapshot, State, Stream, Table,
};
use crate::columns::{self, ColumnError};
use crate::decode::lsn_text;
use crate::lake::{
    Charged, Destination, Event, Found, Lake, LakeError, OpenTable, Progress, Retry, RowsCommit,
    Source, Target,
};
use crate::{process, settings};

/// How long a destination may take to say what it holds; decoding waits for it.
const SURVEY_LIMIT: Duration = Duration::from_secs(30);

/// `last_error` of a table that ended the worker.
const UNREADABLE: &str = "a row could not be read; see the server log. \
                          Change or delete the row: the table is copied anew every 5 minutes.";

/// One source schema and its destination.
pub struct Feed {
    /// As in the catalog.
    pub row: FeedRow,
    /// Where the history tables are.
    pub destination: Destination,
    /// What was there when the worker began with it, by table.
    pub found: HashMap<u32, Found>,
    /// Its destination could not be read.
    pub failed: Option<FeedFailure>,
    /// Its schema was dropped: it ends once decoding is here.
    gone_at: Option<u64>,
}

/// A destination that could not be read.
pub struct FeedFailure {
    /// Why.
    pub error: String,
    /// When to try again.
    pub retry_at: Instant,
    /// Where decoding stood when the feed began; the slot must not move past it.
    pub since: u64,
}

/// The feeds of one database.
pub struct Feeds {
    /// Cluster.
    pub system: u64,
    /// Database.
    pub database: u32,
    /// Writer threads.
    pub lake: Lake,
    /// Feeds by schema.
    pub feeds: HashMap<u32, Feed>,
    /// Their tables.
    pub tables: HashMap<u32, Table>,
    /// `wal2delta.feeds`; a change of it starts or stops a feed.
    pub feeds_relation: u32,
    /// A look shall be taken before decoding goes on.
    pub look_wanted: bool,
    /// Feeds whose rows the WAL has shown to come and to go, as schema and generation. The catalog
    /// of a look is ahead of decoding, so a row alone says too early that a feed starts or stops.
    pub started: HashSet<(u32, u64)>,
    /// See `started`.
    pub stopped: HashSet<(u32, u64)>,
    first_look: bool,
    /// Decoded commits that other sessions may not see yet.
    pub unseen: VecDeque<u32>,
    /// Tables that may have rows which are not in the WAL that is decoded: those that were there
    /// before it, and those that had changes while they were in no fed schema.
    pub not_whole: HashSet<u32>,
    /// Everything before this LSN is decoded.
    pub position: u64,
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
    /// Tables with rows that are whole only if the current transaction ends with FULL identity.
    pub unproven: Vec<u32>,
    /// Tables that left their feed while a last commit is under way.
    leaving: Vec<Table>,
    /// Pause and logged error of tables before decoding began again.
    failures: HashMap<u32, (Duration, Option<String>)>,
    tickets: u64,
    /// Probes under way, and the schema whose feed each is for.
    probes: HashMap<u64, u32>,
}

impl Feeds {
    /// No feeds yet; decoding stands at `position`, where the tables `existing` were there.
    pub fn new(
        system: u64,
        database: u32,
        lake: Lake,
        position: u64,
        existing: HashSet<u32>,
    ) -> Feeds {
        Feeds {
            system,
            database,
            lake,
            feeds: HashMap::new(),
            tables: HashMap::new(),
            feeds_relation: 0,
            look_wanted: true,
            started: HashSet::new(),
            stopped: HashSet::new(),
            first_look: true,
            unseen: VecDeque::new(),
            not_whole: existing,
            position,
            looked_at: 0,
            building: 0,
            unreadable: HashSet::new(),
            lanes: Lanes::new(database),
            redecode: false,
            unproven: Vec::new(),
            leaving: Vec::new(),
            failures: HashMap::new(),
            tickets: 0,
            probes: HashMap::new(),
        }
    }

    /// The same feeds, all to be taken up again from `position`. Pauses after failures go on.
    pub fn again(mut self, position: u64, existing: HashSet<u32>) -> Feeds {
        self.lanes.cancel_all();
        let failures: HashMap<u32, (Duration, Option<String>)> = self
            .tables
            .into_values()
            .map(|table| (table.oid, (table.pause, table.logged)))
            .collect();
        let lake = self.lake;
        let mut again = Feeds::new(self.system, self.database, lake, position, existing);
        again.tickets = self.tickets;
        again.failures = failures;
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

    /// Takes over what a look found.
    pub fn apply(&mut self, look: Look) {
        if self.feeds_relation != 0 && look.feeds_relation != self.feeds_relation {
            // The extension was dropped, perhaps created again: the rows of now are what counts.
            let ended: Vec<u32> = self.feeds.keys().copied().collect();
            self.end_feeds(ended);
            self.first_look = true;
        }
        self.feeds_relation = look.feeds_relation;
        self.look_wanted = false;
        self.looked_at = self.position;
        self.stop_missing(&look);
        self.note_gone(&look);
        for row in look.feeds {
            let shown = self.started.remove(&(row.namespace, row.generation));
            if (shown || self.first_look) && !self.feeds.contains_key(&row.namespace) {
                self.begin(row);
            }
        }
        self.first_look = false;
        for table in look.tables {
            self.apply_table(table, look.until);
        }
        self.copy_altered();
    }

    /// Copies tables whose columns were altered with no change of a row after it that would have
    /// shown it, once decoding has got to where a look saw it.
    fn copy_altered(&mut self) {
        let position = self.position;
        let due: Vec<(u32, bool)> = self
            .tables
            .values()
            .filter_map(|table| table.altered_at.map(|(lsn, copies)| (table, lsn, copies)))
            .filter(|(_, lsn, _)| position >= *lsn)
            .map(|(table, _, copies)| (table.oid, copies == table.copies))
            .collect();
        for (oid, unseen) in due {
            if let Some(table) = self.tables.get_mut(&oid) {
                table.altered_at = None;
                let streams = matches!(&table.state, State::Streaming(stream)
                    if stream.history.is_some() || stream.writer.is_some());
                if unseen && streams {
                    self.copy_again(oid, position, "its columns were altered");
                }
            }
        }
    }

    /// Ends the feeds whose rows the WAL has shown to go, and notes those whose schema is gone.
    fn stop_missing(&mut self, look: &Look) {
        for (namespace, feed) in &mut self.feeds {
            if look.gone.contains(namespace) {
                feed.gone_at.get_or_insert(look.until);
            }
        }
        let stopped = std::mem::take(&mut self.stopped);
        let ended: Vec<u32> = self
            .feeds
            .iter()
            .filter(|(namespace, feed)| {
                stopped.contains(&(**namespace, feed.row.generation))
                    || feed.gone_at.is_some_and(|lsn| self.position >= lsn)
            })
            .map(|(namespace, _)| *namespace)
            .collect();
        self.end_feeds(ended);
    }

    /// Ends feeds. What they have buffered is written.
    fn end_feeds(&mut self, namespaces: Vec<u32>) {
        for namespace in namespaces {
            self.forget_tables(|table| table.namespace == namespace);
            self.feeds.remove(&namespace);
        }
    }

    /// Notes tables that a look did not find. It is ahead of decoding, so they leave their feed
    /// only when decoding has got to where it was.
    fn note_gone(&mut self, look: &Look) {
        let present: HashSet<u32> = look.tables.iter().map(|table| table.oid).collect();
        for table in self.tables.values_mut() {
            match present.contains(&table.oid) {
                true => table.gone_at = None,
                false => drop(table.gone_at.get_or_insert(look.until)),
            }
        }
        let position = self.position;
        self.forget_tables(|table| table.gone_at.is_some_and(|lsn| position >= lsn));
    }

    /// Forgets tables after their last commit was asked for.
    fn forget_tables(&mut self, gone: impl Fn(&Table) -> bool) {
        let oids: Vec<u32> = self
            .tables
            .values()
            .filter(|table| gone(table))
            .map(|table| table.oid)
            .collect();
        for oid in oids {
            self.flush_table(oid);
            self.lanes.cancel(oid);
            // What changes from now on is not fed: another feed has to copy it.
            self.not_whole.insert(oid);
            let Some(table) = self.tables.remove(&oid) else {
                continue;
            };
            let source = self.source(oid);
            if let Some(feed) = self.feeds.get_mut(&table.namespace)
                && let Some(history) = table.history()
            {
                // Should it come back, its history is the one to replace.
                feed.found
                    .insert(oid, left(history, source, feed.row.generation));
            }
            if table.pin().is_some() && matches!(table.state, State::Streaming(_)) {
                self.leaving.push(table);
            }
        }
    }

    /// Begins a feed: reads what its destination has, waiting for the answer.
    fn begin(&mut self, row: FeedRow) {
        let namespace = row.namespace;
        // An earlier feed of the schema may still be writing its last commits.
        while self
            .leaving
            .iter()
            .any(|table| table.namespace == namespace)
        {
            while let Some(event) = self.lake.try_event() {
                self.handle(event);
            }
            process::wait(Duration::from_millis(20));
        }
        let parsed = Destination::parse(&row.destination);
        let (destination, result) = match parsed {
            Ok(destination) => {
                let result = self.survey_now(&destination);
                (destination, result)
            }
            Err(error) => {
                warning!("feed of schema with OID {namespace} cannot start: {error}");
                return;
            }
        };
        let mut feed = Feed {
            row,
            destination,
            found: HashMap::new(),
            failed: None,
            gone_at: None,
        };
        match result {
            Ok(found) => {
                feed.found = found
                    .into_iter()
                    .map(|found| (found.source.table, found))
                    .collect();
            }
            Err(error) => {
                log!("wal2delta: destination \"{}\": {error}", feed.destination);
                feed.failed = Some(FeedFailure {
                    error: error.with_remedy(),
                    retry_at: Instant::now() + Duration::from_secs(1),
                    since: self.position,
                });
            }
        }
        self.feeds.insert(namespace, feed);
    }

    /// Reads a destination and waits for the answer; other answers are handled meanwhile.
    fn survey_now(&mut self, destination: &Destination) -> Result<Vec<Found>, LakeError> {
        let request = self.ticket();
        self.lake
            .survey(request, destination, self.system, self.database);
        let asked = Instant::now();
        loop {
            while let Some(event) = self.lake.try_event() {
                match event {
                    Event::Surveyed {
                        request: answered,
                        result,
                    } if answered == request => {
                        return result;
                    }
                    event => self.handle(event),
                }
            }
            if asked.elapsed() > SURVEY_LIMIT {
                return Err(LakeError::transient(format!(
                    "destination \"{destination}\" did not answer within {} s",
                    SURVEY_LIMIT.as_secs()
                )));
            }
            process::wait(Duration::from_millis(50));
        }
    }

    /// Takes over what a look says of one relation.
    fn apply_table(&mut self, found: CatalogTable, until: u64) {
        let Some(feed) = self.feeds.get(&found.namespace) else {
            return;
        };
        let reason = reason(&found, feed);
        let failed = feed.failed.as_ref();
        let known = self.tables.contains_key(&found.oid);
        let skipped = reason.clone();
        let state = match (known, reason, failed) {
            (true, reason, _) => return self.apply_known(found, reason, until),
            // It may become FULL in the WAL that is still to be decoded.
            (false, Some(Reason::NotFull), None)
                if !found.rewritten && self.whole(found.oid, feed) =>
            {
                State::Streaming(Box::new(Stream::new(None, 0)))
            }
            (false, Some(reason), _) => State::Skipped(reason),
            (false, None, Some(failed)) => State::Failed(Failure {
                error: failed.error.clone(),
                remedy: Remedy::Redecode,
                history: None,
                since: Some(failed.since),
                pinned: true,
                needs_person: false,
                retry_at: failed.retry_at,
            }),
            (false, None, None) if self.unreadable.contains(&found.oid) => {
                let history = feed
                    .found
                    .get(&found.oid)
                    .and_then(|found| history(found).ok());
                State::Failed(Failure {
                    error: UNREADABLE.into(),
                    remedy: Remedy::Copy,
                    pinned: history.is_some(),
                    since: history.is_some().then_some(self.position),
                    history,
                    needs_person: true,
                    retry_at: Instant::now() + Duration::from_secs(300),
                })
            }
            (false, None, None) => self.resume(found.oid, found.rewritten, feed),
        };
        let mut table = Table::new(found.oid, found.namespace, found.name, state);
        table.shown.skipped = skipped;
        table.shown.columns = found.columns;
        if let Some((pause, logged)) = self.failures.remove(&found.oid) {
            (table.pause, table.logged) = (pause, logged);
        }
        self.tables.insert(found.oid, table);
    }

    /// A table that the worker knows, seen again.
    fn apply_known(&mut self, found: CatalogTable, reason: Option<Reason>, until: u64) {
        let position = self.position;
        let Some(table) = self.tables.get_mut(&found.oid) else {
            return;
        };
        let building = table.building();
        table.name = found.name;
        table.namespace = found.namespace;
        table.shown.skipped = reason.clone();
        if !table.shown.columns.is_empty() && table.shown.columns != found.columns {
            table.altered_at = Some((until, table.copies));
        }
        table.shown.columns = found.columns;
        match (&mut table.state, reason) {
            (State::Skipped(current), Some(reason)) => *current = reason,
            (State::Skipped(_), None) => table.state = Table::queued(None, position, false),
            // One with a history waits until it can be copied over it.
            (State::Snapshot(snapshot), Some(reason))
                if snapshot.history.is_none() && snapshot.opening.is_none() =>
            {
                table.state = State::Skipped(reason);
                self.lanes.cancel(found.oid);
                self.building = self.building.saturating_sub(building);
            }
            _ => {}
        }
        if let State::Snapshot(snapshot) = &mut table.state
            && snapshot.history.is_none()
            && let Some(feed) = self.feeds.get(&table.namespace)
        {
            snapshot.history = feed
                .found
                .get(&found.oid)
                .and_then(|found| history(found).ok());
        }
    }

    /// Whether every change of a table is in the WAL that is decoded.
    fn whole(&self, table: u32, feed: &Feed) -> bool {
        !feed.found.contains_key(&table) && !self.not_whole.contains(&table)
    }

    /// The state in which a table takes part: it goes on where its history ends, it is whole in the
    /// WAL, or it is copied.
    pub fn resume(&self, table: u32, rewritten: bool, feed: &Feed) -> State {
        // Storage that was replaced may have had rows which WAL does not show.
        if self.whole(table, feed) && !rewritten {
            return State::Streaming(Box::new(Stream::new(None, 0)));
        }
        let Some(history_found) = feed.found.get(&table) else {
            return Table::queued(None, self.position, false);
        };
        let history = match history(history_found) {
            Ok(history) => Some(history),
            Err(error) => {
                return State::Failed(Failure {
                    error,
                    remedy: Remedy::Redecode,
                    history: None,
                    since: Some(self.position),
                    pinned: true,
                    needs_person: true,
                    retry_at: Instant::now() + Duration::from_secs(300),
                });
            }
        };
        if history_found.gap {
            return Table::queued(history, self.position, false);
        }
        match &history_found.progress {
            Some(progress) if progress.generation == feed.row.generation || feed.row.continues => {
                State::Streaming(Box::new(Stream::new(history, progress.lsn)))
            }
            _ => Table::queued(history, self.position, false),
        }
    }

    /// Handles one answer of the writer threads.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Opened { table, folder, .. } => {
                if let Some(table) = self.tables.get_mut(&table) {
                    table.opened(folder);
                }
            }
            Event::Committed {
                table,
                ticket,
                rows,
                ..
            } => self.committed(table, ticket, rows),
            Event::Failed { table, error } => self.writer_failed(table, error),
            Event::Probed { request, result } => self.probed(request, result),
            Event::Upkeep { table, error } => {
                log!("wal2delta: upkeep of the history of table with OID {table}: {error}");
            }
            // Surveys are waited for where they are asked for; only snapshot workers stage files.
            Event::Surveyed { .. } | Event::Staged { .. } => {}
        }
    }

    fn committed(&mut self, oid: u32, ticket: u64, rows: u64) {
        let leaving = self.leaving.iter_mut().find(|table| table.oid == oid);
        let Some(table) = self.tables.get_mut(&oid).or(leaving) else {
            return;
        };
        if let State::Snapshot(snapshot) = &mut table.state
            && snapshot.marking == Some(ticket)
        {
            // The history itself says now that it has to be replaced.
            snapshot.marking = None;
            snapshot.pinned = false;
        }
        let State::Streaming(stream) = &mut table.state else {
            return;
        };
        if stream
            .in_flight
            .front()
            .is_some_and(|commit| commit.ticket == ticket)
        {
            stream.in_flight.pop_front();
            table.pause = Duration::ZERO;
            if table.logged.take().is_some() {
                log!("wal2delta: table \"{}\" is written again", table.name);
            }
            table.shown.rows_written += rows;
            // SAFETY: reads the clock.
            table.shown.last_write = unsafe { pgrx::pg_sys::GetCurrentTimestamp() };
        }
        self.leaving.retain(|table| table.pin().is_some());
    }

    fn writer_failed(&mut self, oid: u32, error: LakeError) {
        if !self.tables.contains_key(&oid)
            && let Some(index) = self.leaving.iter().position(|table| table.oid == oid)
        {
            let table = self.leaving.swap_remove(index);
            log!(
                "wal2delta: last commit of table \"{}\" failed: {error}",
                table.name
            );
            return;
        }

        let needs_person = error.kind().retry() == Retry::Never;
        self.fail(oid, error.with_remedy(), needs_person);
    }

    /// Moves a table to FAILED and says so in the log, once per failure of another kind.
    pub fn fail(&mut self, oid: u32, error: String, needs_person: bool) {
        let position = self.position;
        self.lanes.cancel(oid);
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        self.building = self.building.saturating_sub(table.building());
        let remedy = match &table.state {
            State::Failed(failure) => failure.remedy,
            State::Streaming(stream) if stream.joins_snapshot() => Remedy::Copy,
            // Nothing was ever written of it, and nothing can be before a person helps.
            State::Streaming(stream) if stream.history.is_none() && needs_person => Remedy::Copy,
            State::Streaming(_) => Remedy::Redecode,
            _ => Remedy::Copy,
        };
        if table.logged.as_ref() != Some(&error) {
            log!("wal2delta: table \"{}\" failed: {error}", table.name);
            table.logged = Some(error.clone());
        }
        table.fail(error, remedy, needs_person, position);
    }

    /// The answer to a probe that a retry asked for.
    fn probed(&mut self, request: u64, result: Result<(), LakeError>) {
        let Some(namespace) = self.probes.remove(&request) else {
            return;
        };
        match result {
            // Its tables can be written again and go on from the slot.
            Ok(()) => self.redecode = true,
            Err(error) => {
                let now = Instant::now();
                for table in self
                    .tables
                    .values_mut()
                    .filter(|table| table.namespace == namespace)
                {
                    let position = self.position;
                    let due = matches!(&table.state, State::Failed(failure)
                        if failure.retry_at <= now && failure.remedy == Remedy::Redecode);
                    if due {
                        table.fail(error.with_remedy(), Remedy::Redecode, false, position);
                    }
                }
                if let Some(failed) = self
                    .feeds
                    .get_mut(&namespace)
                    .and_then(|feed| feed.failed.as_mut())
                {
                    failed.error = error.with_remedy();
                    failed.retry_at = now + Duration::from_secs(5);
                }
            }
        }
    }

    /// Tries failed tables again whose pause is over.
    pub fn retry(&mut self) {
        let now = Instant::now();
        let mut ask: HashMap<u32, Vec<String>> = HashMap::new();
        for table in self.tables.values_mut() {
            let State::Failed(failure) = &mut table.state else {
                continue;
            };
            if failure.retry_at > now {
                continue;
            }
            match failure.remedy {
                Remedy::Copy => {
                    let since = failure.since.unwrap_or(self.position);
                    let (history, pinned) = (failure.history.take(), failure.pinned);
                    table.state = Table::queued(history, since, pinned);
                }
                Remedy::Redecode => {
                    let folders = ask.entry(table.namespace).or_default();
                    folders.extend(
                        failure
                            .history
                            .as_ref()
                            .map(|history| history.folder.clone()),
                    );
                }
            }
        }
        for feed in self.feeds.values() {
            if feed
                .failed
                .as_ref()
                .is_some_and(|failed| failed.retry_at <= now)
            {
                ask.entry(feed.row.namespace).or_default();
            }
        }
        for (namespace, folders) in ask {
            if self.probes.values().any(|asked| *asked == namespace) {
                continue;
            }
            let request = self.ticket();
            if let Some(feed) = self.feeds.get(&namespace) {
                self.lake.probe(request, &feed.destination, folders);
                self.probes.insert(request, namespace);
            }
        }
    }

    /// Hands what a table's builders hold to its writer; with `spill`, to be written to a file
    /// now rather than with the next commit.
    pub fn seal(&mut self, oid: u32, spill: bool) {
        let source = self.source(oid);
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        self.building = self.building.saturating_sub(table.building());
        let Some(feed) = self.feeds.get(&table.namespace) else {
            return;
        };
        let result = seal(table, feed, source, &self.lake);
        if let State::Streaming(stream) = &table.state
            && spill
            && let Some(writer) = &stream.writer
        {
            writer.spill();
        }
        if let Err(error) = result {
            self.fail(oid, error.to_string(), true);
        }
    }

    /// Asks for a commit of everything a table has pending.
    pub fn flush_table(&mut self, oid: u32) {
        self.seal(oid, false);
        let ticket = self.ticket();
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        let State::Streaming(stream) = &mut table.state else {
            return;
        };
        if let (Some(pending), Some(writer)) = (stream.pending.take(), &stream.writer) {
            writer.commit(
                ticket,
                RowsCommit {
                    lsn: pending.last_end,
                    sort_by: stream.sort_by,
                },
            );
            stream.in_flight.push_back(InFlight {
                ticket,
                first: pending.first,
                snapshot: false,
            });
        }
    }

    /// Asks for commits of the tables whose interval is over, and of those with changes from before
    /// the LSN that `flush` asks for.
    pub fn flush_due(&mut self, asked: Option<u64>) {
        let now = Instant::now();
        let due: Vec<u32> = self
            .tables
            .values()
            .filter(|table| match &table.state {
                State::Streaming(stream) => stream.pending.is_some_and(|pending| {
                    asked.is_some_and(|lsn| pending.first < lsn)
                        || now >= pending.came + self.interval(table)
                }),
                _ => false,
            })
            .map(|table| table.oid)
            .collect();
        for oid in due {
            self.flush_table(oid);
        }
    }

    fn interval(&self, table: &Table) -> Duration {
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
            .chain(self.failed_since())
            .fold(self.position, u64::min)
    }

    /// Where the feeds began whose destination cannot be read.
    fn failed_since(&self) -> impl Iterator<Item = u64> {
        self.feeds
            .values()
            .filter_map(|feed| feed.failed.as_ref().map(|failed| failed.since))
    }

    /// The LSN before which everything is in Delta: what `flush` waits for. Tables that only a
    /// person can mend are left out.
    pub fn durable(&self) -> u64 {
        let tables = self.tables.values().filter_map(Table::behind);
        tables
            .chain(self.failed_since())
            .fold(self.looked_at, u64::min)
    }

    /// Whether no feed is left and nothing is still being written.
    pub fn finished(&self) -> bool {
        self.feeds.is_empty() && self.leaving.is_empty()
    }

    /// Whether commits are under way.
    pub fn writes(&self) -> bool {
        self.tables.values().chain(&self.leaving).any(|table| {
            matches!(&table.state, State::Streaming(stream) if !stream.in_flight.is_empty())
        })
    }

    /// Has a table copied (again). `seen_at`: commit record that made it necessary.
    pub fn copy_again(&mut self, oid: u32, seen_at: u64, why: &str) {
        let whole = matches!(self.tables.get(&oid).map(|table| &table.state),
            Some(State::Streaming(stream))
                if stream.pending.is_some_and(|pending| pending.last_end <= seen_at));
        if whole {
            // Earlier transactions still go out as they were; only rows of the one that brought the
            // change, if it has any, are given up.
            self.flush_table(oid);
        }
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        table.copies += 1;
        self.building = self.building.saturating_sub(table.building());
        let first = table.pin().unwrap_or(seen_at).min(seen_at);
        match &mut table.state {
            State::Streaming(stream) => {
                if let Some(writer) = &stream.writer {
                    writer.discard();
                }
                let mut history = stream.history.take();
                if let Some(history) = &mut history {
                    history.sort_by = history.sort_by.max(stream.sort_by);
                }
                debug1!(
                    "wal2delta: table \"{}\" at {}: {why}",
                    table.name,
                    lsn_text(seen_at)
                );
                // A history that is just being made must be known before it can be replaced.
                let opening = match (&history, &stream.writer, stream.schema.take()) {
                    (None, Some(_), Some(schema)) => Some((schema, stream.sort_by)),
                    _ => None,
                };
                let pinned = history.is_some() || opening.is_some();
                table.state = State::Snapshot(Box::new(Snapshot {
                    history,
                    opening,
                    writer: stream.writer.take(),
                    marking: None,
                    since: first,
                    pinned,
                    phase: Phase::Queued,
                }));
            }
            State::Snapshot(snapshot) => {
                // The copy may have been taken before the change; it starts anew.
                if let Phase::Copying(copying) = &mut snapshot.phase
                    && let Some((writer, _)) = copying.spilled.take()
                {
                    writer.discard();
                    snapshot.writer = Some(writer);
                }
                snapshot.phase = Phase::Queued;
                self.lanes.cancel(oid);
            }
            State::Skipped(_) | State::Failed(_) => {}
        }
    }
}

/// The history that a survey found, or why its columns could not be read.
fn history(found: &Found) -> Result<History, String> {
    let schema = found.schema.as_ref().map_err(ToString::to_string)?.clone();
    let sort_by = found
        .progress
        .as_ref()
        .map_or(i64::MIN, |progress| progress.sort_by);
    Ok(History {
        folder: found.folder.clone(),
        schema,
        sort_by,
    })
}

/// The history of a table that has left its feed: what changes from now on is missing in it.
fn left(history: History, source: Source, generation: u64) -> Found {
    Found {
        folder: history.folder,
        source,
        version: 0,
        schema: Ok(history.schema),
        progress: Some(Progress {
            generation,
            lsn: 0,
            sort_by: history.sort_by,
        }),
        gap: true,
    }
}

/// Why a relation takes no part; `None`: it does.
fn reason(found: &CatalogTable, feed: &Feed) -> Option<Reason> {
    if feed.row.options.exclude.contains(&found.name) {
        return Some(Reason::Excluded);
    }
    match found.kind {
        'r' if !found.permanent => Some(Reason::Unlogged),
        'r' if !found.identity_full => Some(Reason::NotFull),
        'r' => None,
        'p' => Some(Reason::Kind("partitioned table")),
        'f' => Some(Reason::Kind("foreign table")),
        'm' => Some(Reason::Kind("materialized view")),
        _ => Some(Reason::Kind("not a table")),
    }
}

/// Seals what the table's builders hold and hands it to the writer, which is opened on first use.
fn seal(table: &mut Table, feed: &Feed, source: Source, lake: &Lake) -> Result<(), ColumnError> {
    let State::Streaming(stream) = &mut table.state else {
        return Ok(());
    };
    let Some(buffer) = stream.buffer.as_mut().filter(|buffer| !buffer.is_empty()) else {
        return Ok(());
    };
    let schema = stream.schema.get_or_insert_with(|| buffer.schema().clone());
    let held = buffer.take(lake.budget());
    let batch = columns::seal(schema, held.value, &mut stream.sort_by)?;
    let writer = stream.writer.get_or_insert_with(|| {
        lake.open(OpenTable {
            table: table.oid,
            source,
            generation: feed.row.generation,
            destination: feed.destination.clone(),
            target: match &stream.history {
                Some(history) => Target::Existing {
                    folder: history.folder.clone(),
                },
                None => Target::New {
                    table_name: table.name.clone(),
                },
            },
            schema: schema.clone(),
        })
    });
    writer.write(Charged {
        value: batch,
        charge: held.charge,
    });
    Ok(())
}
