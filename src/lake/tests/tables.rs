//! What a history table promises.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::*;

#[test]
fn rows_are_committed_with_their_progress_and_found_again() {
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
            (source(42).crc_app_id(1), i64::from(u32::MAX - 220)),
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
    assert_eq!(found[0].progress, Some(progress(1, 220)));

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
    writer.commit(1, up_to(220));
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
fn a_foreign_commit_stops_the_table_until_it_is_replaced() {
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
    writer.commit(1, up_to(110));
    let error = lake.failed();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("another writer"), "{error}");
    // Ignored until the failure is cleared.
    lake.write(&writer, rows(&ids(), 100, 3));
    writer.commit(2, up_to(120));
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
    // Opened anew, the table is still the other writer's.
    lake.write(&writer, rows(&ids(), 100, 3));
    let commit = up_to(130);
    writer.commit(3, commit);
    assert_eq!(lake.failed().kind(), ErrorKind::Conflict);

    writer.discard();
    assert!(matches!(lake.event(), Event::Opened { version: 1, .. }));
    lake.write(&writer, rows(&ids(), 100, 3));
    writer.replace(
        4,
        Replace {
            generation: 1,
            schema: ids(),
            files: vec![],
            content: Content::Instead,
            commit,
        },
    );
    assert!(matches!(
        lake.event(),
        Event::Committed {
            version: Some(2),
            rows: 3,
            ..
        }
    ));
    lake.write(&writer, rows(&ids(), 140, 3));
    assert_eq!(lake.commit(&writer, 150), (Some(3), 3));
}

#[test]
fn rows_are_not_added_to_a_table_that_has_come_further_than_believed() {
    let lake = Fixture::new();
    let (writer, folder) = lake.create(1, &ids());
    lake.write(&writer, rows(&ids(), 100, 3));
    lake.commit(&writer, 110);
    let lake = lake.restart();
    let found = lake.survey().remove(0).progress;
    let target = Target::Existing { folder };

    let writer = lake.open(1, target.clone(), &ids());
    assert!(matches!(lake.event(), Event::Opened { version: 1, .. }));
    // It lands after the survey, whose answer the next one still believes.
    lake.write(&writer, rows(&ids(), 120, 3));
    assert_eq!(lake.commit(&writer, 130), (Some(2), 3));
    let believing = Believed::Progress(found);
    let late = lake.open_believing(1, target.clone(), &ids(), believing);
    assert!(matches!(lake.event(), Event::Opened { version: 2, .. }));
    lake.write(&late, rows(&ids(), 120, 6));
    late.commit(1, up_to(140));
    assert_eq!(lake.failed().kind(), ErrorKind::Transient);

    // A new survey tells, and what it says is gone on with.
    let found = lake.survey().remove(0).progress;
    let writer = lake.open_believing(1, target, &ids(), Believed::Progress(found));
    assert!(matches!(lake.event(), Event::Opened { version: 2, .. }));
    lake.write(&writer, rows(&ids(), 140, 3));
    assert_eq!(lake.commit(&writer, 150), (Some(3), 3));
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
    stager.commit(1, up_to(1));
    assert_eq!(lake.failed().kind(), ErrorKind::Internal);

    lake.write(&writer, rows(&wanted, 300, 2));
    let commit = up_to(310);
    writer.replace(
        5,
        Replace {
            generation: 1,
            schema: wanted.clone(),
            files,
            content: Content::Instead,
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
    writer.commit(1, up_to(110));
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
    assert_eq!(found.progress, Some(progress(1, 255)));
    let writer = lake.open(1, Target::Existing { folder }, &ids());
    assert!(matches!(lake.event(), Event::Opened { version: 25, .. }));
    let commit = up_to(300);
    writer.replace(
        1,
        Replace {
            generation: 1,
            schema: ids(),
            files: Vec::new(),
            content: Content::Instead,
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
