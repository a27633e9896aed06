//! The lake as its user sees it: through handles and events, on a local disk.

mod measurements;
mod tables;
mod threads;
mod upkeep;

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float32Array, Float64Array,
    Int16Array, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::lake::*;

const SYSTEM: u64 = 7_300_000_000_000_000_001;
const DATABASE: u32 = 5;

/// All rows up to `lsn` are in a commit; the last `_sort_by` is the same number.
fn up_to(lsn: u64) -> RowsCommit {
    let Progress {
        lsn, crc, sort_by, ..
    } = progress(1, lsn);
    RowsCommit { lsn, crc, sort_by }
}

/// What a table says of itself after the commit [`up_to`] an LSN.
fn progress(generation: u64, lsn: u64) -> Progress {
    Progress {
        generation,
        lsn,
        crc: Some(u32::MAX - lsn as u32),
        sort_by: lsn as i64,
    }
}

/// The data directory that the tests pretend to work in.
const HOME: &str = "a-b";

/// A lake and the folder it writes to.
struct Fixture {
    folder: TempDir,
    lake: Lake,
    bell: Arc<(Mutex<u64>, Condvar)>,
}

impl Fixture {
    fn new() -> Self {
        Self::in_folder(tempfile::tempdir().unwrap())
    }

    fn in_folder(folder: TempDir) -> Self {
        Self::with_interval(folder, 10)
    }

    fn with_interval(folder: TempDir, checkpoint_interval: u64) -> Self {
        let upkeep = UpkeepSettings {
            checkpoint_interval,
            target_file_size: 0,
            retention: None,
            orphan_retention: None,
        };
        Self::with_upkeep(folder, upkeep)
    }

    fn with_upkeep(folder: TempDir, upkeep: UpkeepSettings) -> Self {
        let bell: Arc<(Mutex<u64>, Condvar)> = Arc::default();
        let ring = Arc::clone(&bell);
        let wake = move || {
            *ring.0.lock().unwrap() += 1;
            ring.1.notify_all();
        };
        let config = LakeConfig {
            home: HOME.to_owned(),
            max_memory: 64 << 20,
            target_file_bytes: 16 << 20,
            staging_limit: None,
            upkeep,
        };
        Fixture {
            folder,
            lake: Lake::start(config, Box::new(wake)).unwrap(),
            bell,
        }
    }

    /// A new lake over the same folder, as after a restart.
    fn restart(self) -> Self {
        self.lake.shutdown();
        Self::in_folder(self.folder)
    }

    fn destination(&self) -> Destination {
        Destination::parse(self.folder.path().to_str().unwrap()).unwrap()
    }

    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// The next event that is not upkeep's.
    fn event(&self) -> Event {
        let limit = Instant::now() + Duration::from_secs(60);
        loop {
            let heard = *self.bell.0.lock().unwrap();
            match self.lake.try_event() {
                Some(Event::Upkeep { error, .. }) => panic!("upkeep failed: {error:?}"),
                Some(event) => return event,
                None => {
                    let bell = self.bell.0.lock().unwrap();
                    let wait =
                        self.bell
                            .1
                            .wait_timeout_while(bell, Duration::from_secs(60), |rung| {
                                *rung == heard
                            });
                    drop(wait.unwrap());
                    assert!(Instant::now() < limit, "no event came");
                }
            }
        }
    }

    fn open(&self, table: u32, target: Target, schema: &HistorySchema) -> HistoryWriter {
        self.open_believing(table, target, schema, Believed::Nothing)
    }

    fn open_believing(
        &self,
        table: u32,
        target: Target,
        schema: &HistorySchema,
        believed: Believed,
    ) -> HistoryWriter {
        self.lake.open(OpenTable {
            table,
            source: source(table),
            generation: 1,
            homes: vec![HOME.to_owned()],
            believed,
            destination: self.destination(),
            target,
            schema: schema.clone(),
            evolves: false,
        })
    }

    fn create(&self, table: u32, schema: &HistorySchema) -> (HistoryWriter, String) {
        let target = Target::New {
            table_name: "orders".to_owned(),
            whole: None,
        };
        let writer = self.open(table, target, schema);
        match self.event() {
            Event::Opened {
                folder,
                version: 0,
                progress: None,
                ..
            } => (writer, folder),
            other => panic!("{other:?}"),
        }
    }

    fn write(&self, writer: &HistoryWriter, batch: RecordBatch) {
        let charge = self.lake.budget().charge(batch.get_array_memory_size());
        writer.write(Charged {
            value: batch,
            charge,
        });
    }

    fn commit(&self, writer: &HistoryWriter, lsn: u64) -> (Option<u64>, u64) {
        writer.commit(lsn, up_to(lsn));
        self.committed()
    }

    fn committed(&self) -> (Option<u64>, u64) {
        match self.event() {
            Event::Committed { version, rows, .. } => (version, rows),
            other => panic!("{other:?}"),
        }
    }

