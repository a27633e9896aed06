//! Record batches in, one Parquet file with its statistics out. Each batch is dropped, and its
//! memory released, as soon as it is encoded. CPU-heavy: never run on a runtime worker thread.

use std::sync::Arc;

use arrow::array::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::schema::types::ColumnPath;

use crate::lake::budget::Charged;
use crate::lake::error::LakeError;
use crate::lake::schema::{HistorySchema, LSN, SORT_BY};
use crate::lake::stats::FileStats;

/// Bounds of a row group: readers parallelise over row groups, and the writer holds one in memory.
const ROW_GROUP_ROWS: usize = 1 << 20;
const ROW_GROUP_BYTES: usize = 64 << 20;

/// An encoded data file.
pub(crate) struct EncodedFile {
    pub content: Bytes,
    pub rows: u64,
    /// The `stats` text of its `add` action.
    pub stats: String,
}

/// Encodes batches of the table's schema into one file.
///
/// # Errors
/// Kind `Internal` if a batch does not have the schema's columns, or holds a null where there
/// must be none.
pub(crate) fn encode(
    schema: &HistorySchema,
    batches: Vec<Charged<RecordBatch>>,
) -> Result<EncodedFile, LakeError> {
    let file_schema = schema.parquet_arrow();
    // Readers take the schema from the Delta log; the Arrow one would only be another truth.
    let options = ArrowWriterOptions::new()
        .with_properties(properties(schema, has_large_rows(&batches))?)
        .with_skip_arrow_metadata(true);
    let mut writer =
        ArrowWriter::try_new_with_options(Vec::new(), Arc::clone(&file_schema), options)
            .map_err(failed)?;
    let mut stats = FileStats::new(schema);
    for batch in batches {
        let columns = batch.value.columns().to_vec();
        let renamed = RecordBatch::try_new(Arc::clone(&file_schema), columns).map_err(|error| {
            LakeError::internal(format!(
                "record batch does not fit the history schema: {error}"
            ))
        })?;
        stats.update(&renamed);
        writer.write(&renamed).map_err(failed)?;
        drop((renamed, batch));
    }
    let content = writer.into_inner().map_err(failed)?;
    Ok(EncodedFile {
        content: Bytes::from(content),
        rows: stats.rows(),
        stats: stats.to_json(),
    })
}

/// Rows of which hardly any two are alike, and which a dictionary would hold once more.
pub(crate) fn has_large_rows(batches: &[Charged<RecordBatch>]) -> bool {
    const LARGE: usize = 64 << 10;
    let bytes: usize = batches.iter().map(|batch| batch.charge.bytes()).sum();
    let rows: usize = batches.iter().map(|batch| batch.value.num_rows()).sum();
    bytes / rows.max(1) > LARGE
}

fn properties(schema: &HistorySchema, large_rows: bool) -> Result<WriterProperties, LakeError> {
    let physical = schema.physical_names();
    let mut builder = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(concat!("wal2delta ", env!("CARGO_PKG_VERSION")).to_owned())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).map_err(failed)?))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES));
    if large_rows {
        builder = builder
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            // Pages of version 2 are compressed without being copied together first.
            .set_writer_version(WriterVersion::PARQUET_2_0)
            .set_encoding(Encoding::PLAIN)
            // A page for each value: it is compressed and let go before the next one comes.
            .set_write_batch_size(1);
    }
    for (index, (name, _, _)) in schema.columns().enumerate() {
        // Never the same value twice, or long runs of values that only grow: differences are far
        // smaller than a dictionary.
        if name == SORT_BY || name == LSN {
            let path = ColumnPath::new(vec![physical[index].to_owned()]);
            builder = builder
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
        }
    }
    Ok(builder.build())
}

fn failed(error: ParquetError) -> LakeError {
    LakeError::internal(format!("could not encode a Parquet file: {error}"))
}
