"""A history that is kept, when something ends in the midst of what is written for a TRUNCATE: the deletes of
what lived and the copy behind them are in it once."""

import pytest
from harness import fail_points
from harness.ddl import EVOLVE_MODE, check_table, log_of
from harness.fail_points import FailPoints
from harness.load import Load

SETTINGS = {"wal2delta.flush_interval": "200ms", **fail_points.SETTINGS}

ROWS = 200

POINTS = [
    ("in_snapshot", "kill"), ("before_join", "kill"), ("before_join", "panic"), ("before_data_put", "error"),
    ("before_data_put", "kill"), ("after_data_put", "error"), ("after_data_put", "kill"),
    ("before_commit_put", "error"), ("before_commit_put", "kill"), ("after_commit_put", "error"),
    ("after_commit_put", "exists"), ("after_commit_put", "panic"), ("after_commit_put", "kill"),
    ("before_confirm", "kill"), ("after_confirm", "kill"),
]  # fmt: skip


@pytest.fixture
def kv(make_cluster, make_feed):
    cluster = make_cluster(SETTINGS)
    if not fail_points.library().exists():
        pytest.skip("the library with fail points is not installed")
    feed = make_feed("shop", cluster=cluster)
    feed.table("kv (id bigint PRIMARY KEY, n int, pad text)")
    feed.sql("INSERT INTO kv SELECT i, 0, 'x' || i FROM generate_series(1, %s) i", [ROWS])
    feed.start(on_schema_change=EVOLVE_MODE)
    feed.flush()
    return feed


def check_kept(feed):
    rows = check_table(feed, "kv", EVOLVE_MODE)
    assert not log_of(feed, "kv").replacements()
    return rows


@pytest.mark.parametrize("point, action", POINTS)
@pytest.mark.expects_crashes("panicked|fail point|fail_point")
def test_something_ends(kv, point, action):
    points = FailPoints(kv.cluster)
    kv.sql("UPDATE kv SET n = 1 WHERE id < 5")
    kv.flush()
    points.arm(point, action)
    with kv.session(autocommit=False) as session:
        session.execute("TRUNCATE kv")
        session.execute("INSERT INTO kv SELECT i, 0, 'y' FROM generate_series(1, 10) i")
    points.wait_until_passed(point)
    kv.reconnect()
    check_kept(kv)
    kv.sql("INSERT INTO kv VALUES (1000, 1, 'new')")
    deletes = [row for row in check_kept(kv) if row.change == "delete"]
    if action == "panic" and len(deletes) > ROWS:
        # The commit was there, and more was decoded before that was known: it was copied once more, at
        # a later position.
        assert len(deletes) == ROWS + 10 and len({row.lsn for row in deletes}) == 2
    else:
        assert len(deletes) == ROWS and len({row.lsn for row in deletes}) == 1


@pytest.mark.parametrize("end", ["worker", "immediate", "kill"])
def test_ends_under_load(kv, end):
    with Load(kv, "kv") as load:
        for _ in range(3):
            load.wait_for_transactions(5)
            kv.sql("TRUNCATE kv")
            load.wait_for_transactions(2)
            if end == "worker":
                kv.cluster.terminate_feed_worker()
            else:
                kv.cluster.stop("immediate") if end == "immediate" else kv.cluster.kill()
                kv.cluster.start()
                kv.reconnect()
    check_kept(kv)
