//! One table's folder as an object store: every path is relative to the table. Each call ends
//! within a bound, so that a store that hangs fails one table and no more. What a retry means is
//! for the caller to say, except for data files, whose names are never used twice.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use buoyant_kernel::Engine;
use bytes::Bytes;
use deltalake::logstore::{StorageConfig, default_logstore};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::{
    Error, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    PutPayload, UploadPart,
};
use tokio::sync::{Semaphore, SemaphorePermit};
use url::Url;
use uuid::Uuid;

use crate::fail_point;
use crate::lake::connection::Connection;
use crate::lake::error::{ErrorKind, LakeError};

/// Longest time of a single call.
const CALL_LIMIT: Duration = Duration::from_secs(30);

/// Longest time of the listing of a folder, which takes a call for each thousand files.
const LIST_LIMIT: Duration = Duration::from_secs(300);

const LOG_FOLDER: &str = "_delta_log";

/// A larger data file goes over a network in parts of this size. Each has the time of a call: so slow a
/// line as 300 kB/s will do.
pub(crate) const PART_BYTES: usize = 8 << 20;
/// Parts of one file on their way at the same time.
const PARTS_AT_ONCE: usize = 4;

/// The table's root as the kernel sees it. The store begins at the table, so that no character
/// of the destination's path goes through the kernel's URL handling, which decodes `%` twice.
pub(crate) const KERNEL_ROOT: &str = "table:///";

/// The store of one table.
#[derive(Debug, Clone)]
pub(crate) struct TableStore {
    store: Arc<dyn ObjectStore>,
    name: Arc<str>,
    patience: Duration,
    /// The way to a store over a network; none for a disk.
    connection: Option<Arc<Connection>>,
}

impl TableStore {
    /// `name` is shown in messages; `patience` is how long transient errors are retried before
    /// the caller hears of them.
    pub(crate) fn new(store: Arc<dyn ObjectStore>, name: String, patience: Duration) -> Self {
        TableStore {
            store,
            name: Arc::from(name),
            patience,
            connection: None,
        }
    }

    /// Data files go over a network: large ones in parts, and only so many at a time.
    pub(crate) fn over(mut self, connection: Arc<Connection>) -> Self {
        self.connection = Some(connection);
        self
    }

    /// The same, but errors are not waited for to pass.
    pub(crate) fn impatient(&self) -> TableStore {
        TableStore {
            patience: Duration::ZERO,
            ..self.clone()
        }
    }

    /// How often the credentials have been changed.
    fn renewals(&self) -> u64 {
        self.connection.as_ref().map_or(0, |way| way.renewals())
    }

    /// Pauses between the tries of one piece of work.
    pub(crate) fn pauses(&self) -> Pauses {
        Pauses {
            next: Duration::from_millis(100),
            until: Instant::now() + self.patience,
        }
    }

    /// The table's full name, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What was tried, for a message: `verb "table/path"`.
    pub(crate) fn doing(&self, verb: &str, path: &Path) -> String {
        format!("{verb} \"{}/{path}\"", self.name)
    }

