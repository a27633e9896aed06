//! Which small files are merged into one. Only neighbours by `_sort_by` are, so that each file keeps a
//! range of its own, and not before together they make a file of the next class of sizes, eight times as
//! large: so no row is written more often than there are classes, however small the commits, and never
//! are there more small files than a few for each class.

use serde::Deserialize;
use std::collections::BTreeMap;

use crate::lake::upkeep::log_files::AddedFile;

/// A class's sizes are up to eight times those of the one below.
const CLASS_FACTOR: u64 = 8;
/// The lowest class has all sizes below this.
const LOWEST_CLASS: u64 = 128 << 10;
/// Most files that become one at a time.
const MOST_FILES: usize = 1000;

/// A data file with the range of its rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RangedFile {
    pub path: String,
    pub size: u64,
    pub rows: u64,
    /// First and last `_sort_by`.
    pub first: i64,
    pub last: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stats {
    num_records: u64,
    min_values: BTreeMap<String, serde_json::Value>,
    max_values: BTreeMap<String, serde_json::Value>,
}

impl RangedFile {
    /// By its statistics, in which the column `_sort_by` has this name; `None` if they do not say.
    pub(super) fn new(file: AddedFile, sort_by: &str) -> Option<RangedFile> {
        let stats: Stats = serde_json::from_str(&file.stats?).ok()?;
        Some(RangedFile {
            path: file.path,
            size: file.size,
            rows: stats.num_records,
            first: stats.min_values.get(sort_by)?.as_i64()?,
            last: stats.max_values.get(sort_by)?.as_i64()?,
        })
    }
}

/// The groups of files that are to become one file each. No group has files from before and after
/// `cleared`. With `fully`, whatever is smaller than `target` and has a neighbour that is.
pub(super) fn plan(
    mut files: Vec<RangedFile>,
    cleared: Option<i64>,
    target: u64,
    fully: bool,
) -> Vec<Vec<RangedFile>> {
    files.sort_unstable_by_key(|file| file.first);
    let after_cleared = |file: &RangedFile| cleared.is_some_and(|cleared| file.first > cleared);
    let mut groups = Vec::new();
    let mut runs = runs_of(files, target, after_cleared);
    for class in classes(target) {
        let (whole, rests): (Vec<_>, Vec<_>) =
            runs.into_iter().map(|run| split(run, class)).unzip();
        groups.extend(whole.into_iter().flatten());
        if fully {
            groups.extend(rests);
            break;
        }
        let next = class / CLASS_FACTOR;
        let smaller = rests
            .into_iter()
            .flat_map(|rest| runs_of(rest, next, after_cleared));
        runs = smaller.collect();
    }
    groups.retain(|group| group.len() > 1);
    groups
}

/// The sizes that files of a class are smaller than, the largest first.
fn classes(target: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(target), |class| Some(class / CLASS_FACTOR))
        .take_while(move |class| *class == target || *class >= LOWEST_CLASS)
}

/// Neighbours that are all smaller than this, and on one side.
fn runs_of(
    files: Vec<RangedFile>,
    smaller_than: u64,
    side: impl Fn(&RangedFile) -> bool,
) -> Vec<Vec<RangedFile>> {
    let together = |one: &RangedFile, next: &RangedFile| {
        one.size < smaller_than && next.size < smaller_than && side(one) == side(next)
    };
    let runs = files.chunk_by(together);
    runs.filter(|run| run[0].size < smaller_than)
        .map(<[RangedFile]>::to_vec)
        .collect()
}

/// Parts of a run that together are as large as the class, or as many as one commit should have; and
/// what is left.
fn split(run: Vec<RangedFile>, class: u64) -> (Vec<Vec<RangedFile>>, Vec<RangedFile>) {
    let mut whole = Vec::new();
    let mut part = Vec::new();
    let mut size = 0;
    for file in run {
        size += file.size;
        part.push(file);
        if size >= class || part.len() >= MOST_FILES {
            whole.push(std::mem::take(&mut part));
            size = 0;
        }
    }
    (whole, part)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
