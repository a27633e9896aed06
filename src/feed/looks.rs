//! What a look at the catalog changes: feeds that start, pause and stop, tables that come, change
//! and go.

use pgrx::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::catalog::{CatalogTable, FeedRow, Look};
use super::feeds::{COPIED, Feed, Feeds, Halt};
use super::reason::Reason;
use super::resume::history;
use super::table::{Failure, History, Paused, Remedy, State, Stream, Table};
use crate::lake::{Destination, Event, Found, LakeError, Progress, Retry, Source, Writer};
use crate::process;

/// How long a folder may take to say what it holds; decoding waits for it.
const SURVEY_LIMIT: Duration = Duration::from_secs(30);
/// The same of an object store: a slow one that answers gets there. One that does not answer is an
/// error of its own, and sooner.
const STORE_SURVEY_LIMIT: Duration = Duration::from_secs(180);

/// `last_error` of a table that ended the worker.
const UNREADABLE: &str = "a row could not be read; see the server log. \
                          Change or delete the row: the table is copied anew every 5 minutes.";

impl Feeds {
    /// Takes over what a look found.
    pub fn apply(&mut self, look: Look) {
        if self.feeds_relation != 0 && look.feeds_relation != self.feeds_relation {
            // The extension was dropped, perhaps created again: the rows of now are what counts.
            let ended: Vec<u32> = self.feeds.keys().copied().collect();
            self.end_feeds(ended);
            self.first_look = true;
        }
        self.feeds_relation = look.feeds_relation;
        self.resyncs_relation = look.resyncs_relation;
        self.look_wanted = false;
        let looked_before = std::mem::replace(&mut self.looked_at, self.position);
        // However long nothing else is committed, the slot moves on.
        self.created_since = None;
        self.stop_missing(&look);
        self.note_gone(&look);
        for row in look.feeds {
            let shown = self.started.remove(&(row.namespace, row.generation));
            match self.feeds.get(&row.namespace) {
                Some(feed) if feed.row.generation == row.generation => self.adopt_row(row),
                Some(_) => {}
                None if shown || self.first_look => self.begin(row),
                None => {}
            }
        }
        self.first_look = false;
        if !self.redecode {
            self.apply_resyncs(look.resyncs);
        }
        for table in look.tables {
            self.apply_table(table, look.until);
        }
        self.compare_columns();
        self.follow_altered();
        if self.tables.values().any(|table| table.altered.is_some()) {
            // Whether one has to be copied is known once decoding is where the look was: until then
            // this was no look that `flush` could go by.
            self.looked_at = looked_before;
        }
    }

    /// Takes over what was changed of a feed that goes on.
    fn adopt_row(&mut self, mut row: FeedRow) {
        let (namespace, position) = (row.namespace, self.position);
        let shown = self.altered.remove(&namespace);
        let Some(feed) = self.feeds.get_mut(&namespace) else {
            return;
        };
        if !shown {
            // The look is ahead of decoding: tables take part up to where they were excluded.
            row.options.exclude = feed.row.options.exclude.clone();
        }
        let pauses = row.paused && !feed.row.paused;
        let resumes = feed.row.paused && !row.paused;
        let access = row.access.clone();
        // Where it was reached last is what another place is told from.
        let elsewhere = !access.same_place(&feed.row.access);
        if access.is_refused() {
            row.access = feed.row.access.clone();
        }
        feed.row = row.clone();
        let destination = feed.destination.clone();
        // Another endpoint may be another store: what it holds has to be read first.
        let renewed = !elsewhere && feed.destination.renew(access);
        let evolves = feed.evolves();
        let tables = self.tables.values_mut();
        for table in tables.filter(|table| table.namespace == namespace) {
            table.compare |= table.evolves != evolves;
            table.evolves = evolves;
        }
        self.redecode |= elsewhere;
        if !elsewhere {
            self.adopt_catalog(&row, &destination);
        }
        if renewed {
            self.retry_now(namespace);
        }
        let Some(feed) = self.feeds.get_mut(&namespace) else {
            return;
        };
        if pauses && !matches!(feed.halt, Some(Halt::Copied)) {
            let since = feed.halt.as_ref().and_then(Halt::since);
            feed.halt = Some(Halt::Paused {
                since: since.unwrap_or(position),
            });
            self.pause_tables(namespace);
        } else if resumes {
            // What has changed meanwhile is still in the WAL, from the slot on.
            self.redecode = true;
        }
    }

