"""`alter`: other options for a feed that goes on; tables that are excluded, and come back."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import fail_points
from harness.ddl import check_table
from harness.deltalog import DeltaLog
from harness.fail_points import FailPoints
from harness.load import Load
from harness.waiting import wait_for
from psycopg import errors

SETTINGS = {"wal2delta.flush_interval": "300ms"}

SOON = 20


def options(feed):
    query = "SELECT options FROM wal2delta.schemas WHERE source_schema::text = %s"
    return feed.conn.execute(query, [feed.schema]).fetchone()[0]


@pytest.fixture
def two(feed):
    for table in ("one", "two"):
        feed.table(f"{table} (id bigint PRIMARY KEY, n int, pad text)")
        feed.sql(f"INSERT INTO {table} SELECT i, 0, 'x' FROM generate_series(1, 100) i")
    feed.start()
    feed.flush()
    return feed


def test_options_are_put_over_those_that_are_there(two):
    two.alter(flush_interval="200 ms", exclude=["two"])
    assert options(two) == {"flush_interval": "200 ms", "exclude": ["two"]}
    two.alter(exclude=["one"])
    assert options(two) == {"flush_interval": "200 ms", "exclude": ["one"]}
    two.alter(flush_interval=None, exclude=None, failover=None)
    assert options(two) == {}


def test_the_interval_is_taken_up(two):
    two.alter(flush_interval="1 h")
    two.sql("UPDATE one SET n = 1 WHERE id = 1")
    two.flush()
    version = DeltaLog(two.path("one")).version
    two.sql("UPDATE one SET n = 2 WHERE id = 1")
    two.alter(flush_interval="100 ms")
    wait_for(lambda: DeltaLog(two.path("one")).version > version, SOON, "a commit by the new interval")
    check_table(two, "one")


@pytest.mark.parametrize("gone", ["nothing", "worker"])
def test_a_table_leaves_and_comes_back(two, gone):
    """What was changed before it left is in its history; what came after is not, until it comes back."""
    two.sql("UPDATE one SET n = 1")
    two.alter(exclude=["one"])
    row = two.wait_for_status("one", "SKIPPED", SOON)
    assert "excluded" in row["reason"]
    before = len(two.rows("one"))
    assert before == 300
    two.sql("DELETE FROM one WHERE id > 50")
    two.sql("UPDATE two SET n = 1")
    check_table(two, "two")
    assert len(two.rows("one")) == before
    if gone == "worker":
        two.cluster.terminate_feed_worker()
        two.cluster.wait_for_feed_worker()
    two.alter(exclude=[])
    two.sql("UPDATE one SET n = 2 WHERE id = 1")
    two.wait_for_status("one", "STREAMING", SOON)
    check_table(two, "one")
    assert len(DeltaLog(two.path("one")).replacements()) == 1


def test_what_changes_while_excluded_is_missed_by_no_later_worker(make_cluster, make_feed):
    """Excluded, changed, and no longer excluded by the time that a worker looks: its history says itself
    that changes are missing."""
    feed = make_feed("shop", cluster=make_cluster(SETTINGS))
    feed.table("one (id bigint PRIMARY KEY, n int)")
    feed.sql("INSERT INTO one SELECT i, 0 FROM generate_series(1, 100) i")
    feed.start(exclude=[])
    feed.flush()
    feed.alter(exclude=["one"])
    feed.wait_for_status("one", "SKIPPED", SOON)
    feed.sql("DELETE FROM one WHERE id > 50")
    feed.flush()
    log = DeltaLog(feed.path("one"))
    wait_for(lambda: "wal2delta.gap" in DeltaLog(log.path).metadata()["configuration"], SOON, "the mark")
    feed.cluster.stop()
    feed.cluster.configure(shared_preload_libraries="")
    feed.cluster.start()
    feed.reconnect()
    feed.conn.execute("UPDATE wal2delta.feeds SET options = '{}'")
    feed.cluster.stop()
    feed.cluster.configure(shared_preload_libraries="wal2delta")
    feed.cluster.start()
    feed.reconnect()
    feed.wait_for_status("one", "STREAMING", SOON)
    check_table(feed, "one")


def test_what_was_committed_before_is_written(two):
    """Excluded right after a change, and paused meanwhile or not: the change is in the history."""
    two.alter(flush_interval="1 h")
    two.flush()
    two.sql("UPDATE one SET n = 7 WHERE id = 1")
    two.alter(exclude=["one"])
    two.flush()
    assert two.rows("one")[-1].values[1] == 7


def test_flush_waits_for_what_was_committed_before(make_cluster, make_feed):
    """However long the store takes for it."""
    if not fail_points.library().exists():
        pytest.skip("the library with fail points is not installed")
    cluster = make_cluster({**SETTINGS, **fail_points.SETTINGS, "wal2delta.flush_interval": "1h"})
    feed = make_feed("slow", cluster=cluster)
    feed.table("one (id bigint, n int)")
    feed.sql("INSERT INTO one VALUES (1, 0)")
    feed.start()
    feed.flush()
    points = FailPoints(cluster)
    points.arm("before_commit_put", "sleep 1500")
    feed.sql("UPDATE one SET n = 7")
    feed.alter(exclude=["one"])
    feed.flush()
    assert "before_commit_put" not in points.armed()
    assert feed.rows("one")[-1].values == (1, 7)


def test_two_at_the_same_time(two):
    with two.session(autocommit=False) as one:
        one.execute("SELECT wal2delta.alter(%s, '{\"failover\": false}')", [two.schema])
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(two.alter, exclude=["two"])
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%alter%'"
            wait_for(lambda: two.cluster.value(waiting), SOON, "the other to wait")
            one.commit()
            with pytest.raises(errors.SerializationFailure, match="at the same time"):
                other.result()
    assert options(two) == {"failover": False}


def test_a_table_without_rows_is_excluded(two):
    two.table("young (id bigint PRIMARY KEY)")
    two.flush()
    two.alter(exclude=["young"])
    two.wait_for_status("young", "SKIPPED", SOON)
    wait_for(lambda: "excluded" in two.view("young")["reason"], SOON, "the reason")
    two.sql("INSERT INTO young VALUES (1)")
    two.flush()
    assert not two.path("young").exists() or not two.rows("young")
    two.alter(exclude=[])
    two.sql("INSERT INTO young VALUES (2)")
    two.wait_for_status("young", "STREAMING", SOON)
    check_table(two, "young")


def test_excluded_and_back_under_load(two):
    with Load(two, "one", "two") as load:
        for _ in range(3):
            two.alter(exclude=["one"])
            load.wait_for_transactions(10)
            two.alter(exclude=[])
            load.wait_for_transactions(10)
    for table in ("one", "two"):
        two.wait_for_status(table, "STREAMING", 60)
        check_table(two, table)
    assert not DeltaLog(two.path("two")).replacements()


def test_a_failed_table_is_excluded(feed):
    """A column that Delta has no place for: excluded, it is no fault any more."""
    feed.table('bad (id int PRIMARY KEY, "_pg_lsn" int)')
    feed.sql("INSERT INTO bad VALUES (1, 1)")
    feed.start()
    feed.wait_for_status("bad", "FAILED", SOON)
    feed.alter(exclude=["bad"])
    feed.wait_for_status("bad", "SKIPPED", SOON)
    feed.alter(exclude=None)
    feed.wait_for_status("bad", "FAILED", SOON)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"excluded": ["a"]}, 'unknown option "excluded"'),
        ({"excluded": None}, 'unknown option "excluded"'),
        ({"exclude": "a"}, "exclude"),
        ({"flush_interval": "soon"}, "flush_interval"),
        ({"snapshot": True}, "start"),
    ],
)
def test_wrong_options(two, given, message):
    with pytest.raises(errors.InvalidParameterValue, match=message):
        two.alter(**given)
    assert options(two) == {}


def test_what_is_no_object(two):
    with pytest.raises(errors.InvalidParameterValue, match="must be a JSON object"):
        two.conn.execute("SELECT wal2delta.alter(%s, '[]')", [two.schema])


def test_a_schema_that_is_not_fed(feed):
    with pytest.raises(errors.UndefinedObject, match="is not fed"):
        feed.alter(exclude=["a"])


def test_it_is_undone_with_its_transaction(two):
    with pytest.raises(ZeroDivisionError), two.conn.transaction():
        two.alter(exclude=["one"])
        raise ZeroDivisionError
    two.sql("UPDATE one SET n = 3 WHERE id = 1")
    assert options(two) == {}
    check_table(two, "one")
    assert two.status("one") == "STREAMING"
