//! The rows that a history leaves live: those inserted and not deleted since. Nothing but the
//! history knows them, so it is read back, in bounded memory whatever its size: the counts of the
//! kinds of rows take what they are given, in several passes if need be; beside them there are a
//! row group of one file and a batch of its rows.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, RecordBatch, RecordBatchOptions, StringArray, new_null_array,
};
use arrow::buffer::BooleanBuffer;
use arrow::compute::filter;
use arrow::datatypes::{DataType, Schema as ArrowSchema, SchemaRef};
use futures::future::ready;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::lake::budget::{Budget, Charge};
use crate::lake::data_reader::{BATCH_ROWS, DataReader, RowGroup, as_type};
use crate::lake::error::LakeError;
use crate::lake::open::ActiveFile;
use crate::lake::row_keys::{KeyMaker, Keys};
use crate::lake::schema::{CHANGE_TYPE, HistorySchema, SORT_BY};
use crate::lake::store::TableStore;
use crate::lake::tally::Tally;

/// Files whose footers are read at the same time.
const FOOTERS: usize = 8;

/// The source columns, by index, that rows are told apart by.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// Every row has its value there.
    pub certain: Vec<usize>,
    /// Some rows were written before these were there: they have NULL, and may be deleted, or changed,
    /// with another value.
    pub added: Vec<usize>,
}

impl Identity {
    fn columns(&self) -> impl Iterator<Item = usize> + '_ {
        self.certain.iter().chain(&self.added).copied()
    }
}

/// The live rows of a history, to be asked for batch by batch.
///
/// Rows are of one kind if they are equal in the certain columns, null being equal to null and floats
/// compared by their bits. `insert` and `update_postimage` add one to a kind's count, `delete` and
/// `update_preimage` take one off. What is left is live: the latest so many added rows of the kind, of
/// those that are not deleted by what they have in the added columns too. A pass counts from the oldest
/// file on, and then goes back from the newest one.
pub(crate) struct LiveRows {
    history: History,
    /// `None` after a failure.
    tally: Option<Tally>,
    back: Back,
    /// Rows of a batch at most.
    batch_rows: usize,
    _charge: Charge,
}

impl LiveRows {
    /// The live rows of a table that consists of `files`, in any order, and has `schema`. No file with
    /// a `_sort_by` up to `after` counts: nothing of what is in it lives.
    /// The counts take up to `memory` bytes, charged to the budget like the parts of files that are
    /// read.
    ///
    /// # Errors
    /// Kind `Conflict` if the history is damaged; errors of the store.
    pub(crate) async fn open(
        store: &TableStore,
        budget: &Arc<Budget>,
        files: Vec<ActiveFile>,
        schema: &HistorySchema,
        identity: &Identity,
        after: i64,
        memory: usize,
    ) -> Result<LiveRows, LakeError> {
        let columns = Columns::new(schema, identity)?;
        let ordered = stream::iter(files)
            .map(|file| first_sort_by(store, budget, &columns.sort_by, file))
            .buffer_unordered(FOOTERS);
        let mut ordered: Vec<(i64, u64, ActiveFile)> = ordered
            .try_filter_map(|file| ready(Ok(file)))
            .try_collect()
            .await?;
        ordered.retain(|(first, _, _)| *first > after);
        ordered.sort_unstable_by_key(|(first, _, _)| *first);
        let rows = ordered.iter().map(|(_, rows, _)| rows).sum();
        let files: Vec<ActiveFile> = ordered.into_iter().map(|(_, _, file)| file).collect();
        let tally = Tally::new(memory, rows);
        Ok(LiveRows {
            _charge: budget.charge(tally.bytes()),
            tally: Some(tally),
            back: Back::from_end(&files),
            batch_rows: BATCH_ROWS,
            history: History {
                store: store.clone(),
                budget: Arc::clone(budget),
                files,
                columns: Arc::new(columns),
            },
        })
    }

