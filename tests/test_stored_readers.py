"""Readers that read histories where they are: in the object store."""

from urllib.parse import quote

import chdb
import pytest
from deltalake import DeltaTable, QueryBuilder
from harness.more_readers import POLARS, PYARROW
from harness.readers import DuckDB
from harness.spark import SPARK, WHY_NOT, available
from harness.stores import (
    KEY,
    SECRET,
    StoredFeed,
    create_mapping,
    create_server,
    delta_rs_options,
    duckdb_secret,
)

NAMES = ["t", "Ü {b}/c~d", "a b%c"]


@pytest.fixture(scope="module")
def histories(cluster, s3, tmp_path_factory):
    """{table name: URL} of three tables with a row each, one of which was updated."""
    bucket = s3.bucket()
    create_server(cluster, "lake", s3.url, bucket)
    create_mapping(cluster, "lake")
    feed = StoredFeed(cluster, "shop", s3, bucket, tmp_path_factory.mktemp("mirror"), destination="lake")
    for name in NAMES:
        feed.sql(f'CREATE TABLE "{name}" (i int, v text)')
        feed.sql(f'ALTER TABLE "{name}" REPLICA IDENTITY FULL')
        feed.sql(f"INSERT INTO \"{name}\" VALUES (1, 'a')")
    feed.start()
    feed.flush()
    for name in NAMES:
        feed.sql(f"UPDATE \"{name}\" SET v = 'b'")
    feed.flush()
    rows = feed.sql("SELECT source_table, destination FROM wal2delta.tables")
    yield dict(rows)
    feed.close()
    cluster.sql("DROP SERVER lake CASCADE")


EXPECTED = [("insert", 1, "a"), ("update_postimage", 1, "b"), ("update_preimage", 1, "a")]
COLUMNS = ["_pg_change_type", "i", "v"]


@pytest.mark.parametrize("name", NAMES)
def test_delta_rs(histories, s3, name):
    table = DeltaTable(histories[name], storage_options=delta_rs_options(s3))
    found = QueryBuilder().register("h", table).execute("SELECT _pg_change_type, i, v FROM h ORDER BY 1").read_all()
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_clickhouse(histories, s3, name):
    # It wants a URL where the others want a name.
    bucket_and_key = quote(histories[name].removeprefix("s3://"))
    found = chdb.query(
        f"SELECT _pg_change_type, i, v FROM deltaLake('{s3.url}/{bucket_and_key}', '{KEY}', '{SECRET}') ORDER BY 1",
        "ArrowTable",
    )
    assert [tuple(row.values()) for row in found.to_pylist()] == EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_duckdb(histories, s3, name):
    connection = DuckDB().connection
    duckdb_secret(connection, s3)
    found = connection.execute(
        f"SELECT _pg_change_type, i, v FROM delta_scan('{histories[name]}') ORDER BY 1"
    ).fetchall()
    assert found == EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_pyarrow(histories, s3, name):
    found = PYARROW.arrow(histories[name], COLUMNS, storage_options=delta_rs_options(s3))
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == EXPECTED


@pytest.mark.parametrize("name", NAMES)
def test_polars(histories, s3, name):
    def read():
        found = POLARS.arrow(histories[name], COLUMNS, storage_options=delta_rs_options(s3))
        return sorted(tuple(row.values()) for row in found.to_pylist())

    if name == quote(name):
        assert read() == EXPECTED
    else:
        # It escapes the names of the data files a second time.
        with pytest.raises(FileNotFoundError, match="NoSuchKey"):
            read()


@pytest.fixture
def spark(s3):
    if not available():
        pytest.skip(WHY_NOT)
    settings = SPARK.session.sparkContext._jsc.hadoopConfiguration()
    for name, value in {
        "endpoint": s3.url,
        "endpoint.region": "us-east-1",
        "access.key": KEY,
        "secret.key": SECRET,
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
    }.items():
        settings.set(f"fs.s3a.{name}", value)
    return SPARK


@pytest.mark.parametrize("name", NAMES)
def test_spark(histories, spark, name):
    found = spark.arrow("s3a" + histories[name].removeprefix("s3"), COLUMNS)
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == EXPECTED
