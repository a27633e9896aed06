//! Partitioned tables: what a partition brings when it is attached, and takes with it when it is
//! detached or dropped. Its rows were, or are, in the table without an event of their own, so the
//! history is replaced. A partition that comes empty, as most do, brings nothing.

use std::collections::HashMap;

use super::feeds::Feeds;
use super::table::{Phase, State};
use crate::decode::{
    Invalidated, Relation, Roots, Transaction, is_partitioned, partition_roots, rewritten,
    take_invalidated,
};

impl Feeds {
    /// A row tells where its partition belongs by now, which can be before its transaction is complete.
    pub fn notice_partition(&mut self, transaction: &Transaction, relation: &Relation) {
        let (table, storage) = (relation.oid(), relation.storage_oid());
        let known = self.roots.get(&storage).copied();
        if known != (storage != table).then_some(table) {
            self.follow_partitions(transaction);
        }
    }

    /// Looks whether a complete transaction has changed what partitions there are.
    pub fn notice_partitions(&mut self, transaction: &Transaction) {
        if !transaction.changes_catalog {
            return;
        }
        let touched = match take_invalidated() {
            Invalidated::All => true,
            Invalidated::These(relations) => relations
                .into_iter()
                .any(|relation| self.roots.contains_key(&relation) || is_partitioned(relation)),
        };
        if touched {
            self.follow_partitions(transaction);
        }
    }

    fn follow_partitions(&mut self, transaction: &Transaction) {
        let now = partition_roots();
        if now == self.roots {
            return;
        }
        let before = std::mem::replace(&mut self.roots, now);
        let moved = |from: &Roots, to: &Roots| -> Vec<(u32, u32)> {
            let differs = |(partition, root): &(&u32, &u32)| to.get(partition) != Some(root);
            let moved = from.iter().filter(differs);
            moved.map(|(partition, root)| (*partition, *root)).collect()
        };
        let mut altered = HashMap::new();
        for (partition, root) in moved(&before, &self.roots) {
            // As a table of its own it begins with the rows that it takes along.
            self.not_whole.insert(partition);
            if !is_partitioned(partition) {
                altered.insert(root, "a partition was detached");
            }
        }
        for (partition, root) in moved(&self.roots, &before) {
            if !is_partitioned(partition)
                && (before.contains_key(&partition) || !self.is_empty(partition))
            {
                altered.insert(root, "a partition was attached");
            }
            self.forget_tables(true, |table| table.oid == partition);
            self.note_missed(partition, transaction.end_lsn);
        }
        for (root, why) in altered {
            // One that was dropped keeps its history; one that is a partition now has left its feed.
            if is_partitioned(root) && !self.roots.contains_key(&root) {
                self.replace_rows(root, transaction, why);
            }
        }
    }

    /// Whether a table is known never to have had a row.
    fn is_empty(&self, table: u32) -> bool {
        let found = || {
            self.feeds
                .values()
                .any(|feed| feed.found.contains_key(&table))
        };
        let has_rows = match self.tables.get(&table).map(|table| &table.state) {
            None => self.not_whole.contains(&table) || found(),
            Some(State::Streaming(stream)) => stream.has_rows,
            Some(_) => true,
        };
        !has_rows && !rewritten(table)
    }

    /// A transaction has changed what rows a table has, without an event for each.
    fn replace_rows(&mut self, table: u32, transaction: &Transaction, why: &'static str) {
        let replaced = match self.tables.get(&table).map(|table| &table.state) {
            None => {
                self.not_whole.insert(table);
                false
            }
            Some(State::Streaming(stream)) => transaction.end_lsn > stream.settled,
            Some(State::Snapshot(snapshot)) => match &snapshot.phase {
                // A copy whose snapshot sees the transaction has its rows.
                Phase::Copying(copying) => copying
                    .start
                    .as_ref()
                    .is_none_or(|start| !start.seen.sees(transaction.xid)),
                Phase::Queued => true,
            },
            Some(State::Skipped(_) | State::Failed(_) | State::Paused(_)) => false,
        };
        if replaced {
            self.copy_again(table, transaction.commit_lsn, why);
        }
    }
}
