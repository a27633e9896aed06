//! Upkeep of a history table: checkpoints, compaction, log clean-up, removal of files that nothing
//! needs. It begins after a commit, so that a table without changes costs nothing, runs beside the
//! commits that follow, and does not change what readers read. An error is news, never a failure of the
//! table: a table without upkeep is right, only slower to read.

mod checkpoint;
mod clean_log;
mod compaction;
mod log_files;
mod merge;
mod plan;
mod quiet;
mod remove_files;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::sync::Mutex;
use tokio::sync::mpsc::WeakUnboundedSender;

use crate::lake::destination::fnv1a;
use crate::lake::error::LakeError;
use crate::lake::event::Event;
use crate::lake::log::now_ms;
use crate::lake::runtime::Shared;
use crate::lake::store::TableStore;
use crate::lake::upkeep::log_files::LogFiles;
use crate::lake::writer::Message;

pub(crate) use compaction::Exchange;

/// Data files of a table between two looks for small ones.
const FILES_BETWEEN: usize = 32;
/// Clean-ups within the retention.
const CLEANUPS: u32 = 24;
/// Removed files stay in checkpoints for this part of the retention longer than they are needed, and no
/// less than so long: from there the clean-up knows which it may delete.
const TOMBSTONE_SHARE: u32 = 4;
const LEAST_TOMBSTONES: Duration = Duration::from_secs(60);

/// How tables are kept up. Durations are whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpkeepSettings {
    /// Commits between two checkpoints of a table.
    pub checkpoint_interval: u64,
    /// Bytes that small data files are merged up to; 0: they are not merged.
    pub target_file_size: u64,
    /// How long each version of a table can be read; `None`: for ever.
    pub retention: Option<Duration>,
    /// Age from which a file that no version names is removed; `None`: it stays.
    pub orphan_retention: Option<Duration>,
}

impl UpkeepSettings {
    /// Sets what other engines go by as properties of a table ("Table Properties"; the kernel's
    /// checkpoints go by the last one, too).
    pub(crate) fn configure(&self, configuration: &mut BTreeMap<String, String>) {
        let interval = |duration: Duration| format!("interval {} seconds", duration.as_secs());
        let retained = self.retention.map(|retention| {
            let longer = (retention / TOMBSTONE_SHARE).max(LEAST_TOMBSTONES);
            let tombstones = retention.saturating_add(longer);
            (interval(retention), interval(tombstones))
        });
        let (log, tombstones) = retained.unzip();
        let properties = [
            (
                "delta.checkpointInterval",
                Some(self.checkpoint_interval.to_string()),
            ),
            (
                "delta.enableExpiredLogCleanup",
                log.is_none().then(|| "false".to_owned()),
            ),
            ("delta.logRetentionDuration", log),
            ("delta.deletedFileRetentionDuration", tombstones),
        ];
        for (name, value) in properties {
            match value {
                Some(value) => configuration.insert(name.to_owned(), value),
                None => configuration.remove(name),
            };
        }
    }

    fn between_cleanups(&self) -> Option<Duration> {
        self.retention
            .map(|retention| (retention / CLEANUPS).max(Duration::from_secs(1)))
    }
}

/// What can fail on its own.
#[derive(Debug, Clone, Copy)]
enum Step {
    Checkpoint,
    Compaction,
    CleanUp,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, Default)]
struct Due {
    checkpoint: bool,
    compaction: bool,
    log: bool,
    orphans: bool,
    /// Whatever the number of small files.
    fully: bool,
}

impl Due {
    fn anything(&self) -> bool {
        self.checkpoint || self.compaction || self.log || self.orphans
    }
}

/// What one table's upkeep works with.
#[derive(Clone)]
struct Keeper {
    shared: Arc<Shared>,
    store: TableStore,
    /// The source table's oid.
    table: u32,
    /// The table's task, which makes all commits.
    task: WeakUnboundedSender<Message>,
    /// Steps whose last try has failed.
    failing: Arc<[AtomicBool; 3]>,
    /// See [`Exchange::life`].
    life: Arc<AtomicU64>,
    /// Whoever merges files; of two that merge the same ones, both would bring their rows.
    merging: Arc<Mutex<()>>,
}

/// Decides when a table is kept up.
pub(crate) struct Upkeep {
    keeper: Keeper,
    /// The version up to which checkpoints were taken care of.
    checkpointed: u64,
    /// Data files since small ones were last looked for.
    files: usize,
    cleaned: Instant,
    orphans_removed: Instant,
    running: Arc<AtomicBool>,
}

impl Upkeep {
    /// For a table opened at `version`: the next checkpoint is due at the next multiple of the interval,
    /// the rest at a time that is another one for each table.
    pub(crate) fn new(
        shared: Arc<Shared>,
        store: TableStore,
        table: u32,
        version: u64,
        task: WeakUnboundedSender<Message>,
        life: u64,
    ) -> Self {
        let now = Instant::now();
        let spread = fnv1a(&table.to_le_bytes());
        let settings = shared.upkeep_settings();
        let before = |pause: Option<Duration>| {
            let pause = pause.unwrap_or_default() * (spread % 100) as u32 / 100;
            now.checked_sub(pause).unwrap_or(now)
        };
        Upkeep {
            checkpointed: version - version % settings.checkpoint_interval.max(1),
            files: spread as usize % FILES_BETWEEN,
            cleaned: before(settings.between_cleanups()),
            orphans_removed: before(settings.orphan_retention),
            running: Arc::default(),
            keeper: Keeper {
                shared,
                store,
                table,
                task,
                failing: Arc::default(),
                life: Arc::new(AtomicU64::new(life)),
                merging: Arc::default(),
            },
        }
    }

