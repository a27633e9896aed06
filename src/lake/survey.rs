//! Which history tables a destination holds for a database: the Delta logs themselves are asked,
//! as they are the only record.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use crate::lake::destination::{Destination, is_folder};
use crate::lake::error::LakeError;
use crate::lake::event::Found;
use crate::lake::log::{Metadata, commit_path};
use crate::lake::open::open_table;
use crate::lake::runtime::Shared;
use crate::lake::source::{SOURCE_PROPERTY, Source};
use crate::lake::store::TableStore;
use crate::lake::writers::Writer;

/// Tables opened at the same time; the kernel calls among them are bounded further.
const CONCURRENT: usize = 4;

/// All tables of the destination that belong to a table of this database. A single damaged table
/// does not spoil the survey; a store that fails does.
pub(crate) async fn survey(
    shared: &Arc<Shared>,
    destination: &Destination,
    system: u64,
    database: u32,
) -> Result<Vec<Found>, LakeError> {
    let listed = destination.clone();
    let folders = tokio::task::spawn_blocking(move || {
        // `start` made it. Without it the histories are somewhere else, and must not begin anew.
        let exists = is_folder(listed.folder())
            .map_err(|error| LakeError::io(&format!("look at destination \"{listed}\""), &error))?;
        if !exists {
            return Err(LakeError::config(
                format!("destination \"{listed}\" does not exist any more"),
                "Bring it back (is its volume mounted?), or stop the feed and start it again.",
            ));
        }
        listed.log_folders()
    })
    .await
    .map_err(|error| LakeError::internal(format!("listing a destination failed: {error}")))??;
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
    let checked = destination.clone();
    tokio::task::spawn_blocking(move || checked.check())
        .await
        .map_err(|error| LakeError::internal(format!("probing a destination failed: {error}")))??;
    for folder in folders {
        let store = shared.table_store(destination, &folder, false).await?;
        open_table(&store, &shared.kernels).await?;
        store.probe().await?;
    }
    Ok(())
}

async fn look(
    shared: &Arc<Shared>,
    destination: &Destination,
    folder: String,
) -> Result<Option<Found>, LakeError> {
    let store = shared.table_store(destination, &folder, false).await?;
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

/// The source as version 0 named it; it never changes.
async fn first_source(store: &TableStore) -> Result<Option<Source>, LakeError> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Line {
        meta_data: Option<Metadata>,
    }
    let Some(lines) = store.get(&commit_path(0)).await? else {
        return Ok(None);
    };
    let metadata = lines
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Line>(line).ok())
        .find_map(|line| line.meta_data);
    Ok(metadata.and_then(|metadata| Source::parse(metadata.configuration.get(SOURCE_PROPERTY)?)))
}
