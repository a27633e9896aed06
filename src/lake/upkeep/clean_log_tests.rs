use super::*;

fn plan(names: &[&str]) -> Option<(u64, u64, Vec<u64>)> {
    let entries: Vec<Entry> = names
        .iter()
        .filter_map(|name| {
            let (version, suffix) = name.split_once('.')?;
            let version: u64 = version.parse().ok()?;
            Entry::new(Path::from(format!("_delta_log/{version:020}.{suffix}")))
        })
        .collect();
    let plan = Plan::new(&entries)?;
    let versions = plan.removed.iter().map(|path| {
        let entry = Entry::new(path.clone()).unwrap();
        entry.version
    });
    Some((plan.checkpoint, plan.before, versions.collect()))
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
    assert_eq!(Entry::new(Path::from("_delta_log/_last_checkpoint")), None);
}