    /// Commits what the tables of a feed have, and takes no more of them.
    fn pause_tables(&mut self, namespace: u32) {
        let tables = self.tables.values();
        let oids: Vec<u32> = tables
            .filter(|table| table.namespace == namespace)
            .map(|table| table.oid)
            .collect();
        for oid in oids {
            self.flush_table(oid);
            self.lanes.cancel(oid);
            if let Some(table) = self.tables.get_mut(&oid) {
                self.building = self.building.saturating_sub(table.building());
                table.pause();
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
            self.forget_tables(false, |table| table.namespace == namespace);
            // What could not be written yet has nobody who would try it again.
            self.leaving
                .retain(|table| table.namespace != namespace || table.unfinished(false));
            self.feeds.remove(&namespace);
            self.registrars.retain(|(of, _), _| *of != namespace);
        }
    }

    /// Notes tables that a look did not find in the schema of their feed. It is ahead of decoding, so
    /// they leave their feed only when decoding has got to where it was.
    fn note_gone(&mut self, look: &Look) {
        let present: HashMap<u32, u32> = look
            .tables
            .iter()
            .map(|table| (table.oid, table.namespace))
            .collect();
        let position = self.position;
        let mut moved = Vec::new();
        for table in self.tables.values_mut() {
            let now = present.get(&table.oid);
            match now == Some(&table.namespace) {
                true => table.gone_at = None,
                false => drop(table.gone_at.get_or_insert(look.until)),
            }
            if now.is_some() && table.gone_at.is_some_and(|lsn| position >= lsn) {
                moved.push(table.oid);
            }
        }
        self.forget_tables(true, |table| {
            table.gone_at.is_some_and(|lsn| position >= lsn)
        });
        // From here on another feed has their changes.
        for oid in moved {
            self.note_missed(oid, u64::MAX);
        }
    }

    /// Forgets tables after their last commit was asked for. `fed`: whether their feed goes on, so that
    /// what cannot be written now is tried again.
    pub fn forget_tables(&mut self, fed: bool, gone: impl Fn(&Table) -> bool) {
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
            if let Some(history) = table.history() {
                // Should it come back, its history is the one to replace.
                let left = left(history, self.source(oid), table.generation);
                self.note_left(table.namespace, left);
            }
            if table.unfinished(fed) {
                self.leaving.push(table);
            }
        }
    }

    /// Notes the history of a table that has left the feed of a schema, for that feed and all others
    /// to the same destination.
    fn note_left(&mut self, namespace: u32, left: Found) {
        let Some(destination) = self.feeds.get(&namespace).map(|feed| &feed.destination) else {
            return;
        };
        let destination = destination.clone();
        for feed in self.feeds.values_mut() {
            if feed.destination == destination {
                feed.found.insert(left.source.table, left.clone());
            }
        }
    }

    /// Begins a feed: reads what its destination has, waiting for the answer.
    fn begin(&mut self, row: FeedRow) {
        let namespace = row.namespace;
        // An earlier feed of the schema may still be writing its last commits.
        let begun = Instant::now();
        let mine = |table: &Table| table.namespace == namespace;
        while self.leaving.iter().any(mine) && begun.elapsed() < SURVEY_LIMIT {
            while let Some(event) = self.lake.try_event() {
                self.handle(event);
            }
            process::wait(Duration::from_millis(20));
        }
        self.leaving.retain(|table| !mine(table));
        let destination = match Destination::open(&row.destination, row.access.clone()) {
            Ok(destination) => destination,
            Err(error) => {
                warning!("feed of schema with OID {namespace} cannot start: {error}");
                return;
            }
        };
        let mut feed = Feed {
            row,
            destination,
            found: HashMap::new(),
            halt: None,
            gone_at: None,
        };
        let since = self.position;
        if !feed.row.homes.contains(&self.home) {
            log!("wal2delta: feed to \"{}\": {COPIED}", feed.destination);
            feed.halt = Some(Halt::Copied);
        } else if feed.row.paused {
            feed.halt = Some(Halt::Paused { since });
        } else {
            match self.survey_now(&feed.destination) {
                Ok(found) => {
                    feed.found = found
                        .into_iter()
                        .map(|found| (found.source.table, found))
                        .collect();
                }
                Err(error) => {
                    log!("wal2delta: destination \"{}\": {error}", feed.destination);
                    feed.halt = Some(Halt::Unreachable {
                        error: error.with_remedy(),
                        retry_at: Instant::now() + Duration::from_secs(1),
                        since,
                    });
                }
            }
        }
        self.adopt_catalog(&feed.row, &feed.destination);
        self.feeds.insert(namespace, feed);
    }

