//! The lake as its user sees it: through handles and events, on a local disk.

use std::collections::HashMap;
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

use super::types::ALL_TYPES;
use super::*;

const SYSTEM: u64 = 7_300_000_000_000_000_001;
const DATABASE: u32 = 5;

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
        let bell: Arc<(Mutex<u64>, Condvar)> = Arc::default();
        let ring = Arc::clone(&bell);
        let wake = move || {
            *ring.0.lock().unwrap() += 1;
            ring.1.notify_all();
        };
        let config = LakeConfig {
            max_memory: 64 << 20,
            target_file_bytes: 16 << 20,
            checkpoint_interval,
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
                Some(Event::Upkeep { error, .. }) => panic!("upkeep failed: {error}"),
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
        self.lake.open(OpenTable {
            table,
            source: source(table),
            generation: 1,
            destination: self.destination(),
            target,
            schema: schema.clone(),
        })
    }

    fn create(&self, table: u32, schema: &HistorySchema) -> (HistoryWriter, String) {
        let target = Target::New {
            table_name: "orders".to_owned(),
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
        writer.commit(
            lsn,
            RowsCommit {
                lsn,
                sort_by: i64::try_from(lsn).unwrap(),
            },
        );
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

#[test]
fn rows_are_committed_with_both_transactions_and_found_again() {
    let lake = Fixture::new();
    let (writer, folder) = lake.create(42, &ids());
    assert_eq!(folder, "lb_orders_history");
    assert_eq!(lake.commit(&writer, 5), (None, 0));
    lake.write(&writer, rows(&ids(), 100, 3));
    assert!(lake.lake.budget().used() > 0);
    assert_eq!(lake.commit(&writer, 110), (Some(1), 3));
    assert_eq!(lake.lake.budget().used(), 0);
    writer.spill();
    lake.write(&writer, rows(&ids(), 200, 2));
    writer.spill();
    lake.write(&writer, rows(&ids(), 210, 2));
    assert_eq!(lake.commit(&writer, 220), (Some(2), 4));

    let txns: HashMap<String, i64> = lake
        .log(&folder, 2)
        .iter()
        .filter_map(|action| {
            Some((
                action["txn"]["appId"].as_str()?.to_owned(),
                action["txn"]["version"].as_i64()?,
            ))
        })
        .collect();
    assert_eq!(
        txns,
        HashMap::from([
            (source(42).app_id(1), 220),
            (source(42).sort_app_id(1), 220)
        ])
    );
    assert_eq!(
        lake.action(&folder, 0, "metaData")["configuration"]["wal2delta.source"],
        source(42).to_string()
    );
    assert_eq!(lake.action(&folder, 1, "add")["dataChange"], true);

    let lake = lake.restart();
    let found = lake.survey();
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].folder.as_str(), &found[0].source, found[0].version),
        (folder.as_str(), &source(42), 2)
    );
    assert_eq!(found[0].schema.as_ref().unwrap(), &ids());
    assert_eq!(
        found[0].progress,
        Some(Progress {
            generation: 1,
            lsn: 220,
            sort_by: 220
        })
    );

    // Nothing that the table has can be committed again.
    let writer = lake.open(42, Target::Existing { folder }, &ids());
    assert!(matches!(
        lake.event(),
        Event::Opened {
            version: 2,
            progress: Some(_),
            ..
        }
    ));
    lake.write(&writer, rows(&ids(), 210, 2));
    writer.commit(
        1,
        RowsCommit {
            lsn: 220,
            sort_by: 220,
        },
    );
    assert_eq!(lake.failed().kind(), ErrorKind::Internal);
}

#[test]
fn a_taken_name_gets_a_number_and_an_interrupted_creation_is_taken_up() {
    let lake = Fixture::new();
    assert_eq!(lake.create(1, &ids()).1, "lb_orders_history");
    assert_eq!(lake.create(2, &ids()).1, "lb_orders_history_1");
    assert_eq!(lake.create(1, &ids()).1, "lb_orders_history");
    assert_eq!(lake.survey().len(), 2);
    lake.lake
        .survey(9, &lake.destination(), SYSTEM, DATABASE + 1);
    assert!(matches!(lake.event(), Event::Surveyed { result: Ok(found), .. } if found.is_empty()));
}

