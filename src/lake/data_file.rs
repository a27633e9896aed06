//! One data file on its way to the store. Its batches are encoded as they come, so that little is left
//! to do once it is to be committed, and what waits in memory is mostly encoded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use object_store::path::Path;
use tokio::sync::mpsc::UnboundedReceiver;
use uuid::Uuid;

use crate::lake::budget::Charged;
use crate::lake::error::LakeError;
use crate::lake::event::DataFile;
use crate::lake::log::now_ms;
use crate::lake::parquet::{EncodedFile, Encoder, ROW_GROUP_BYTES, has_large_rows, row_count};
use crate::lake::runtime::{ENCODERS, Shared};
use crate::lake::schema::HistorySchema;
use crate::lake::staged::StagedFile;
use crate::lake::store::TableStore;

/// Most batches that are encoded at once: those of a whole file.
const TURN: usize = 1024;

/// A file of a table.
pub(crate) struct NewFile {
    pub shared: Arc<Shared>,
    pub store: TableStore,
    /// The source table's oid.
    pub table: u32,
    /// The schema of its batches, as the table will have it.
    pub schema: HistorySchema,
    /// Bytes of batches that are not encoded yet; counted down here.
    pub backlog: Arc<AtomicUsize>,
}

/// What a turn of encoding leaves.
enum Turn {
    Open(Box<Encoder>),
    Finished(EncodedFile),
}

impl NewFile {
    /// Encodes batches until no more can come, then stores the file. There must be at least one.
    ///
    /// # Errors
    /// If it could not be encoded or stored.
    pub(crate) async fn write(
        self,
        mut batches: UnboundedReceiver<Charged<RecordBatch>>,
    ) -> Result<(DataFile, StagedFile), LakeError> {
        let mut encoder = None;
        let mut charge = None;
        loop {
            let mut turn = Vec::new();
            batches.recv_many(&mut turn, TURN).await;
            // Nothing was received only if nothing can be.
            let last = turn.is_empty() || (batches.is_closed() && batches.is_empty());
            match self.encode(encoder.take(), turn, last).await? {
                Turn::Finished(file) => {
                    // It is counted as content from now on.
                    drop(charge);
                    return self.store(file).await;
                }
                Turn::Open(open) => {
                    charge = Some(self.shared.budget.charge(open.bytes()));
                    encoder = Some(open);
                }
            }
        }
    }

    async fn encode(
        &self,
        encoder: Option<Box<Encoder>>,
        batches: Vec<Charged<RecordBatch>>,
        last: bool,
    ) -> Result<Turn, LakeError> {
        // Large values take their size several times over while they are encoded: one file at a time.
        let permits = match has_large_rows(&batches) {
            true => ENCODERS,
            false => 1,
        };
        let permit = self.shared.encoders.acquire_many(permits);
        let _permit = permit
            .await
            .map_err(|error| LakeError::internal(error.to_string()))?;
        let (schema, backlog) = (self.schema.clone(), Arc::clone(&self.backlog));
        let target = self.shared.config.target_file_bytes;
        let work = move || {
            let mut encoder = match encoder {
                Some(encoder) => encoder,
                None => {
                    let expected = expected_rows(&batches, if last { 0 } else { target });
                    Box::new(Encoder::new(&schema, &batches, expected, ROW_GROUP_BYTES)?)
                }
            };
            for batch in batches {
                let bytes = batch.charge.bytes();
                encoder.write(batch)?;
                backlog.fetch_sub(bytes, Ordering::Relaxed);
            }
            Ok(match last {
                true => Turn::Finished(encoder.finish()?),
                false => Turn::Open(encoder),
            })
        };
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|error| LakeError::internal(format!("encoding a data file failed: {error}")))?
    }

    async fn store(&self, encoded: EncodedFile) -> Result<(DataFile, StagedFile), LakeError> {
        let size = encoded.content.len() as u64;
        let _charge = self.shared.budget.charge(encoded.content.len());
        let path = new_path();
        let staged = self.shared.staged.add(self.table, size)?;
        self.store
            .put_data(&Path::from(path.as_str()), encoded.content)
            .await?;
        let file = DataFile {
            path,
            size,
            rows: encoded.rows,
            modification_time_ms: now_ms(),
            stats: encoded.stats,
            layout: self.schema.layout(),
        };
        Ok((file, staged))
    }
}

/// A name that no file has, of a form that needs no URL encoding in the log.
pub(crate) fn new_path() -> String {
    format!("part-{}.zstd.parquet", Uuid::new_v4())
}

/// How many rows a file will have that begins with these batches, and will take `bytes` as Arrow.
fn expected_rows(batches: &[Charged<RecordBatch>], bytes: usize) -> usize {
    let here: usize = batches.iter().map(|batch| batch.charge.bytes()).sum();
    row_count(batches) * (bytes / here.max(1)).max(1)
}
