"""Upkeep on a real server: small files become few, what nobody needs goes, nothing changes for readers."""


import psycopg
import pytest
from deltalake import DeltaTable
from harness import fail_points
from harness.deltalog import DeltaLog
from harness.fail_points import FailPoints
from harness.history import history_problems, replay
from harness.load import Load
from harness.readers import read_by_all

from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "50ms"}


def fill(feed, commits, first=1):
    for commit in range(first, first + commits):
        feed.sql("INSERT INTO t VALUES (%s, %s)", [commit, f"row {commit}"])
        feed.flush()


@pytest.fixture
def shop(make_feed):
    feed = make_feed()
    feed.table("t (id int PRIMARY KEY, v text)")
    feed.start()
    return feed


def optimizations(feed, table="t"):
    log = DeltaLog(feed.path(table))
    return [number for number, info in log.actions("commitInfo") if info["operation"] == "OPTIMIZE"]


def optimize(feed, table="t"):
    feed.conn.execute("SELECT wal2delta.optimize(%s::regclass)", [f"{feed.schema}.{table}"])


def set_for_all(cluster, name, value):
    cluster.sql(f"ALTER SYSTEM SET {name} = '{value}'")
    cluster.sql("SELECT pg_reload_conf()")


def test_optimize_makes_one_file_of_many(shop):
    fill(shop, 12)
    shop.sql("UPDATE t SET v = 'new' WHERE id <= 3")
    shop.sql("DELETE FROM t WHERE id > 10")
    before = shop.check("t")
    assert len(DeltaLog(shop.path("t")).active()) > 10
    optimize(shop)
    log = DeltaLog(shop.path("t"))
    assert len(log.active()) == 1
    assert not log.replacements()
    assert read_by_all(shop.path("t")) == before
    assert shop.check("t") == before
    fill(shop, 2, 100)
    assert len(shop.check("t")) == len(before) + 2
    # Earlier versions can be read as before.
    assert len(shop.rows("t", version=5)) == 5


def test_small_files_are_merged_beside_the_flushes(shop):
    shop.table("load (id bigint PRIMARY KEY, n int, pad text)")
    with Load(shop, "load"):
        wait_for(lambda: shop.view("load") and len(optimizations(shop, "load")) >= 2, 120, "compaction")
    log = DeltaLog(shop.path("load"))
    appended = sum(1 for _, add in log.actions("add") if add["dataChange"])
    assert len(log.active()) < appended - 30
    shop.check("load")
    read_by_all(shop.path("load"))


def test_a_table_that_was_not_written_since_the_worker_started(shop):
    fill(shop, 3)
    shop.cluster.terminate_feed_worker()
    shop.cluster.wait_for_feed_worker()
    shop.wait_for_status("t", "STREAMING")
    optimize(shop)
    assert len(DeltaLog(shop.path("t")).active()) == 1
    fill(shop, 1, 100)
    shop.check("t")


def test_a_kept_history_with_columns_that_came_and_went(make_feed):
    feed = make_feed()
    feed.table("t (id int PRIMARY KEY, v text)")
    feed.start(on_schema_change="evolve")
    fill(feed, 3)
    feed.sql("ALTER TABLE t ADD c numeric(38, 10), ADD \"odd name,;{}\" timestamptz")
    feed.sql("INSERT INTO t VALUES (50, 'x', 1.5, now()), (51, NULL, NULL, 'infinity')")
    feed.flush()
    feed.sql("ALTER TABLE t RENAME c TO d")
    feed.sql("UPDATE t SET d = 2 WHERE id = 50")
    feed.sql("ALTER TABLE t DROP v")
    feed.sql("INSERT INTO t SELECT 60, 7, now()")
    feed.sql("TRUNCATE t")
    feed.sql("INSERT INTO t VALUES (70, 8, now())")
    feed.flush()
    before = read_by_all(feed.path("t"))
    optimize(feed)
    assert len(DeltaLog(feed.path("t")).active()) <= 2
    assert read_by_all(feed.path("t")) == before
    # What lives is found in what was merged.
    feed.sql("TRUNCATE t")
    feed.sql("INSERT INTO t VALUES (80, 9, now())")
    feed.flush()
    rows = feed.rows("t")
    assert rows[: len(before)] == before
    assert [row.change for row in rows[len(before) :]] == ["delete", "insert"]


def refused(feed, query, params=None):
    with pytest.raises(psycopg.Error) as raised:
        feed.conn.execute(query, params)
    assert raised.value.diag.message_hint
    return raised.value


def test_what_cannot_be_optimized(shop):
    shop.sql("CREATE TABLE plain (i int)")
    shop.sql("INSERT INTO plain VALUES (1)")
    shop.wait_for_status("plain", "SKIPPED")
    call = "SELECT wal2delta.optimize(%s::regclass)"
    error = refused(shop, call, [f"{shop.schema}.plain"])
    assert error.sqlstate == "55000" and "not written" in error.diag.message_detail
    assert refused(shop, call, ["pg_catalog.pg_class"]).sqlstate == "42704"
    shop.sql("CREATE VIEW seen AS SELECT 1")
    assert refused(shop, call, [f"{shop.schema}.seen"]).sqlstate == "42809"
    fill(shop, 2)
    shop.conn.execute("SELECT wal2delta.pause(%s)", [shop.schema])
    shop.wait_for_status("t", "PAUSED")
    assert refused(shop, call, [f"{shop.schema}.t"]).sqlstate == "55000"
    shop.conn.execute("SELECT wal2delta.resume(%s)", [shop.schema])
    shop.wait_for_status("t", "STREAMING")
    optimize(shop)
    shop.check("t")


