//! Reading a table's log through the Delta kernel: what a table is, how far it has come, which
//! files are active. Kernel calls block and need threads of their own for each, so they run on
//! blocking threads and only a few at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use buoyant_kernel::scan::StatsOptions;
use buoyant_kernel::scan::state::ScanFile;
use buoyant_kernel::{DeltaResult, Engine, Snapshot, SnapshotRef};
use tokio::sync::Semaphore;

use crate::lake::error::LakeError;
use crate::lake::log::{Format, Metadata, Protocol};
use crate::lake::schema::HistorySchema;
use crate::lake::source::{
    GAP_PROPERTY, GENERATION_PROPERTY, Progress, SOURCE_PROPERTY, Source, WHOLE_PROPERTY,
};
use crate::lake::store::{KERNEL_ROOT, TableStore};
use crate::lake::writers::Writer;

/// Features that this version can write. `appendOnly` is for feeds that keep all history.
const KNOWN_FEATURES: [&str; 4] = ["timestampNtz", "invariants", "columnMapping", "appendOnly"];

pub(crate) const MAX_COLUMN_ID: &str = "delta.columnMapping.maxColumnId";

/// A table as its log describes it.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pub version: u64,
    pub protocol: Protocol,
    pub metadata: Metadata,
    /// The table that the property `wal2delta.source` names.
    pub source: Option<Source>,
    pub schema: Result<HistorySchema, LakeError>,
    pub progress: Option<Progress>,
    /// Changes after the last commit with rows are missing.
    pub gap: bool,
    /// It was made for its first rows, which are in the write-ahead log from this LSN on.
    pub whole: Option<u64>,
    /// Who changed it last.
    pub writer: Writer,
}

/// A file that is part of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActiveFile {
    /// As the log has it: relative to the table, URL-encoded.
    pub path: String,
    /// Bytes.
    pub size: u64,
}

/// Runs a blocking kernel call, a few at a time.
pub(crate) async fn with_kernel<T: Send + 'static>(
    store: &TableStore,
    kernels: &Semaphore,
    call: impl FnOnce(&TableStore, &dyn Engine) -> Result<T, LakeError> + Send + 'static,
) -> Result<T, LakeError> {
    let _permit = kernels
        .acquire()
        .await
        .map_err(|error| LakeError::internal(error.to_string()))?;
    let store = store.clone();
    tokio::task::spawn_blocking(move || call(&store, store.engine()?.as_ref()))
        .await
        .map_err(|error| LakeError::internal(format!("reading a Delta log failed: {error}")))?
}

/// Reads the newest version of a table, and how far it has come.
pub(crate) async fn open_table(
    store: &TableStore,
    kernels: &Semaphore,
) -> Result<Table, LakeError> {
    let mut table = with_kernel(store, kernels, move |store, engine| {
        let described = latest(engine).and_then(|snapshot| describe(&snapshot, engine));
        described.map_err(|error| {
            LakeError::kernel(&format!("open history table \"{}\"", store.name()), &error)
        })
    })
    .await?;
    table.writer = Writer::last(store, table.version).await?;
    Ok(table)
}

/// The active files of a version.
pub(crate) async fn active_files(
    store: &TableStore,
    kernels: &Semaphore,
    version: u64,
) -> Result<Vec<ActiveFile>, LakeError> {
    let files = with_kernel(store, kernels, move |store, engine| {
        list_files(engine, version).map_err(|error| {
            LakeError::kernel(
                &format!("list the files of history table \"{}\"", store.name()),
                &error,
            )
        })
    })
    .await?;
    files.ok_or_else(|| {
        LakeError::conflict(format!(
            "another writer put deletion vectors into history table \"{}\"",
            store.name()
        ))
    })
}

/// The snapshot of the newest version.
pub(crate) fn latest(engine: &dyn Engine) -> DeltaResult<SnapshotRef> {
    Snapshot::builder_for(KERNEL_ROOT).build(engine)
}

/// A version of a table.
pub(crate) fn describe_at(engine: &dyn Engine, version: u64) -> DeltaResult<Table> {
    let snapshot = Snapshot::builder_for(KERNEL_ROOT)
        .at_version(version)
        .build(engine)?;
    describe(&snapshot, engine)
}

