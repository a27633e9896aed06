//! Memory that changes take on their way to the writers (rule 6 of the design).

use std::time::Duration;

use super::feeds::Feeds;
use super::table::{Phase, State};
use crate::process;

impl Feeds {
    /// Whether more is held than is allowed.
    pub fn over_memory(&self) -> bool {
        let budget = self.lake.budget();
        self.building + budget.used() > budget.limit()
    }

    /// Has everything that is held written to files, and waits until memory is free again. Decoding
    /// stands still meanwhile; Postgres itself does not wait.
    pub fn relieve_memory(&mut self) {
        let oids: Vec<u32> = self.tables.keys().copied().collect();
        for oid in oids {
            match self.tables.get(&oid).map(|table| &table.state) {
                Some(State::Streaming(stream)) if stream.pending.is_some() => self.seal(oid, true),
                Some(State::Snapshot(_)) => self.spill_held(oid),
                _ => {}
            }
        }
        let limit = self.lake.budget().limit();
        let held = self.give_up_held(limit / 2);
        while self.lake.budget().used().saturating_sub(held) > limit / 4 {
            process::wait(Duration::from_millis(50));
        }
    }

    /// Changes held for copies whose snapshot is not known yet cannot be written. Past `limit`
    /// bytes of them these copies start anew, without what was held. Returns the bytes still held.
    fn give_up_held(&mut self, limit: usize) -> usize {
        let holding: Vec<(u32, usize)> = self
            .tables
            .values()
            .filter_map(|table| match &table.state {
                State::Snapshot(snapshot) => match &snapshot.phase {
                    Phase::Copying(copying) => Some((table.oid, copying.held_bytes())),
                    Phase::Queued => None,
                },
                _ => None,
            })
            .collect();
        let mut held: usize = holding.iter().map(|(_, bytes)| bytes).sum();
        for (oid, bytes) in holding {
            if held > limit {
                self.copy_again(oid, self.position, "too many changes before its snapshot");
                held -= bytes;
            }
        }
        held
    }
}
