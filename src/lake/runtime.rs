//! The lake's own threads. [`Lake`] lives on the Postgres main thread and never blocks it: calls
//! queue work, answers come back as events. No thread in here calls Postgres or takes a signal.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, PoisonError, RwLock};

use tokio::runtime::Runtime;
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::lake::budget::Budget;
use crate::lake::destination::Destination;
use crate::lake::error::LakeError;
use crate::lake::event::Event;
use crate::lake::memory::{BlockedSignals, use_one_arena};
use crate::lake::staged::Staged;
use crate::lake::survey::{probe, survey};
use crate::lake::table::TableTask;
use crate::lake::unity::{Catalog, Registrar};
use crate::lake::upkeep::UpkeepSettings;
use crate::lake::writer::{HistoryWriter, OpenTable};

/// Worker threads of the runtime.
const WORKERS: usize = 2;
/// Parquet encoders at work at the same time.
pub(crate) const ENCODERS: u32 = 2;
/// Kernel calls at the same time. Each needs up to four blocking threads; with fewer it hangs.
const KERNEL_CALLS: usize = 3;
/// Enough for the kernel calls, the encoders and some disk work. Unbounded, opening a long log
/// took more than 500.
const BLOCKING_THREADS: usize = 16;

/// Settings of the lake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LakeConfig {
    /// Identity of the data directory, recorded in every commit.
    pub home: String,
    /// Limit of the budget, in bytes.
    pub max_memory: usize,
    /// Arrow bytes that become one data file.
    pub target_file_bytes: usize,
    /// Bytes of data files that may be stored before they are committed; `None`: any number.
    pub staging_limit: Option<u64>,
    /// How tables are kept up, until [`Lake::keep_up`] says otherwise.
    pub upkeep: UpkeepSettings,
}

/// What all tables of a lake share.
pub(crate) struct Shared {
    pub config: LakeConfig,
    pub budget: Arc<Budget>,
    /// What reading a history back takes, beside the budget: decoding does not wait for it.
    pub replay_budget: Arc<Budget>,
    pub staged: Arc<Staged>,
    /// Tables whose task has not ended.
    pub open_tables: AtomicUsize,
    pub encoders: Semaphore,
    pub kernels: Semaphore,
    upkeep: Semaphore,
    upkeep_settings: RwLock<UpkeepSettings>,
    /// For what reads a whole history.
    pub replays: Semaphore,
    events: Sender<Event>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// How tables are kept up now.
    pub(crate) fn upkeep_settings(&self) -> UpkeepSettings {
        let settings = self.upkeep_settings.read();
        *settings.unwrap_or_else(PoisonError::into_inner)
    }

    /// Upkeep that reads and writes logs is one table's at a time.
    pub(crate) async fn upkeep_permit(&self) -> Result<SemaphorePermit<'_>, LakeError> {
        let permit = self.upkeep.acquire().await;
        permit.map_err(|error| LakeError::internal(error.to_string()))
    }

    /// Queues an event and wakes the main thread.
    pub(crate) fn send(&self, event: Event) {
        // It fails only once the lake is gone.
        if self.events.send(event).is_ok() {
            (self.wake)();
        }
    }
}

/// The threads that write to Delta, seen from the Postgres main thread.
pub struct Lake {
    shared: Arc<Shared>,
    events: Receiver<Event>,
    /// Taken when the lake ends.
    runtime: Option<Runtime>,
}

impl Lake {
    /// Starts the threads. `wake` is called, from any of them, after an event was queued.
    ///
    /// # Errors
    /// Kind `Transient` if the operating system gives no threads.
    pub fn start(config: LakeConfig, wake: Box<dyn Fn() + Send + Sync>) -> Result<Lake, LakeError> {
        use_one_arena();
        let (sender, events) = channel();
        let shared = Arc::new(Shared {
            budget: Budget::new(config.max_memory),
            replay_budget: Budget::new(config.max_memory),
            staged: Staged::new(config.staging_limit),
            encoders: Semaphore::new(ENCODERS as usize),
            kernels: Semaphore::new(KERNEL_CALLS),
            upkeep: Semaphore::new(1),
            upkeep_settings: RwLock::new(config.upkeep),
            replays: Semaphore::new(1),
            open_tables: AtomicUsize::new(0),
            events: sender,
            wake,
            config,
        });
        // Threads inherit the mask, so that there is no moment in which one could take a signal.
        let blocked = BlockedSignals::new();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("wal2delta")
            .on_thread_start(BlockedSignals::forever)
            .enable_all()
            .build();
        drop(blocked);
        let runtime = runtime.map_err(|error| LakeError::io("start the writer threads", &error))?;
        Ok(Lake {
            shared,
            events,
            runtime: Some(runtime),
        })
    }

