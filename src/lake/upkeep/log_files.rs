//! The files that a table's log names: those that are part of the newest version, and those that older
//! versions need which can still be read.

use std::collections::HashSet;
use std::sync::LazyLock;

use buoyant_kernel::engine_data::{GetData, RowVisitor, TypedGetData};
use buoyant_kernel::expressions::ColumnName;
use buoyant_kernel::schema::DataType;
use buoyant_kernel::{DeltaResult, Engine};
use tokio::sync::Semaphore;

use crate::lake::error::LakeError;
use crate::lake::open::{Table, describe, latest, with_kernel};
use crate::lake::store::TableStore;

/// A data file that is part of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddedFile {
    /// As the log has it: relative to the table, URL-encoded.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// The text of its statistics.
    pub stats: Option<String>,
}

/// A data file that is not part of the table any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RemovedFile {
    /// As [`AddedFile::path`].
    pub path: String,
    /// Milliseconds since 1970.
    pub removed_ms: i64,
}

/// What the newest version says.
pub(super) struct LogFiles {
    pub table: Table,
    pub added: Vec<AddedFile>,
    /// Those removed within `delta.deletedFileRetentionDuration`.
    pub removed: Vec<RemovedFile>,
    /// A file has rows that do not count.
    pub deletion_vectors: bool,
}

impl LogFiles {
    /// Reads the log from its last checkpoint on.
    pub(super) async fn newest(
        store: &TableStore,
        kernels: &Semaphore,
    ) -> Result<LogFiles, LakeError> {
        with_kernel(store, kernels, |store, engine| {
            read(engine).map_err(|error| {
                LakeError::kernel(
                    &format!("list the files of history table \"{}\"", store.name()),
                    &error,
                )
            })
        })
        .await
    }

    /// The paths of all files that must stay.
    pub(super) fn needed(&self) -> HashSet<&str> {
        let removed = self.removed.iter().map(|file| file.path.as_str());
        let added = self.added.iter().map(|file| file.path.as_str());
        added.chain(removed).collect()
    }
}

/// What a checkpoint would hold is what the log says, files that were removed lately among it.
fn read(engine: &dyn Engine) -> DeltaResult<LogFiles> {
    let snapshot = latest(engine)?;
    let table = describe(&snapshot, engine)?;
    let checkpoint = snapshot.create_checkpoint_writer(engine)?;
    let mut actions = FileActions::default();
    for batch in checkpoint.checkpoint_data(engine)? {
        actions.visit_rows_of(batch?.apply_selection_vector()?.as_ref())?;
    }
    Ok(LogFiles {
        table,
        added: actions.added,
        removed: actions.removed,
        deletion_vectors: actions.deletion_vectors,
    })
}

#[derive(Default)]
struct FileActions {
    added: Vec<AddedFile>,
    removed: Vec<RemovedFile>,
    deletion_vectors: bool,
}

static COLUMNS: LazyLock<(Vec<ColumnName>, Vec<DataType>)> = LazyLock::new(|| {
    let columns: [(&[&str], DataType); 6] = [
        (&["add", "path"], DataType::STRING),
        (&["add", "size"], DataType::LONG),
        (&["add", "stats"], DataType::STRING),
        (&["add", "deletionVector", "storageType"], DataType::STRING),
        (&["remove", "path"], DataType::STRING),
        (&["remove", "deletionTimestamp"], DataType::LONG),
    ];
    columns
        .into_iter()
        .map(|(name, data_type)| (ColumnName::new(name.iter().copied()), data_type))
        .unzip()
});

impl RowVisitor for FileActions {
    fn selected_column_names_and_types(&self) -> (&'static [ColumnName], &'static [DataType]) {
        (&COLUMNS.0, &COLUMNS.1)
    }

    fn visit<'a>(&mut self, row_count: usize, getters: &[&'a dyn GetData<'a>]) -> DeltaResult<()> {
        for row in 0..row_count {
            if let Some(path) = getters[0].get_opt(row, "add.path")? {
                let size: Option<i64> = getters[1].get_opt(row, "add.size")?;
                let vector: Option<String> = getters[3].get_opt(row, "add.deletionVector")?;
                self.deletion_vectors |= vector.is_some();
                self.added.push(AddedFile {
                    path,
                    size: size.unwrap_or(0).max(0).unsigned_abs(),
                    stats: getters[2].get_opt(row, "add.stats")?,
                });
            }
            if let Some(path) = getters[4].get_opt(row, "remove.path")? {
                let removed: Option<i64> = getters[5].get_opt(row, "remove.deletionTimestamp")?;
                self.removed.push(RemovedFile {
                    path,
                    removed_ms: removed.unwrap_or(0),
                });
            }
        }
        Ok(())
    }
}
