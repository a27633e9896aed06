//! Which transactions a snapshot sees, by their top-level ids.

/// A snapshot as `pg_current_snapshot()` describes it, with 64-bit transaction ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visibility {
    xmin: u64,
    xmax: u64,
    running: Vec<u64>,
}

impl Visibility {
    /// Reads the text form `xmin:xmax:running,…` (type `pg_snapshot`).
    pub fn parse(text: &str) -> Option<Visibility> {
        let mut parts = text.split(':');
        let xmin = parts.next()?.parse().ok()?;
        let xmax = parts.next()?.parse().ok()?;
        let running = parts
            .next()?
            .split(',')
            .filter(|xid| !xid.is_empty())
            .map(|xid| xid.parse().ok())
            .collect::<Option<Vec<u64>>>()?;
        parts.next().is_none().then_some(Visibility {
            xmin,
            xmax,
            running,
        })
    }

    /// Whether the snapshot sees the changes of a committed top-level transaction.
    ///
    /// The 32-bit id is taken for the one nearest to the snapshot: ids in use are never further
    /// apart than half their range.
    pub fn sees(&self, xid: u32) -> bool {
        let offset = xid.wrapping_sub(self.xmax as u32) as i32;
        let full = self.xmax.wrapping_add_signed(i64::from(offset));
        full < self.xmin || (full < self.xmax && !self.running.contains(&full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_what_committed_before() {
        let snapshot = Visibility::parse("100:110:100,105").unwrap();
        assert!(snapshot.sees(99));
        assert!(!snapshot.sees(100));
        assert!(snapshot.sees(104));
        assert!(!snapshot.sees(105));
        assert!(snapshot.sees(109));
        assert!(!snapshot.sees(110));
        assert!(!snapshot.sees(5000));
    }

    #[test]
    fn without_running_transactions() {
        let snapshot = Visibility::parse("7:7:").unwrap();
        assert!(snapshot.sees(6));
        assert!(!snapshot.sees(7));
    }

    #[test]
    fn across_the_wrap_around() {
        let epoch = 1u64 << 32;
        let text = format!("{}:{}:{}", epoch - 2, epoch + 5, epoch - 2);
        let snapshot = Visibility::parse(&text).unwrap();
        assert!(!snapshot.sees(u32::MAX - 1));
        assert!(snapshot.sees(u32::MAX));
        assert!(snapshot.sees(4));
        assert!(!snapshot.sees(5));
        assert!(snapshot.sees(u32::MAX - 100));
    }

    #[test]
    fn refuses_other_text() {
        assert_eq!(Visibility::parse("1:2"), None);
        assert_eq!(Visibility::parse("a:2:"), None);
        assert_eq!(Visibility::parse("1:2:3:4"), None);
    }
}