def test_a_table_without_history_needs_nothing(shop):
    shop.flush()
    optimize(shop)


@pytest.mark.skipif(not fail_points.library().exists(), reason="the library with fail points is not installed")
def test_a_call_that_is_cancelled_leaves_its_place(make_cluster, make_feed):
    cluster = make_cluster({**SETTINGS, **fail_points.SETTINGS})
    points = FailPoints(cluster)
    feed = make_feed("shop", cluster=cluster)
    feed.table("t (id int PRIMARY KEY, v text)")
    feed.start()
    session = feed.session(statement_timeout="50ms")
    cancelled = 0
    # More calls than there are places.
    while cancelled < 20:
        if "before_exchange" not in points.armed():
            fill(feed, 2, 100 + 2 * cancelled)
            points.arm("before_exchange", "sleep 1500")
        try:
            session.execute("SELECT wal2delta.optimize(%s::regclass)", [f"{feed.schema}.t"])
        except psycopg.errors.QueryCanceled:
            cancelled += 1
    points.disarm("before_exchange")
    optimize(feed)
    assert len(DeltaLog(feed.path("t")).active()) == 1
    # An error is told, and does not stop the feed.
    fill(feed, 3, 10)
    points.arm("before_exchange", "error")
    with pytest.raises(psycopg.Error, match="not optimized"):
        optimize(feed)
    points.arm("before_exchange", "panic")
    with pytest.raises(psycopg.Error, match="not optimized"):
        optimize(feed)
    optimize(feed)
    feed.check("t")


def test_the_log_is_cleaned_up_behind_a_checkpoint(make_cluster, make_feed):
    cluster = make_cluster({**SETTINGS, "wal2delta.log_retention": "2s"})
    feed = make_feed("shop", cluster=cluster)
    feed.table("t (id int PRIMARY KEY, v text)")
    feed.start()
    log = feed.path("t") / "_delta_log"
    commit = 0

    def cleaned():
        nonlocal commit
        commit += 1
        fill(feed, 1, commit)
        return commit > 60 and not (log / f"{20:020}.json").exists()

    wait_for(cleaned, 120, "the first commits to go")
    assert not list(log.glob(f"{0:020}.*"))
    assert not history_problems(read_by_all(feed.path("t")), feed.table_rows("t"), False)
    # The worker finds the table, and goes on.
    cluster.terminate_feed_worker()
    fill(feed, 1, commit + 1)
    assert DeltaTable(str(feed.path("t"))).to_pyarrow_table().num_rows == commit + 1
    # A later life of the feed knows its history.
    feed.stop()
    feed.start()
    fill(feed, 1, commit + 2)
    assert [path.name for path in feed.destination.glob("lb_*")] == ["lb_t_history"]
    # Nothing is cleaned up any more.
    set_for_all(cluster, "wal2delta.log_retention", "-1")
    fill(feed, 1, commit + 3)
    table = DeltaTable(str(feed.path("t")))
    assert table.metadata().configuration["delta.enableExpiredLogCleanup"] == "false"
    assert "delta.logRetentionDuration" not in table.metadata().configuration


@pytest.mark.parametrize("mode", ["evolve", "resnapshot"])
def test_the_log_of_a_table_that_is_altered_is_cleaned_up(make_cluster, make_feed, mode):
    """Whatever a checkpoint has to say is compared and found right."""
    cluster = make_cluster({**SETTINGS, "wal2delta.log_retention": "1s"})
    feed = make_feed(cluster=cluster)
    feed.table("t (id int PRIMARY KEY, v text)")
    feed.start(on_schema_change=mode)
    log = feed.path("t") / "_delta_log"
    changes = [
        "ALTER TABLE t ADD c numeric(38, 10)",
        "ALTER TABLE t RENAME v TO \"odd name\"",
        "ALTER TABLE t DROP c",
        "TRUNCATE t",
        "ALTER TABLE t ALTER id TYPE bigint",
        "SELECT wal2delta.resync('t')",
    ]
    row = 0

    def commits(until):
        nonlocal row
        row += 1
        feed.sql("INSERT INTO t SELECT %s", [row])
        feed.flush()
        return until()

    commits(lambda: None)
    for change in changes:
        feed.sql(change)
        first = min(path.name for path in log.glob("*.json"))
        wait_for(lambda first=first: commits(lambda: min(path.name for path in log.glob("*.json")) > first), 60, change)
    assert "upkeep" not in cluster.log_text()
    live, problems = replay(read_by_all(feed.path("t")))
    assert not problems
    assert sum(live.values()) == feed.value("SELECT count(*) FROM t")


def test_settings_are_properties_of_the_tables(shop):
    fill(shop, 1)
    properties = DeltaLog(shop.path("t")).metadata()["configuration"]
    assert properties["delta.checkpointInterval"] == "10"
    assert properties["delta.logRetentionDuration"] == f"interval {24 * 3600} seconds"
    assert properties["delta.deletedFileRetentionDuration"] == f"interval {30 * 3600} seconds"
