"""Public reports about tools that do a similar job, replayed: each test names
the report it is from.

Reports that other modules replay: wal2json#205 and jsoncdc#63 (TOAST),
orioledb#936 (a savepoint first) in test_changes; pgcolumnar#137 (DDL amid DML)
in test_schema_change; readyset#1152, pg_parquet#97 (NaN, infinity), sequin#2094
and PeerDB#828 (snapshot and stream alike) in test_types; wal2json#46 and #272
(large rows and transactions) in test_memory; Homebrew#298936 and cnpg#318
(output_plugin_libraries) in each test; and those that test_database_first and
test_identity name."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
from harness import fail_points
from harness.deltalog import DeltaLog
from harness.fail_points import FailPoints
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms"}

# Nothing is written unless a flush asks for it.
NO_FLUSH = {"wal2delta.flush_interval": "1h"}

needs_fail_points = pytest.mark.skipif(
    not fail_points.library().exists(), reason="the library with fail points is not installed"
)


@pytest.fixture
def kv(feed):
    """A started feed with a table that holds (1, 'a')."""
    return started(feed)


@pytest.fixture
def own_kv(make_cluster, make_feed):
    """The same in a cluster of its own, where a flush alone writes."""
    return started(make_feed("shop", cluster=make_cluster(NO_FLUSH)))


@pytest.fixture
def failing_kv(make_cluster, make_feed):
    """The same with fail points: (feed, its points)."""
    cluster = make_cluster({**NO_FLUSH, **fail_points.SETTINGS})
    points = FailPoints(cluster)
    return started(make_feed("shop", cluster=cluster)), points


def started(feed):
    feed.table("kv (k int PRIMARY KEY, v text)")
    feed.sql("INSERT INTO kv VALUES (1, 'a')")
    feed.start()
    feed.flush()
    return feed


def values(events):
    return [values for _, values in events]


# --- transactions


def test_txn_open_during_start__pg_duckpipe(make_cluster, make_feed):
    """A snapshot taken before the slot is consistent misses what commits between."""
    feed = make_feed("shop", cluster=make_cluster(SETTINGS))
    feed.table("t (i int)")
    feed.sql("INSERT INTO t VALUES (0)")
    with ThreadPoolExecutor(1) as pool, closing(feed.session(autocommit=False)) as opened:
        opened.execute("INSERT INTO t VALUES (1)")
        starting = pool.submit(feed.start)
        wait_for(feed.cluster.new_slot_waits, 20, "the new slot to wait for the transaction")
        opened.commit()
        starting.result(20)
    assert sorted(feed.events("t")) == [("insert", (0,)), ("insert", (1,))]


def test_interleaved_txns_and_a_kill__pgcopydb_1044__risingwave_22369(own_kv):
    """Changes of the first lie before those of the second, its commit behind:
    neither position alone says what is in Delta already."""
    first, second = own_kv.session(autocommit=False), own_kv.session(autocommit=False)
    first.execute("INSERT INTO kv VALUES (11, 'first')")
    second.execute("INSERT INTO kv VALUES (21, 'second')")
    first.execute("INSERT INTO kv VALUES (12, 'first')")
    second.commit()
    own_kv.flush()
    first.commit()
    assert len(own_kv.rows("kv")) == 2, "the first must not be in Delta yet"
    own_kv.cluster.kill()
    own_kv.cluster.start()
    own_kv.reconnect()
    assert values(own_kv.events("kv")) == [(1, "a"), (21, "second"), (11, "first"), (12, "first")]


# --- kills


def test_a_worker_is_killed__pg_background_110(own_kv):
    """The server restarts all its processes, and the feed goes on by itself."""
    own_kv.sql("INSERT INTO kv VALUES (2, 'b')")
    own_kv.flush()
    own_kv.sql("INSERT INTO kv VALUES (3, 'c')")
    worker = own_kv.cluster.wait_for_feed_worker()
    os.kill(worker, signal.SIGKILL)
    own_kv.come_back()
    assert own_kv.cluster.wait_for_feed_worker() != worker
    own_kv.sql("INSERT INTO kv VALUES (4, 'd')")
    assert values(own_kv.events("kv")) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def kill_at(point, feed, points):
    """Has the process killed that comes by while everything is written."""
    points.arm(point, "kill")
    with pytest.raises(psycopg.OperationalError):
        feed.flush()
    assert not points.armed()
    feed.come_back()


@needs_fail_points
@pytest.mark.parametrize("point", ["decoded", "before_data_put", "after_data_put", "before_commit_put"])
def test_copy_is_killed_amid_its_flush__debezium_7531(failing_kv, point):
    """All rows of a COPY have one LSN: what is left of it cannot be told by that."""
    feed, points = failing_kv
    with feed.conn.cursor() as cursor, cursor.copy(f"COPY {feed.schema}.kv FROM STDIN") as copy:
        for k in range(10_000, 20_000):
            copy.write_row((k, "copied"))
    kill_at(point, feed, points)
    assert values(feed.events("kv")) == [(1, "a"), *((k, "copied") for k in range(10_000, 20_000))]


@needs_fail_points
@pytest.mark.parametrize("point", ["after_commit_put", "before_confirm", "after_confirm"])
def test_killed_between_commit_and_confirm__moonlink_437(failing_kv, point):
    """Confirmed too early is a loss, too late a double."""
    feed, points = failing_kv
    feed.sql("INSERT INTO kv VALUES (2, 'b')")
    feed.sql("UPDATE kv SET v = 'c' WHERE k = 1")
    kill_at(point, feed, points)
    feed.sql("DELETE FROM kv WHERE k = 2")
    assert feed.events("kv") == [
        ("insert", (1, "a")), ("insert", (2, "b")),
        ("update_preimage", (1, "a")), ("update_postimage", (1, "c")), ("delete", (2, "b")),
    ]  # fmt: skip


# --- the store is slow


@needs_fail_points
def test_another_database_is_dropped_amid_an_upload__pglogical_399__pg_cron_318(failing_kv):
    """Every process has to take notice of a drop, the worker too."""
    feed, points = failing_kv
    feed.cluster.sql("CREATE DATABASE other")
    points.arm("before_data_put", "hang")
    feed.sql("INSERT INTO kv VALUES (2, 'b')")
    with feed.session(statement_timeout="2s") as conn, ThreadPoolExecutor(1) as pool:
        flushing = pool.submit(feed.flush)
        wait_for(lambda: not points.armed(), 20, "the upload to begin")
        conn.execute("DROP DATABASE other")
        assert not flushing.done(), "the upload was over before the drop"
        feed.cluster.terminate_feed_worker()
        flushing.result(30)
    assert values(feed.events("kv")) == [(1, "a"), (2, "b")]


# --- TRUNCATE and types


def test_truncate_then_insert__moonlink_428(kv):
    kv.sql("TRUNCATE kv")
    kv.sql("INSERT INTO kv VALUES (2, 'b')")
    assert kv.events("kv") == [("insert", (2, "b"))]
    kv.sql("INSERT INTO kv VALUES (3, 'c')")
    assert kv.events("kv") == [("insert", (2, "b")), ("insert", (3, "c"))]
    assert len(DeltaLog(kv.path("kv")).replacements()) == 1


def test_truncate_of_several_tables_at_once__debezium_2027(feed):
    tables = ["named", "named_too", "cascaded", "kept"]
    for table in tables:
        feed.table(f"{table} (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n int)")
    feed.sql("ALTER TABLE cascaded ADD FOREIGN KEY (n) REFERENCES named")
    for table in tables:
        feed.sql(f"INSERT INTO {table} (n) VALUES (1)")
    feed.start()
    feed.flush()
    feed.sql("TRUNCATE named, named_too RESTART IDENTITY CASCADE")
    for table in tables:
        feed.sql(f"INSERT INTO {table} (n) VALUES (1)")
    for table in ("named", "named_too"):
        assert feed.events(table) == [("insert", (1, 1))]
    # RESTART IDENTITY takes the tables that CASCADE adds too.
    assert feed.events("cascaded") == [("insert", (1, 1))]
    assert feed.events("kept") == [("insert", (1, 1)), ("insert", (2, 1))]


def test_enum_made_and_used_in_one_transaction__debezium_7668(kv):
    with kv.conn.transaction():
        kv.sql("CREATE TYPE mood AS ENUM ('glad', 'sad')")
        kv.sql("ALTER TABLE kv ADD COLUMN mood mood")
        kv.sql("INSERT INTO kv VALUES (2, 'b', 'sad')")
        kv.sql("UPDATE kv SET mood = 'glad' WHERE k = 1")
    kv.check("kv")
    with kv.conn.transaction():
        kv.sql("INSERT INTO kv VALUES (3, 'c', 'sad')")
        kv.sql("ALTER TABLE kv DROP COLUMN mood")
        kv.sql("DROP TYPE mood")
    kv.check("kv")
    kv.sql("INSERT INTO kv VALUES (4, 'd')")
    assert kv.events("kv")[-1] == ("insert", (4, "d"))
