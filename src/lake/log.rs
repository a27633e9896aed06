//! The actions of a Delta commit as JSON lines (protocol section "Actions"). It only gives them
//! their form: which actions make a commit, and how it is put in place, is for others to say.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::lake::error::LakeError;

/// Milliseconds since 1970, as the log counts time.
pub(crate) fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The file of a version: `_delta_log/00000000000000000007.json`.
pub(crate) fn commit_path(version: u64) -> Path {
    Path::from(format!("_delta_log/{version:020}.json"))
}

/// Reader and writer version and the features in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Protocol {
    pub min_reader_version: u32,
    pub min_writer_version: u32,
    pub reader_features: Vec<String>,
    pub writer_features: Vec<String>,
}

impl Protocol {
    /// Reader 3, writer 7 with the features every history table needs. NOT NULL columns need
    /// `invariants` ("Column Invariants"; the kernels write it too).
    pub(crate) fn history(mapped: bool) -> Protocol {
        let features = |list: &[&str]| {
            let mapping = mapped.then_some("columnMapping");
            list.iter()
                .copied()
                .chain(mapping)
                .map(str::to_owned)
                .collect()
        };
        Protocol {
            min_reader_version: 3,
            min_writer_version: 7,
            reader_features: features(&["timestampNtz"]),
            writer_features: features(&["timestampNtz", "invariants"]),
        }
    }
}

/// Always Parquet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Format {
    pub provider: String,
    pub options: BTreeMap<String, String>,
}

/// The table's metadata. Its id never changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Metadata {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    pub format: Format,
    pub schema_string: String,
    pub partition_columns: Vec<String>,
    pub configuration: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_time: Option<i64>,
}

/// A data file that becomes part of the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Add {
    pub path: String,
    pub partition_values: BTreeMap<String, String>,
    pub size: u64,
    pub modification_time: i64,
    pub data_change: bool,
    pub stats: String,
}

/// A data file that leaves the table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Remove {
    pub path: String,
    pub deletion_timestamp: i64,
    pub data_change: bool,
    pub extended_file_metadata: bool,
    pub partition_values: BTreeMap<String, String>,
    pub size: u64,
}

/// How far an application has come ("Transaction Identifiers").
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Txn {
    pub app_id: String,
    pub version: i64,
    pub last_updated: i64,
}

/// Who made a commit. `wal2deltaCommit` tells our own earlier try from a foreign commit,
/// `wal2deltaHome` our server from a copy of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CommitInfo {
    pub timestamp: i64,
    pub operation: &'static str,
    pub operation_parameters: BTreeMap<&'static str, &'static str>,
    pub is_blind_append: bool,
    pub engine_info: &'static str,
    #[serde(rename = "wal2deltaCommit")]
    pub commit_id: Uuid,
    #[serde(rename = "wal2deltaHome")]
    pub home: String,
}

/// One line of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Action {
    CommitInfo(CommitInfo),
    Protocol(Protocol),
    MetaData(Metadata),
    Txn(Txn),
    Remove(Remove),
    Add(Add),
}

/// What a commit does, as its `commitInfo` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Version 0.
    Create,
    /// Rows are added.
    Append,
    /// The content is replaced.
    Replace,
    /// Only properties change.
    MarkGap,
    /// Other files have the same rows.
    Optimize,
}

impl Operation {
    pub(crate) fn info(self, commit_id: Uuid, home: &str) -> CommitInfo {
        let (operation, parameters): (_, &[_]) = match self {
            Operation::Create => (
                "CREATE TABLE",
                &[("isManaged", "false"), ("partitionBy", "[]")],
            ),
            Operation::Append => ("WRITE", &[("mode", "Append"), ("partitionBy", "[]")]),
            Operation::Replace => ("WRITE", &[("mode", "Overwrite"), ("partitionBy", "[]")]),
            Operation::MarkGap => ("SET TBLPROPERTIES", &[]),
            Operation::Optimize => ("OPTIMIZE", &[("predicate", "[]"), ("zOrderBy", "[]")]),
        };
        CommitInfo {
            timestamp: now_ms(),
            operation,
            operation_parameters: parameters.iter().copied().collect(),
            is_blind_append: self == Operation::Append,
            engine_info: concat!("wal2delta/", env!("CARGO_PKG_VERSION")),
            commit_id,
            home: home.to_owned(),
        }
    }
}