    /// The next batch: all source columns, one row or more; `None` after the last one. Only then
    /// is it known that the history is sound. A call that is not awaited to its end is a failure.
    ///
    /// # Errors
    /// As from `open`.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>, LakeError> {
        loop {
            let tally = self.tally.take();
            let mut tally =
                tally.ok_or_else(|| LakeError::internal("finding the live rows failed before"))?;
            if tally.left() == 0 {
                if !tally.next_pass() {
                    self.tally = Some(tally);
                    return Ok(None);
                }
                self.tally = Some(self.history.count(tally).await?);
                self.back = Back::from_end(&self.history.files);
                continue;
            }
            let piece = self.back.step(&self.history, self.batch_rows).await?;
            let piece = piece.ok_or_else(|| {
                LakeError::internal("rows of a history were counted and not found again")
            })?;
            let columns = Arc::clone(&self.history.columns);
            let (tally, batch) = off_thread(move || {
                let batch = columns.take_live(&piece, &mut tally)?;
                Ok((tally, batch))
            })
            .await?;
            self.tally = Some(tally);
            if batch.num_rows() > 0 {
                return Ok(Some(batch));
            }
        }
    }
}

/// What a file begins with, its rows, and the file; `None` if it has no rows.
async fn first_sort_by(
    store: &TableStore,
    budget: &Arc<Budget>,
    sort_by: &str,
    file: ActiveFile,
) -> Result<Option<(i64, u64, ActiveFile)>, LakeError> {
    let reader = DataReader::open(store, &file).await?;
    let first = reader.first_of(sort_by, budget).await?;
    Ok(first.map(|first| (first, reader.rows(), file)))
}

/// Runs what is heavy on the CPU where it holds up nobody.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LakeError> + Send + 'static,
) -> Result<T, LakeError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| LakeError::internal(format!("reading a history failed: {error}")))?
}

/// The files of a history, oldest first.
struct History {
    store: TableStore,
    budget: Arc<Budget>,
    files: Vec<ActiveFile>,
    columns: Arc<Columns>,
}

impl History {
    /// Counts the rows of a pass. From the oldest file on, so that what was deleted again takes no
    /// memory.
    async fn count(&self, mut tally: Tally) -> Result<Tally, LakeError> {
        let names = self.columns.counted();
        for file in &self.files {
            let reader = DataReader::open(&self.store, file).await?;
            for index in 0..reader.row_groups() {
                let group = reader.row_group(index, &names, &self.budget).await?;
                let columns = Arc::clone(&self.columns);
                tally = off_thread(move || {
                    let mut batches = group.into_batches()?;
                    while let Some(batch) = batches.next() {
                        columns.count(batches.group(), &batch?, &mut tally)?;
                    }
                    Ok(tally)
                })
                .await?;
            }
        }
        off_thread(move || {
            tally.finish();
            Ok(tally)
        })
        .await
    }
}

/// The way through a history from its last row to its first.
struct Back {
    /// Files not begun.
    files: usize,
    /// The file begun, and its row groups not begun.
    file: Option<(DataReader, usize)>,
    /// The row group begun, and its rows not read.
    group: Option<(Arc<RowGroup>, usize)>,
}

/// Rows of a row group.
struct Piece {
    group: Arc<RowGroup>,
    start: usize,
    end: usize,
}

impl Back {
    fn from_end(files: &[ActiveFile]) -> Back {
        Back {
            files: files.len(),
            file: None,
            group: None,
        }
    }

    /// The rows before those of the last step.
    async fn step(
        &mut self,
        history: &History,
        at_most: usize,
    ) -> Result<Option<Piece>, LakeError> {
        loop {
            if let Some((group, rows)) = &mut self.group
                && *rows > 0
            {
                let end = *rows;
                *rows = end.saturating_sub(group.batch_rows().min(at_most));
                return Ok(Some(Piece {
                    group: Arc::clone(group),
                    start: *rows,
                    end,
                }));
            }
            // Only one row group is held at a time.
            self.group = None;
            if let Some((reader, groups)) = &mut self.file
                && *groups > 0
            {
                *groups -= 1;
                let names = history.columns.emitted();
                let group = reader.row_group(*groups, &names, &history.budget).await?;
                let rows = group.rows();
                self.group = Some((Arc::new(group), rows));
            } else if self.files > 0 {
                self.files -= 1;
                let reader = DataReader::open(&history.store, &history.files[self.files]).await?;
                let groups = reader.row_groups();
                self.file = Some((reader, groups));
            } else {
                return Ok(None);
            }
        }
    }
}

/// What is read of a row, and how.
struct Columns {
    /// The source columns' schema.
    source: SchemaRef,
    /// Their names in files.
    physical: Vec<String>,
    change_type: String,
    sort_by: String,
    identity: Identity,
    keys: KeyMaker,
}

