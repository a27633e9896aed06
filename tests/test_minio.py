"""A feed to MinIO. What a store may do wrong is in test_object_store.py and test_lakes.py."""

import psycopg
import pytest
from botocore.exceptions import ClientError
from deltalake import DeltaTable, QueryBuilder
from harness.readers import DUCKDB
from harness.stores import (
    MinIO,
    StoredFeed,
    alter_mapping,
    create_mapping,
    create_server,
    delta_rs_options,
    duckdb_secret,
    minio,
)

pytestmark = pytest.mark.skipif(
    not minio(), reason="no MinIO: set MINIO to the program, or WITH_MINIO=1 to have it built"
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    server = MinIO(tmp_path_factory.mktemp("minio"))
    yield server
    server.close()


@pytest.fixture
def shop(cluster, store, tmp_path):
    bucket = store.bucket()
    create_server(cluster, "lake", store.url, bucket)
    create_mapping(cluster, "lake")
    feed = StoredFeed(cluster, "shop", store, bucket, tmp_path, destination="lake")
    feed.table("t (i int PRIMARY KEY, v text)")
    yield feed
    feed.close()
    cluster.sql("DROP SERVER lake CASCADE")


def test_snapshot_and_changes(shop, store):
    shop.sql("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
    shop.start()
    shop.wait_for_status("t", "STREAMING")
    for _ in range(12):
        shop.sql("UPDATE t SET v = v || 'y' WHERE i <= 10")
        shop.flush()
    shop.sql("DELETE FROM t WHERE i > 90")
    shop.check("t")
    assert any("checkpoint.parquet" in key for key in store.keys(shop.bucket))
    # Goes on after its worker has ended.
    shop.cluster.terminate_feed_worker()
    shop.sql("INSERT INTO t SELECT i, 'x' FROM generate_series(1000, 1010) i")
    rows = len(shop.check("t"))
    # Read where it is.
    url = shop.view("t")["destination"]
    table = DeltaTable(url, storage_options=delta_rs_options(store))
    assert QueryBuilder().register("h", table).execute("SELECT i FROM h").read_all().num_rows == rows
    duckdb_secret(DUCKDB.connection, store)
    assert DUCKDB.connection.execute(f"SELECT count(*) FROM delta_scan('{url}')").fetchone() == (rows,)


def test_an_object_is_put_once(store):
    """What commits stand on."""
    put = {"Bucket": store.bucket(), "Key": "a", "IfNoneMatch": "*"}
    store.client.put_object(Body=b"1", **put)
    with pytest.raises(ClientError, match="PreconditionFailed"):
        store.client.put_object(Body=b"2", **put)
    assert store.read(put["Bucket"], "a") == b"1"


def test_large_files_go_in_parts(shop, store):
    shop.start()
    shop.table("b (i int, v text)")
    shop.sql("ALTER TABLE b ALTER v SET STORAGE external")
    shop.sql("INSERT INTO b SELECT i, string_agg(md5(random()::text), '') FROM generate_series(1, 60) i, "
             "generate_series(1, 10000) GROUP BY i")  # fmt: skip
    shop.check("b")
    objects = store.client.list_objects_v2(Bucket=shop.bucket, Prefix="bronze/lb_b_history/part")["Contents"]
    assert [found["ETag"] for found in objects if found["Size"] > 8 * 2**20 and "-" in found["ETag"]]
    assert "Uploads" not in store.client.list_multipart_uploads(Bucket=shop.bucket)


@pytest.mark.parametrize(
    ("change", "says", "state"),
    [
        ({"aws_access_key_id": "somebody"}, "403.*InvalidAccessKeyId", "42501"),
        ({"aws_secret_access_key": "something"}, "403.*SignatureDoesNotMatch", "42501"),
    ],
)
def test_wrong_credentials(shop, change, says, state):
    alter_mapping(shop.cluster, "lake", **change)
    with pytest.raises(psycopg.Error, match=says) as caught:
        shop.start()
    assert caught.value.sqlstate == state
    assert "ALTER USER MAPPING" in caught.value.diag.message_hint


def test_missing_bucket(shop):
    shop.cluster.sql("ALTER SERVER lake OPTIONS (SET url 's3://no-such-bucket/bronze')")
    with pytest.raises(psycopg.Error, match="404.*NoSuchBucket") as caught:
        shop.start()
    assert caught.value.sqlstate == "42704"
