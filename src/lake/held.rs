//! What a table holds that is not in its Delta log yet: a file that batches are added to, files that
//! are being stored, files stored. It never touches the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use object_store::path::Path;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::lake::budget::Charged;
use crate::lake::data_file::NewFile;
use crate::lake::error::LakeError;
use crate::lake::event::DataFile;
use crate::lake::parquet::has_large_rows;
use crate::lake::runtime::Shared;
use crate::lake::schema::HistorySchema;
use crate::lake::staged::StagedFile;
use crate::lake::store::TableStore;

/// Bytes that wait to be encoded for one file.
const MOST_BACKLOG: usize = 48 << 20;

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
    open: Option<OpenFile>,
    /// Batches of large rows, with their schema. They are encoded one file at a time, and so not before
    /// there is a whole one.
    waiting: Option<(HistorySchema, Vec<Charged<RecordBatch>>)>,
    /// Bytes of the batches that were added to either.
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
            waiting: None,
            bytes: 0,
            started: 0,
            jobs: JoinSet::new(),
            stored: Vec::new(),
        }
    }

    /// Whether there is nothing, in memory or stored.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_none()
            && self.waiting.is_none()
            && self.jobs.is_empty()
            && self.stored.is_empty()
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
        let rows = batch.value.schema();
        let same = self.schema.as_ref().filter(|own| own.arrow() == rows);
        let schema = match same {
            Some(schema) => schema.clone(),
            None => {
                self.spill();
                match table.arrow() == rows {
                    true => table.clone(),
                    false => {
                        let rows = HistorySchema::from_arrow(&rows)?;
                        // Another one than the table's replaces it.
                        table.project(&rows).unwrap_or_else(|| rows.adopt(table))
                    }
                }
            }
        };
        self.schema = Some(schema.clone());
        self.bytes += batch.value.get_array_memory_size();
        match (&self.open, &mut self.waiting) {
            (Some(open), _) => {
                let lags = open.add(batch);
                if lags {
                    // The next one is encoded beside it.
                    self.spill();
                }
            }
            (None, Some((_, waiting))) => waiting.push(batch),
            (None, None) if has_large_rows(std::slice::from_ref(&batch)) => {
                self.waiting = Some((schema, vec![batch]));
            }
            (None, None) => {
                let open = self.begin(schema);
                open.add(batch);
                self.open = Some(open);
            }
        }
        if self.bytes > self.shared.config.target_file_bytes {
            self.spill();
        }
        Ok(())
    }

    /// Begins a file, whose batches are encoded as they come.
    fn begin(&mut self, schema: HistorySchema) -> OpenFile {
        let backlog = Arc::new(AtomicUsize::new(0));
        let file = NewFile {
            shared: Arc::clone(&self.shared),
            store: self.store.clone(),
            table: self.table,
            schema,
            backlog: Arc::clone(&backlog),
        };
        let (sender, batches) = unbounded_channel();
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
        OpenFile {
            batches: sender,
            backlog,
        }
    }

    /// Ends the open file: it is stored, and no batch is added to it any more.
    pub(crate) fn spill(&mut self) {
        if let Some((schema, waiting)) = self.waiting.take() {
            let open = self.begin(schema);
            for batch in waiting {
                open.add(batch);
            }
        }
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
        self.open = None;
        self.waiting = None;
        self.bytes = 0;
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

/// A file that batches are added to.
#[derive(Debug)]
struct OpenFile {
    batches: UnboundedSender<Charged<RecordBatch>>,
    /// Bytes of batches that were not encoded yet.
    backlog: Arc<AtomicUsize>,
}

impl OpenFile {
    /// Adds a batch; whether more wait than one encoder should have before it.
    fn add(&self, batch: Charged<RecordBatch>) -> bool {
        let bytes = batch.charge.bytes();
        let backlog = self.backlog.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // It fails only if the file has failed, which is told where its task is joined.
        let _ = self.batches.send(batch);
        backlog > MOST_BACKLOG
    }
}

fn finished(
    done: Result<Result<StoredFile, LakeError>, tokio::task::JoinError>,
) -> Result<StoredFile, LakeError> {
    done.map_err(|error| LakeError::internal(format!("writing a data file failed: {error}")))?
}