    /// A file's content; `None` if there is no such file.
    pub(crate) async fn get(&self, path: &Path) -> Result<Option<Bytes>, LakeError> {
        let read = async {
            match self.store.get(path).await {
                Ok(found) => found.bytes().await.map(Some),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let doing = self.doing("read", path);
        in_time(&doing, read)
            .await?
            .map_err(|error| LakeError::store(&doing, &error))
    }

    /// Parts of a data file, again after transient errors.
    pub(crate) async fn get_ranges(
        &self,
        path: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>, LakeError> {
        let doing = self.doing("read", path);
        let mut pauses = self.pauses();
        loop {
            let error = match in_time(&doing, self.store.get_ranges(path, ranges)).await {
                Ok(Ok(parts)) => return Ok(parts),
                Ok(Err(error)) => LakeError::store(&doing, &error),
                Err(error) => error,
            };
            if error.kind() != ErrorKind::Transient || !pauses.wait().await {
                return Err(error);
            }
        }
    }

    /// Writes a file that must not exist yet. True: written; false: there is one already.
    pub(crate) async fn create(&self, path: &Path, content: Bytes) -> Result<bool, LakeError> {
        let put = async {
            fail_point::pass_store("before_commit_put").await?;
            let mode = PutOptions::from(PutMode::Create);
            let payload = PutPayload::from(content);
            self.store.put_opts(path, payload, mode).await?;
            fail_point::pass_store("after_commit_put").await
        };
        let doing = self.doing("write", path);
        match in_time(&doing, put).await? {
            Ok(()) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(LakeError::store(&doing, &error)),
        }
    }

    /// Writes a data file, again after transient errors.
    pub(crate) async fn put_data(&self, path: &Path, content: Bytes) -> Result<(), LakeError> {
        let doing = self.doing("write", path);
        let mut pauses = self.pauses();
        loop {
            let renewals = self.renewals();
            let error = match self.put_once(&doing, path, &content).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            // A large upload ends with the credentials that it began with.
            let renewed = error.kind() == ErrorKind::Denied && renewals != self.renewals();
            if !(renewed || error.kind() == ErrorKind::Transient) || !pauses.wait().await {
                return Err(error);
            }
        }
    }

    async fn put_once(&self, doing: &str, path: &Path, content: &Bytes) -> Result<(), LakeError> {
        if let Some(way) = &self.connection
            && content.len() > PART_BYTES
        {
            return self.put_parts(doing, path, content, &way.uploads).await;
        }
        let _permit = self.permit().await?;
        let payload = PutPayload::from(content.clone());
        let put = async {
            fail_point::pass_store("before_data_put").await?;
            self.store.put(path, payload).await?;
            fail_point::pass_store("after_data_put").await
        };
        in_time(doing, put)
            .await?
            .map_err(|error| LakeError::store(doing, &error))
    }

    /// What waits for a permit does not wait for the store: the time of a call begins after it.
    async fn permit(&self) -> Result<Option<SemaphorePermit<'_>>, LakeError> {
        match &self.connection {
            Some(way) => Ok(Some(permit(&way.uploads).await?)),
            None => Ok(None),
        }
    }

    /// One upload of several parts, each of which has the time of a call.
    async fn put_parts(
        &self,
        doing: &str,
        path: &Path,
        content: &Bytes,
        uploads: &Arc<Semaphore>,
    ) -> Result<(), LakeError> {
        let failed = |error: object_store::Error| LakeError::store(doing, &error);
        let begin = self.store.put_multipart(path);
        let mut upload = in_time(doing, begin).await?.map_err(failed)?;
        let starts = (0..content.len()).step_by(PART_BYTES);
        let parts: Vec<_> = starts
            .map(|start| content.slice(start..content.len().min(start + PART_BYTES)))
            .map(|part| upload.put_part(PutPayload::from(part)))
            .map(|part| put_part(doing.to_owned(), Arc::clone(uploads), part))
            .collect();
        let stored = stream::iter(parts)
            .buffer_unordered(PARTS_AT_ONCE)
            .try_collect::<()>();
        let done = match stored.await {
            Ok(()) => in_time(doing, upload.complete()).await,
            Err(error) => Err(error),
        };
        match done {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(failed(error)),
            Err(error) => {
                // Best effort: what stays of it is for the bucket's own rules to remove.
                let _ = in_time(doing, upload.abort()).await;
                Err(error)
            }
        }
    }

    /// Writes a file and removes it again, for data files and for commits: whether the table can be
    /// written.
    pub(crate) async fn probe(&self) -> Result<(), LakeError> {
        for folder in ["", "_delta_log/"] {
            let path = Path::from(format!("{folder}.wal2delta_probe_{}", Uuid::new_v4()));
            self.create(&path, Bytes::from_static(b"probe")).await?;
            let doing = self.doing("remove", &path);
            in_time(&doing, self.store.delete(&path))
                .await?
                .map_err(|error| LakeError::store(&doing, &error))?;
        }
        Ok(())
    }

    /// Removes files that no commit names. Best effort: what stays is an orphan, no harm.
    pub(crate) async fn delete_orphans(&self, paths: Vec<Path>) {
        for path in paths {
            let _ = tokio::time::timeout(CALL_LIMIT, self.store.delete(&path)).await;
        }
    }

    /// True if the folder's `_delta_log` holds a log, or the remains of one.
    pub(crate) async fn has_log(&self) -> Result<bool, LakeError> {
        let folder = Path::from(LOG_FOLDER);
        let doing = self.doing("list", &folder);
        let first = async { self.store.list(Some(&folder)).try_next().await };
        let first = in_time(&doing, first)
            .await?
            .map_err(|error| LakeError::store(&doing, &error))?;
        Ok(first.is_some())
    }

    /// The names of folders and of files at the root.
    pub(crate) async fn entries(&self) -> Result<(Vec<String>, Vec<String>), LakeError> {
        let doing = format!("list \"{}\"", self.name);
        let listed = in_time(&doing, self.store.list_with_delimiter(None))
            .await?
            .map_err(|error| LakeError::store(&doing, &error))?;
        let name = |path: &Path| path.filename().map(str::to_owned);
        let files = listed.objects.iter().map(|object| &object.location);
        Ok((
            listed.common_prefixes.iter().filter_map(name).collect(),
            files.filter_map(name).collect(),
        ))
    }

    /// Shows the files of the log, in the order of their names.
    pub(crate) async fn list_log(&self, mut take: impl FnMut(ObjectMeta)) -> Result<(), LakeError> {
        let folder = Path::from(LOG_FOLDER);
        let doing = self.doing("list", &folder);
        let mut files = self.store.list(Some(&folder));
        // Each page of a long listing has the time of a call.
        while let Some(file) = in_time(&doing, files.try_next())
            .await?
            .map_err(|error| LakeError::store(&doing, &error))?
        {
            take(file);
        }
        Ok(())
    }

    /// The files right in a folder of the table (`""`: its root) that were last written before a time, in
    /// milliseconds since 1970 by the store's clock.
    pub(crate) async fn files_before(
        &self,
        folder: &str,
        time_ms: i64,
    ) -> Result<Vec<Path>, LakeError> {
        let folder = Path::from(folder);
        let doing = self.doing("list", &folder);
        let prefix = (!folder.is_root()).then_some(&folder);
        let listed = tokio::time::timeout(LIST_LIMIT, self.store.list_with_delimiter(prefix))
            .await
            .map_err(|_| too_late(&doing, LIST_LIMIT))?
            .map_err(|error| LakeError::store(&doing, &error))?;
        let old = listed.objects.into_iter();
        let old = old.filter(|file| file.last_modified.timestamp_millis() < time_ms);
        Ok(old.map(|file| file.location).collect())
    }

    /// Removes files in this order. One that is not there any more is none to remove.
    pub(crate) async fn delete_files(&self, paths: Vec<Path>) -> Result<(), LakeError> {
        let doing = format!("remove files of \"{}\"", self.name);
        let mut deleted = self
            .store
            .delete_stream(stream::iter(paths).map(Ok).boxed());
        loop {
            match in_time(&doing, deleted.next()).await? {
                None => return Ok(()),
                Some(Ok(_) | Err(Error::NotFound { .. })) => {}
                Some(Err(error)) => return Err(LakeError::store(&doing, &error)),
            }
        }
    }

    /// Begins the upload of a file whose length is not known yet.
    pub(crate) async fn begin_upload(
        &self,
        doing: &str,
        path: &Path,
    ) -> Result<Box<dyn MultipartUpload>, LakeError> {
        in_time(doing, self.store.put_multipart(path))
            .await?
            .map_err(|error| LakeError::store(doing, &error))
    }

    /// One call of an upload.
    pub(crate) async fn upload<T>(
        &self,
        doing: &str,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, LakeError> {
        let _permit = self.permit().await?;
        in_time(doing, call)
            .await?
            .map_err(|error| LakeError::store(doing, &error))
    }

    /// A kernel engine over this store. Must be called inside the runtime.
    pub(crate) fn engine(&self) -> Result<Arc<dyn Engine>, LakeError> {
        let root =
            Url::parse(KERNEL_ROOT).map_err(|error| LakeError::internal(error.to_string()))?;
        let (store, same) = (Arc::clone(&self.store), Arc::clone(&self.store));
        Ok(default_logstore(store, same, &root, &StorageConfig::default()).engine(None))
    }
}

async fn put_part(
    doing: String,
    uploads: Arc<Semaphore>,
    part: UploadPart,
) -> Result<(), LakeError> {
    let _permit = permit(&uploads).await?;
    let stored = in_time(&doing, part).await?;
    stored.map_err(|error| LakeError::store(&doing, &error))
}

async fn permit(uploads: &Semaphore) -> Result<SemaphorePermit<'_>, LakeError> {
    let permit = uploads.acquire().await;
    permit.map_err(|error| LakeError::internal(error.to_string()))
}

async fn in_time<T>(doing: &str, call: impl Future<Output = T>) -> Result<T, LakeError> {
    let answer = tokio::time::timeout(CALL_LIMIT, call).await;
    answer.map_err(|_| too_late(doing, CALL_LIMIT))
}

fn too_late(doing: &str, limit: Duration) -> LakeError {
    LakeError::transient(format!(
        "could not {doing}: no answer within {} s",
        limit.as_secs()
    ))
}

/// Pauses between tries: each twice as long as the one before, with a random part so that many
/// tables do not knock at once, until a limit.
pub(crate) struct Pauses {
    next: Duration,
    until: Instant,
}

impl Pauses {
    /// Waits before the next try; false if there shall be none.
    pub(crate) async fn wait(&mut self) -> bool {
        // A random 0 to 100 % on top; a UUID is the random source at hand.
        let percent = (Uuid::new_v4().as_u128() % 100) as u32;
        let pause = self.next + self.next * percent / 100;
        if Instant::now() + pause > self.until {
            return false;
        }
        tokio::time::sleep(pause).await;
        self.next = (self.next * 2).min(Duration::from_secs(5));
        true
    }
}
