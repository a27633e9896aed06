use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::*;
use crate::lake::log::{Add, Txn};

const OWN: &str = "wal2delta/1/2/3/";
const HOME: &str = "a-b";

/// A store whose next puts fail: before or after they have taken effect.
#[derive(Debug, Default)]
struct Faulty {
    inner: InMemory,
    lost_answers: AtomicUsize,
    failures: AtomicUsize,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

fn take(counter: &AtomicUsize) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
        .is_ok()
}

fn broken() -> Error {
    Error::Generic {
        store: "Faulty",
        source: "connection reset".into(),
    }
}

#[async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        if take(&self.failures) {
            return Err(broken());
        }
        let done = self.inner.put_opts(location, payload, opts).await?;
        if take(&self.lost_answers) {
            Err(broken())
        } else {
            Ok(done)
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

fn table(store: &Arc<Faulty>) -> TableStore {
    let store = Arc::clone(store) as Arc<dyn ObjectStore>;
    TableStore::new(store, "lb_t_history".to_owned(), Duration::from_millis(800))
}

fn append(needs_exact_files: bool) -> Commit<'static> {
    let add = Add {
        path: "part-1.parquet".to_owned(),
        partition_values: BTreeMap::new(),
        size: 1,
        modification_time: 0,
        data_change: true,
        stats: "{}".to_owned(),
    };
    let txn = Txn {
        app_id: format!("{OWN}1"),
        version: 7,
        last_updated: 0,
    };
    Commit {
        operation: Operation::Append,
        actions: vec![Action::Txn(txn), Action::Add(add)],
        own_app_ids: OWN,
        home: HOME,
        needs_exact_files,
    }
}

async fn foreign(store: &Arc<Faulty>, version: u64, lines: &str) {
    store
        .inner
        .put(&commit_path(version), lines.to_owned().into())
        .await
        .unwrap();
}

async fn versions(store: &Arc<Faulty>) -> usize {
    use futures::StreamExt;
    store.inner.list(None).count().await
}

#[tokio::test]
async fn a_lost_answer_is_not_committed_twice() {
    let store = Arc::new(Faulty::default());
    store.lost_answers.store(1, Ordering::SeqCst);
    assert_eq!(commit(&table(&store), 4, append(false)).await.unwrap(), 4);
    assert_eq!(versions(&store).await, 1);
}

#[tokio::test]
async fn transient_errors_are_tried_again_and_given_up_as_unknown() {
    let store = Arc::new(Faulty::default());
    store.failures.store(1, Ordering::SeqCst);
    assert_eq!(commit(&table(&store), 1, append(false)).await.unwrap(), 1);

    store.failures.store(usize::MAX, Ordering::SeqCst);
    let failure = commit(&table(&store), 2, append(false)).await.unwrap_err();
    assert!(matches!(&failure, Failure::Unknown(error) if error.kind() == ErrorKind::Transient));
}

#[tokio::test]
async fn foreign_changes_are_conflicts() {
    let changes = [
        r#"{"add":{"path":"x","partitionValues":{},"size":1,"modificationTime":0,"dataChange":true}}"#,
        r#"{"remove":{"path":"x","dataChange":true}}"#,
        r#"{"metaData":{"id":"x"}}"#,
        r#"{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}"#,
        r#"{"domainMetadata":{"domain":"x"}}"#,
        r#"{"txn":{"appId":"wal2delta/1/2/3/9","version":1}}"#,
    ];
    for change in changes {
        let store = Arc::new(Faulty::default());
        foreign(&store, 5, &format!("{{\"commitInfo\":{{}}}}\n{change}\n")).await;
        let failure = commit(&table(&store), 5, append(false)).await.unwrap_err();
        let Failure::NotLanded(error) = failure else {
            panic!("{change}: {failure:?}")
        };
        assert_eq!(error.kind(), ErrorKind::Conflict, "{change}");
        assert!(error.to_string().contains("version 5"), "{error}");
        assert_eq!(versions(&store).await, 1);
    }
}

const COMPACTION: &str = concat!(
    r#"{"commitInfo":{"operation":"OPTIMIZE","wal2deltaCommit":null}}"#,
    "\n",
    r#"{"remove":{"path":"x","dataChange":false}}"#,
    "\n",
    r#"{"add":{"path":"y","partitionValues":{},"size":1,"modificationTime":0,"dataChange":false}}"#,
    "\n",
    r#"{"txn":{"appId":"other","version":1}}"#,
);

#[tokio::test]
async fn foreign_compaction_is_passed_over() {
    let store = Arc::new(Faulty::default());
    foreign(&store, 5, COMPACTION).await;
    foreign(&store, 6, r#"{"commitInfo":{}}"#).await;
    assert_eq!(commit(&table(&store), 5, append(false)).await.unwrap(), 7);
}

#[tokio::test]
async fn a_replacement_is_built_anew_after_a_compaction() {
    let store = Arc::new(Faulty::default());
    foreign(&store, 5, COMPACTION).await;
    let failure = commit(&table(&store), 5, append(true)).await.unwrap_err();
    assert!(matches!(failure, Failure::FilesMoved { version: 5 }));
}

#[tokio::test]
async fn a_torn_commit_is_not_written_over() {
    let store = Arc::new(Faulty::default());
    foreign(&store, 5, "{\"add\":{\"pa").await;
    let failure = commit(&table(&store), 5, append(false)).await.unwrap_err();
    assert!(matches!(&failure, Failure::Unknown(error) if error.kind() == ErrorKind::Config));
}

#[tokio::test]
async fn a_late_commit_of_our_own_is_no_conflict_and_one_of_a_copy_is() {
    for (home, kind) in [(HOME, ErrorKind::Transient), ("c-d", ErrorKind::Conflict)] {
        let store = Arc::new(Faulty::default());
        let lines = format!(
            concat!(
                r#"{{"commitInfo":{{"wal2deltaCommit":"{}","wal2deltaHome":"{}"}}}}"#,
                "\n",
                r#"{{"txn":{{"appId":"{}1","version":1}}}}"#
            ),
            Uuid::new_v4(),
            home,
            OWN
        );
        foreign(&store, 5, &lines).await;
        let failure = commit(&table(&store), 5, append(false)).await.unwrap_err();
        assert!(matches!(&failure, Failure::NotLanded(error) if error.kind() == kind));
    }
}

#[tokio::test]
async fn the_last_writer_is_found_below_what_changes_nothing() {
    let store = Arc::new(Faulty::default());
    let name = table(&store);
    assert_eq!(Writer::last(&name, 7).await.unwrap(), Writer::Unknown);

    commit(&name, 4, append(false)).await.unwrap();
    foreign(&store, 5, COMPACTION).await;
    let ours = Writer::last(&name, 5).await.unwrap();
    assert!(matches!(&ours, Writer::Home { version: 4, home, .. } if home == HOME));
    assert!(ours.time_ms() > 0);
    assert_eq!(ours.refuses("t", &["x".to_owned(), HOME.to_owned()]), None);
    let error = ours.refuses("t", &["c-d".to_owned()]).unwrap();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    assert!(error.to_string().contains("another server"), "{error}");

    foreign(&store, 6, r#"{"metaData":{"id":"x"}}"#).await;
    let stranger = Writer::last(&name, 6).await.unwrap();
    assert!(matches!(stranger, Writer::Stranger { version: 6, .. }));
    assert!(stranger.refuses("t", &[HOME.to_owned()]).is_some());
}
