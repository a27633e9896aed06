"""Data files that are stored before they are committed: the view shows what they take, and
wal2delta.staging_limit bounds it."""

import pytest
from harness import fail_points
from harness.fail_points import FailPoints
from harness.waiting import wait_for

MEGABYTE = 1 << 20
SETTINGS = {"wal2delta.max_memory": "16MB", "wal2delta.flush_interval": "300ms", "max_wal_size": "4GB"}

# Random bytes, so that Parquet takes as much as the rows do: about 64 MB.
ROWS = "SELECT i, (SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 100) j) FROM generate_series(1, 20000) i"


def staged(feed, table):
    return feed.view(table)["staged_bytes"]


def parquet(feed, table):
    return list(feed.path(table).glob("*.parquet"))


@pytest.mark.skipif(not fail_points.library().exists(), reason="the library with fail points is not installed")
def test_what_is_staged_is_shown(make_cluster, make_feed):
    cluster = make_cluster({**SETTINGS, **fail_points.SETTINGS})
    feed, points = make_feed("shop", cluster=cluster), FailPoints(cluster)
    feed.table("large (i int, body text)")
    feed.sql("INSERT INTO large VALUES (0, '')")
    feed.start()
    feed.flush()
    assert staged(feed, "large") == 0
    points.arm("before_commit_put", "hang")
    feed.sql(f"INSERT INTO large {ROWS}")
    wait_for(lambda: staged(feed, "large") > 20 * MEGABYTE, 60, "the staged files to be shown")
    points.disarm("before_commit_put")
    feed.flush()
    assert staged(feed, "large") == 0
    feed.check("large")


@pytest.fixture
def bounded(make_cluster, make_feed):
    feed = make_feed("shop", cluster=make_cluster({**SETTINGS, "wal2delta.staging_limit": "8MB"}))
    for table in ("large", "small"):
        feed.table(f"{table} (i int, body text)")
        feed.sql(f"INSERT INTO {table} VALUES (0, '')")
    return feed


def check_fails_alone(feed, before):
    """Again and again, and nothing is left of the tries."""
    feed.wait_for_status("large", "FAILED", timeout=60)
    assert "wal2delta.staging_limit" in feed.view("large")["last_error"]
    feed.sql("INSERT INTO small VALUES (1, 'goes on')")
    wait_for(lambda: len(feed.rows("small")) == 2, 20, "the other table to go on")
    wait_for(lambda: len(parquet(feed, "large")) == before, 20, "what was staged to be removed")
    feed.cluster.configure(**{"wal2delta.staging_limit": "-1"})
    feed.cluster.restart()
    feed.reconnect()
    feed.wait_for_status("large", "STREAMING", timeout=60)
    feed.flush()
    for table in ("large", "small"):
        feed.check(table)


def test_a_copy_past_the_limit_fails_alone(bounded):
    bounded.sql(f"INSERT INTO large {ROWS}")
    bounded.start()
    check_fails_alone(bounded, before=0)


def test_a_transaction_past_the_limit_fails_alone(bounded):
    bounded.start()
    bounded.flush()
    bounded.sql(f"INSERT INTO large {ROWS}")
    check_fails_alone(bounded, before=1)
