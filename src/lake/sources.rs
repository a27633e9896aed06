//! Which source tables a local destination has histories of, for a caller that has no runtime: a
//! foreground backend that wants to tell its user what a start will do.

use serde::Deserialize;

use crate::lake::destination::Destination;
use crate::lake::log::{Metadata, commit_path};
use crate::lake::source::{SOURCE_PROPERTY, Source};

/// The first line of interest of a table's version 0.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    meta_data: Option<Metadata>,
}

impl Destination {
    /// The source tables of the history tables, as version 0 of each names them. Folders that
    /// cannot be read are left out: the feed worker will say what is wrong with them.
    pub fn sources(&self) -> Vec<Source> {
        let first = commit_path(0).to_string();
        let folders = self.log_folders().unwrap_or_default();
        let read = |folder: String| {
            let text = std::fs::read_to_string(self.folder().join(folder).join(&first)).ok()?;
            let metadata = text
                .lines()
                .filter_map(|line| serde_json::from_str::<Line>(line).ok())
                .find_map(|line| line.meta_data)?;
            Source::parse(metadata.configuration.get(SOURCE_PROPERTY)?)
        };
        folders.into_iter().filter_map(read).collect()
    }
}