#[test]
fn a_foreign_commit_stops_the_table_and_a_discard_opens_it_again() {
    let lake = Fixture::new();
    let (writer, folder) = lake.create(1, &ids());
    let foreign = lake
        .path(&folder)
        .join("_delta_log/00000000000000000001.json");
    let metadata = lake.action(&folder, 0, "metaData");
    fs::write(
        &foreign,
        format!("{}\n", serde_json::json!({"metaData": metadata})),
    )
    .unwrap();
    lake.write(&writer, rows(&ids(), 100, 3));
    writer.commit(
        1,
        RowsCommit {
            lsn: 110,
            sort_by: 110,
        },
    );
    let error = lake.failed();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("another writer"), "{error}");
    // Ignored until the failure is cleared.
    lake.write(&writer, rows(&ids(), 100, 3));
    writer.commit(
        2,
        RowsCommit {
            lsn: 120,
            sort_by: 120,
        },
    );
    writer.discard();
    assert!(matches!(
        lake.event(),
        Event::Opened {
            version: 1,
            progress: None,
            ..
        }
    ));
    assert_eq!(lake.lake.budget().used(), 0);
    lake.write(&writer, rows(&ids(), 100, 3));
    assert_eq!(lake.commit(&writer, 130), (Some(2), 3));
}

#[test]
fn staged_files_of_another_writer_are_committed_by_a_replacement() {
    let lake = Fixture::new();
    let wanted = schema(&[("id", DeltaType::Integer), ("a b", DeltaType::String)]);
    let (writer, folder) = lake.create(1, &ids());
    lake.write(&writer, rows(&ids(), 100, 3));
    lake.commit(&writer, 110);
    let id = lake.action(&folder, 0, "metaData")["id"].clone();
    let old = lake.action(&folder, 1, "add")["path"].clone();

    let stager = lake.open(
        1,
        Target::StageOnly {
            folder: folder.clone(),
        },
        &wanted,
    );
    assert!(matches!(lake.event(), Event::Opened { version: 1, .. }));
    lake.write(&stager, rows(&wanted, 200, 50));
    stager.stage(4);
    let Event::Staged {
        ticket: 4,
        files,
        rows: 50,
        ..
    } = lake.event()
    else {
        panic!()
    };
    let files: Vec<DataFile> =
        serde_json::from_str(&serde_json::to_string(&files).unwrap()).unwrap();
    lake.write(&stager, rows(&wanted, 200, 50));
    stager.commit(1, RowsCommit { lsn: 1, sort_by: 1 });
    assert_eq!(lake.failed().kind(), ErrorKind::Internal);

    lake.write(&writer, rows(&wanted, 300, 2));
    let commit = RowsCommit {
        lsn: 310,
        sort_by: 310,
    };
    writer.replace(
        5,
        Replace {
            schema: wanted.clone(),
            files,
            keep_existing: false,
            commit,
        },
    );
    assert_eq!(lake.committed(), (Some(2), 52));
    assert_eq!(lake.action(&folder, 2, "metaData")["id"], id);
    assert_eq!(lake.action(&folder, 2, "remove")["path"], old);
    let protocol = lake.action(&folder, 2, "protocol");
    assert!(
        protocol["readerFeatures"]
            .as_array()
            .unwrap()
            .contains(&"columnMapping".into())
    );

    // A mapped table keeps its mapping, also for one who opens it.
    lake.write(&writer, rows(&wanted, 400, 1));
    assert_eq!(lake.commit(&writer, 410), (Some(3), 1));
    let lake = lake.restart();
    let found = lake.survey().remove(0);
    assert_eq!(found.schema.unwrap(), wanted);
    let writer = lake.open(1, Target::Existing { folder }, &wanted);
    assert!(matches!(lake.event(), Event::Opened { version: 3, .. }));
    lake.write(&writer, rows(&wanted, 500, 1));
    assert_eq!(lake.commit(&writer, 510), (Some(4), 1));
}

