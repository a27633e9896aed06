//! Calls of `wal2delta.optimize`: taken from shared memory, answered there.

use super::clearing::open_believing;
use super::feeds::Feeds;
use super::table::State;
use crate::lake::{Believed, HistoryWriter, LakeError};
use crate::shared::{self, Optimizing};

impl Feeds {
    /// Begins what sessions ask for.
    pub fn tend_optimizations(&mut self) {
        let mut state = shared::lock();
        let asked: Vec<(u64, u32)> = state
            .optimizations
            .iter()
            .filter(|place| place.state == Optimizing::Wanted && place.database == self.database)
            .map(|place| (place.ticket, place.table))
            .collect();
        for place in &mut state.optimizations {
            if asked.iter().any(|(ticket, _)| *ticket == place.ticket) {
                place.state = Optimizing::Running;
            }
        }
        drop(state);
        for (ticket, oid) in asked {
            match self.optimizer(oid) {
                Ok(Some(writer)) => writer.optimize(ticket),
                Ok(None) => answer(ticket, Ok(())),
                Err(error) => answer(ticket, Err(error)),
            }
        }
    }

    /// The writer of a table's history, opened if need be; `None` if there is no history yet.
    fn optimizer(&mut self, oid: u32) -> Result<Option<&HistoryWriter>, &'static str> {
        let source = self.source(oid);
        let table = self.tables.get_mut(&oid);
        let table = table.ok_or("it takes no part in a feed")?;
        let feed = self.feeds.get(&table.namespace);
        let feed = feed.filter(|feed| feed.halt.is_none());
        let (Some(feed), State::Streaming(stream)) = (feed, &mut table.state) else {
            return Err("its changes are not written at the moment");
        };
        if stream.writer.is_none()
            && let Some(history) = &stream.history
        {
            stream.writer = Some(open_believing(
                &self.lake,
                feed,
                source,
                table.generation,
                &history.folder,
                &history.schema,
                Believed::Progress(history.progress),
            ));
        }
        Ok(stream.writer.as_ref())
    }
}

/// Tells the session that asked.
pub fn optimized(ticket: u64, result: Result<(), LakeError>) {
    let error = result.err().map(|error| error.with_remedy());
    answer(ticket, error.as_deref().map_or(Ok(()), Err));
}

fn answer(ticket: u64, outcome: Result<(), &str>) {
    let mut state = shared::lock();
    let mut pid = 0;
    // It may be gone: the session was cancelled.
    let mut places = state.optimizations.iter_mut();
    if let Some(place) = places.find(|place| place.ticket == ticket) {
        place.error.set(outcome.err().unwrap_or_default());
        place.state = match outcome {
            Ok(()) => Optimizing::Done,
            Err(_) => Optimizing::Failed,
        };
        pid = place.pid;
    }
    drop(state);
    shared::wake(pid);
}
