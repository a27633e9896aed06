//! Which source tables a destination has histories of, by the first version of each, or what a clean-up has left of it: for a foreground
//! backend that wants to tell its user what a start will do, and for logs that cannot be opened.

use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use serde::Deserialize;

use crate::lake::destination::Destination;
use crate::lake::error::LakeError;
use crate::lake::log::{Metadata, commit_path};
use crate::lake::source::{SOURCE_PROPERTY, Source};
use crate::lake::store::TableStore;

/// Where the source is named once version 0 is not in the log any more. The dot hides it from readers.
pub(crate) const SOURCE_FILE: &str = ".wal2delta-source";

/// Tables looked at at the same time.
const CONCURRENT: usize = 16;

/// The first line of interest of a table's version 0.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    meta_data: Option<Metadata>,
}

impl Destination {
    /// The source tables of the history tables, as version 0 of each names them. Those that cannot be
    /// read are left out: the feed worker will say what is wrong with them.
    ///
    /// # Errors
    /// If the destination cannot be listed.
    pub async fn sources(&self) -> Result<Vec<Source>, LakeError> {
        let folders = self.existing_table_folders().await?;
        let read = |folder: String| async move {
            let store = self.table_store(&folder, false).await.ok();
            let source = match &store {
                Some(store) => first_source(store).await.ok().flatten(),
                None => None,
            };
            Ok::<_, LakeError>(source)
        };
        let found: Vec<Option<Source>> = stream::iter(folders)
            .map(read)
            .buffered(CONCURRENT)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// The source as version 0 named it; it never changes.
pub(crate) async fn first_source(store: &TableStore) -> Result<Option<Source>, LakeError> {
    let Some(lines) = store.get(&commit_path(0)).await? else {
        let kept = store.get(&Path::from(SOURCE_FILE)).await?;
        return Ok(kept.and_then(|text| Source::parse(std::str::from_utf8(&text).ok()?)));
    };
    let metadata = lines
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<Line>(line).ok())
        .find_map(|line| line.meta_data);
    Ok(metadata.and_then(|metadata| Source::parse(metadata.configuration.get(SOURCE_PROPERTY)?)))
}
