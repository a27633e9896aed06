//! Which history tables a destination holds for a database: the Delta logs themselves are asked,
//! as they are the only record.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use crate::lake::destination::Destination;
use crate::lake::error::LakeError;
use crate::lake::event::Found;
use crate::lake::open::open_table;
use crate::lake::runtime::Shared;
use crate::lake::sources::first_source;
use crate::lake::writers::Writer;

/// Tables opened at the same time; the kernel calls among them are bounded further.
const CONCURRENT: usize = 8;

/// All tables of the destination that belong to a table of this database. A single damaged table
/// does not spoil the survey; a store that fails does.
pub(crate) async fn survey(
    shared: &Arc<Shared>,
    destination: &Destination,
    system: u64,
    database: u32,
) -> Result<Vec<Found>, LakeError> {
    let folders = destination.existing_table_folders().await?;
    let found: Vec<Option<Found>> = stream::iter(folders)
        .map(|folder| look(shared, destination, folder))
        .buffered(CONCURRENT)
        .try_collect()
        .await?;
    let ours = |found: &Found| found.source.system == system && found.source.database == database;
    Ok(found.into_iter().flatten().filter(ours).collect())
}

/// Whether a destination can be read again, and each of the given tables written.
pub(crate) async fn probe(
    shared: &Arc<Shared>,
    destination: &Destination,
    folders: Vec<String>,
) -> Result<(), LakeError> {
    destination.check().await?;
    for folder in folders {
        let store = destination.table_store(&folder, false).await?;
        open_table(&store, &shared.kernels).await?;
        if destination.is_local() {
            store.probe().await?;
        }
    }
    Ok(())
}

async fn look(
    shared: &Arc<Shared>,
    destination: &Destination,
    folder: String,
) -> Result<Option<Found>, LakeError> {
    let Some(store) = destination.store_of_log(&folder).await? else {
        return Ok(None);
    };
    match open_table(&store, &shared.kernels).await {
        Ok(table) => Ok(table.source.map(|source| Found {
            folder,
            source,
            version: table.version,
            schema: table.schema,
            progress: table.progress,
            gap: table.gap,
            whole: table.whole,
            writer: table.writer,
        })),
        Err(error) if error.kind().is_of_access() => Err(error),
        // Damaged, but perhaps one of ours: it must be shown, and its name not be taken.
        Err(error) => Ok(first_source(&store).await?.map(|source| Found {
            folder,
            source,
            version: 0,
            schema: Err(error),
            progress: None,
            gap: false,
            whole: None,
            writer: Writer::Unknown,
        })),
    }
}
