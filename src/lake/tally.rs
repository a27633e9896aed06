//! How often rows were added less how often they were taken away, in a fixed number of bytes. Rows
//! are known by their keys, which are spread evenly. If there are more kinds of rows than there is
//! room for, those with the highest keys are left for another pass.

/// What rows are told apart by: a kind, and more that need not count. Together 128 bits, as good as
/// never the same for two rows that differ.
pub(crate) type Key = [u64; 2];

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    count: i64,
}

/// Bytes of one count.
pub(crate) const ENTRY_BYTES: usize = size_of::<Entry>();

/// Counts by key: a list that is sorted and summed up whenever it is full. A hash map would need
/// more than twice the bytes, as it grows by doubling and keeps the places of what was removed.
#[derive(Debug)]
pub(crate) struct Tally {
    entries: Vec<Entry>,
    limit: usize,
    /// The keys that are counted: from here on,
    start: Key,
    /// and up to before this one.
    end: Option<Key>,
    /// Where the next pass starts.
    next: Option<Key>,
    /// How many of a kind there are, where that is less than the sum of what was added of it: by the
    /// first half of the key.
    kinds: Vec<(u64, u64)>,
    /// Rows counted and not taken, once the counts are complete.
    left: u64,
}

impl Tally {
    /// Takes up to `memory` bytes, and no more than `rows` rows need.
    pub(crate) fn new(memory: usize, rows: u64) -> Tally {
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        // With four entries, one is free after a quarter is left for another pass.
        let limit = (memory / ENTRY_BYTES).min(rows).max(4);
        Tally {
            entries: Vec::with_capacity(limit),
            limit,
            start: [0, 0],
            end: Some([0, 0]),
            next: Some([0, 0]),
            kinds: Vec::new(),
            left: 0,
        }
    }