#[test]
fn rows_of_another_schema_are_not_committed() {
    let lake = Fixture::new();
    let (writer, _) = lake.create(1, &ids());
    lake.write(&writer, rows(&schema(&[("id", DeltaType::Short)]), 100, 3));
    writer.commit(
        1,
        RowsCommit {
            lsn: 110,
            sort_by: 110,
        },
    );
    assert_eq!(lake.failed().kind(), ErrorKind::Internal);
}

#[test]
fn discarded_rows_leave_no_file() {
    let lake = Fixture::new();
    let (writer, folder) = lake.create(1, &ids());
    lake.write(&writer, rows(&ids(), 100, 3));
    writer.stage(1);
    assert!(matches!(lake.event(), Event::Staged { rows: 3, .. }));
    let parquet = |lake: &Fixture| {
        let entries = fs::read_dir(lake.path(&folder)).unwrap();
        entries
            .filter(|entry| entry.as_ref().unwrap().path().extension().is_some())
            .count()
    };
    assert_eq!(parquet(&lake), 1);
    lake.write(&writer, rows(&ids(), 200, 3));
    writer.discard();
    assert_eq!(lake.commit(&writer, 300), (None, 0));
    // Handed over files stay: another may commit them.
    assert_eq!(parquet(&lake), 1);
}

#[test]
fn a_checkpoint_replaces_the_commits_before_it() {
    let lake = Fixture::new();
    let (writer, folder) = lake.create(1, &ids());
    for commit in 1..=25 {
        lake.write(&writer, rows(&ids(), commit * 10, 2));
        lake.commit(&writer, u64::try_from(commit * 10 + 5).unwrap());
    }
    let log = lake.path(&folder).join("_delta_log");
    let limit = Instant::now() + Duration::from_secs(30);
    let last = || {
        fs::read_to_string(log.join("_last_checkpoint"))
            .ok()
            .map(|text| serde_json::from_str::<Value>(&text).unwrap())
    };
    while last().is_none_or(|last| last["version"].as_u64() < Some(20)) {
        assert!(Instant::now() < limit, "no checkpoint came");
        std::thread::sleep(Duration::from_millis(20));
    }
    let checkpoint = last().unwrap()["version"].as_u64().unwrap();
    for version in 0..checkpoint {
        fs::remove_file(log.join(format!("{version:020}.json"))).unwrap();
    }
    let lake = lake.restart();
    let found = lake.survey().remove(0);
    assert_eq!((found.version, found.schema.unwrap()), (25, ids()));
    assert_eq!(
        found.progress,
        Some(Progress {
            generation: 1,
            lsn: 255,
            sort_by: 255
        })
    );
    let writer = lake.open(1, Target::Existing { folder }, &ids());
    assert!(matches!(lake.event(), Event::Opened { version: 25, .. }));
    let commit = RowsCommit {
        lsn: 300,
        sort_by: 300,
    };
    writer.replace(
        1,
        Replace {
            schema: ids(),
            files: Vec::new(),
            keep_existing: false,
            commit,
        },
    );
    assert_eq!(lake.committed(), (Some(26), 0));
}

#[test]
fn much_data_is_stored_before_the_commit() {
    let lake = Fixture::new();
    let (writer, folder) = lake.create(1, &ids());
    for batch in 0..8 {
        lake.write(&writer, rows(&ids(), 100_000 * (batch + 1), 100_000));
    }
    assert_eq!(lake.commit(&writer, 900_000), (Some(1), 800_000));
    assert_eq!(lake.lake.budget().used(), 0);
    assert!(
        lake.log(&folder, 1)
            .iter()
            .filter(|action| action.get("add").is_some())
            .count()
            > 1
    );
}

#[test]
fn a_damaged_table_does_not_spoil_the_survey() {
    let lake = Fixture::new();
    let (_writer, folder) = lake.create(1, &ids());
    lake.create(2, &ids());
    fs::write(
        lake.path(&folder)
            .join("_delta_log/00000000000000000001.json"),
        "{\"add\":{\"pa",
    )
    .unwrap();
    fs::create_dir_all(lake.path("lb_empty_history/_delta_log")).unwrap();
    let found = lake.survey();
    assert_eq!(found.len(), 2);
    assert!(found[0].schema.is_err() && found[1].schema.is_ok());
}

