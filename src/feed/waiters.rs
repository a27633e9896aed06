//! What a copy looks at now and then: statements that wait for the table, and the credentials of the
//! destination.

use pgrx::pg_sys;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

use super::job::Job;
use super::snapshot_worker::End;

/// Time between two looks for statements that wait for the table.
const LOOK_FOR_WAITERS: Duration = Duration::from_millis(200);
/// Time between two looks at the credentials of the destination.
const RENEW: Duration = Duration::from_secs(5);

/// Looks whether a statement waits for the table that is copied: DDL must not wait for a copy that
/// may take hours, nor what queues up behind it.
pub(super) struct Waiters {
    /// Its credentials may be changed meanwhile.
    job: Job,
    renewed: Instant,
    relations: Vec<i64>,
    patience: Duration,
    looked: Instant,
    since: Option<Instant>,
}

impl Waiters {
    /// For a copy of the table that locks these relations.
    pub fn new(job: &Job, relations: impl Iterator<Item = u32>) -> Waiters {
        Waiters {
            job: job.clone(),
            renewed: Instant::now(),
            relations: relations.chain([job.table]).map(i64::from).collect(),
            patience: Duration::from_millis(job.patience_ms),
            looked: Instant::now(),
            since: None,
        }
    }

    /// An end, if somebody has waited for longer than patience lasts.
    pub fn give_way(&mut self) -> Result<(), End> {
        if self.looked.elapsed() < LOOK_FOR_WAITERS {
            return Ok(());
        }
        self.looked = Instant::now();
        if self.renewed.elapsed() > RENEW {
            self.renewed = self.looked;
            self.job.renew();
        }
        // Until the copy begins the transaction has no snapshot, and must not get its own by this.
        // SAFETY: in a transaction; an error ends it, and what was pushed with it.
        let bare = unsafe { !pg_sys::ActiveSnapshotSet() };
        if bare {
            // SAFETY: as above.
            unsafe { pg_sys::PushActiveSnapshot(pg_sys::GetCatalogSnapshot(pg_sys::InvalidOid)) };
        }
        let waited_for = Spi::connect(|client| {
            client
                .select(
                    "SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE NOT l.granted \
                     AND l.locktype = 'relation' AND l.mode = 'AccessExclusiveLock' \
                     AND l.relation = ANY ($1::bigint[]::oid[]) AND l.database = \
                     (SELECT d.oid FROM pg_catalog.pg_database d \
                      WHERE d.datname = pg_catalog.current_database()))",
                    None,
                    &[self.relations.clone().into()],
                )?
                .first()
                .get_one::<bool>()
        });
        if bare {
            // SAFETY: it was pushed above.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
        let waited_for = waited_for.map_err(|error| error.to_string())?;
        if waited_for != Some(true) {
            self.since = None;
            return Ok(());
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        match since.elapsed() >= self.patience {
            true => Err(End::GaveWay),
            false => Ok(()),
        }
    }
}
