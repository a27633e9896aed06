//! Record batches in, one Parquet file with its statistics out. Each batch is dropped, and its
//! memory released, as soon as it is encoded, which need not wait for the next one. CPU-heavy: never run on a runtime worker thread.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::schema::types::ColumnPath;

use crate::lake::budget::Charged;
use crate::lake::encodings::{Choice, choose};
use crate::lake::error::LakeError;
use crate::lake::schema::HistorySchema;
use crate::lake::stats::FileStats;

/// Bounds of a row group: readers parallelise over row groups, and the writer holds one in memory.
const ROW_GROUP_ROWS: usize = 1 << 20;
pub(crate) const ROW_GROUP_BYTES: usize = 64 << 20;

/// An encoded data file.
pub(crate) struct EncodedFile {
    pub content: Bytes,
    pub rows: u64,
    /// The `stats` text of its `add` action.
    pub stats: String,
}

/// A file that is being encoded, batch by batch.
pub(crate) struct Encoder {
    writer: ArrowWriter<Vec<u8>>,
    file_schema: SchemaRef,
    stats: FileStats,
}

impl Encoder {
    /// A file without rows; `first` are those that come first, of `expected` in all, by which the
    /// columns' encodings are chosen. A row group is in memory until it is as large as given.
    ///
    /// # Errors
    /// Kind `Internal`, if the library refuses the schema.
    pub(crate) fn new(
        schema: &HistorySchema,
        first: &[Charged<RecordBatch>],
        expected: usize,
        row_group_bytes: usize,
    ) -> Result<Encoder, LakeError> {
        let file_schema = schema.parquet_arrow();
        // Readers take the schema from the Delta log; the Arrow one would only be another truth.
        let options = ArrowWriterOptions::new()
            .with_properties(properties(schema, first, expected, row_group_bytes)?)
            .with_skip_arrow_metadata(true);
        let writer =
            ArrowWriter::try_new_with_options(Vec::new(), Arc::clone(&file_schema), options)
                .map_err(failed)?;
        Ok(Encoder {
            writer,
            file_schema,
            stats: FileStats::new(schema),
        })
    }

    /// Takes a batch of the table's schema in, and releases it.
    ///
    /// # Errors
    /// Kind `Internal` if the batch does not have the schema's columns, or holds a null where there
    /// must be none.
    pub(crate) fn write(&mut self, batch: Charged<RecordBatch>) -> Result<(), LakeError> {
        let columns = batch.value.columns().to_vec();
        let renamed =
            RecordBatch::try_new(Arc::clone(&self.file_schema), columns).map_err(|error| {
                LakeError::internal(format!(
                    "record batch does not fit the history schema: {error}"
                ))
            })?;
        self.stats.update(&renamed);
        self.writer.write(&renamed).map_err(failed)
    }

    /// Bytes of memory that the file takes so far.
    pub(crate) fn bytes(&self) -> usize {
        self.writer.bytes_written() + self.writer.memory_size()
    }

    /// What has been encoded since the last call; the file goes on behind it.
    pub(crate) fn take_encoded(&mut self) -> Vec<u8> {
        std::mem::take(self.writer.inner_mut())
    }

    /// The whole file, or what of it was not taken.
    ///
    /// # Errors
    /// Kind `Internal`.
    pub(crate) fn finish(self) -> Result<EncodedFile, LakeError> {
        let content = self.writer.into_inner().map_err(failed)?;
        Ok(EncodedFile {
            content: Bytes::from(content),
            rows: self.stats.rows(),
            stats: self.stats.to_json(),
        })
    }
}

/// Rows of which hardly any two are alike, and which a dictionary would hold once more.
pub(crate) fn has_large_rows(batches: &[Charged<RecordBatch>]) -> bool {
    const LARGE: usize = 64 << 10;
    let bytes: usize = batches.iter().map(|batch| batch.charge.bytes()).sum();
    bytes / row_count(batches).max(1) > LARGE
}

/// Rows of all batches.
pub(crate) fn row_count(batches: &[Charged<RecordBatch>]) -> usize {
    batches.iter().map(|batch| batch.value.num_rows()).sum()
}

fn properties(
    schema: &HistorySchema,
    first: &[Charged<RecordBatch>],
    expected: usize,
    row_group_bytes: usize,
) -> Result<WriterProperties, LakeError> {
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(concat!("wal2delta ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).map_err(failed)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_max_row_group_bytes(Some(row_group_bytes));
    if has_large_rows(first) {
        return Ok(builder
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            // Pages of version 2 are compressed without being copied together first.
            .set_writer_version(WriterVersion::PARQUET_2_0)
            .set_encoding(Encoding::PLAIN)
            // A page for each value: it is compressed and let go before the next one comes.
            .set_write_batch_size(1)
            .build());
    }
    // The largest tells most.
    let Some(batch) = first.iter().max_by_key(|batch| batch.value.num_rows()) else {
        return Ok(builder.build());
    };
    let columns = schema.physical_names().into_iter().zip(schema.columns());
    for ((physical, (_, data_type, _)), values) in columns.zip(batch.value.columns()) {
        let path = ColumnPath::new(vec![physical.to_owned()]);
        if let Choice::Each(encoding) = choose(data_type, values, expected) {
            builder = builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, encoding);
        }
    }
    Ok(builder.build())
}

fn failed(error: ParquetError) -> LakeError {
    LakeError::internal(format!("could not encode a Parquet file: {error}"))
}