    /// Bytes that are taken at most.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * ENTRY_BYTES
    }

    /// Begins a pass over the keys that no pass has counted; false if there are none.
    pub(crate) fn next_pass(&mut self) -> bool {
        let Some(start) = self.next.take() else {
            return false;
        };
        self.entries.clear();
        self.start = start;
        self.end = None;
        self.left = 0;
        true
    }

    /// Adds to a key's count if the key belongs to this pass.
    pub(crate) fn add(&mut self, key: Key, change: i64) {
        if !self.covers(key) {
            return;
        }
        if self.entries.len() == self.limit {
            self.make_room();
            if !self.covers(key) {
                return;
            }
        }
        self.entries.push(Entry { key, count: change });
    }

    /// Ends the counting of a pass. Of a kind there are as many as were added less those that were taken
    /// away, by whatever else they had; what was taken away without having been added, as in a history
    /// that misses changes, does not live and never did.
    pub(crate) fn finish(&mut self) {
        self.sum_up();
        self.next = self.end;
        self.kinds.clear();
        self.left = 0;
        for kind in self.entries.chunk_by(|one, next| one.key[0] == next.key[0]) {
            let sum: i64 = kind.iter().map(|entry| entry.count).sum();
            let sum = u64::try_from(sum).unwrap_or(0);
            if kind.iter().any(|entry| entry.count < 0) {
                self.kinds.push((kind[0].key[0], sum));
            }
            self.left += sum;
        }
        self.entries.retain(|entry| entry.count > 0);
    }

    /// Rows that were counted and not taken yet.
    pub(crate) fn left(&self) -> u64 {
        self.left
    }

    /// Takes one row away, after the counting; false if there is none of its kind in this pass.
    pub(crate) fn take(&mut self, key: Key) -> bool {
        if !self.covers(key) {
            return false;
        }
        let found = self.entries.binary_search_by_key(&key, |entry| entry.key);
        let entry = found.ok().and_then(|at| self.entries.get_mut(at));
        let Some(entry) = entry.filter(|entry| entry.count > 0) else {
            return false;
        };
        let kind = self.kinds.binary_search_by_key(&key[0], |(kind, _)| *kind);
        if let Some((_, left)) = kind.ok().and_then(|at| self.kinds.get_mut(at)) {
            if *left == 0 {
                return false;
            }
            *left -= 1;
        }
        entry.count -= 1;
        self.left -= 1;
        true
    }

    fn covers(&self, key: Key) -> bool {
        key >= self.start && self.end.is_none_or(|end| key < end)
    }

    /// Leaves at least a quarter of the entries free, so that summing up is seldom.
    fn make_room(&mut self) {
        self.sum_up();
        let keep = self.limit / 4 * 3;
        if let Some(first) = self.entries.get(keep) {
            // All of a kind in one pass, unless one alone takes all there is.
            let kind = [first.key[0], 0];
            let end = if kind > self.start { kind } else { first.key };
            self.end = Some(end);
            let kept = self.entries.partition_point(|entry| entry.key < end);
            self.entries.truncate(kept);
        }
    }

    fn sum_up(&mut self) {
        self.entries.sort_unstable_by_key(|entry| entry.key);
        self.entries.dedup_by(|next, sum| {
            let same = next.key == sum.key;
            if same {
                sum.count += next.count;
            }
            same
        });
        self.entries.retain(|entry| entry.count != 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The finalizer of SplitMix64: evenly spread, as keys are.
    fn key(row: u64) -> Key {
        let mut bits = row.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        [bits ^ (bits >> 31), row]
    }

    #[test]
    fn counts_stay_within_their_memory_and_are_complete_over_all_passes() {
        const ROWS: u64 = 10_000;
        let memory = 1_000 * ENTRY_BYTES;
        let mut tally = Tally::new(memory, u64::MAX);
        let mut live = vec![0_u64; ROWS as usize];
        let mut passes = 0;
        while tally.next_pass() {
            passes += 1;
            for row in 0..ROWS {
                tally.add(key(row), 1);
                tally.add(key(row), 1);
                tally.add(key(row / 2 * 2), -1);
                assert!(tally.entries.len() <= 1_000);
            }
            tally.finish();
            let before = tally.left();
            for row in 0..ROWS {
                while tally.take(key(row)) {
                    live[row as usize] += 1;
                }
            }
            assert_eq!(tally.left(), 0);
            assert!(before >= 500 || tally.next.is_none());
        }
        // The rows with even numbers are gone.
        assert!((0..ROWS).all(|row| live[row as usize] == row % 2 * 2));
        assert!((7..=13).contains(&passes), "{passes}");
        assert!(tally.bytes() <= memory);
    }

    #[test]
    fn what_comes_and_goes_takes_no_memory() {
        let mut tally = Tally::new(100 * ENTRY_BYTES, u64::MAX);
        assert!(tally.next_pass());
        for row in 0..100_000 {
            tally.add(key(row), 1);
            tally.add(key(row), -1);
        }
        tally.add(key(7), 1);
        tally.finish();
        assert_eq!((tally.left(), tally.take(key(8))), (1, false));
        assert!(tally.take(key(7)));
        assert!(!tally.next_pass());
    }

    #[test]
    fn what_need_not_count_is_looked_at_last() {
        let mut tally = Tally::new(usize::MAX, 100);
        assert!(tally.next_pass());
        // Of kind 1: written before a column was there, changed with its default.
        tally.add([1, 0], 1);
        tally.add([1, 5], -1);
        tally.add([1, 6], 1);
        // Of kind 2: two that were told apart by it, one of which is deleted.
        tally.add([2, 0], 1);
        tally.add([2, 7], 1);
        tally.add([2, 8], 1);
        tally.add([2, 8], -1);
        // Of kind 3: deleted with the default.
        tally.add([3, 0], 1);
        tally.add([3, 5], -1);
        tally.finish();
        assert_eq!(tally.left(), 3);
        assert!(!tally.take([2, 8]) && tally.take([2, 7]) && tally.take([2, 0]));
        assert!(tally.take([1, 6]) && !tally.take([1, 0]) && !tally.take([3, 0]));
        assert_eq!(tally.left(), 0);
    }

    #[test]
    fn rows_that_were_never_added_do_not_live() {
        let mut tally = Tally::new(usize::MAX, 10);
        assert_eq!(tally.bytes(), 10 * ENTRY_BYTES);
        assert!(tally.next_pass());
        tally.add(key(1), 1);
        tally.add(key(2), -1);
        tally.add(key(2), -1);
        tally.finish();
        assert_eq!(tally.left(), 1);
        assert!(!tally.take(key(2)) && tally.take(key(1)));
    }
}