/// Writes tables for other readers into `$WAL2DELTA_SAMPLES`.
#[test]
#[ignore = "for looking at the tables with other readers"]
fn samples() {
    let folder = std::env::var("WAL2DELTA_SAMPLES").unwrap();
    fs::create_dir_all(&folder).unwrap();
    let lake = Fixture::in_folder(tempfile::tempdir_in(folder).unwrap());
    let named = |prefix: &str| {
        ALL_TYPES
            .iter()
            .enumerate()
            .map(|(i, t)| (format!("{prefix}{i}_{t}"), *t))
            .collect::<Vec<_>>()
    };
    let plain: Vec<(String, DeltaType)> = named("c")
        .into_iter()
        .map(|(n, t)| (n.replace(['(', ')', ','], "_"), t))
        .collect();
    for (name, fields) in [
        ("plain", plain),
        ("mapped", named("c =")),
        ("../odd é#?%", named("d")),
    ] {
        let fields: Vec<(&str, DeltaType)> = fields.iter().map(|(n, t)| (n.as_str(), *t)).collect();
        let schema = schema(&fields);
        let writer = lake.open(
            fields.len() as u32 + name.len() as u32,
            Target::New {
                table_name: name.to_owned(),
            },
            &schema,
        );
        let Event::Opened { folder, .. } = lake.event() else {
            panic!()
        };
        println!("{folder}");
        for commit in 1..=13 {
            lake.write(&writer, rows(&schema, commit * 1000, 100));
            lake.commit(&writer, u64::try_from(commit * 1000 + 500).unwrap());
        }
    }
    println!("{}", lake.folder.keep().display());
}

/// Prints what a commit costs at low and at high versions, with checkpoints and without.
#[test]
#[ignore = "a measurement"]
fn speed_of_commits() {
    for checkpoint_interval in [10, u64::MAX / 2] {
        let lake = Fixture::with_interval(tempfile::tempdir().unwrap(), checkpoint_interval);
        let (writer, _) = lake.create(99, &ids());
        let mut times = Vec::new();
        for commit in 1..=2_100 {
            lake.write(&writer, rows(&ids(), commit * 1000, 100));
            let start = Instant::now();
            lake.commit(&writer, u64::try_from(commit * 1000 + 999).unwrap());
            times.push(start.elapsed());
        }
        for (from, to) in [(5, 25), (90, 110), (990, 1010), (1980, 2020)] {
            let mut part = times[from..to].to_vec();
            part.sort_unstable();
            println!(
                "interval {checkpoint_interval}, commits {from}..{to}: median {:?}, longest {:?}",
                part[part.len() / 2],
                part[part.len() - 1]
            );
        }
    }
}

/// Prints how fast rows become files.
#[test]
#[ignore = "a measurement"]
fn speed_of_encoding() {
    let lake = Fixture::new();
    let fields = [
        ("id", DeltaType::Long),
        ("customer", DeltaType::Integer),
        ("state", DeltaType::String),
        (
            "amount",
            DeltaType::Decimal {
                precision: 12,
                scale: 2,
            },
        ),
        ("created", DeltaType::Timestamp),
        ("day", DeltaType::Date),
        ("note", DeltaType::String),
        ("paid", DeltaType::Boolean),
        ("weight", DeltaType::Double),
        ("kind", DeltaType::Short),
        ("place", DeltaType::String),
    ];
    let schema = schema(&fields);
    let (writer, _) = lake.create(1, &schema);
    let batches: Vec<RecordBatch> = (0..100)
        .map(|n| rows(&schema, (n + 1) * 100_000, 10_000))
        .collect();
    let bytes: usize = batches.iter().map(RecordBatch::get_array_memory_size).sum();
    let start = Instant::now();
    for batch in batches {
        lake.write(&writer, batch);
    }
    lake.commit(&writer, 20_000_000);
    println!(
        "1 M rows, {} MB of Arrow data: {:?}",
        bytes >> 20,
        start.elapsed()
    );
}
