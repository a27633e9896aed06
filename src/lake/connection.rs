//! The way to a bucket, shared by all tables of a feed. Its credentials can be changed while tables are
//! written: requests under way end with the old ones, all later ones have the new. Errors leave here
//! with their remedy, and without what must not be shown.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use tokio::sync::Semaphore;

use crate::lake::access::Access;
use crate::lake::answer::{explain, is_about_bucket, is_about_expiry};
use crate::lake::bucket_client::Reached;
use crate::lake::error::{LakeError, known};
use crate::lake::location::Location;

/// Data files, or parts of them, that are on their way to a bucket at the same time.
const UPLOADS: usize = 8;

const STORE: &str = "wal2delta";

/// A bucket, reached with whatever the credentials are now.
pub(crate) struct Connection {
    location: Location,
    state: RwLock<State>,
    renewals: AtomicU64,
    /// Permits for uploads of data.
    pub uploads: Arc<Semaphore>,
}

struct State {
    access: Access,
    /// The last that was not refused: it says which place this is.
    reached: Access,
    /// Made at the first request.
    client: Option<Reached>,
}

impl Connection {
    /// No request is made.
    pub(crate) fn new(location: Location, access: Access) -> Connection {
        Connection {
            location,
            state: RwLock::new(State {
                reached: access.clone(),
                access,
                client: None,
            }),
            renewals: AtomicU64::new(0),
            uploads: Arc::new(Semaphore::new(UPLOADS)),
        }
    }

    /// Has later requests made in another way. True if it is another one, to the same place: what is
    /// open here is somewhere else in another one.
    pub(crate) fn renew(&self, access: Access) -> bool {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.access == access || !state.reached.same_place(&access) {
            return false;
        }
        if !access.is_refused() {
            state.reached = access.clone();
        }
        state.access = access;
        state.client = None;
        self.renewals.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// How often that was.
    pub(crate) fn renewals(&self) -> u64 {
        self.renewals.load(Ordering::Relaxed)
    }

    /// The address of the store, if it is not the provider's own.
    pub(crate) fn endpoint(&self) -> Option<String> {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        state.reached.endpoint().map(str::to_owned)
    }

    fn client(&self) -> Result<Arc<dyn ObjectStore>> {
        {
            let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(client) = &state.client {
                return Ok(Arc::clone(&client.store));
            }
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = &state.client {
            return Ok(Arc::clone(&client.store));
        }
        let client = state.access.client(&self.location).map_err(told)?;
        let store = Arc::clone(&client.store);
        state.client = Some(client);
        Ok(store)
    }

    /// How requests are made now, for what is said of them.
    fn access(&self) -> Access {
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        let vended = state
            .client
            .as_ref()
            .and_then(|client| client.vended.as_ref());
        let access = state.access.clone();
        match vended {
            Some(vended) => access.with_vended(vended.secrets()),
            None => access,
        }
    }

    /// Has the next request get new credentials, if they are the catalog's.
    fn forget_vended(&self) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(&state.client, Some(client) if client.vended.is_some()) {
            state.client = None;
        }
    }

    /// An error as it may be shown. What the callers of an object store tell apart stays.
    fn explained(&self, error: Error) -> Error {
        match error {
            Error::NotFound { .. } if is_about_bucket(&error) => {}
            Error::NotFound { .. }
            | Error::AlreadyExists { .. }
            | Error::Precondition { .. }
            | Error::NotModified { .. } => return error,
            _ => {}
        }
        // What the catalog has to say comes through the store's interface too.
        if let Some(known) = known(&error) {
            return told(known.clone());
        }
        if is_about_expiry(&error) {
            self.forget_vended();
        }
        told(explain(&error, &self.access(), &self.location))
    }
}

fn told(error: LakeError) -> Error {
    Error::Generic {
        store: STORE,
        source: Box::new(error),
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.location).finish()
    }
}

impl fmt::Display for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.location.fmt(f)
    }
}

/// A [`Connection`] as an object store whose root is the bucket.
#[derive(Debug, Clone)]
pub(crate) struct BucketStore(pub Arc<Connection>);

impl fmt::Display for BucketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl BucketStore {
    fn stream<T: Send + 'static>(
        &self,
        begin: impl FnOnce(&dyn ObjectStore) -> BoxStream<'static, Result<T>>,
    ) -> BoxStream<'static, Result<T>> {
        let connection = Arc::clone(&self.0);
        match self.0.client() {
            Ok(client) => begin(client.as_ref())
                .map(move |item| item.map_err(|error| connection.explained(error)))
                .boxed(),
            Err(error) => stream::once(async { Err(error) }).boxed(),
        }
    }
}

#[async_trait]
impl ObjectStore for BucketStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let put = self.0.client()?.put_opts(location, payload, opts).await;
        put.map_err(|error| self.0.explained(error))
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let begun = self.0.client()?.put_multipart_opts(location, opts).await;
        let upload = begun.map_err(|error| self.0.explained(error))?;
        Ok(Box::new(Upload {
            upload,
            connection: Arc::clone(&self.0),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let got = self.0.client()?.get_opts(location, options).await;
        got.map_err(|error| self.0.explained(error))
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let got = self.0.client()?.get_ranges(location, ranges).await;
        got.map_err(|error| self.0.explained(error))
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.stream(|client| client.delete_stream(locations))
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.stream(|client| client.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.stream(|client| client.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.0.client()?.list_with_delimiter(prefix).await;
        listed.map_err(|error| self.0.explained(error))
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let copied = self.0.client()?.copy_opts(from, to, options).await;
        copied.map_err(|error| self.0.explained(error))
    }
}

/// A large file on its way.
#[derive(Debug)]
struct Upload {
    upload: Box<dyn MultipartUpload>,
    connection: Arc<Connection>,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let connection = Arc::clone(&self.connection);
        let part = self.upload.put_part(data);
        async move { part.await.map_err(|error| connection.explained(error)) }.boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let done = self.upload.complete().await;
        done.map_err(|error| self.connection.explained(error))
    }

    async fn abort(&mut self) -> Result<()> {
        let done = self.upload.abort().await;
        done.map_err(|error| self.connection.explained(error))
    }
}
