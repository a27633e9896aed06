//! A destination in an object store: a prefix with one `lb_*` folder per table below it, and a marker
//! by which a destination that `start` made is told from an empty place.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::ObjectStore;
use object_store::limit::LimitStore;
use object_store::path::Path;
use object_store::prefix::PrefixStore;

use crate::lake::access::Access;
use crate::lake::answer::CONDITIONAL_HINT;
use crate::lake::connection::{BucketStore, Connection};
use crate::lake::destination::{inside_another, is_foreign, not_history};
use crate::lake::error::{ErrorKind, LakeError};
use crate::lake::location::Location;
use crate::lake::store::TableStore;

/// How long a table's work is tried again when the store fails, before it is reported.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests of a feed at the same time, and so connections to the store.
const REQUESTS: usize = 32;

/// The marker; a leading dot hides it from readers.
const MARKER: &str = ".wal2delta-destination";
const MARKER_TEXT: &[u8] = b"Written by wal2delta: below are Delta tables of its feeds.\n";

/// A prefix in a bucket that holds history tables.
#[derive(Debug, Clone)]
pub(crate) struct Bucket {
    location: Location,
    connection: Arc<Connection>,
    /// The connection with a bound on requests at the same time, whatever the number of tables.
    bounded: Arc<dyn ObjectStore>,
}

/// Where it is, not how it is reached.
impl PartialEq for Bucket {
    fn eq(&self, other: &Bucket) -> bool {
        self.location == other.location && self.connection.endpoint() == other.connection.endpoint()
    }
}

impl Eq for Bucket {}

impl Bucket {
    pub(crate) fn new(location: Location, access: Access) -> Bucket {
        let connection = Arc::new(Connection::new(location.clone(), access));
        let bucket = BucketStore(Arc::clone(&connection));
        Bucket {
            location,
            connection,
            bounded: Arc::new(LimitStore::new(bucket, REQUESTS)),
        }
    }

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// See [`Connection::renew`].
    pub(crate) fn renew(&self, access: Access) -> bool {
        self.connection.renew(access)
    }

    /// A store whose root is a folder below the prefix.
    fn store(&self, folder: &str) -> Result<TableStore, LakeError> {
        let parts = [self.location.prefix.as_str(), folder];
        let path = parts.iter().filter(|part| !part.is_empty());
        let path = path.copied().collect::<Vec<_>>().join("/");
        // Parsed, not made from: that would encode characters of folders' names once more.
        let prefix = Path::parse(&path)
            .map_err(|error| LakeError::internal(format!("\"{path}\" is no path: {error}")))?;
        let name = match folder {
            "" => self.location.to_string(),
            folder => self.location.join(folder),
        };
        let bounded = Arc::clone(&self.bounded);
        let store = Arc::new(PrefixStore::new(bounded, prefix)) as Arc<dyn ObjectStore>;
        let connection = Arc::clone(&self.connection);
        Ok(TableStore::new(store, name, PATIENCE).over(connection))
    }

    /// Makes the destination: a marker is written, which also shows whether the store can be written
    /// and keeps what is there.
    pub(crate) async fn prepare(&self) -> Result<(), LakeError> {
        let root = self.store("")?;
        self.check_entries(&root).await?;
        self.check_outer().await?;
        self.write_marker(&root).await?;
        self.check_marker(&root).await
    }

    /// Makes sure that the destination is there and can be listed, read and written, one writer at a
    /// time. Nothing changes.
    pub(crate) async fn check(&self) -> Result<(), LakeError> {
        let root = self.store("")?;
        self.check_entries(&root).await?;
        self.check_exists().await?;
        self.check_marker(&root).await
    }

    /// That `start` has made it, here. Without the marker the histories are somewhere else, and must
    /// not begin anew.
    pub(crate) async fn check_exists(&self) -> Result<(), LakeError> {
        let root = self.store("")?;
        match root.get(&Path::from(MARKER)).await? {
            Some(_) => Ok(()),
            None => Err(LakeError::config(
                format!(
                    "destination \"{self}\" does not exist any more",
                    self = self.location
                ),
                "Bring it back (are url and endpoint still right?), or stop the feed and start it again.",
            )),
        }
    }

    async fn write_marker(&self, root: &TableStore) -> Result<bool, LakeError> {
        let content = Bytes::from_static(MARKER_TEXT);
        root.create(&Path::from(MARKER), content).await
    }

    /// The marker is there, so it must not be possible to write it once more.
    async fn check_marker(&self, root: &TableStore) -> Result<(), LakeError> {
        if self.write_marker(root).await? {
            return Err(LakeError::config(
                format!(
                    "the store of \"{}\" overwrites what it was told to keep",
                    self.location
                ),
                CONDITIONAL_HINT,
            ));
        }
        match root.get(&Path::from(MARKER)).await? {
            Some(_) => Ok(()),
            None => Err(LakeError::transient(format!(
                "could not read \"{}\": it exists, but is not found",
                self.location.join(MARKER)
            ))),
        }
    }

    /// That it lies in no other destination. Where the credentials do not lead, nothing is known of one.
    async fn check_outer(&self) -> Result<(), LakeError> {
        let outers = std::iter::successors(self.location.outer(), Location::outer);
        for outer in outers {
            let bucket = Bucket {
                location: outer.clone(),
                ..self.clone()
            };
            match bucket.store("")?.get(&Path::from(MARKER)).await {
                Ok(None) => {}
                Ok(Some(_)) => return Err(inside_another(&self.location, &outer.to_string())),
                Err(error) if error.kind() == ErrorKind::Denied => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn check_entries(&self, root: &TableStore) -> Result<(), LakeError> {
        let (folders, files) = root.entries().await?;
        // Some stores have objects that stand for folders.
        let mut names = folders.iter().chain(&files);
        match names.find(|name| is_foreign(name, true)) {
            Some(name) => Err(not_history(&self.location, name)),
            None => Ok(()),
        }
    }

    /// The names of the `lb_*` folders, sorted.
    pub(crate) async fn table_folders(&self) -> Result<Vec<String>, LakeError> {
        let (mut folders, _) = self.store("")?.entries().await?;
        folders.retain(|name| name.starts_with("lb_"));
        folders.sort_unstable();
        Ok(folders)
    }

    /// The store of one table. A folder comes with its first object.
    pub(crate) async fn table_store(
        &self,
        folder: &str,
        make: bool,
    ) -> Result<TableStore, LakeError> {
        let store = self.store(folder)?;
        if !make && !store.has_log().await? {
            return Err(LakeError::config(
                format!("history table \"{}\" does not exist any more", store.name()),
                "Bring it back, or stop the feed and start it again.",
            ));
        }
        Ok(store)
    }
}
