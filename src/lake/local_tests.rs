use object_store::ObjectStoreExt as _;

use super::*;

fn create() -> PutOptions {
    PutOptions::from(PutMode::Create)
}

#[tokio::test]
async fn create_never_overwrites_and_leaves_no_draft() {
    let folder = tempfile::tempdir().unwrap();
    let store = DurableStore::new(folder.path()).unwrap();
    let path = Path::from("_delta_log/0.json");
    let homeless = store.put_opts(&path, "one".into(), create()).await;
    assert!(homeless.is_err(), "a folder that has gone must not be made");
    assert!(!folder.path().join("_delta_log").exists());
    create_folders(&folder.path().join("_delta_log")).unwrap();
    store.put_opts(&path, "one".into(), create()).await.unwrap();
    let again = store.put_opts(&path, "two".into(), create()).await;
    assert!(matches!(again, Err(Error::AlreadyExists { .. })));
    assert_eq!(
        store.get(&path).await.unwrap().bytes().await.unwrap(),
        "one"
    );
    store.put(&path, "three".into()).await.unwrap();
    assert_eq!(
        store.get(&path).await.unwrap().bytes().await.unwrap(),
        "three"
    );
    assert_eq!(
        fs::read_dir(folder.path().join("_delta_log"))
            .unwrap()
            .count(),
        1
    );
}

#[tokio::test]
async fn a_large_file_appears_whole_and_parts_keep_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let store = DurableStore::new(folder.path()).unwrap();
    create_folders(&folder.path().join("a")).unwrap();
    let path = Path::from("a/b.parquet");
    let mut upload = store.put_multipart(&path).await.unwrap();
    let first = upload.put_part("first ".into());
    let second = upload.put_part("second".into());
    second.await.unwrap();
    assert!(matches!(
        store.head(&path).await,
        Err(Error::NotFound { .. })
    ));
    first.await.unwrap();
    upload.complete().await.unwrap();
    assert_eq!(
        store.get(&path).await.unwrap().bytes().await.unwrap(),
        "first second"
    );

    let mut aborted = store.put_multipart(&Path::from("a/c")).await.unwrap();
    aborted.put_part("x".into()).await.unwrap();
    aborted.abort().await.unwrap();
    assert_eq!(fs::read_dir(folder.path().join("a")).unwrap().count(), 1);
}

#[tokio::test]
async fn listings_are_sorted_and_hide_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let store = DurableStore::new(folder.path()).unwrap();
    create_folders(&folder.path().join("l")).unwrap();
    for name in ["l/3", "l/1", "l/2"] {
        store.put(&Path::from(name), "x".into()).await.unwrap();
    }
    fs::write(
        folder.path().join("l").join(format!("{TEMPORARY_PREFIX}x")),
        "x",
    )
    .unwrap();
    let listing = store.list_with_offset(Some(&Path::from("l")), &Path::from("l/1"));
    let names: Vec<String> = listing
        .map_ok(|meta| meta.location.to_string())
        .try_collect()
        .await
        .unwrap();
    assert_eq!(names, ["l/2", "l/3"]);
}
