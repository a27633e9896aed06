use super::*;

/// Names without their zeros, each a second younger than the one before.
fn entries(names: &[&str]) -> Vec<Entry> {
    names
        .iter()
        .filter_map(|name| {
            let (version, suffix) = name.split_once('.')?;
            let version: u64 = version.parse().ok()?;
            Some(Path::from(format!("_delta_log/{version:020}.{suffix}")))
        })
        .zip(0..)
        .filter_map(|(path, second)| Entry::new(path, second * 1000))
        .collect()
}

fn version(path: &Path) -> u64 {
    Entry::new(path.clone(), 0).unwrap().version
}

/// The last commit is the first that stays.
fn plan(names: &[&str]) -> Option<(u64, u64, Vec<u64>)> {
    let plan = Plan::new(&entries(names), i64::MAX)?;
    let removed = plan.removed.iter().map(version).collect();
    Some((plan.checkpoint, plan.before, removed))
}

#[test]
fn the_log_begins_with_a_checkpoint_that_the_first_version_needs() {
    let log = [
        "0.json",
        "1.json",
        "2.checkpoint.parquet",
        "2.json",
        "3.json",
        "4.checkpoint.parquet",
        "4.json",
        "5.json",
    ];
    // Version 5 is the first that stays: the checkpoint of 4 and commit 5 give it.
    assert_eq!(plan(&log), Some((4, 2, vec![0, 1, 2, 2, 3])));
    assert_eq!(plan(&log[2..]), Some((4, 2, vec![2, 2, 3])));
    // Version 3 is: the checkpoint of 2 and commit 3.
    assert_eq!(plan(&log[..5]), Some((2, 0, vec![0, 1])));
    // No checkpoint before it.
    assert_eq!(plan(&log[..2]), None);
}

#[test]
fn nothing_goes_without_something_to_compare_with() {
    assert_eq!(plan(&["4.checkpoint.parquet", "4.json", "5.json"]), None);
    assert_eq!(
        plan(&["3.json", "4.checkpoint.parquet", "4.json", "5.json"]),
        None
    );
}

#[test]
fn files_of_others_go_with_their_version() {
    let log = [
        "0.crc",
        "0.json",
        "1.checkpoint.0000000001.0000000002.parquet",
        "1.json",
        "2.checkpoint.parquet",
        "2.json",
    ];
    assert_eq!(plan(&log), Some((2, 0, vec![0, 0, 1, 1])));
    assert_eq!(
        Entry::new(Path::from("_delta_log/_last_checkpoint"), 0),
        None
    );
}

#[test]
fn the_first_commit_that_is_young_enough_stays() {
    let log = entries(&[
        "0.json",
        "1.checkpoint.parquet",
        "1.json",
        "2.json",
        "3.checkpoint.parquet",
        "3.json",
    ]);
    let plan = Plan::new(&log, 3000).unwrap();
    assert_eq!((plan.checkpoint, plan.removed.len()), (1, 1));
    assert_eq!(Plan::new(&log, 3001).unwrap().checkpoint, 3);
}

#[test]
fn of_old_checkpoints_one_in_each_part_stays() {
    let log = [
        "2.checkpoint.parquet",
        "2.json",
        "3.checkpoint.parquet",
        "3.json",
        "4.checkpoint.parquet",
        "4.json",
        "5.checkpoint.parquet",
        "5.json",
        "6.checkpoint.parquet",
        "6.json",
        "7.checkpoint.parquet",
        "7.json",
    ];
    // At 0, 2, 4, … seconds.
    let spare = |log: &[&str], before_ms, part_ms| -> Vec<u64> {
        spare_checkpoints(&entries(log), before_ms, part_ms)
            .iter()
            .map(version)
            .collect()
    };
    assert_eq!(spare(&log, i64::MAX, 4000), [3, 5]);
    assert_eq!(spare(&log, i64::MAX, 100_000), [3, 4, 5, 6]);
    assert_eq!(spare(&log, 5000, 100_000), [3, 4]);
    assert_eq!(spare(&log, i64::MAX, 1000), [0_u64; 0]);
    // Without a commit between them no version could be read by the first checkpoint.
    let holed: Vec<&str> = log
        .iter()
        .copied()
        .filter(|name| *name != "4.json")
        .collect();
    assert_eq!(spare(&holed, i64::MAX, 100_000), [0_u64; 0]);
    assert_eq!(spare(&log[2..], i64::MAX, 100_000), [4, 5, 6]);
    assert_eq!(spare(&log[3..], i64::MAX, 100_000), [5, 6]);
    let holed = [log[2], log[6], log[7], log[8], log[9]];
    assert_eq!(spare(&holed, i64::MAX, 100_000), [0_u64; 0]);
}
