//! A new history table: version 0 with protocol and metadata, no rows. The first that puts
//! version 0 into a folder has it; a table whose name is taken gets the next number.

use std::collections::BTreeMap;

use uuid::Uuid;

use crate::lake::commit::{Commit, commit};
use crate::lake::destination::numbered_folder_name;
use crate::lake::error::LakeError;
use crate::lake::log::{Action, Format, Metadata, Operation, Protocol, now_ms};
use crate::lake::open::{MAX_COLUMN_ID, Table, open_table};
use crate::lake::runtime::Shared;
use crate::lake::schema::HistorySchema;
use crate::lake::source::{SOURCE_PROPERTY, Source, WHOLE_PROPERTY};
use crate::lake::store::TableStore;
use crate::lake::upkeep::UpkeepSettings;
use crate::lake::writer::{OpenTable, Target};
use crate::lake::writers::Writer;

/// Folders tried before giving up.
const MAX_NUMBER: u32 = 1_000;

/// Creates the history table that `spec`, whose target is a new one, asks for, and returns it with
/// its folder's name.
pub(crate) async fn create_table(
    shared: &Shared,
    spec: &OpenTable,
) -> Result<(String, TableStore, Table), LakeError> {
    let Target::New { table_name, whole } = &spec.target else {
        return Err(LakeError::internal("asked to create a table that exists"));
    };
    let destination = &spec.destination;
    for number in 0..MAX_NUMBER {
        let folder = numbered_folder_name(table_name, number);
        let store = destination.table_store(&folder, true).await?;
        if let Some(table) = create_in(shared, &store, spec, *whole).await? {
            return Ok((folder, store, table));
        }
    }
    Err(LakeError::config(
        format!(
            "destination \"{destination}\" holds {MAX_NUMBER} tables of the name \"{table_name}\""
        ),
        "Move old history tables away, or give another destination.",
    ))
}

/// `None` if the folder holds another table.
async fn create_in(
    shared: &Shared,
    store: &TableStore,
    spec: &OpenTable,
    whole: Option<u64>,
) -> Result<Option<Table>, LakeError> {
    let source = &spec.source;
    // Version 0 may have been cleaned up in an old table, so its absence alone proves nothing.
    if store.has_log().await? {
        return own_empty_table(shared, store, source).await;
    }
    let table = new_table(spec, whole, &shared.upkeep_settings());
    let actions = vec![
        Action::Protocol(table.protocol.clone()),
        Action::MetaData(table.metadata.clone()),
    ];
    let own_app_ids = source.app_id_prefix();
    let create = Commit {
        operation: Operation::Create,
        actions,
        own_app_ids: &own_app_ids,
        home: &shared.config.home,
        needs_exact_files: true,
    };
    match commit(store, 0, create).await {
        Ok(0) => Ok(Some(table)),
        Ok(version) => Err(LakeError::internal(format!(
            "a new table was committed as version {version}"
        ))),
        // Somebody was faster; who, the log tells.
        Err(failure) => match own_empty_table(shared, store, source).await? {
            Some(table) => Ok(Some(table)),
            None if store.has_log().await? => Ok(None),
            None => Err(failure.into_error()),
        },
    }
}

/// An earlier try of ours may have created the table and then been interrupted.
async fn own_empty_table(
    shared: &Shared,
    store: &TableStore,
    source: &Source,
) -> Result<Option<Table>, LakeError> {
    match open_table(store, &shared.kernels).await {
        Ok(table) if table.source.as_ref() != Some(source) || table.schema.is_err() => Ok(None),
        Ok(table) if table.version == 0 => Ok(Some(table)),
        // It must not get a second one beside it.
        Ok(_) => Err(LakeError::transient(format!(
            "history table \"{}\" is the source table's already, and was not found before",
            store.name()
        ))),
        Err(error) if error.kind().is_of_access() => Err(error),
        // Whatever it is, it is not ours.
        Err(_) => Ok(None),
    }
}

fn new_table(spec: &OpenTable, whole: Option<u64>, upkeep: &UpkeepSettings) -> Table {
    let (source, schema) = (&spec.source, &spec.schema);
    let mut configuration = BTreeMap::from([(SOURCE_PROPERTY.to_owned(), source.to_string())]);
    upkeep.configure(&mut configuration);
    configuration.extend(whole.map(|lsn| (WHOLE_PROPERTY.to_owned(), lsn.to_string())));
    configure(&mut configuration, schema);
    let metadata = Metadata {
        id: Uuid::new_v4().to_string(),
        name: None,
        description: None,
        format: Format {
            provider: "parquet".to_owned(),
            options: BTreeMap::new(),
        },
        schema_string: schema.to_delta_json(),
        partition_columns: Vec::new(),
        configuration,
        created_time: Some(now_ms()),
    };
    Table {
        version: 0,
        protocol: Protocol::history(schema.is_mapped()),
        metadata,
        source: Some(source.clone()),
        schema: Ok(schema.clone()),
        progress: None,
        gap: false,
        whole,
        writer: Writer::Unknown,
    }
}

/// Sets the properties that follow from the schema.
pub(crate) fn configure(configuration: &mut BTreeMap<String, String>, schema: &HistorySchema) {
    configuration.insert(
        "delta.dataSkippingStatsColumns".to_owned(),
        schema.skipping_property(),
    );
    if let Some(max_id) = schema.max_column_id() {
        configuration.insert("delta.columnMapping.mode".to_owned(), "name".to_owned());
        configuration.insert(MAX_COLUMN_ID.to_owned(), max_id.to_string());
    }
}