    /// Has tables kept up in this way from now on.
    pub fn keep_up(&self, settings: UpkeepSettings) {
        if self.shared.upkeep_settings() != settings {
            let now = self.shared.upkeep_settings.write();
            *now.unwrap_or_else(PoisonError::into_inner) = settings;
        }
    }

    /// What is held in memory.
    pub fn budget(&self) -> &Arc<Budget> {
        &self.shared.budget
    }

    /// Bytes of the data files that are stored and not committed yet, by table.
    pub fn staged_bytes(&self) -> HashMap<u32, u64> {
        self.shared.staged.by_table()
    }

    /// Looks for the history tables of a database and how far they have come. Answers `Event::Surveyed`.
    pub fn survey(&self, request: u64, destination: &Destination, system: u64, database: u32) {
        let (shared, destination) = (Arc::clone(&self.shared), destination.clone());
        self.spawn(async move {
            let inner = Arc::clone(&shared);
            // A task of its own, so that a panic becomes an answer too.
            let task =
                tokio::spawn(async move { survey(&inner, &destination, system, database).await });
            let result = task.await.unwrap_or_else(|error| {
                Err(LakeError::internal(format!("a survey failed: {error}")))
            });
            shared.send(Event::Surveyed { request, result });
        });
    }

    /// Asks whether a destination can be read, and these tables in it written: before something
    /// that failed is tried again. Answers `Event::Probed`.
    pub fn probe(&self, request: u64, destination: &Destination, folders: Vec<String>) {
        let (shared, destination) = (Arc::clone(&self.shared), destination.clone());
        self.spawn(async move {
            let inner = Arc::clone(&shared);
            let task = tokio::spawn(async move { probe(&inner, &destination, folders).await });
            let result = task.await.unwrap_or_else(|error| {
                Err(LakeError::internal(format!("a probe failed: {error}")))
            });
            shared.send(Event::Probed { request, result });
        });
    }

    /// Opens or creates a history table. Answers `Event::Opened` or `Event::Failed`; what is
    /// written meanwhile waits.
    pub fn open(&self, spec: OpenTable) -> HistoryWriter {
        let (messages, receiver) = unbounded_channel();
        self.shared.open_tables.fetch_add(1, Ordering::Relaxed);
        let task = TableTask::new(Arc::clone(&self.shared), spec, messages.downgrade());
        self.spawn(task.run(receiver));
        HistoryWriter { messages }
    }

    /// Keeps tables of a destination registered in a catalog, beside all else.
    pub fn registrar(&self, destination: &Destination, catalog: Catalog) -> Registrar {
        let shared = Arc::clone(&self.shared);
        let (registrar, task) = Registrar::new(shared, destination.clone(), catalog);
        self.spawn(task);
        registrar
    }

    /// Whether the task of a table has not ended, which it does after its handle is dropped.
    pub fn has_open_tables(&self) -> bool {
        self.shared.open_tables.load(Ordering::Relaxed) > 0
    }

    /// The next event, if there is one. Never blocks.
    pub fn try_event(&self) -> Option<Event> {
        self.events.try_recv().ok()
    }

    /// Gives the threads up without waiting for them: the process ends now. What was not reported as
    /// committed may or may not be in Delta; the next start finds out.
    pub fn shutdown(self) {
        drop(self);
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if let Some(runtime) = &self.runtime {
            runtime.spawn(task);
        }
    }
}

impl Drop for Lake {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if cfg!(test) {
            // Another lake goes on in the same process.
            runtime.shutdown_background();
        } else {
            // The process ends, and its threads with it. To drop the runtime would wait for threads that may
            // hang on a disk; to shut it down would have kernel calls that are under way panic.
            std::mem::forget(runtime);
        }
    }
}
