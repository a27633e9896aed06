//! The rows of several data files as one, in the order of `_sort_by`. What is in memory at a time is a
//! row group of each file that overlaps, and one of the new file, which goes to the store as it grows.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, new_null_array};
use arrow::compute::concat_batches;
use arrow::datatypes::Int64Type;
use object_store::path::Path;

use crate::lake::budget::{Budget, Charged};
use crate::lake::data_file::new_path;
use crate::lake::data_reader::{Batches, DataReader, RowGroup, as_type};
use crate::lake::error::LakeError;
use crate::lake::event::DataFile;
use crate::lake::log::now_ms;
use crate::lake::open::ActiveFile;
use crate::lake::parquet::{Encoder, ROW_GROUP_BYTES};
use crate::lake::schema::HistorySchema;
use crate::lake::store::TableStore;
use crate::lake::upkeep::plan::RangedFile;
use crate::lake::upload::Upload;

/// Rows, or bytes, that are encoded at once.
const TURN_ROWS: usize = 1 << 16;
const TURN_BYTES: usize = 8 << 20;
/// Row groups of the new file take up to this part of what reading histories may take.
const ROW_GROUP_SHARE: usize = 8;

/// Files to be merged.
pub(super) struct Merge {
    pub store: TableStore,
    pub budget: Arc<Budget>,
    /// The table's.
    pub schema: HistorySchema,
    /// Name of `_sort_by` in the files.
    pub sort_by: String,
    /// Those that begin first come first.
    pub files: Vec<RangedFile>,
}

impl Merge {
    /// Stores the new file, which no commit names yet.
    ///
    /// # Errors
    /// Kind `Conflict` if a file cannot be read or is not in order; errors of the store.
    pub(super) async fn run(self) -> Result<DataFile, LakeError> {
        let path = new_path();
        let mut upload = Upload::new(&self.store, Path::from(path.as_str()));
        match self.write(path, &mut upload).await {
            Ok(file) => Ok(file),
            Err(error) => {
                upload.abort().await;
                Err(error)
            }
        }
    }

    async fn write(self, path: String, upload: &mut Upload) -> Result<DataFile, LakeError> {
        let expected: u64 = self.files.iter().map(|file| file.rows).sum();
        let layout = self.schema.layout();
        let schema = self.schema.clone();
        let budget = Arc::clone(&self.budget);
        let mut rows = SortedRows::new(self);
        let mut encoder: Option<Encoder> = None;
        while let Some(batch) = rows.turn().await? {
            let batch = Charged {
                charge: budget.charge(batch.get_array_memory_size()),
                value: batch,
            };
            let encoder = match &mut encoder {
                Some(encoder) => encoder,
                None => {
                    let first = std::slice::from_ref(&batch);
                    let bytes = ROW_GROUP_BYTES.min(budget.limit() / ROW_GROUP_SHARE);
                    let expected = usize::try_from(expected).unwrap_or(usize::MAX);
                    encoder.insert(Encoder::new(&schema, first, expected, bytes)?)
                }
            };
            encoder.write(batch)?;
            upload.write(&encoder.take_encoded()).await?;
        }
        let encoder = encoder.ok_or_else(|| LakeError::internal("there are no rows to merge"))?;
        let encoded = encoder.finish()?;
        if encoded.rows != expected {
            return Err(LakeError::conflict(format!(
                "data files have {} rows where the Delta log says {expected}",
                encoded.rows
            )));
        }
        upload.write(&encoded.content).await?;
        Ok(DataFile {
            path,
            size: upload.finish().await?,
            rows: encoded.rows,
            modification_time_ms: now_ms(),
            stats: encoded.stats,
            layout,
        })
    }
}

/// The rows of all files in their order.
struct SortedRows {
    merge: Merge,
    /// Files that were not begun.
    waiting: VecDeque<RangedFile>,
    /// Files that were begun, each with rows left.
    begun: Vec<Input>,
}

impl SortedRows {
    fn new(mut merge: Merge) -> SortedRows {
        SortedRows {
            waiting: std::mem::take(&mut merge.files).into(),
            merge,
            begun: Vec::new(),
        }
    }

