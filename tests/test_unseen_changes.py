"""What has changed of a table while nobody looked: its columns, or its rows outside of the feed.
Afterwards its history replays to the table all the same, and a new snapshot is taken only where
it has to be."""

from contextlib import contextmanager

import pytest
from harness.ddl import check_table
from harness.deltalog import DeltaLog
from harness.readers import read_by_all
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms"}


@pytest.fixture
def kv(make_cluster, make_feed):
    feed = make_feed("shop", cluster=make_cluster(SETTINGS))
    feed.table("kv (k int PRIMARY KEY, v text, n int)")
    feed.sql("INSERT INTO kv SELECT i, 'v' || i, i FROM generate_series(1, 5) i")
    feed.start()
    feed.flush()
    feed.sql("UPDATE kv SET n = 0 WHERE k = 5")
    feed.flush()
    return feed


@contextmanager
def feed_paused(feed):
    feed.conn.execute("SELECT wal2delta.pause(%s)", [feed.schema])
    feed.wait_for_status("kv", "PAUSED")
    yield
    feed.conn.execute("SELECT wal2delta.resume(%s)", [feed.schema])


@contextmanager
def no_worker(feed):
    feed.cluster.configure(shared_preload_libraries="")
    feed.cluster.restart()
    feed.reconnect()
    yield
    feed.cluster.configure(shared_preload_libraries="wal2delta")
    feed.cluster.restart()
    feed.reconnect()
    feed.cluster.wait_for_feed_worker()


@contextmanager
def a_new_worker(feed):
    yield
    feed.flush()
    feed.cluster.terminate_feed_worker()
    feed.cluster.wait_for_feed_worker()


NOBODY_LOOKS = {"the feed is paused": feed_paused, "no worker runs": no_worker}


def replacements(feed):
    return len(DeltaLog(feed.path("kv")).replacements())


ALTERATIONS = {
    "add": "ALTER TABLE kv ADD COLUMN extra int",
    "drop": "ALTER TABLE kv DROP COLUMN n",
    "rename": "ALTER TABLE kv RENAME COLUMN v TO w",
    "another column of the same name": "ALTER TABLE kv DROP COLUMN n, ADD COLUMN n int",
    "names swapped": "ALTER TABLE kv RENAME COLUMN k TO x; ALTER TABLE kv RENAME COLUMN n TO k;"
    " ALTER TABLE kv RENAME COLUMN x TO n",
}


@pytest.mark.parametrize("nobody", NOBODY_LOOKS)
@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_columns_altered_and_no_row_after_it(kv, nobody, alteration):
    with NOBODY_LOOKS[nobody](kv):
        kv.sql(ALTERATIONS[alteration])
    wait_for(lambda: replacements(kv) == 1, 20, "the table to be copied")
    check_table(kv, "kv")
    assert replacements(kv) == 1


@pytest.mark.parametrize("nobody", NOBODY_LOOKS)
def test_what_changes_no_column_takes_no_snapshot(kv, nobody):
    with NOBODY_LOOKS[nobody](kv):
        kv.sql("ALTER TABLE kv ALTER COLUMN n SET DEFAULT 7, ALTER COLUMN v SET NOT NULL")
        kv.sql("CREATE INDEX ON kv (n); COMMENT ON COLUMN kv.n IS 'a number'")
    kv.sql("INSERT INTO kv (k, v) VALUES (6, 'v6')")
    check_table(kv, "kv")
    assert replacements(kv) == 0


# --- a table that is elsewhere for a while


def wait_until_forgotten(feed):
    """The worker has noticed that the table is in its feed no more; until then it takes its changes."""
    known = "SELECT count(*) FROM wal2delta.table_states() WHERE table_oid = %s"
    oid = feed.value("SELECT oid FROM pg_class WHERE relname = 'kv'")
    wait_for(lambda: feed.value(known, [oid]) == 0, 20, "the table to leave its feed")


@pytest.mark.parametrize("between", [None, a_new_worker], ids=["one worker", "workers in between"])
@pytest.mark.parametrize("changed", [True, False], ids=["changed", "unchanged"])
def test_a_table_that_was_in_another_schema_for_a_while(kv, between, changed):
    """What it changed there is not in the history: so the history is replaced."""
    kv.sql("CREATE SCHEMA elsewhere; CREATE TABLE other (i int); ALTER TABLE other REPLICA IDENTITY FULL")
    kv.sql("ALTER TABLE kv SET SCHEMA elsewhere")
    wait_until_forgotten(kv)
    if between:
        with between(kv):
            pass
    if changed:
        kv.sql("UPDATE elsewhere.kv SET n = n + 1")
        kv.sql("INSERT INTO other VALUES (1)")
    if between:
        with between(kv):
            pass
    kv.sql(f"ALTER TABLE elsewhere.kv SET SCHEMA {kv.schema}")
    kv.wait_for_status("kv", "STREAMING")
    kv.sql("INSERT INTO kv VALUES (7, 'back', 7)")
    check_table(kv, "kv")
    if changed:
        assert replacements(kv) == 1
    elif between:
        assert replacements(kv) == 0


def test_a_table_that_was_a_partition_for_a_while(kv):
    kv.sql("CREATE TABLE parent (k int NOT NULL, v text, n int) PARTITION BY RANGE (k)")
    kv.sql("ALTER TABLE parent ATTACH PARTITION kv FOR VALUES FROM (0) TO (100)")
    wait_until_forgotten(kv)
    kv.sql("UPDATE parent SET n = n + 1")
    with a_new_worker(kv):
        pass
    kv.sql("ALTER TABLE parent DETACH PARTITION kv")
    kv.wait_for_status("kv", "STREAMING")
    kv.sql("INSERT INTO kv VALUES (7, 'back', 7)")
    check_table(kv, "kv")
    assert replacements(kv) == 1


def test_what_was_before_the_copy_is_not_missed(make_cluster, make_feed):
    """A new worker decodes again what lies behind the slot's position, which a paused feed holds back:
    what a table changed outside is in its copy. Its last rows before it was dropped are written."""
    cluster = make_cluster({"wal2delta.flush_interval": "60s"})
    feed, paused = (make_feed(name, cluster=cluster) for name in ("shop", "paused"))
    for one in (feed, paused):
        one.table("stays (i int)")
        one.start()
    feed.flush()
    paused.conn.execute("SELECT wal2delta.pause(%s)", [paused.schema])
    paused.wait_for_status("stays", "PAUSED")
    feed.sql("CREATE SCHEMA outside; CREATE TABLE outside.kv (i int); ALTER TABLE outside.kv REPLICA IDENTITY FULL")
    feed.sql("INSERT INTO outside.kv VALUES (1)")
    feed.sql(f"ALTER TABLE outside.kv SET SCHEMA {feed.schema}")
    feed.flush()
    history = feed.path("kv")
    feed.sql("INSERT INTO kv VALUES (2)")
    feed.sql("DROP TABLE kv")
    cluster.terminate_feed_worker()
    cluster.wait_for_feed_worker()
    feed.flush()
    assert [row.values for row in read_by_all(history)] == [(1,), (2,)]