impl Columns {
    fn new(schema: &HistorySchema, identity: &Identity) -> Result<Columns, LakeError> {
        let arrow = schema.arrow();
        let sources = schema.source().len();
        if let Some(index) = identity.columns().find(|index| *index >= sources) {
            return Err(LakeError::internal(format!(
                "there is no source column {index}"
            )));
        }
        let physical = schema.physical_names();
        let system = |wanted| {
            let mut names = schema.columns().zip(&physical);
            let found = names.find(|((name, _, _), _)| *name == wanted);
            found.map_or_else(String::new, |(_, name)| (*name).to_owned())
        };
        Ok(Columns {
            source: Arc::new(ArrowSchema::new(arrow.fields()[..sources].to_vec())),
            change_type: system(CHANGE_TYPE),
            sort_by: system(SORT_BY),
            physical: physical[..sources]
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
            identity: identity.clone(),
            keys: KeyMaker::new(),
        })
    }

    /// Names of the columns to count by.
    fn counted(&self) -> Vec<&str> {
        let identity = self.identity.columns();
        let names = identity.map(|index| self.physical[index].as_str());
        names.chain([self.change_type.as_str()]).collect()
    }

    /// Names of the columns to give out, and to know by which rows they are.
    fn emitted(&self) -> Vec<&str> {
        let names = self.physical.iter().map(String::as_str);
        names.chain([self.change_type.as_str()]).collect()
    }

    fn count(
        &self,
        group: &RowGroup,
        batch: &RecordBatch,
        tally: &mut Tally,
    ) -> Result<(), LakeError> {
        let changes = Changes::new(self, group, batch)?;
        let mut keys = self.keys(group, batch)?;
        for row in 0..batch.num_rows() {
            let change = if changes.adds(group, row)? { 1 } else { -1 };
            tally.add(keys.of(row), change);
        }
        Ok(())
    }

    /// The rows of a piece that are live, the latest of a kind first to be taken.
    fn take_live(&self, piece: &Piece, tally: &mut Tally) -> Result<RecordBatch, LakeError> {
        let group = &piece.group;
        let batch = group.batch(piece.start..piece.end)?;
        let changes = Changes::new(self, group, &batch)?;
        let mut keys = self.keys(group, &batch)?;
        let mut live = vec![false; batch.num_rows()];
        for (row, live) in live.iter_mut().enumerate().rev() {
            *live = changes.adds(group, row)? && tally.take(keys.of(row));
        }
        let live = BooleanArray::new(BooleanBuffer::from(live), None);
        let rows = live.true_count();
        let columns = (0..self.physical.len())
            .map(|index| {
                let Some(array) = batch.column_by_name(&self.physical[index]) else {
                    return Ok(new_null_array(self.data_type(index), rows));
                };
                let taken = filter(array, &live).map_err(|error| group.damaged(&error))?;
                as_type(&taken, self.data_type(index), group)
            })
            .collect::<Result<Vec<ArrayRef>, LakeError>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.source), columns, &options)
            .map_err(|error| group.damaged(&error))
    }

    fn keys(&self, group: &RowGroup, batch: &RecordBatch) -> Result<Keys<'_>, LakeError> {
        let identity = self.identity.columns().map(|index| {
            let array = batch.column_by_name(&self.physical[index]);
            array
                .map(|array| as_type(array, self.data_type(index), group))
                .transpose()
        });
        let identity = identity.collect::<Result<Vec<_>, _>>()?;
        self.keys.keys(&identity, self.identity.certain.len())
    }

    fn data_type(&self, index: usize) -> &DataType {
        self.source.field(index).data_type()
    }
}

/// The change types of a batch.
struct Changes {
    types: StringArray,
}

impl Changes {
    fn new(columns: &Columns, group: &RowGroup, batch: &RecordBatch) -> Result<Self, LakeError> {
        let types = batch
            .column_by_name(&columns.change_type)
            .and_then(|array| array.as_string_opt::<i32>())
            .ok_or_else(|| group.damaged(&format!("it has no column \"{CHANGE_TYPE}\" of STRING")))?
            .clone();
        Ok(Changes { types })
    }

    /// Whether a change adds a row; otherwise it takes one away.
    fn adds(&self, group: &RowGroup, row: usize) -> Result<bool, LakeError> {
        match self.types.value(row) {
            "insert" | "update_postimage" => Ok(true),
            "delete" | "update_preimage" => Ok(false),
            other => Err(group.damaged(&format!("there is a change of type \"{other}\" in it"))),
        }
    }
}

#[cfg(test)]
#[path = "live_rows_tests.rs"]
mod tests;
