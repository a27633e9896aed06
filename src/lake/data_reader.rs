//! Data files read back, a row group at a time: only the columns asked for are fetched, and the
//! rows can be decoded from the end. What cannot be read is a damaged history: a new snapshot is
//! the remedy.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Int64Type};
use bytes::{Buf, Bytes};
use object_store::path::Path;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder, RowSelectionPolicy,
};
use parquet::basic::Type;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::statistics::Statistics;

use crate::lake::budget::{Budget, Charge};
use crate::lake::error::LakeError;
use crate::lake::open::ActiveFile;
use crate::lake::store::TableStore;

/// Read of every file first: its footer, and a small file as a whole.
const TAIL_BYTES: u64 = 64 << 10;

/// Decoded bytes of a batch, about.
const BATCH_BYTES: usize = 8 << 20;
/// Rows of a batch at most.
pub(crate) const BATCH_ROWS: usize = 1 << 16;

/// A data file whose footer was read.
pub(crate) struct DataReader {
    store: TableStore,
    path: Path,
    size: u64,
    /// The end of the file.
    tail: Part,
    footer: ArrowReaderMetadata,
}

impl DataReader {
    /// Reads a file's footer.
    ///
    /// # Errors
    /// Kind `Conflict` if it is no Parquet file; errors of the store.
    pub(crate) async fn open(
        store: &TableStore,
        file: &ActiveFile,
    ) -> Result<DataReader, LakeError> {
        let unreadable = |error: &dyn std::fmt::Display| damaged(store, &file.path, error);
        let path = Path::from_url_path(&file.path).map_err(|error| unreadable(&error))?;
        let mut wanted = TAIL_BYTES.min(file.size);
        if wanted == 0 {
            return Err(unreadable(&"it is empty"));
        }
        let mut reader = ParquetMetaDataReader::new();
        let tail = loop {
            let tail = fetch(store, &path, file.size - wanted..file.size).await?;
            match reader.try_parse_sized(&tail.bytes, file.size) {
                Ok(()) => break tail,
                Err(ParquetError::NeedMoreData(needed)) if needed as u64 > wanted => {
                    wanted = needed as u64;
                }
                Err(error) => return Err(unreadable(&error)),
            }
        };
        // As when it was written: the Delta log's types are the truth, not an Arrow schema.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let footer = reader
            .finish()
            .and_then(|footer| ArrowReaderMetadata::try_new(Arc::new(footer), options))
            .map_err(|error| unreadable(&error))?;
        Ok(DataReader {
            store: store.clone(),
            path,
            size: file.size,
            tail,
            footer,
        })
    }

    /// Number of row groups.
    pub(crate) fn row_groups(&self) -> usize {
        self.footer.metadata().num_row_groups()
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> u64 {
        let rows = self.footer.metadata().file_metadata().num_rows();
        rows.max(0).unsigned_abs()
    }

    /// The smallest value of a BIGINT column without nulls that only grows; `None` without rows.
    pub(crate) async fn first_of(
        &self,
        column: &str,
        budget: &Arc<Budget>,
    ) -> Result<Option<i64>, LakeError> {
        let groups = self.footer.metadata().row_groups();
        let Some(index) = groups.iter().position(|group| group.num_rows() > 0) else {
            return Ok(None);
        };
        let statistics = groups[index]
            .columns()
            .iter()
            .find(|chunk| is_column(chunk, column))
            .and_then(ColumnChunkMetaData::statistics);
        if let Some(Statistics::Int64(bounds)) = statistics
            && let Some(first) = bounds.min_opt()
        {
            return Ok(Some(*first));
        }
        let group = self.row_group(index, &[column], budget).await?;
        let batch = group.batch(0..1)?;
        let first = batch
            .column_by_name(column)
            .and_then(|array| array.as_primitive_opt::<Int64Type>())
            .ok_or_else(|| group.damaged(&format!("it has no column \"{column}\" of BIGINT")))?;
        Ok(Some(first.value(0)))
    }

    /// Fetches columns of a row group. Those that the file does not have are left out.
    ///
    /// # Errors
    /// Errors of the store.
    pub(crate) async fn row_group(
        &self,
        index: usize,
        columns: &[&str],
        budget: &Arc<Budget>,
    ) -> Result<RowGroup, LakeError> {
        let group = self.footer.metadata().row_group(index);
        let rows = usize::try_from(group.num_rows()).unwrap_or(0);
        let mut leaves = Vec::new();
        let mut missing = Vec::new();
        let mut decoded: usize = 0;
        for (leaf, chunk) in group.columns().iter().enumerate() {
            if !columns.iter().any(|column| is_column(chunk, column)) {
                continue;
            }
            leaves.push(leaf);
            decoded = decoded.saturating_add(decoded_bytes(chunk, rows));
            let (start, length) = chunk.byte_range();
            if start < self.tail.start {
                missing.push(start..start.saturating_add(length));
            }
        }
        let fetched: u64 = missing.iter().map(|range| range.end - range.start).sum();
        let charge = budget.charge(usize::try_from(fetched).unwrap_or(usize::MAX));
        let bytes = if missing.is_empty() {
            Vec::new()
        } else {
            self.store.get_ranges(&self.path, &missing).await?
        };
        let starts = missing.iter().map(|range| range.start);
        let mut parts: Vec<Part> = starts
            .zip(bytes)
            .map(|(start, bytes)| Part { start, bytes })
            .collect();
        parts.push(self.tail.clone());
        // Not by name: `ProjectionMask` takes a dot in a name for a path.
        let mask = ProjectionMask::leaves(self.footer.parquet_schema(), leaves);
        Ok(RowGroup {
            store: self.store.clone(),
            path: self.path.clone(),
            content: Content {
                size: self.size,
                parts: Arc::new(parts),
            },
            footer: self.footer.clone(),
            index,
            mask,
            rows,
            batch_rows: (BATCH_BYTES / (decoded / rows.max(1)).max(1)).clamp(1, BATCH_ROWS),
            _charge: charge,
        })
    }
}

/// The rows of a row group, decoded batch by batch. CPU-heavy: never on a runtime worker thread.
pub(crate) struct Batches {
    group: RowGroup,
    reader: ParquetRecordBatchReader,
}

impl Batches {
    /// The row group that they are of.
    pub(crate) fn group(&self) -> &RowGroup {
        &self.group
    }
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, LakeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.reader.next()?;
        Some(batch.map_err(|error| self.group.damaged(&error)))
    }
}

