//! Checkpoints, written by the kernel through the table's own (durable) store.

use crate::lake::error::LakeError;
use crate::lake::memory::release_free_memory;
use crate::lake::open::{latest, with_kernel};
use crate::lake::runtime::Shared;
use crate::lake::store::TableStore;

/// Writes a checkpoint of the newest version.
pub(super) async fn write_checkpoint(shared: &Shared, store: &TableStore) -> Result<(), LakeError> {
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