/// The content of a commit file: one action a line.
pub(crate) fn to_lines(actions: &[Action]) -> Result<Vec<u8>, LakeError> {
    let mut lines = Vec::new();
    for action in actions {
        serde_json::to_writer(&mut lines, action).map_err(|error| {
            LakeError::internal(format!("could not write a Delta action: {error}"))
        })?;
        lines.push(b'\n');
    }
    Ok(lines)
}

/// What matters of a commit that is in the log already: is it ours, and does it change the table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Landed {
    /// `commitInfo.wal2deltaCommit`
    pub commit_id: Option<Uuid>,
    /// `commitInfo.wal2deltaHome`
    pub home: Option<String>,
    /// `commitInfo.timestamp`
    pub time_ms: Option<i64>,
    /// Rows, metadata or protocol change, or something happens that this version does not know.
    pub changes_table: bool,
    /// Files are exchanged without a change of rows, as compaction does.
    pub moves_files: bool,
    /// Application ids of `txn` actions.
    pub app_ids: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FileAction {
    data_change: bool,
}

/// Other writers leave `lastUpdated` out.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TxnAction {
    app_id: String,
}

#[derive(Deserialize)]
struct InfoAction {
    #[serde(rename = "wal2deltaCommit")]
    commit_id: Option<Uuid>,
    #[serde(rename = "wal2deltaHome")]
    home: Option<String>,
    timestamp: Option<i64>,
}

/// Reads a commit file. Lines that are not JSON make it unreadable: a torn file is an error.
pub(crate) fn read_landed(lines: &[u8]) -> Result<Landed, serde_json::Error> {
    let mut landed = Landed::default();
    for action in serde_json::Deserializer::from_slice(lines)
        .into_iter::<BTreeMap<String, serde_json::Value>>()
    {
        for (name, value) in action? {
            match name.as_str() {
                "commitInfo" => {
                    let info = InfoAction::deserialize(value)?;
                    landed.time_ms = info.timestamp;
                    (landed.commit_id, landed.home) = (info.commit_id, info.home);
                }
                "txn" => landed.app_ids.push(TxnAction::deserialize(value)?.app_id),
                "add" | "remove" => {
                    let change = FileAction::deserialize(value)?.data_change;
                    landed.changes_table |= change;
                    landed.moves_files |= !change;
                }
                _ => landed.changes_table = true,
            }
        }
    }
    Ok(landed)
}

/// An action of a commit that is in the log, as far as it says what a version consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadAction {
    MetaData(Metadata),
    Protocol(Protocol),
    Txn { app_id: String, version: i64 },
    Add { path: String, size: u64 },
    Remove { path: String },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ActionLine {
    meta_data: Option<Metadata>,
    protocol: Option<Protocol>,
    txn: Option<TxnLine>,
    add: Option<FileLine>,
    remove: Option<FileLine>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TxnLine {
    app_id: String,
    version: i64,
}

#[derive(Deserialize)]
struct FileLine {
    path: String,
    #[serde(default)]
    size: u64,
}

/// Reads the actions of a commit file in their order.
pub(crate) fn read_actions(lines: &[u8]) -> Result<Vec<ReadAction>, serde_json::Error> {
    let mut actions = Vec::new();
    for line in serde_json::Deserializer::from_slice(lines).into_iter::<ActionLine>() {
        let line = line?;
        actions.extend(line.meta_data.map(ReadAction::MetaData));
        actions.extend(line.protocol.map(ReadAction::Protocol));
        actions.extend(line.txn.map(|txn| ReadAction::Txn {
            app_id: txn.app_id,
            version: txn.version,
        }));
        actions.extend(line.add.map(|file| ReadAction::Add {
            path: file.path,
            size: file.size,
        }));
        actions.extend(
            line.remove
                .map(|file| ReadAction::Remove { path: file.path }),
        );
    }
    Ok(actions)
}
