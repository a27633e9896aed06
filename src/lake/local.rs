//! An object store on a local disk whose writes are on disk before they can be seen: file, then
//! name, then folder. `object_store` 0.13 syncs nothing, and a torn last commit makes every
//! reader refuse the table. Reads, listings and deletions are `LocalFileSystem`'s.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path as FilePath, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UploadPart,
};
use uuid::Uuid;

use crate::fail_point;

/// Names of unfinished files. Delta readers ignore names that start with a dot, so one that a
/// crash leaves behind does no harm.
const TEMPORARY_PREFIX: &str = ".wal2delta-tmp-";

const STORE: &str = "DurableStore";

/// A folder on a local disk as an object store with durable writes.
#[derive(Debug, Clone)]
pub struct DurableStore {
    inner: LocalFileSystem,
}

impl DurableStore {
    /// A store whose root is `folder`.
    ///
    /// # Errors
    /// If the folder does not exist.
    pub fn new(folder: &FilePath) -> Result<DurableStore> {
        Ok(DurableStore {
            inner: LocalFileSystem::new_with_prefix(folder)?,
        })
    }
}

impl fmt::Display for DurableStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{STORE}({})", self.inner)
    }
}

/// Readers are other users than the server's: everybody may read, only the server write, as with
/// the files of COPY TO, whatever the server's umask. Who may enter the destination is decided by
/// the folder that it lies in.
const FOLDER_MODE: u32 = 0o755;
/// See [`FOLDER_MODE`].
const FILE_MODE: u32 = 0o644;

/// Writes what the operating system holds of a folder's entries to disk.
pub(crate) fn sync_folder(folder: &FilePath) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Creates a folder and its missing parents, each of them on disk when this returns.
pub(crate) fn create_folders(folder: &FilePath) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let parent = folder
        .parent()
        .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    create_folders(parent)?;
    match fs::create_dir(folder) {
        Ok(()) => fs::set_permissions(folder, Permissions::from_mode(FOLDER_MODE))?,
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => {
            return Err(error);
        }
        Err(_) => {}
    }
    sync_folder(parent)
}

/// An unfinished file beside its final place, removed when dropped unless published.
#[derive(Debug)]
struct Draft {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    folder: PathBuf,
}

impl Draft {
    fn new(target: PathBuf) -> io::Result<Draft> {
        let folder = target
            .parent()
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?
            .to_owned();
        let temporary = folder.join(format!("{TEMPORARY_PREFIX}{}", Uuid::new_v4()));
        // The folder is never made here: one that has gone took the table's log with it.
        let file = File::create_new(&temporary)?;
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
        Ok(Draft {
            file,
            temporary,
            target,
            folder,
        })
    }

    /// Syncs the file, gives it its name, syncs the folder.
    fn publish(self, create: bool) -> io::Result<()> {
        self.file.sync_all()?;
        let published = if create {
            fs::hard_link(&self.temporary, &self.target)
        } else {
            fs::rename(&self.temporary, &self.target)
        };
        match published {
            Ok(()) => sync_folder(&self.folder),
            // What exists may be our own earlier try that ended before its folder was synced; the
            // caller will trust it once it has read it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                sync_folder(&self.folder)?;
                Err(error)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After a rename there is nothing to remove; a left-over does no harm.
        let _ = fs::remove_file(&self.temporary);
    }
}

fn store_error(error: io::Error, location: &Path) -> Error {
    let path = location.to_string();
    match error.kind() {
        io::ErrorKind::AlreadyExists => Error::AlreadyExists {
            path,
            source: error.into(),
        },
        io::ErrorKind::NotFound => Error::NotFound {
            path,
            source: error.into(),
        },
        _ => Error::Generic {
            store: STORE,
            source: error.into(),
        },
    }
}

/// Runs disk work on the runtime's blocking threads.
async fn on_disk<T: Send + 'static>(
    location: Path,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| store_error(error, &location)),
        Err(source) => Err(Error::JoinError { source }),
    }
}

fn unsupported(operation: &str) -> Error {
    Error::NotImplemented {
        operation: operation.to_owned(),
        implementer: STORE.to_owned(),
    }
}

