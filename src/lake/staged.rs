//! Data files that are stored and in no Delta log yet: those of transactions and copies that memory
//! cannot hold. They are counted by table, and may be bounded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::lake::error::LakeError;

/// Bytes of staged files, by table.
#[derive(Debug)]
pub(crate) struct Staged {
    /// The most that all tables together may take.
    limit: Option<u64>,
    bytes: Mutex<HashMap<u32, u64>>,
}

/// A file that counts as staged until this is dropped.
#[derive(Debug)]
pub(crate) struct StagedFile {
    staged: Arc<Staged>,
    table: u32,
    bytes: u64,
}

impl Staged {
    /// Nothing is staged.
    pub(crate) fn new(limit: Option<u64>) -> Arc<Staged> {
        Arc::new(Staged {
            limit,
            bytes: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, u64>> {
        // A count is right whatever happened to the thread that held the lock.
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a file that is about to be stored.
    ///
    /// # Errors
    /// Kind `Config` if the limit does not allow it.
    pub(crate) fn add(self: &Arc<Self>, table: u32, bytes: u64) -> Result<StagedFile, LakeError> {
        let mut all = self.lock();
        let used: u64 = all.values().sum();
        if let Some(limit) = self.limit.filter(|limit| used + bytes > *limit) {
            return Err(LakeError::config(
                format!(
                    "data files that are not committed yet would take {} MB, \
                     more than wal2delta.staging_limit allows ({} MB)",
                    (used + bytes).div_ceil(1 << 20),
                    limit >> 20
                ),
                "Raise wal2delta.staging_limit: a transaction, or the copy of a table, is staged whole before it is committed.",
            ));
        }
        *all.entry(table).or_default() += bytes;
        Ok(StagedFile {
            staged: Arc::clone(self),
            table,
            bytes,
        })
    }

    /// Bytes of each table that has staged files.
    pub(crate) fn by_table(&self) -> HashMap<u32, u64> {
        self.lock().clone()
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        let mut all = self.staged.lock();
        if let Some(bytes) = all.get_mut(&self.table) {
            *bytes -= self.bytes;
            if *bytes == 0 {
                all.remove(&self.table);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lake::error::ErrorKind;

    #[test]
    fn files_count_until_they_are_dropped_and_not_past_the_limit() {
        let staged = Staged::new(Some(100));
        let first = staged.add(1, 60).unwrap();
        let second = staged.add(2, 40).unwrap();
        assert_eq!(staged.by_table(), HashMap::from([(1, 60), (2, 40)]));
        assert_eq!(staged.add(1, 1).unwrap_err().kind(), ErrorKind::Config);
        drop(first);
        assert_eq!(staged.by_table(), HashMap::from([(2, 40)]));
        staged.add(1, 60).unwrap();
        drop(second);
        assert!(staged.by_table().is_empty());
    }
}