    /// As many rows as are encoded at once; `None` after the last one.
    async fn turn(&mut self) -> Result<Option<RecordBatch>, LakeError> {
        let (mut pieces, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while rows < TURN_ROWS && bytes < TURN_BYTES {
            let Some(piece) = self.piece().await? else {
                break;
            };
            rows += piece.num_rows();
            // A slice counts as the whole that it is of, which it keeps.
            bytes += piece.get_array_memory_size();
            pieces.push(piece);
        }
        match pieces.len() {
            0 => Ok(None),
            1 => Ok(pieces.pop()),
            _ => concat_batches(&self.merge.schema.arrow(), &pieces)
                .map(Some)
                .map_err(|error| LakeError::internal(format!("rows do not fit: {error}"))),
        }
    }

    /// Rows of one file, up to where another one goes on.
    async fn piece(&mut self) -> Result<Option<RecordBatch>, LakeError> {
        while let Some(file) = self.waiting.front()
            && self.begun.iter().all(|input| file.first <= input.head())
        {
            let file = file.clone();
            self.waiting.pop_front();
            self.begun.extend(Input::begin(&self.merge, file).await?);
        }
        let heads = self.begun.iter().enumerate();
        let Some((index, _)) = heads.min_by_key(|(_, input)| input.head()) else {
            return Ok(None);
        };
        let others = self.begun.iter().enumerate();
        let others = others.filter(|(other, _)| *other != index);
        let next_begun = others.map(|(_, input)| input.head()).min();
        let next_waiting = self.waiting.front().map(|file| file.first);
        let until = next_begun.into_iter().chain(next_waiting).min();
        let piece = self.begun[index].take_until(until);
        if !self.begun[index].advance(&self.merge).await? {
            self.begun.swap_remove(index);
        }
        Ok(Some(piece))
    }
}

/// A file that is being read.
struct Input {
    reader: DataReader,
    /// The next row group.
    group: usize,
    batches: Option<Batches>,
    /// Rows of the table's schema, and how many of them were taken.
    batch: RecordBatch,
    sort_by: Int64Array,
    taken: usize,
}

impl Input {
    /// `None` if the file has no rows.
    async fn begin(merge: &Merge, file: RangedFile) -> Result<Option<Input>, LakeError> {
        let file = ActiveFile {
            path: file.path,
            size: file.size,
        };
        let mut input = Input {
            reader: DataReader::open(&merge.store, &file).await?,
            group: 0,
            batches: None,
            batch: RecordBatch::new_empty(merge.schema.arrow()),
            sort_by: Int64Array::from(Vec::<i64>::new()),
            taken: 0,
        };
        Ok(input.advance(merge).await?.then_some(input))
    }

    fn head(&self) -> i64 {
        self.sort_by.value(self.taken)
    }

    /// The rows before `until`, at least one.
    fn take_until(&mut self, until: Option<i64>) -> RecordBatch {
        let rest = &self.sort_by.values()[self.taken..];
        let rows = match until {
            Some(until) => rest.partition_point(|value| *value < until).max(1),
            None => rest.len(),
        };
        let piece = self.batch.slice(self.taken, rows);
        self.taken += rows;
        piece
    }

    /// Reads on if all rows were taken; false at the end of the file.
    async fn advance(&mut self, merge: &Merge) -> Result<bool, LakeError> {
        while self.taken == self.sort_by.len() {
            let before = self.sort_by.values().last().copied();
            if let Some(batches) = &mut self.batches
                && let Some(batch) = batches.next()
            {
                (self.batch, self.sort_by) = as_rows(merge, batches.group(), &batch?)?;
                self.taken = 0;
                let values = self.sort_by.values();
                if !before.iter().chain(values.iter()).is_sorted() {
                    return Err(batches
                        .group()
                        .damaged(&"its rows are not in the order of _sort_by"));
                }
                continue;
            }
            self.batches = None;
            if self.group == self.reader.row_groups() {
                return Ok(false);
            }
            let names = merge.schema.physical_names();
            let group = self.reader.row_group(self.group, &names, &merge.budget);
            self.batches = Some(group.await?.into_batches()?);
            self.group += 1;
        }
        Ok(true)
    }
}

/// Rows of a file as the table has them now: a column that was added later is null.
fn as_rows(
    merge: &Merge,
    group: &RowGroup,
    batch: &RecordBatch,
) -> Result<(RecordBatch, Int64Array), LakeError> {
    let schema = merge.schema.arrow();
    let names = merge.schema.physical_names();
    let columns =
        names
            .iter()
            .zip(schema.fields())
            .map(|(name, field)| match batch.column_by_name(name) {
                Some(array) => as_type(array, field.data_type(), group),
                None => Ok(new_null_array(field.data_type(), batch.num_rows())),
            });
    let columns = columns.collect::<Result<Vec<ArrayRef>, LakeError>>()?;
    let sort_by = batch
        .column_by_name(&merge.sort_by)
        .and_then(|array| array.as_primitive_opt::<Int64Type>())
        .filter(|array| array.null_count() == 0)
        .ok_or_else(|| group.damaged(&"it has no column _sort_by of BIGINT"))?
        .clone();
    let rows = RecordBatch::try_new(schema, columns).map_err(|error| group.damaged(&error))?;
    Ok((rows, sort_by))
}
