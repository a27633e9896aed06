//! Not checks: sample tables for other readers, and what things cost.

use std::fs;
use std::time::Instant;

use super::*;
use crate::lake::types::ALL_TYPES;

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
                whole: None,
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
    println!("{}", edge_values(&lake));
    println!("{}", lake.folder.keep().display());
}

/// A table whose content was replaced by values at the edges of their types.
fn edge_values(lake: &Fixture) -> String {
    let fields = [
        ("d", DeltaType::Double),
        ("day", DeltaType::Date),
        ("at", DeltaType::TimestampNtz),
        ("note", DeltaType::String),
        (
            "n",
            DeltaType::Decimal {
                precision: 38,
                scale: 38,
            },
        ),
    ];
    let schema = schema(&fields);
    let (writer, folder) = lake.create(77, &ids());
    lake.write(&writer, rows(&ids(), 100, 3));
    lake.commit(&writer, 110);
    let long = format!("{}z", "é".repeat(50));
    let edges: [ArrayRef; 5] = [
        Arc::new(Float64Array::from(vec![Some(f64::NAN), Some(-0.0), None])),
        Arc::new(Date32Array::from(vec![
            Some(-735_000),
            Some(4_000_000),
            None,
        ])),
        Arc::new(TimestampMicrosecondArray::from(vec![
            Some(i64::MAX),
            Some(-62_200_000_000_000_000),
            None,
        ])),
        Arc::new(StringArray::from(vec![Some(long.as_str()), Some(""), None])),
        Arc::new(
            Decimal128Array::from(vec![
                Some(1),
                Some(-99_999_999_999_999_999_999_999_999_999_999_999_999),
                None,
            ])
            .with_data_type(fields[4].1.arrow()),
        ),
    ];
    let mut columns = rows(&schema, 200, 3).columns().to_vec();
    columns.splice(..5, edges);
    lake.write(
        &writer,
        RecordBatch::try_new(schema.arrow(), columns).unwrap(),
    );
    let commit = up_to(210);
    writer.replace(
        1,
        Replace {
            generation: 1,
            schema,
            files: Vec::new(),
            content: Content::Instead,
            commit,
        },
    );
    assert_eq!(lake.committed(), (Some(2), 3));
    folder
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
