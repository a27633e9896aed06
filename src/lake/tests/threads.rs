//! The lake's threads: many tables share a few of them, and none takes a signal.

use std::collections::HashSet;
use std::fs;

use super::*;

#[test]
fn many_tables_share_the_threads_without_blocking_each_other() {
    const TABLES: u32 = 150;
    let lake = Fixture::with_interval(tempfile::tempdir().unwrap(), 2);
    let writers: Vec<HistoryWriter> = (1..=TABLES)
        .map(|table| {
            let target = Target::New {
                table_name: format!("t{table}"),
                whole: None,
            };
            lake.open(table, target, &ids())
        })
        .collect();
    for round in 1..=4_u32 {
        for writer in &writers {
            lake.write(writer, rows(&ids(), i64::from(round) * 100, 10));
            let lsn = u64::from(round) * 100 + 50;
            writer.commit(u64::from(round), up_to(lsn));
        }
    }
    let mut opened = HashSet::new();
    let mut committed = 0;
    while committed < TABLES * 4 {
        match lake.event() {
            Event::Opened { table, .. } => assert!(opened.insert(table)),
            Event::Committed {
                version: Some(_),
                rows: 10,
                ..
            } => committed += 1,
            other => panic!("{other:?}"),
        }
    }
    let lake = lake.restart();
    let found = lake.survey();
    assert_eq!(found.len(), TABLES as usize);
    assert!(
        found
            .iter()
            .all(|found| found.version == 4 && found.progress.is_some_and(|p| p.lsn == 450))
    );
}

#[test]
#[cfg(target_os = "linux")]
fn no_thread_takes_a_signal() {
    let lake = Fixture::new();
    let (writer, _) = lake.create(1, &ids());
    lake.write(&writer, rows(&ids(), 100, 10));
    lake.commit(&writer, 110);
    let mut seen = 0;
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        if !status.starts_with("Name:\twal2delta\n") {
            continue;
        }
        let blocked = status
            .lines()
            .find_map(|line| line.strip_prefix("SigBlk:\t"))
            .unwrap();
        let blocked = u64::from_str_radix(blocked, 16).unwrap();
        for signal in [
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGUSR1,
            libc::SIGURG,
        ] {
            assert_ne!(blocked & (1 << (signal - 1)), 0, "signal {signal}");
        }
        seen += 1;
    }
    assert!(seen >= 2, "{seen} threads");
}