    fn failed(&self) -> LakeError {
        match self.event() {
            Event::Failed { error, .. } => error,
            other => panic!("{other:?}"),
        }
    }

    fn survey(&self) -> Vec<Found> {
        self.lake.survey(9, &self.destination(), SYSTEM, DATABASE);
        match self.event() {
            Event::Surveyed { request: 9, result } => result.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn log(&self, folder: &str, version: u64) -> Vec<Value> {
        let path = self
            .path(folder)
            .join(format!("_delta_log/{version:020}.json"));
        fs::read_to_string(path)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The only action of a kind in a version.
    fn action(&self, folder: &str, version: u64, kind: &str) -> Value {
        let mut found: Vec<Value> = self
            .log(folder, version)
            .into_iter()
            .filter_map(|mut action| Some(action.get_mut(kind)?.take()))
            .collect();
        assert_eq!(found.len(), 1, "{kind} in {version}");
        found.remove(0)
    }
}

fn source(table: u32) -> Source {
    Source {
        system: SYSTEM,
        database: DATABASE,
        table,
    }
}

fn schema(fields: &[(&str, DeltaType)]) -> HistorySchema {
    let field = |(name, data_type): &(&str, DeltaType)| Field {
        name: (*name).to_owned(),
        data_type: *data_type,
        nullable: true,
        number: None,
        added: false,
        output: None,
    };
    HistorySchema::new(fields.iter().map(field).collect()).unwrap()
}

fn ids() -> HistorySchema {
    schema(&[("id", DeltaType::Long), ("note", DeltaType::String)])
}

fn sample(data_type: DeltaType, rows: usize) -> ArrayRef {
    let number = |row: usize| i64::try_from(row).unwrap();
    match data_type {
        DeltaType::Boolean => Arc::new(BooleanArray::from(
            (0..rows).map(|row| Some(row % 2 == 0)).collect::<Vec<_>>(),
        )),
        DeltaType::Short => Arc::new(
            (0..rows)
                .map(|row| Some(number(row) as i16))
                .collect::<Int16Array>(),
        ),
        DeltaType::Integer => Arc::new(
            (0..rows)
                .map(|row| Some(number(row) as i32))
                .collect::<Int32Array>(),
        ),
        DeltaType::Long => Arc::new(
            (0..rows)
                .map(|row| Some(number(row)))
                .collect::<Int64Array>(),
        ),
        DeltaType::Float => Arc::new(
            (0..rows)
                .map(|row| Some(row as f32 / 3.0))
                .collect::<Float32Array>(),
        ),
        DeltaType::Double => Arc::new(
            (0..rows)
                .map(|row| Some(row as f64 / 3.0))
                .collect::<Float64Array>(),
        ),
        DeltaType::Decimal { precision, .. } => {
            let base: i128 = if precision == 38 {
                90_071_992_547_409_930_000_000_001
            } else {
                -500
            };
            let values = (0..rows)
                .map(|row| Some(base + i128::from(number(row))))
                .collect::<Decimal128Array>();
            Arc::new(values.with_data_type(data_type.arrow()))
        }
        DeltaType::Date => Arc::new(
            (0..rows)
                .map(|row| Some(19_000 + number(row) as i32))
                .collect::<Date32Array>(),
        ),
        DeltaType::Timestamp | DeltaType::TimestampNtz => {
            let values: TimestampMicrosecondArray = (0..rows)
                .map(|row| Some(1_700_000_000_123_456 + number(row)))
                .collect();
            Arc::new(values.with_data_type(data_type.arrow()))
        }
        DeltaType::String => Arc::new(
            (0..rows)
                .map(|row| (row % 3 != 2).then(|| format!("töxt {row}")))
                .collect::<StringArray>(),
        ),
        DeltaType::Binary => Arc::new(
            (0..rows)
                .map(|row| Some(vec![0, row as u8]))
                .collect::<BinaryArray>(),
        ),
    }
}

/// Rows of a schema with `_pg_lsn` and `_sort_by` from `lsn` on.
fn rows(schema: &HistorySchema, lsn: i64, count: usize) -> RecordBatch {
    let mut columns: Vec<ArrayRef> = schema
        .source()
        .iter()
        .map(|field| sample(field.data_type, count))
        .collect();
    columns.push(Arc::new(StringArray::from(vec!["insert"; count])));
    columns.push(Arc::new(Int64Array::from(vec![lsn; count])));
    columns.push(Arc::new(Int32Array::from(vec![742; count])));
    columns.push(Arc::new(TimestampMicrosecondArray::from(
        vec![1_700_000_000_000_000; count],
    )));
    columns.push(Arc::new(
        (lsn..).take(count).map(Some).collect::<Int64Array>(),
    ));
    RecordBatch::try_new(schema.arrow(), columns).unwrap()
}
