"""Several snapshot workers copy one table, by ranges of its pages. The library with fail points shares tables
of a few pages, too."""

import pytest
from harness import fail_points
from harness.deltalog import DeltaLog
from harness.fail_points import FailPoints
from harness.load import Load
from harness.readers import READERS
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "200ms", "wal2delta.snapshot_workers": "3", **fail_points.SETTINGS}

ROWS = 20_000


@pytest.fixture
def big(make_cluster, make_feed):
    if not fail_points.library().exists():
        pytest.skip("the library with fail points is not installed")
    feed = make_feed("shop", cluster=make_cluster(SETTINGS))
    feed.table("big (id bigint PRIMARY KEY, n int, pad text)")
    feed.sql("INSERT INTO big SELECT i, 0, repeat('x', 50) FROM generate_series(1, %s) i", [ROWS])
    return feed




def snapshot_files(feed, table):
    """Files of the commit that brought the copy, with the rows of each."""
    log = DeltaLog(feed.path(table))
    adds = [[action["add"] for action in actions if "add" in action] for actions in log.commits.values()]
    return next(adds for adds in adds if adds)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_table_is_shared(big, loaded):
    points = FailPoints(big.cluster)
    # Whoever is first sleeps; the others go on.
    points.arm("in_snapshot", "sleep 1500")
    if loaded:
        with Load(big, "big", sessions=2) as load:
            big.start()
            big.wait_for_status("big", "STREAMING")
            load.wait_for_transactions(20)
    else:
        big.start()
        big.wait_for_status("big", "STREAMING")
    for reader in READERS:
        rows = big.check("big", reader, shared=True)
    assert len(snapshot_files(big, "big")) >= 2
    assert big.view("big")["snapshot_rows_done"] == len([row for row in rows if row.lsn == rows[0].lsn])
    big.sql("UPDATE big SET n = 2 WHERE id = 7")
    assert [row.values[0] for row in big.check("big", shared=True)[-2:]] == [7, 7]


def test_one_worker_counts_without_gaps(make_cluster, make_feed):
    feed = make_feed("shop", cluster=make_cluster({**SETTINGS, "wal2delta.snapshot_workers": "1"}))
    feed.table("big (id bigint PRIMARY KEY, pad text)")
    feed.sql("INSERT INTO big SELECT i, repeat('x', 50) FROM generate_series(1, %s) i", [ROWS])
    feed.start()
    rows = feed.check("big")
    assert rows[-1].sort_by - rows[0].sort_by == ROWS - 1


def test_partitions_are_shared(big):
    points = FailPoints(big.cluster)
    big.sql("CREATE TABLE parted (id bigint, pad text, day int) PARTITION BY LIST (day)")
    big.sql("CREATE TABLE parted_1 (day int, junk int, pad text, id bigint)")
    big.sql("ALTER TABLE parted_1 DROP COLUMN junk")
    big.sql("ALTER TABLE parted ATTACH PARTITION parted_1 FOR VALUES IN (1)")
    for day in (2, 3):
        big.sql(f"CREATE TABLE parted_{day} PARTITION OF parted FOR VALUES IN ({day})")
    big.sql("SELECT wal2delta.set_replica_identity_full('shop')")
    big.sql("INSERT INTO parted SELECT i, repeat('x', 60), 1 + (i > 9000)::int FROM generate_series(1, 12000) i")
    big.sql("DROP TABLE big")
    points.arm("in_snapshot", "sleep 1500")
    big.start()
    big.wait_for_status("parted", "STREAMING")
    assert len(big.check("parted", shared=True)) == 12_000
    assert len(snapshot_files(big, "parted")) >= 2


@pytest.mark.parametrize("action", ["kill", "panic", "exit"])
@pytest.mark.expects_crashes("panicked|fail point|fail_point")
def test_one_of_them_ends(big, action):
    """Whichever it is."""
    points = FailPoints(big.cluster)
    for _ in range(3):
        points.arm("in_snapshot", action)
        with Load(big, "big", sessions=1) as load:
            if not big.view("big"):
                big.start()
            else:
                big.sql("SELECT wal2delta.resync('big')")
            wait_for(lambda: "in_snapshot" not in points.armed(), 30, "a worker to end")
            big.cluster.wait_for_connections()
            big.reconnect()
            load.wait_for_transactions(5)
        assert big.check("big", shared=True)
        left = big.conn.execute("SELECT count(*) FROM pg_locks WHERE relation = 'shop.big'::regclass").fetchone()[0]
        assert left == 0


def test_all_of_them_give_way(big):
    """A statement that needs the table waits for none of them."""
    points = FailPoints(big.cluster)
    points.arm("in_snapshot", "sleep 1500")
    big.start()
    wait_for(lambda: "in_snapshot" not in points.armed(), 30, "a worker to sleep")
    big.sql("SET lock_timeout = '5s'")
    big.sql("ALTER TABLE big ADD COLUMN more int DEFAULT 5")
    big.wait_for_status("big", "STREAMING")
    assert {row.values[-1] for row in big.check("big", shared=True)} == {5}
