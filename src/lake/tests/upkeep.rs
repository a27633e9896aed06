//! What upkeep promises: the same rows in fewer files, a log that does not grow, and nothing removed that
//! somebody may need.

use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use ::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use tokio::sync::oneshot;

use super::*;
use crate::lake::upkeep::Exchange;
use crate::lake::writer::Message;

const DAY: Duration = Duration::from_secs(86_400);

/// Compacts up to a size, keeps versions for ever.
fn compacting(target_file_size: u64) -> UpkeepSettings {
    UpkeepSettings {
        checkpoint_interval: 10,
        target_file_size,
        retention: None,
        orphan_retention: None,
    }
}

fn fixture(upkeep: UpkeepSettings) -> Fixture {
    Fixture::with_upkeep(tempfile::tempdir().unwrap(), upkeep)
}

impl Fixture {
    fn optimize(&self, writer: &HistoryWriter) -> Result<(), LakeError> {
        writer.optimize(77);
        match self.event() {
            Event::Optimized {
                ticket: 77, result, ..
            } => result,
            other => panic!("{other:?}"),
        }
    }

    /// Commits `count` times two rows; the last `_sort_by` is that of the second.
    fn commits(&self, writer: &HistoryWriter, from: i64, count: i64) {
        for commit in from..from + count {
            self.write(writer, rows(&ids(), commit * 10, 2));
            self.commit(writer, u64::try_from(commit * 10 + 5).unwrap());
        }
    }

    /// The files of the newest version by all commits, the log being whole.
    fn active(&self, folder: &str) -> Vec<String> {
        let mut active = Vec::new();
        for version in 0.. {
            let commit = self
                .path(folder)
                .join(format!("_delta_log/{version:020}.json"));
            if !commit.exists() {
                break;
            }
            for action in self.log(folder, version) {
                let path =
                    |action: &str, line: &Value| line[action]["path"].as_str().map(str::to_owned);
                active.retain(|file| path("remove", &action).as_ref() != Some(file));
                active.extend(path("add", &action));
            }
        }
        active
    }

    /// `id` and `_sort_by` of the rows in files, in the order in which they are there.
    fn read(&self, folder: &str, files: &[String]) -> Vec<(Option<i64>, i64)> {
        self.read_column(0, folder, files)
    }

    /// A column, by its place, and `_sort_by`.
    fn read_column(
        &self,
        column: usize,
        folder: &str,
        files: &[String],
    ) -> Vec<(Option<i64>, i64)> {
        let mut rows = Vec::new();
        for file in files {
            let file = File::open(self.path(folder).join(file)).unwrap();
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            for batch in reader.build().unwrap() {
                let batch = batch.unwrap();
                let sort_by = batch.column_by_name("_sort_by").unwrap();
                let sort_by = sort_by.as_primitive::<Int64Type>();
                let id = batch.column(column).as_primitive::<Int64Type>();
                rows.extend(id.iter().zip(sort_by.values().iter().copied()));
            }
        }
        rows
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }
}

fn age(path: &Path, age: Duration) {
    let file = File::options().append(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - age).unwrap();
}

#[test]
fn small_files_become_one_with_the_same_rows() {
    let lake = fixture(compacting(1 << 20));
    let (writer, folder) = lake.create(1, &ids());
    lake.commits(&writer, 1, 20);
    let before = lake.active(&folder);
    let rows = lake.read(&folder, &before);
    assert_eq!((before.len(), rows.len()), (20, 40));
    lake.optimize(&writer).unwrap();

    let after = lake.active(&folder);
    assert_eq!(after.len(), 1);
    assert_eq!(lake.read(&folder, &after), rows);
    let exchange = lake.log(&folder, 21);
    assert_eq!(exchange[0]["commitInfo"]["operation"], "OPTIMIZE");
    for action in &exchange[1..] {
        let file = action.get("add").or(action.get("remove")).unwrap();
        assert_eq!(file["dataChange"], false);
    }
    let stats = lake.action(&folder, 21, "add")["stats"]
        .as_str()
        .unwrap()
        .to_owned();
    let stats: Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["numRecords"], 40);
    assert_eq!(stats["minValues"]["_sort_by"], 10);
    assert_eq!(stats["maxValues"]["_sort_by"], 201);

    // The table goes on, and is found as it was left.
    lake.commits(&writer, 21, 1);
    assert_eq!(lake.active(&folder).len(), 2);
    let lake = lake.restart();
    assert_eq!(lake.survey()[0].progress, Some(progress(1, 215)));
}