    /// See [`Exchange::life`].
    pub(crate) fn life(&self) -> u64 {
        self.keeper.life.load(Ordering::Acquire)
    }

    /// The table has other files: what is being merged now has been merged in vain.
    pub(crate) fn renew(&self, life: u64) {
        self.keeper.life.store(life, Ordering::Release);
    }

    /// Begins what is due, unless upkeep of the table is under way. No other files than those of commits
    /// may be on their way into the table.
    pub(crate) fn after_commit(&mut self, version: u64, files: usize) {
        self.files += files;
        let settings = self.keeper.shared.upkeep_settings();
        let over = |since: Instant, pause: Option<Duration>| {
            pause.is_some_and(|pause| since.elapsed() >= pause)
        };
        let due = Due {
            checkpoint: version >= self.checkpointed + settings.checkpoint_interval.max(1),
            compaction: self.files >= FILES_BETWEEN && settings.target_file_size > 0,
            log: over(self.cleaned, settings.between_cleanups()),
            orphans: over(self.orphans_removed, settings.orphan_retention),
            fully: false,
        };
        if !due.anything() || self.running.swap(true, Ordering::AcqRel) {
            return;
        }
        self.begin(version, due);
        let (keeper, running) = (self.keeper.clone(), Running(Arc::clone(&self.running)));
        let begun_ms = now_ms();
        tokio::spawn(async move {
            // Each step has told of its error.
            let _ = keeper.keep_up(due, begun_ms).await;
            drop(running);
        });
    }

    /// Does all that can be done now, and answers with `Event::Optimized`. `orphans`: as
    /// [`Upkeep::after_commit`] demands.
    pub(crate) fn optimize(&mut self, ticket: u64, version: u64, orphans: bool) {
        let settings = self.keeper.shared.upkeep_settings();
        let due = Due {
            checkpoint: true,
            compaction: settings.target_file_size > 0,
            log: settings.retention.is_some(),
            orphans: orphans && settings.orphan_retention.is_some(),
            fully: true,
        };
        self.begin(version, due);
        let keeper = self.keeper.clone();
        let begun_ms = now_ms();
        tokio::spawn(async move {
            let result = keeper.keep_up(due, begun_ms).await;
            keeper.shared.send(Event::Optimized {
                table: keeper.table,
                ticket,
                result,
            });
        });
    }

    fn begin(&mut self, version: u64, due: Due) {
        let now = Instant::now();
        if due.checkpoint {
            self.checkpointed = version;
        }
        if due.compaction {
            self.files = 0;
        }
        if due.log {
            self.cleaned = now;
        }
        if due.orphans {
            self.orphans_removed = now;
        }
    }
}

/// Ends the running state even if the task is aborted.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Keeper {
    /// One step after the other; the first error ends it.
    async fn keep_up(&self, due: Due, begun_ms: i64) -> Result<(), LakeError> {
        let settings = self.shared.upkeep_settings();
        if due.checkpoint && !due.fully {
            self.step(Step::Checkpoint, self.checkpoint()).await?;
        }
        if due.compaction {
            let compaction = self.compact(settings.target_file_size, due.fully);
            self.step(Step::Compaction, compaction).await?;
        }
        if due.checkpoint && due.fully {
            // With what compaction has left.
            self.step(Step::Checkpoint, self.checkpoint()).await?;
        }
        if due.log || due.orphans {
            self.step(Step::CleanUp, self.clean_up(due, settings, begun_ms))
                .await?;
        }
        Ok(())
    }

    /// Tells of an error when a step begins to fail, and when it does not any more.
    async fn step(
        &self,
        step: Step,
        work: impl Future<Output = Result<(), LakeError>>,
    ) -> Result<(), LakeError> {
        let result = AssertUnwindSafe(work)
            .catch_unwind()
            .await
            .unwrap_or_else(|panic| Err(LakeError::panicked("upkeep", &*panic)));
        let failing = &self.failing[step as usize];
        if failing.swap(result.is_err(), Ordering::AcqRel) != result.is_err() {
            self.shared.send(Event::Upkeep {
                table: self.table,
                error: result.clone().err(),
            });
        }
        result
    }

    async fn checkpoint(&self) -> Result<(), LakeError> {
        let _one = self.shared.upkeep_permit().await?;
        checkpoint::write_checkpoint(&self.shared, &self.store).await
    }

    async fn clean_up(
        &self,
        due: Due,
        settings: UpkeepSettings,
        begun_ms: i64,
    ) -> Result<(), LakeError> {
        let _one = self.shared.upkeep_permit().await?;
        let before =
            |duration: Duration| begun_ms - i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        if let Some(retention) = settings.retention.filter(|_| due.log) {
            let cutoff_ms = before(retention);
            let kernels = &self.shared.kernels;
            let files = LogFiles::newest(&self.store, kernels).await?;
            remove_files::remove_expired(&self.store, &files, cutoff_ms).await?;
            clean_log::clean_log(&self.store, kernels, begun_ms, begun_ms - cutoff_ms).await?;
        }
        if let Some(age) = settings.orphan_retention.filter(|_| due.orphans) {
            remove_files::remove_orphans(&self.store, &self.shared.kernels, before(age)).await?;
        }
        Ok(())
    }
}
