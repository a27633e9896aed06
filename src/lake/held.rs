//! What a table holds that is not in its Delta log yet: a file that batches are added to, files that
//! are being stored, files stored. It never touches the log.

use std::sync::Arc;

use arrow::array::RecordBatch;
use object_store::path::Path;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::lake::budget::Charged;
use crate::lake::data_file::NewFile;
use crate::lake::error::LakeError;
use crate::lake::event::DataFile;
use crate::lake::runtime::Shared;
use crate::lake::schema::HistorySchema;
use crate::lake::staged::StagedFile;
use crate::lake::store::TableStore;

/// A stored file and its place among the others.
#[derive(Debug)]
struct StoredFile {
    order: usize,
    file: DataFile,
    staged: StagedFile,
}

/// Rows on their way into a table.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    store: TableStore,
    /// The source table's oid.
    table: u32,
    /// The schema of the batches of the open file, as the table will have it.
    schema: Option<HistorySchema>,
    /// The file that batches are added to.
    open: Option<UnboundedSender<Charged<RecordBatch>>>,
    /// Bytes of the batches that were added to it.
    bytes: usize,
    started: usize,
    jobs: JoinSet<Result<StoredFile, LakeError>>,
    stored: Vec<StoredFile>,
}

impl Held {
    /// Holds nothing.
    pub(crate) fn new(shared: Arc<Shared>, store: TableStore, table: u32) -> Self {
        Held {
            shared,
            store,
            table,
            schema: None,
            open: None,
            bytes: 0,
            started: 0,
            jobs: JoinSet::new(),
            stored: Vec::new(),
        }
    }

    /// Takes a batch in. `table` is the table's schema, which says how columns are mapped.
    ///
    /// # Errors
    /// If the batch is not one of a history table, or if an earlier batch could not be stored.
    pub(crate) fn add(
        &mut self,
        batch: Charged<RecordBatch>,
        table: &HistorySchema,
    ) -> Result<(), LakeError> {
        self.take_finished()?;
        if batch.value.num_rows() == 0 {
            return Ok(());
        }
        let same = self
            .schema
            .as_ref()
            .is_some_and(|schema| schema.arrow() == batch.value.schema());
        if !same {
            self.spill();
            self.schema = Some(if table.arrow() == batch.value.schema() {
                table.clone()
            } else {
                let rows = HistorySchema::from_arrow(&batch.value.schema())?;
                // Another one than the table's replaces it.
                table.project(&rows).unwrap_or_else(|| rows.adopt(table))
            });
        }
        self.bytes += batch.value.get_array_memory_size();
        let open = match self.open.take() {
            Some(open) => open,
            None => self.begin()?,
        };
        // It fails only if the file has, which is told where its task is joined.
        let _ = open.send(batch);
        self.open = Some(open);
        if self.bytes > self.shared.config.target_file_bytes {
            self.spill();
        }
        Ok(())
    }

    /// Begins a file, whose batches are encoded as they come.
    fn begin(&mut self) -> Result<UnboundedSender<Charged<RecordBatch>>, LakeError> {
        let schema = self.schema.clone();
        let file = NewFile {
            shared: Arc::clone(&self.shared),
            store: self.store.clone(),
            table: self.table,
            schema: schema.ok_or_else(|| LakeError::internal("a file without a schema"))?,
        };
        let (open, batches) = unbounded_channel();
        let order = self.started;
        self.started += 1;
        self.jobs.spawn(async move {
            let (file, staged) = file.write(batches).await?;
            Ok(StoredFile {
                order,
                file,
                staged,
            })
        });
        Ok(open)
    }

    /// Ends the open file: it is stored, and no batch is added to it any more.
    pub(crate) fn spill(&mut self) {
        self.open = None;
        self.bytes = 0;
    }

    /// What comes now is of another schema, even if it looks alike: a column of the same name and type
    /// can be another one.
    pub(crate) fn turn(&mut self) {
        self.spill();
        self.schema = None;
    }

    /// Ends the open file, and waits until everything is stored.
    ///
    /// # Errors
    /// If a file could not be stored.
    pub(crate) async fn settle(&mut self) -> Result<(), LakeError> {
        self.spill();
        while let Some(done) = self.jobs.join_next().await {
            self.stored.push(finished(done)?);
        }
        Ok(())
    }

    /// Stores everything and hands over the files in the order of their rows, with what has them
    /// count as staged.
    ///
    /// # Errors
    /// If a file could not be stored.
    pub(crate) async fn take_files(
        &mut self,
    ) -> Result<(Vec<DataFile>, Vec<StagedFile>), LakeError> {
        self.settle().await?;
        self.schema = None;
        self.stored.sort_unstable_by_key(|stored| stored.order);
        let files = self.stored.drain(..);
        Ok(files.map(|stored| (stored.file, stored.staged)).unzip())
    }

    /// Forgets everything; returns the paths of stored files that nobody will name.
    pub(crate) fn forget(&mut self) -> Vec<Path> {
        self.jobs.abort_all();
        self.jobs = JoinSet::new();
        self.spill();
        self.schema = None;
        self.stored
            .drain(..)
            .map(|stored| Path::from(stored.file.path))
            .collect()
    }

    fn take_finished(&mut self) -> Result<(), LakeError> {
        while let Some(done) = self.jobs.try_join_next() {
            self.stored.push(finished(done)?);
        }
        Ok(())
    }
}

fn finished(
    done: Result<Result<StoredFile, LakeError>, tokio::task::JoinError>,
) -> Result<StoredFile, LakeError> {
    done.map_err(|error| LakeError::internal(format!("writing a data file failed: {error}")))?
}