    /// Reads a destination and waits for the answer; other answers are handled meanwhile.
    fn survey_now(&mut self, destination: &Destination) -> Result<Vec<Found>, LakeError> {
        let request = self.ticket();
        self.lake
            .survey(request, destination, self.system, self.database);
        let asked = Instant::now();
        let limit = match destination.is_local() {
            true => SURVEY_LIMIT,
            false => STORE_SURVEY_LIMIT,
        };
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
            if asked.elapsed() > limit {
                return Err(LakeError::transient(format!(
                    "destination \"{destination}\" did not answer within {} s",
                    limit.as_secs()
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
        let (oid, namespace) = (found.oid, found.namespace);
        let (name, comments) = (found.name.clone(), found.comments.clone());
        let generation = self.generation(found.oid, feed);
        let known = self.tables.contains_key(&found.oid);
        let skipped = reason.clone();
        let state = match (known, reason, &feed.halt) {
            (true, reason, _) => {
                self.apply_known(found, reason);
                return self.note_comments(oid, &name, comments);
            }
            // It may become FULL in the WAL that is still to be decoded.
            (false, Some(reason), None)
                if reason.is_identity() && !found.rewritten && self.whole(found.oid, feed) =>
            {
                State::Streaming(Box::new(Stream::new(None, 0)))
            }
            (false, Some(reason), _) => State::Skipped(reason),
            (false, None, Some(halt)) => halted(halt),
            (false, None, None) if self.unreadable.contains(&found.oid) => {
                let history = feed
                    .found
                    .get(&found.oid)
                    .and_then(|found| history(found).ok());
                State::Failed(Failure {
                    error: UNREADABLE.into(),
                    remedy: Remedy::Copy,
                    pin: history.is_some().then_some(self.position),
                    since: history.is_some().then_some(self.position),
                    history,
                    tried: None,
                    retry: Retry::AfterChange,
                    retry_at: Instant::now() + Duration::from_secs(300),
                })
            }
            (false, None, None) => self.resume(found.oid, found.rewritten, feed),
        };
        if matches!(&state, State::Failed(failure) if failure.retry == Retry::AfterResync) {
            self.note_refusal(found.oid, found.namespace);
        }
        let mut table = Table::new(found.oid, found.namespace, found.name, generation, state);
        table.note_reason(skipped);
        // They may have been altered while no worker ran, or the feed was paused.
        table.compare = true;
        table.found_at = until;
        table.shown.columns = found.columns;
        if let Some((pause, logged)) = self.failures.remove(&found.oid) {
            (table.pause, table.logged) = (pause, logged);
        }
        self.insert(table);
        self.note_found(oid, namespace);
        self.note_comments(oid, &name, comments);
    }

    /// A table that the worker knows, seen again.
    fn apply_known(&mut self, found: CatalogTable, reason: Option<Reason>) {
        let position = self.position;
        let Some(table) = self.tables.get_mut(&found.oid) else {
            return;
        };
        if table.namespace != found.namespace {
            // It leaves its feed first.
            return;
        }
        let building = table.building();
        table.name = found.name;
        table.note_reason(reason.clone());
        if table.shown.columns != found.columns {
            table.compare = true;
            // It may be what it had failed for.
            if let State::Failed(failure) = &mut table.state
                && failure.retry == Retry::AfterChange
            {
                failure.retry_at = Instant::now();
            }
        }
        table.shown.columns = found.columns;
        match (&mut table.state, reason) {
            (State::Skipped(current), Some(reason)) => *current = reason,
            // What it changes from now on is in no WAL, or not wanted: it is copied if that ends. One
            // without FULL identity may have it in the WAL that is still to be decoded.
            (State::Streaming(stream), Some(reason))
                if !reason.is_identity() && (stream.has_rows || reason == Reason::Excluded) =>
            {
                self.copy_again(found.oid, position, "it took no part");
                return;
            }
            (State::Failed(failure), Some(Reason::Excluded)) => {
                table.state = failure.queued(position, "it was excluded");
            }
            (State::Skipped(_), None) => table.state = Table::queued(None, position, false, ""),
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
            crc: None,
            sort_by: history.sort_by,
        }),
        gap: true,
        whole: None,
        writer: Writer::Unknown,
    }
}

/// The state of a table whose feed takes no changes.
fn halted(halt: &Halt) -> State {
    let failure = |error: &str| Failure {
        error: error.to_owned(),
        remedy: Remedy::Redecode,
        history: None,
        since: halt.since(),
        pin: halt.since(),
        tried: None,
        retry: Retry::Backoff,
        retry_at: Instant::now(),
    };
    match halt {
        Halt::Paused { .. } => State::Paused(Paused {
            history: None,
            in_flight: VecDeque::new(),
            pinned: None,
        }),
        Halt::Unreachable {
            error, retry_at, ..
        } => State::Failed(Failure {
            retry_at: *retry_at,
            ..failure(error)
        }),
        Halt::Copied => State::Failed(Failure {
            tried: None,
            retry: Retry::AfterResync,
            ..failure(COPIED)
        }),
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
        'p' => found.lacking.clone().map(Reason::Partition),
        'f' => Some(Reason::Kind("foreign table")),
        'm' => Some(Reason::Kind("materialized view")),
        _ => Some(Reason::Kind("not a table")),
    }
}