#[test]
fn two_who_merge_the_same_files_do_not_double_their_rows() {
    let lake = fixture(compacting(1 << 20));
    let (writer, folder) = lake.create(1, &ids());
    lake.commits(&writer, 1, 20);
    let rows = lake.read(&folder, &lake.active(&folder));
    for ticket in 0..4 {
        writer.optimize(ticket);
    }
    for _ in 0..4 {
        match lake.event() {
            Event::Optimized { result, .. } => result.unwrap(),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lake.read(&folder, &lake.active(&folder)), rows);
}

#[test]
fn small_files_are_merged_without_being_asked() {
    let lake = fixture(compacting(1 << 20));
    let (writer, folder) = lake.create(1, &ids());
    let limit = Instant::now() + Duration::from_secs(60);
    let mut commits: usize = 0;
    while lake.active(&folder).len() == commits {
        assert!(Instant::now() < limit, "{commits} commits, {commits} files");
        commits += 1;
        lake.commits(&writer, commits as i64, 1);
    }
    let rows = lake.read(&folder, &lake.active(&folder));
    assert_eq!(rows.len(), 2 * commits);
}

#[test]
fn files_whose_rows_overlap_are_merged_in_order() {
    let lake = fixture(compacting(1 << 20));
    let (writer, folder) = lake.create(1, &ids());
    let mut files = Vec::new();
    for first in [100, 110] {
        let target = Target::StageOnly {
            folder: folder.clone(),
        };
        let copier = lake.open(1, target, &ids());
        assert!(matches!(lake.event(), Event::Opened { .. }));
        for piece in 0..3 {
            lake.write(&copier, rows(&ids(), first + piece * 20, 10));
        }
        copier.stage(3);
        match lake.event() {
            Event::Staged { files: staged, .. } => files.extend(staged),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(files.len(), 2);
    writer.replace(
        1,
        Replace {
            generation: 1,
            schema: ids(),
            files,
            content: Content::First,
            commit: up_to(160),
        },
    );
    assert_eq!(lake.committed(), (Some(1), 60));
    lake.optimize(&writer).unwrap();
    let after = lake.active(&folder);
    assert_eq!(after.len(), 1);
    let sort_by = lake
        .read(&folder, &after)
        .into_iter()
        .map(|(_, sort_by)| sort_by);
    assert!(sort_by.eq(100..160));
}

#[test]
fn a_column_that_came_later_is_null_in_merged_rows() {
    let lake = fixture(compacting(1 << 20));
    let first = schema(&[("note", DeltaType::String)]);
    let (writer, folder) = lake.create(1, &first);
    lake.write(&writer, rows(&first, 10, 2));
    lake.commit(&writer, 15);
    let evolved = first.evolve(&schema(&[
        ("note", DeltaType::String),
        ("id", DeltaType::Long),
    ]));
    writer.evolve(evolved.schema.clone());
    lake.write(&writer, rows(&evolved.schema, 20, 2));
    lake.commit(&writer, 25);
    lake.optimize(&writer).unwrap();
    let after = lake.active(&folder);
    assert_eq!(after.len(), 1);
    let id = evolved.schema.arrow().index_of("id").unwrap();
    assert_eq!(
        lake.read_column(id, &folder, &after),
        [(None, 10), (None, 11), (Some(0), 20), (Some(1), 21)]
    );
}

#[test]
fn no_file_gets_rows_from_before_and_after_a_clearing() {
    let lake = fixture(compacting(1 << 20));
    let (writer, folder) = lake.create(1, &ids());
    lake.commits(&writer, 1, 3);
    let clear = Clear {
        lsn: 40,
        sort_by: 35,
        tried: None,
    };
    writer.clear(5, clear);
    let outcome = match lake.event() {
        Event::Cleared { outcome, .. } => outcome,
        other => panic!("{other:?}"),
    };
    let Cleared::Deleted(last) = outcome else {
        panic!("{outcome:?}")
    };
    lake.write(&writer, rows(&ids(), 100, 2));
    writer.replace(
        6,
        Replace {
            generation: 1,
            schema: ids(),
            files: Vec::new(),
            content: Content::Behind(last),
            commit: up_to(105),
        },
    );
    lake.committed();
    lake.commits(&writer, 11, 2);
    lake.optimize(&writer).unwrap();
    let after = lake.active(&folder);
    assert_eq!(after.len(), 2);
    for file in &after {
        let rows = lake.read(&folder, std::slice::from_ref(file));
        let behind = rows.iter().filter(|(_, sort_by)| *sort_by > last).count();
        assert!(behind == 0 || behind == rows.len(), "{rows:?}");
    }
}

#[test]
fn files_of_an_earlier_content_are_not_exchanged() {
    let lake = fixture(compacting(1 << 20));
    let (writer, folder) = lake.create(1, &ids());
    lake.commits(&writer, 1, 2);
    let before = lake.active(&folder);
    let target = Target::StageOnly {
        folder: folder.clone(),
    };
    let stager = lake.open(1, target, &ids());
    assert!(matches!(lake.event(), Event::Opened { .. }));
    lake.write(&stager, rows(&ids(), 10, 4));
    stager.stage(3);
    let Event::Staged { mut files, .. } = lake.event() else {
        panic!("not staged")
    };
    let exchange = |life, added| {
        let (answer, outcome) = oneshot::channel();
        let exchange = Exchange {
            life,
            removed: Vec::new(),
            added,
        };
        writer
            .messages
            .send(Message::Exchange { exchange, answer })
            .unwrap();
        outcome.blocking_recv().unwrap().unwrap()
    };
    let added = files.remove(0);
    assert_eq!(exchange(0, added.clone()), None);
    assert_eq!(lake.active(&folder), before);
    assert_eq!(exchange(1, added.clone()), Some(2));
    assert_eq!(lake.active(&folder).len(), 3);
    // Not twice.
    assert_eq!(exchange(1, added), None);
}

#[test]
fn what_no_version_within_the_retention_needs_is_removed() {
    let settings = UpkeepSettings {
        retention: Some(Duration::ZERO),
        ..compacting(1 << 20)
    };
    let lake = fixture(UpkeepSettings {
        retention: Some(DAY),
        ..settings
    });
    let (writer, folder) = lake.create(1, &ids());
    lake.commits(&writer, 1, 25);
    lake.optimize(&writer).unwrap();
    // All versions can still be read.
    assert!(lake.names(&folder).len() > 25);
    assert!(lake.log(&folder, 0).len() > 1);
    let rows = lake.read(&folder, &lake.active(&folder));

    lake.lake.keep_up(settings);
    std::thread::sleep(Duration::from_millis(5));
    lake.optimize(&writer).unwrap();
    let log = lake.names(&format!("{folder}/_delta_log"));
    assert_eq!(
        log,
        [
            "00000000000000000026.checkpoint.parquet",
            "00000000000000000026.json",
            "_last_checkpoint"
        ]
    );
    let names = lake.names(&folder);
    assert_eq!(names.len(), 3, "{names:?}");
    let file = lake.action(&folder, 26, "add")["path"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(lake.read(&folder, &[file]), rows);

    // It is found, and written, as before; the setting has become a property.
    let lake = lake.restart();
    assert_eq!(lake.survey()[0].progress, Some(progress(1, 255)));
    let destination = lake.destination();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    assert_eq!(
        runtime.block_on(destination.sources()).unwrap(),
        [source(1)]
    );
    let target = Target::Existing {
        folder: folder.clone(),
    };
    lake.lake.keep_up(settings);
    let writer = lake.open(1, target, &ids());
    assert!(matches!(lake.event(), Event::Opened { version: 26, .. }));
    lake.commits(&writer, 26, 1);
    let properties = &lake.action(&folder, 27, "metaData")["configuration"];
    assert_eq!(
        properties["delta.logRetentionDuration"],
        "interval 0 seconds"
    );
    assert_eq!(
        properties["delta.deletedFileRetentionDuration"],
        "interval 60 seconds"
    );
}

#[test]
fn a_log_stays_whole_behind_a_wrong_checkpoint() {
    let settings = UpkeepSettings {
        retention: Some(DAY),
        ..compacting(0)
    };
    let lake = fixture(settings);
    let (writer, folder) = lake.create(1, &ids());
    lake.commits(&writer, 1, 5);
    lake.optimize(&writer).unwrap();
    lake.commits(&writer, 6, 1);
    lake.optimize(&writer).unwrap();
    let checkpoint = |version| {
        lake.path(&folder)
            .join(format!("_delta_log/{version:020}.checkpoint.parquet"))
    };
    // One that lacks a file.
    fs::copy(checkpoint(5), checkpoint(6)).unwrap();
    lake.commits(&writer, 7, 1);
    let before = lake.names(&format!("{folder}/_delta_log"));
    lake.lake.keep_up(UpkeepSettings {
        retention: Some(Duration::ZERO),
        ..settings
    });
    std::thread::sleep(Duration::from_millis(5));
    writer.optimize(77);
    let (mut told, mut answered) = (None, None);
    while told.is_none() || answered.is_none() {
        match lake.lake.try_event() {
            Some(Event::Upkeep { error, .. }) => told = error,
            Some(Event::Optimized { result, .. }) => answered = result.err(),
            Some(other) => panic!("{other:?}"),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    let error = answered.unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(
        error.to_string().contains("has other data files"),
        "{error}"
    );
    let after = lake.names(&format!("{folder}/_delta_log"));
    assert!(before.iter().all(|name| after.contains(name)));
}

#[test]
fn files_that_no_commit_has_named_are_removed_when_they_are_old() {
    let lake = fixture(UpkeepSettings {
        orphan_retention: Some(DAY),
        ..compacting(0)
    });
    let (writer, folder) = lake.create(1, &ids());
    lake.commits(&writer, 1, 2);
    let active = lake.active(&folder);
    let place = lake.path(&folder);
    for name in [
        "part-1.zstd.parquet",
        "part-2.zstd.parquet",
        "notes.txt",
        ".hidden.parquet",
    ] {
        fs::write(place.join(name), "x").unwrap();
    }
    fs::write(place.join("_delta_log/.wal2delta-tmp-1"), "x").unwrap();
    for name in [
        "part-1.zstd.parquet",
        "notes.txt",
        ".hidden.parquet",
        "_delta_log/.wal2delta-tmp-1",
    ] {
        age(&place.join(name), DAY * 2);
    }
    for name in &active {
        age(&place.join(name), DAY * 2);
    }
    lake.optimize(&writer).unwrap();
    let names = lake.names(&folder);
    assert!(active.iter().all(|name| names.contains(name)));
    assert!(!names.contains(&"part-1.zstd.parquet".to_owned()));
    for name in ["part-2.zstd.parquet", "notes.txt", ".hidden.parquet"] {
        assert!(names.iter().any(|other| other == name), "{name}");
    }
    let log = lake.names(&format!("{folder}/_delta_log"));
    assert!(!log.iter().any(|name| name.starts_with('.')), "{log:?}");
}
