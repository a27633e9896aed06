//! What the commits of a history table say: its rows, how far the source has come with them, and what
//! has changed of the table.

use crate::lake::create::configure;
use crate::lake::error::LakeError;
use crate::lake::event::DataFile;
use crate::lake::log::{Action, Add, Protocol, Remove, Txn, now_ms};
use crate::lake::open::{ActiveFile, Table};
use crate::lake::schema::HistorySchema;
use crate::lake::source::GENERATION_PROPERTY;
use crate::lake::upkeep::UpkeepSettings;
use crate::lake::writer::{OpenTable, RowsCommit};

/// The table with a schema, which may be the one that it has (`now`), the generation that writes from now
/// on, and the settings of its upkeep.
pub(crate) fn next_table(
    table: &Table,
    now: &HistorySchema,
    schema: &HistorySchema,
    generation: u64,
    upkeep: &UpkeepSettings,
) -> Table {
    let mut next = table.clone();
    let configuration = &mut next.metadata.configuration;
    upkeep.configure(configuration);
    configuration.insert(GENERATION_PROPERTY.to_owned(), generation.to_string());
    if schema != now {
        next.metadata.schema_string = schema.to_delta_json();
        configure(&mut next.metadata.configuration, schema);
        next.schema = Ok(schema.clone());
    }
    if schema.is_mapped() && !now.is_mapped() {
        next.protocol = Protocol::history(true);
    }
    next
}

/// What a commit says of what has changed of the table.
pub(crate) fn next_actions(table: &Table, next: &Table) -> Vec<Action> {
    let protocol = (next.protocol != table.protocol).then(|| next.protocol.clone());
    let metadata = (next.metadata != table.metadata).then(|| next.metadata.clone());
    let protocol = protocol.map(Action::Protocol);
    protocol
        .into_iter()
        .chain(metadata.map(Action::MetaData))
        .collect()
}

/// The application transactions of a commit: LSN, checksum of the record there, `_sort_by`.
pub(crate) fn txns(spec: &OpenTable, commit: RowsCommit) -> Result<Vec<Action>, LakeError> {
    let lsn = i64::try_from(commit.lsn)
        .map_err(|_| LakeError::internal(format!("LSN {:X} is out of range", commit.lsn)))?;
    let txn = |app_id, version| {
        Action::Txn(Txn {
            app_id,
            version,
            last_updated: now_ms(),
        })
    };
    Ok(vec![
        txn(spec.source.app_id(spec.generation), lsn),
        txn(
            spec.source.crc_app_id(spec.generation),
            commit.crc.map_or(-1, i64::from),
        ),
        txn(spec.source.sort_app_id(spec.generation), commit.sort_by),
    ])
}

/// A file whose rows come into the table; or, without `data_change`, are in it already.
pub(crate) fn add(file: DataFile, data_change: bool) -> Action {
    Action::Add(Add {
        path: file.path,
        partition_values: Default::default(),
        size: file.size,
        modification_time: file.modification_time_ms,
        data_change,
        stats: file.stats,
    })
}

/// A file whose rows leave the table; or, without `data_change`, stay in it.
pub(crate) fn remove(file: ActiveFile, data_change: bool) -> Action {
    Action::Remove(Remove {
        path: file.path,
        deletion_timestamp: now_ms(),
        data_change,
        extended_file_metadata: true,
        partition_values: Default::default(),
        size: file.size,
    })
}