/// A row group whose columns are in memory.
pub(crate) struct RowGroup {
    store: TableStore,
    path: Path,
    content: Content,
    footer: ArrowReaderMetadata,
    index: usize,
    mask: ProjectionMask,
    rows: usize,
    batch_rows: usize,
    _charge: Charge,
}

impl RowGroup {
    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Rows that have a good size as a batch.
    pub(crate) fn batch_rows(&self) -> usize {
        self.batch_rows
    }

    /// All rows, batch by batch.
    pub(crate) fn into_batches(self) -> Result<Batches, LakeError> {
        let reader = self.reader(0..self.rows, self.batch_rows)?;
        Ok(Batches {
            group: self,
            reader,
        })
    }

    /// Decodes some rows as one batch. CPU-heavy like `batches`.
    pub(crate) fn batch(&self, rows: Range<usize>) -> Result<RecordBatch, LakeError> {
        let wanted = rows.len();
        let batch = self.reader(rows, wanted)?.next().transpose();
        let batch = batch.map_err(|error| self.damaged(&error))?;
        batch
            .filter(|batch| batch.num_rows() == wanted)
            .ok_or_else(|| self.damaged(&"it has fewer rows than its footer says"))
    }

    fn reader(
        &self,
        rows: Range<usize>,
        batch_rows: usize,
    ) -> Result<ParquetRecordBatchReader, LakeError> {
        let (content, footer) = (self.content.clone(), self.footer.clone());
        ParquetRecordBatchReaderBuilder::new_with_metadata(content, footer)
            .with_row_groups(vec![self.index])
            .with_projection(self.mask.clone())
            .with_offset(rows.start)
            .with_limit(rows.len())
            // Pages before the first row are skipped, whatever the number of rows.
            .with_row_selection_policy(RowSelectionPolicy::Selectors)
            .with_batch_size(batch_rows)
            .build()
            .map_err(|error| self.damaged(&error))
    }

    /// The error that something is wrong with the file.
    pub(crate) fn damaged(&self, what: &dyn std::fmt::Display) -> LakeError {
        damaged(&self.store, self.path.as_ref(), what)
    }
}

/// Values of a row group with the type that the table's schema has: a file may be older.
///
/// # Errors
/// Kind `Conflict` if one of them has no place in it.
pub(crate) fn as_type(
    array: &ArrayRef,
    data_type: &DataType,
    group: &RowGroup,
) -> Result<ArrayRef, LakeError> {
    if array.data_type() == data_type {
        return Ok(Arc::clone(array));
    }
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    cast_with_options(array, data_type, &options).map_err(|error| group.damaged(&error))
}

fn damaged(store: &TableStore, path: &str, what: &dyn std::fmt::Display) -> LakeError {
    LakeError::conflict(format!(
        "history table \"{}\" is damaged: file \"{path}\" cannot be read: {what}",
        store.name()
    ))
}

fn is_column(chunk: &ColumnChunkMetaData, name: &str) -> bool {
    matches!(chunk.column_path().parts(), [only] if only == name)
}

/// What a column takes as an array. A dictionary makes it far larger than the file says.
fn decoded_bytes(chunk: &ColumnChunkMetaData, rows: usize) -> usize {
    const FIXED: usize = 16;
    let values = match chunk.column_type() {
        Type::BYTE_ARRAY => {
            let told = chunk.unencoded_byte_array_data_bytes().unwrap_or(0);
            let bytes = told.max(chunk.uncompressed_size());
            usize::try_from(bytes).unwrap_or(0)
        }
        _ => 0,
    };
    values.saturating_add(rows.saturating_mul(FIXED))
}

async fn fetch(store: &TableStore, path: &Path, range: Range<u64>) -> Result<Part, LakeError> {
    let start = range.start;
    let mut parts = store.get_ranges(path, &[range]).await?;
    let bytes = parts.pop().unwrap_or_default();
    Ok(Part { start, bytes })
}

/// A piece of a file.
#[derive(Clone)]
struct Part {
    start: u64,
    bytes: Bytes,
}

/// A file of which some parts are in memory.
#[derive(Clone)]
struct Content {
    size: u64,
    parts: Arc<Vec<Part>>,
}

impl Content {
    /// What is in memory from an offset on.
    fn starting_at(&self, start: u64) -> Result<Bytes, ParquetError> {
        let held = self.parts.iter().find_map(|part| {
            let at = usize::try_from(start.checked_sub(part.start)?).ok()?;
            (at < part.bytes.len()).then(|| part.bytes.slice(at..))
        });
        held.ok_or_else(|| ParquetError::EOF(format!("offset {start} is in no column")))
    }
}

impl Length for Content {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Content {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.starting_at(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let mut bytes = self.starting_at(start)?;
        if bytes.len() < length {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at offset {start} are not in one column"
            )));
        }
        bytes.truncate(length);
        Ok(bytes)
    }
}
