//! Checkpoints: beside the way of a flush, one at a time in this process, written by the kernel
//! through the table's own (durable) store. An error is news, never a failure of the table: a
//! table without checkpoints is right, only slower to open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lake::error::LakeError;
use crate::lake::event::Event;
use crate::lake::memory::release_free_memory;
use crate::lake::open::{latest, with_kernel};
use crate::lake::runtime::Shared;
use crate::lake::store::TableStore;

/// Decides when a table gets a checkpoint.
pub(crate) struct Checkpoints {
    shared: Arc<Shared>,
    store: TableStore,
    table: u32,
    /// The version up to which checkpoints were taken care of.
    done: u64,
    running: Arc<AtomicBool>,
}

impl Checkpoints {
    /// For a table opened at `version`: the next checkpoint is due at the next multiple of the
    /// interval.
    pub(crate) fn new(shared: Arc<Shared>, store: TableStore, table: u32, version: u64) -> Self {
        let interval = shared.config.checkpoint_interval.max(1);
        let done = version - version % interval;
        Checkpoints {
            shared,
            store,
            table,
            done,
            running: Arc::default(),
        }
    }

    /// Begins a checkpoint if one is due and none is being written.
    pub(crate) fn after_commit(&mut self, version: u64) {
        let due = version >= self.done + self.shared.config.checkpoint_interval.max(1);
        if !due || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        self.done = version;
        let (shared, store, table) = (Arc::clone(&self.shared), self.store.clone(), self.table);
        let running = Running(Arc::clone(&self.running));
        tokio::spawn(async move {
            if let Err(error) = write_checkpoint(&shared, &store).await {
                shared.send(Event::Upkeep { table, error });
            }
            drop(running);
        });
    }
}

/// Ends the running state even if the task is aborted.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Writes a checkpoint of the newest version.
async fn write_checkpoint(shared: &Shared, store: &TableStore) -> Result<(), LakeError> {
    let _one = shared
        .upkeep
        .acquire()
        .await
        .map_err(|error| LakeError::internal(error.to_string()))?;
    with_kernel(store, &shared.kernels, |store, engine| {
        let written = latest(engine).and_then(|snapshot| snapshot.checkpoint(engine, None));
        release_free_memory();
        written.map(drop).map_err(|error| {
            LakeError::kernel(
                &format!("write a checkpoint of history table \"{}\"", store.name()),
                &error,
            )
        })
    })
    .await
}
