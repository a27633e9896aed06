use super::*;

const TARGET: u64 = 128 << 20;

fn file(size: u64, first: i64) -> RangedFile {
    RangedFile {
        path: format!("{first}"),
        size,
        rows: 1,
        first,
        last: first,
    }
}

fn files(sizes: &[u64]) -> Vec<RangedFile> {
    let numbered = sizes.iter().zip(1..);
    numbered.map(|(size, first)| file(*size, first)).collect()
}

fn firsts(groups: &[Vec<RangedFile>]) -> Vec<Vec<i64>> {
    let of = |group: &Vec<RangedFile>| group.iter().map(|file| file.first).collect();
    groups.iter().map(of).collect()
}

#[test]
fn small_files_wait_until_they_make_a_file_of_the_next_class() {
    let few = files(&[100 << 10; 2]);
    assert!(plan(few.clone(), None, TARGET, false).is_empty());
    assert_eq!(firsts(&plan(few, None, TARGET, true)), [[1, 2]]);
    let three = files(&[100 << 10; 3]);
    assert_eq!(firsts(&plan(three, None, TARGET, false)), [[1, 2, 3]]);
}

#[test]
fn only_neighbours_become_one_file() {
    let apart = files(&[100 << 10, TARGET, 100 << 10, 100 << 10]);
    assert!(plan(apart.clone(), None, TARGET, false).is_empty());
    assert_eq!(firsts(&plan(apart, None, TARGET, true)), [[3, 4]]);
    // In any order.
    let mut mixed = files(&[200 << 10; 4]);
    mixed.reverse();
    assert_eq!(firsts(&plan(mixed, None, TARGET, false)), [[1, 2], [3, 4]]);
}

#[test]
fn no_file_gets_rows_from_before_and_after_a_clearing() {
    let around = files(&[100 << 10; 4]);
    let groups = plan(around, Some(2), TARGET, true);
    assert_eq!(firsts(&groups), [[1, 2], [3, 4]]);
}

#[test]
fn a_long_neglected_table_is_merged_in_one_step() {
    let groups = plan(files(&[1 << 20; 2000]), None, TARGET, false);
    assert_eq!(groups.iter().filter(|group| group.len() == 128).count(), 15);
    let tiny = plan(files(&[5 << 10; 2500]), None, TARGET, false);
    assert_eq!(tiny[0].len(), MOST_FILES);
    assert_eq!(tiny[1].len(), MOST_FILES);
}

/// As a year of commits would have it, in files of one row each that are as small as files get.
#[test]
fn rows_are_written_again_a_few_times_and_few_files_stay() {
    let commits: u64 = 200_000;
    let size = 5 << 10;
    let (mut table, mut written, mut most) = (Vec::new(), 0, 0);
    for commit in 0..commits {
        table.push(file(size, commit as i64));
        if commit % 32 > 0 {
            continue;
        }
        for group in plan(table.clone(), None, TARGET, false) {
            let merged = RangedFile {
                size: group.iter().map(|file| file.size).sum(),
                last: group[group.len() - 1].last,
                ..group[0].clone()
            };
            written += merged.size;
            table.retain(|file| file.first < merged.first || file.first > merged.last);
            table.push(merged);
        }
        most = most.max(table.len());
    }
    let whole = commits * size / TARGET;
    assert!(most as u64 <= whole + 100, "{most} files");
    let times = written as f64 / (commits * size) as f64;
    assert!(times < 5.0, "each row was written {times} times");
}

#[test]
fn statistics_tell_the_range() {
    let added = |stats: &str| AddedFile {
        path: "x".into(),
        size: 7,
        stats: Some(stats.into()),
    };
    let stats = r#"{"numRecords":3,"minValues":{"a":"x","_sort_by":5},"maxValues":{"_sort_by":9},"nullCount":{}}"#;
    let file = RangedFile::new(added(stats), "_sort_by").unwrap();
    assert_eq!((file.rows, file.first, file.last), (3, 5, 9));
    assert_eq!(RangedFile::new(added(stats), "_lsn"), None);
    assert_eq!(RangedFile::new(added("{}"), "_sort_by"), None);
}
