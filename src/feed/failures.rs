//! What failed, and how it is tried again.

use pgrx::prelude::*;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::feeds::{Feeds, Halt};
use super::table::{Remedy, State};
use crate::lake::{LakeError, Retry};

impl Feeds {
    pub fn writer_failed(&mut self, oid: u32, error: LakeError) {
        // One that has come back meanwhile writes nothing before this.
        if let Some(index) = self.leaving.iter().position(|table| table.oid == oid) {
            let fed = self.feeds.contains_key(&self.leaving[index].namespace);
            let table = &mut self.leaving[index];
            log!(
                "wal2delta: last commit of table \"{}\" failed: {error}",
                table.name
            );
            if fed && error.kind().retry() == Retry::Backoff {
                // Its changes are in the WAL still, and so is the catalog that had it.
                let position = self.position;
                table.fail(
                    error.with_remedy(),
                    Remedy::Redecode,
                    Retry::Backoff,
                    position,
                );
            } else {
                self.leaving.swap_remove(index);
                self.look_after_the_last();
            }
            return;
        }

        if let Some(table) = self.tables.get_mut(&oid) {
            let pin = table.pin();
            if let State::Paused(paused) = &mut table.state {
                // What they would have brought is decoded again when the pause ends.
                paused.pinned = pin;
                paused.in_flight.clear();
                return;
            }
        }
        self.fail(oid, error.with_remedy(), error.kind().retry());
    }

    /// Moves a table to FAILED and says so in the log, once per failure of another kind.
    pub fn fail(&mut self, oid: u32, error: String, retry: Retry) {
        let position = self.position;
        self.lanes.cancel(oid);
        let Some(table) = self.tables.get_mut(&oid) else {
            return;
        };
        self.building = self.building.saturating_sub(table.building());
        let remedy = match &table.state {
            State::Failed(failure) => failure.remedy,
            State::Streaming(stream) if stream.joins_snapshot() => Remedy::Copy,
            // Decoded again, it would fail again.
            _ if retry != Retry::Backoff => Remedy::Copy,
            State::Streaming(_) => Remedy::Redecode,
            _ => Remedy::Copy,
        };
        if table.logged.as_ref() != Some(&error) {
            log!("wal2delta: table \"{}\" failed: {error}", table.name);
            table.logged = Some(error.clone());
        }
        table.fail(error, remedy, retry, position);
    }

    /// The answer to a probe that a retry asked for.
    pub fn probed(&mut self, request: u64, result: Result<(), LakeError>) {
        let Some(namespace) = self.probes.remove(&request) else {
            return;
        };
        match result {
            // Its tables can be written again and go on from the slot.
            Ok(()) => self.redecode = true,
            Err(error) => {
                let now = Instant::now();
                let tables = self.tables.values_mut().chain(&mut self.leaving);
                for table in tables.filter(|table| table.namespace == namespace) {
                    let position = self.position;
                    let due = matches!(&table.state, State::Failed(failure)
                        if failure.due(now) && failure.remedy == Remedy::Redecode);
                    if due {
                        table.fail(
                            error.with_remedy(),
                            Remedy::Redecode,
                            Retry::Backoff,
                            position,
                        );
                    }
                }
                let feed = self.feeds.get_mut(&namespace);
                if let Some(Halt::Unreachable {
                    error: shown,
                    retry_at,
                    ..
                }) = feed.and_then(|feed| feed.halt.as_mut())
                {
                    *shown = error.with_remedy();
                    *retry_at = now + Duration::from_secs(5);
                }
            }
        }
    }

    /// Has the failed tables of a feed tried again at once: the way to its destination is another one.
    pub fn retry_now(&mut self, namespace: u32) {
        let now = Instant::now();
        let tables = self.tables.values_mut().chain(&mut self.leaving);
        for table in tables.filter(|table| table.namespace == namespace) {
            if let State::Failed(failure) = &mut table.state
                && failure.retry == Retry::Backoff
            {
                failure.retry_at = failure.retry_at.min(now);
            }
        }
        let feed = self.feeds.get_mut(&namespace);
        if let Some(Halt::Unreachable { retry_at, .. }) = feed.and_then(|feed| feed.halt.as_mut()) {
            *retry_at = (*retry_at).min(now);
        }
    }

    /// Tries failed tables again whose pause is over.
    pub fn retry(&mut self) {
        let now = Instant::now();
        let mut ask: HashMap<u32, Vec<String>> = HashMap::new();
        for table in self.tables.values_mut().chain(&mut self.leaving) {
            let State::Failed(failure) = &mut table.state else {
                continue;
            };
            if !failure.due(now) {
                continue;
            }
            match failure.remedy {
                Remedy::Copy => {
                    table.state = failure.queued(self.position, "it had failed");
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
            if matches!(feed.halt, Some(Halt::Unreachable { retry_at, .. }) if retry_at <= now) {
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
}