/// The table that a snapshot is of. Who changed it last is not told.
pub(crate) fn describe(snapshot: &SnapshotRef, engine: &dyn Engine) -> DeltaResult<Table> {
    let table = snapshot.table_configuration();
    let metadata = Metadata {
        id: table.metadata().id().to_owned(),
        name: table.metadata().name().map(str::to_owned),
        description: table.metadata().description().map(str::to_owned),
        format: Format {
            provider: table.metadata().format_provider().to_owned(),
            options: BTreeMap::new(),
        },
        schema_string: table.metadata().schema_string().clone(),
        partition_columns: table.metadata().partition_columns().to_vec(),
        configuration: table
            .metadata()
            .configuration()
            .clone()
            .into_iter()
            .collect(),
        created_time: table.metadata().created_time(),
    };
    let features = |list: Option<&[buoyant_kernel::table_features::TableFeature]>| {
        list.unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect()
    };
    let protocol = Protocol {
        min_reader_version: table.protocol().min_reader_version().unsigned_abs(),
        min_writer_version: table.protocol().min_writer_version().unsigned_abs(),
        reader_features: features(table.protocol().reader_features()),
        writer_features: features(table.protocol().writer_features()),
    };
    let source = metadata
        .configuration
        .get(SOURCE_PROPERTY)
        .and_then(|property| Source::parse(property));
    let progress = match &source {
        Some(source) => progress(snapshot, engine, source, &metadata)?,
        None => None,
    };
    let schema = history_schema(&protocol, &metadata);
    let gap = metadata.configuration.contains_key(GAP_PROPERTY);
    let whole = metadata.configuration.get(WHOLE_PROPERTY);
    let whole = whole.and_then(|lsn| lsn.parse().ok());
    Ok(Table {
        version: snapshot.version(),
        protocol,
        metadata,
        source,
        schema,
        progress,
        gap,
        whole,
        writer: Writer::Unknown,
    })
}

/// How far the generation that wrote last has come. Its number is a property of the table, changed
/// in the same commit as its first rows.
fn progress(
    snapshot: &Arc<Snapshot>,
    engine: &dyn Engine,
    source: &Source,
    metadata: &Metadata,
) -> DeltaResult<Option<Progress>> {
    let property = metadata.configuration.get(GENERATION_PROPERTY);
    let Some(generation) = property.and_then(|property| property.parse().ok()) else {
        return Ok(None);
    };
    let Some(lsn) = snapshot.get_app_id_version(&source.app_id(generation), engine)? else {
        return Ok(None);
    };
    let sort_by = snapshot.get_app_id_version(&source.sort_app_id(generation), engine)?;
    let crc = snapshot.get_app_id_version(&source.crc_app_id(generation), engine)?;
    // All are in the same commits, and LSNs are never negative.
    let lsn_unsigned = lsn.max(0).unsigned_abs();
    Ok(Some(Progress {
        generation,
        lsn: lsn_unsigned,
        crc: crc.and_then(|crc| u32::try_from(crc).ok()),
        sort_by: sort_by.unwrap_or(lsn),
    }))
}

fn history_schema(protocol: &Protocol, metadata: &Metadata) -> Result<HistorySchema, LakeError> {
    let features = protocol
        .reader_features
        .iter()
        .chain(&protocol.writer_features);
    if let Some(unknown) = features
        .into_iter()
        .find(|feature| !KNOWN_FEATURES.contains(&feature.as_str()))
    {
        return Err(LakeError::config(
            format!(
                "the history table has the Delta feature \"{unknown}\", which wal2delta cannot write"
            ),
            "Drop the feature from the table, or give another destination.",
        ));
    }
    if !metadata.partition_columns.is_empty() {
        return Err(LakeError::config(
            "the history table is partitioned",
            "Give another destination.",
        ));
    }
    let schema = HistorySchema::from_delta_json(&metadata.schema_string)?;
    let max_id = metadata
        .configuration
        .get(MAX_COLUMN_ID)
        .and_then(|id| id.parse().ok());
    Ok(schema.with_max_column_id(max_id.unwrap_or(0)))
}

/// `None` if a file has a deletion vector, which a `remove` of ours would have to name.
fn list_files(engine: &dyn Engine, version: u64) -> DeltaResult<Option<Vec<ActiveFile>>> {
    let snapshot = Snapshot::builder_for(KERNEL_ROOT)
        .at_version(version)
        .build(engine)?;
    let scan = snapshot
        .scan_builder()
        .with_stats(StatsOptions::none())
        .without_row_transforms()
        .build()?;
    let mut files = Some(Vec::new());
    for batch in scan.scan_metadata(engine)? {
        files = batch?.visit_scan_files(files, take_file)?;
    }
    Ok(files)
}

fn take_file(files: &mut Option<Vec<ActiveFile>>, file: ScanFile) {
    if file.dv_info.has_vector() {
        *files = None;
    } else if let Some(files) = files {
        files.push(ActiveFile {
            path: file.path,
            size: file.size.max(0).unsigned_abs(),
        });
    }
}
