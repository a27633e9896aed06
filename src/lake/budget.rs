//! What the feed worker holds in memory, counted. Every record batch carries a charge that is
//! released when the batch is dropped, wherever that happens. The budget only counts: it never
//! blocks and never refuses; whoever adds rows asks `over()` and waits or spills.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit in bytes and what is in use of it.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    /// A budget of `limit_bytes`, nothing used.
    pub fn new(limit_bytes: usize) -> Arc<Budget> {
        Arc::new(Budget {
            limit: limit_bytes,
            used: AtomicUsize::new(0),
        })
    }

    /// Counts `bytes` as used until the returned charge is dropped. Never blocks.
    pub fn charge(self: &Arc<Self>, bytes: usize) -> Charge {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Charge {
            budget: Arc::clone(self),
            bytes,
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// True if more is used than the limit allows.
    pub fn over(&self) -> bool {
        self.used() > self.limit
    }
}

/// Bytes counted as used; dropping it releases them.
#[derive(Debug)]
pub struct Charge {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Charge {
    /// Bytes of this charge.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The budget this charge counts against.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A value and the memory it is charged for. The value is dropped before its charge.
#[derive(Debug)]
pub struct Charged<T> {
    /// The value.
    pub value: T,
    /// What the value costs.
    pub charge: Charge,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_charge_is_released() {
        let budget = Budget::new(100);
        let first = budget.charge(60);
        assert!(!budget.over());
        let second = Charged {
            value: vec![0_u8; 50],
            charge: budget.charge(50),
        };
        assert_eq!(budget.used(), 110);
        assert!(budget.over());
        drop(second);
        assert_eq!(budget.used(), 60);
        drop(first);
        assert_eq!(budget.used(), 0);
    }
}