const fn put_result() -> PutResult {
    PutResult {
        e_tag: None,
        version: None,
    }
}

#[async_trait]
impl ObjectStore for DurableStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let create = match opts.mode {
            PutMode::Create => true,
            PutMode::Overwrite => false,
            PutMode::Update(_) => return Err(unsupported("conditional overwrite")),
        };
        if !opts.attributes.is_empty() {
            return Err(unsupported("object attributes"));
        }
        let target = self.inner.path_to_filesystem(location)?;
        // A checkpoint is stored by now, and nothing names it yet.
        let in_checkpoint = location.filename() == Some("_last_checkpoint");
        on_disk(location.clone(), move || {
            if in_checkpoint {
                fail_point::pass_on_disk("in_checkpoint")?;
            }
            let mut draft = Draft::new(target)?;
            payload
                .iter()
                .try_for_each(|part| draft.file.write_all(part))?;
            draft.publish(create)
        })
        .await?;
        Ok(put_result())
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if !opts.attributes.is_empty() {
            return Err(unsupported("object attributes"));
        }
        let target = self.inner.path_to_filesystem(location)?;
        let draft = on_disk(location.clone(), move || Draft::new(target)).await?;
        Ok(Box::new(DurableUpload {
            location: location.clone(),
            state: Arc::new(Mutex::new(Upload::new(draft))),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        in_order(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        in_order(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let create = options.mode == CopyMode::Create;
        let source = self.inner.path_to_filesystem(from)?;
        let target = self.inner.path_to_filesystem(to)?;
        on_disk(to.clone(), move || {
            let mut draft = Draft::new(target)?;
            io::copy(&mut File::open(source)?, &mut draft.file)?;
            draft.publish(create)
        })
        .await
    }
}

/// The kernel expects listings sorted by name from every store that is not `file:`; a disk gives
/// them in any order. Unfinished files are left out.
fn in_order(
    listing: BoxStream<'static, Result<ObjectMeta>>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let sorted = async move {
        let mut entries: Vec<ObjectMeta> = listing.try_collect().await?;
        entries.retain(|meta| {
            !meta
                .location
                .filename()
                .is_some_and(|name| name.starts_with(TEMPORARY_PREFIX))
        });
        entries.sort_unstable_by(|a, b| a.location.cmp(&b.location));
        Ok::<_, Error>(stream::iter(entries.into_iter().map(Ok)))
    };
    sorted.try_flatten_stream().boxed()
}

/// The parts of a large file. They may be polled in any order, but are written in the order in
/// which they were handed in.
#[derive(Debug)]
struct Upload {
    draft: Option<Draft>,
    waiting: VecDeque<PutPayload>,
}

impl Upload {
    fn new(draft: Draft) -> Self {
        Upload {
            draft: Some(draft),
            waiting: VecDeque::new(),
        }
    }

    fn write_waiting(&mut self) -> io::Result<()> {
        let draft = self
            .draft
            .as_mut()
            .ok_or_else(|| io::Error::other("the upload has ended"))?;
        while let Some(payload) = self.waiting.pop_front() {
            payload
                .iter()
                .try_for_each(|part| draft.file.write_all(part))?;
        }
        Ok(())
    }
}

/// A large file on its way; nothing can be seen of it before `complete`.
#[derive(Debug)]
struct DurableUpload {
    location: Path,
    state: Arc<Mutex<Upload>>,
}

impl DurableUpload {
    fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Upload) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, Result<T>> {
        let state = Arc::clone(&self.state);
        on_disk(self.location.clone(), move || {
            work(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
        })
        .boxed()
    }
}

#[async_trait]
impl MultipartUpload for DurableUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .waiting
            .push_back(data);
        self.on_disk(Upload::write_waiting)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.on_disk(|upload| {
            upload.write_waiting()?;
            match upload.draft.take() {
                Some(draft) => draft.publish(false),
                None => Err(io::Error::other("the upload has ended")),
            }
        })
        .await?;
        Ok(put_result())
    }

    async fn abort(&mut self) -> Result<()> {
        self.on_disk(|upload| {
            upload.draft = None;
            Ok(())
        })
        .await
    }
}

#[cfg(test)]
#[path = "local_tests.rs"]
mod tests;
