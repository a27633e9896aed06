//! What a table holds that is not in its Delta log yet: record batches in memory, files being
//! encoded, files stored. It never touches the log.

use std::sync::Arc;

use arrow::array::RecordBatch;
use object_store::path::Path;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::lake::budget::Charged;
use crate::lake::error::LakeError;
use crate::lake::event::DataFile;
use crate::lake::log::now_ms;
use crate::lake::parquet::{encode, has_large_rows};
use crate::lake::runtime::{ENCODERS, Shared};
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
    /// The schema of the batches held, as the table will have it.
    schema: Option<HistorySchema>,
    batches: Vec<Charged<RecordBatch>>,
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
            batches: Vec::new(),
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
        self.batches.push(batch);
        if self.bytes > self.shared.config.target_file_bytes {
            self.spill();
        }
        Ok(())
    }

    /// Begins to encode and store what is held in memory.
    pub(crate) fn spill(&mut self) {
        let Some(schema) = &self.schema else { return };
        if self.batches.is_empty() {
            return;
        }
        let (shared, store, schema) =
            (Arc::clone(&self.shared), self.store.clone(), schema.clone());
        let batches = std::mem::take(&mut self.batches);
        let order = self.started;
        self.started += 1;
        self.bytes = 0;
        let table = self.table;
        self.jobs
            .spawn(async move { store_file(&shared, &store, table, schema, order, batches).await });
    }

    /// What comes now is of another schema, even if it looks alike: a column of the same name and type
    /// can be another one.
    pub(crate) fn turn(&mut self) {
        self.spill();
        self.schema = None;
    }

    /// Stores everything that is in memory, and waits until that is done.
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
        self.batches.clear();
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

fn finished(
    done: Result<Result<StoredFile, LakeError>, tokio::task::JoinError>,
) -> Result<StoredFile, LakeError> {
    done.map_err(|error| LakeError::internal(format!("writing a data file failed: {error}")))?
}

async fn store_file(
    shared: &Shared,
    store: &TableStore,
    table: u32,
    schema: HistorySchema,
    order: usize,
    batches: Vec<Charged<RecordBatch>>,
) -> Result<StoredFile, LakeError> {
    // Large values take their size several times over while they are encoded: one file at a time.
    let permits = if has_large_rows(&batches) {
        ENCODERS
    } else {
        1
    };
    let permit = shared
        .encoders
        .acquire_many(permits)
        .await
        .map_err(|error| LakeError::internal(error.to_string()))?;
    let layout = schema.layout();
    let encoded = tokio::task::spawn_blocking(move || encode(&schema, batches))
        .await
        .map_err(|error| LakeError::internal(format!("encoding a data file failed: {error}")))?;
    drop(permit);
    let encoded = encoded?;
    let _charge = shared.budget.charge(encoded.content.len());
    // A name of this form needs no URL encoding in the log.
    let path = format!("part-{}.zstd.parquet", Uuid::new_v4());
    let size = encoded.content.len() as u64;
    let staged = shared.staged.add(table, size)?;
    store
        .put_data(&Path::from(path.as_str()), encoded.content)
        .await?;
    let file = DataFile {
        path,
        size,
        rows: encoded.rows,
        modification_time_ms: now_ms(),
        stats: encoded.stats,
        layout,
    };
    Ok(StoredFile {
        order,
        file,
        staged,
    })
}
