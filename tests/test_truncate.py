"""TRUNCATE: of several tables, by CASCADE, in transactions with other changes, rolled back, while the
table is copied, paused or not decoded. The history replays to the table each time: a `resnapshot` feed
replaces it, an `evolve` feed appends one delete for each row that was live."""

from collections import Counter

import pytest
from harness import fail_points
from harness.ddl import EVOLVE_MODE, MODES, RESNAPSHOT, check_every_version, check_table, home, inserted, log_of, pause
from harness.ddl import resume, without_worker
from harness.deltalog import DeltaLog
from harness.fail_points import FailPoints
from harness.history import replay
from harness.load import Load
from harness.readers import DELTA_RS, read_history
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms", **fail_points.SETTINGS}

ROWS = 200


def started(feed, mode, *tables):
    feed.mode = mode
    for table in tables or ("kv",):
        feed.table(f"{table} (id bigint PRIMARY KEY, n int, pad text)")
        fill(feed, table)
    feed.start(on_schema_change=mode)
    feed.flush()
    return feed


def fill(feed, table, first=1, rows=ROWS):
    feed.sql(f"INSERT INTO {table} SELECT i, 0, 'x' || i FROM generate_series({first}, {first + rows - 1}) i")


@pytest.fixture(scope="module")
def points(cluster):
    if not fail_points.library().exists():
        pytest.skip("the library with fail points is not installed")
    return FailPoints(cluster)


@pytest.fixture(params=MODES)
def kv(request, feed):
    return started(feed, request.param)


def check_truncated(feed, table="kv"):
    """It replays to the table, in the way of the feed's mode. Returns the rows."""
    rows = check_table(feed, table, feed.mode)
    log = check_every_version(feed, table, feed.mode, may_be_empty=True)
    if feed.mode == EVOLVE_MODE:
        assert not log.replacements(), "the history of an evolve feed is kept"
    return rows


def check_deleted(feed, rows, count):
    """In an `evolve` history: `count` deletes in one transaction, one for each row that lived."""
    if feed.mode == EVOLVE_MODE:
        deletes = [row for row in rows if row.change == "delete"]
        assert len(deletes) == count
        assert len({(row.lsn, row.xid) for row in deletes}) == 1


def test_alone(kv):
    kv.sql("UPDATE kv SET n = 1 WHERE id = 1")
    kv.sql("TRUNCATE kv")
    rows = check_truncated(kv)
    if kv.mode == RESNAPSHOT:
        assert rows == []
    check_deleted(kv, rows, ROWS)
    kv.sql("INSERT INTO kv VALUES (1000, 1, 'new')")
    assert check_truncated(kv)[-1].values == (1000, 1, "new")


def test_order_goes_on(kv):
    last = kv.rows("kv")[-1]
    kv.sql("TRUNCATE kv")
    kv.flush()
    kv.sql("INSERT INTO kv VALUES (1000, 1, 'new')")
    row = check_truncated(kv)[-1]
    assert row.sort_by > last.sort_by and row.lsn > last.lsn


def test_of_an_empty_table(kv):
    for _ in range(3):
        kv.sql("TRUNCATE kv")
        kv.flush()
    kv.sql("INSERT INTO kv VALUES (1000, 1, 'new')")
    rows = check_truncated(kv)
    assert inserted(rows)[-1] == (1000, 1, "new")
    check_deleted(kv, rows, ROWS)


@pytest.mark.parametrize("mode", MODES)
def test_of_a_table_that_never_had_a_row(feed, mode):
    started(feed, mode)
    feed.table("young (id bigint PRIMARY KEY, n int, pad text)")
    feed.sql("TRUNCATE young")
    feed.sql("INSERT INTO young VALUES (1, 1, 'a')")
    assert inserted(check_truncated(feed, "young")) == [(1, 1, "a")]


@pytest.mark.parametrize("mode", MODES)
def test_of_several_tables(feed, mode):
    """Named, by CASCADE, and one that is left alone; rows of the same transaction around it."""
    started(feed, mode, "parent", "other", "bystander")
    feed.table("child (id bigint PRIMARY KEY, n int, pad text, p bigint REFERENCES parent)")
    feed.sql("INSERT INTO child SELECT id, 0, 'c', id FROM parent")
    feed.flush()
    with feed.conn.transaction():
        for table in ("parent", "other", "child", "bystander"):
            feed.sql(f"UPDATE {table} SET n = 1 WHERE id = 1")
        feed.sql("TRUNCATE parent, other CASCADE")
        for table in ("parent", "other", "child", "bystander"):
            feed.sql(f"INSERT INTO {table} VALUES (1000, 1, 'new')")
    for table in ("parent", "other", "child"):
        assert set(replay(check_truncated(feed, table))[0]) == set(feed.table_rows(table))
    check_table(feed, "bystander", mode)
    assert not log_of(feed, "bystander").replacements()


def test_in_a_transaction_with_rows(kv):
    with kv.conn.transaction():
        kv.sql("UPDATE kv SET n = 1 WHERE id <= 5")
        kv.sql("INSERT INTO kv VALUES (1000, 1, 'before')")
        kv.sql("TRUNCATE kv")
        kv.sql("INSERT INTO kv VALUES (1001, 1, 'after')")
        kv.sql("UPDATE kv SET n = 2")
    kv.sql("INSERT INTO kv VALUES (1002, 1, 'later')")
    rows = check_truncated(kv)
    # Of the transaction there is what it left: the row that came and went in it is in no event.
    check_deleted(kv, rows, ROWS)


def test_twice_in_a_transaction(kv):
    with kv.conn.transaction():
        kv.sql("TRUNCATE kv")
        kv.sql("INSERT INTO kv VALUES (1001, 1, 'between')")
        kv.sql("TRUNCATE kv")
        kv.sql("INSERT INTO kv VALUES (1002, 1, 'after')")
    rows = check_truncated(kv)
    assert set(replay(rows)[0]) == {(1002, 1, "after")}


def test_that_is_rolled_back(kv):
    with kv.conn.transaction(force_rollback=True):
        kv.sql("TRUNCATE kv")
        kv.sql("INSERT INTO kv VALUES (1000, 1, 'gone')")
    with kv.conn.transaction():
        kv.sql("SAVEPOINT s")
        kv.sql("TRUNCATE kv")
        kv.sql("ROLLBACK TO s")
        kv.sql("DELETE FROM kv WHERE id = 1")
    rows = check_truncated(kv)
    assert rows[-1].change == "delete" and rows[-1].values == (1, 0, "x1")
    assert not log_of(kv, "kv").replacements()


def test_in_a_savepoint_that_stays(kv):
    with kv.conn.transaction():
        kv.sql("SAVEPOINT s")
        kv.sql("TRUNCATE kv")
        kv.sql("RELEASE s")
        kv.sql("INSERT INTO kv VALUES (1000, 1, 'new')")
    assert set(replay(check_truncated(kv))[0]) == {(1000, 1, "new")}


def test_prepared(kv):
    """Counts when it is committed."""
    kv.sql("BEGIN")
    kv.sql("TRUNCATE kv")
    kv.sql("PREPARE TRANSACTION 'truncated'")
    kv.flush()
    assert len(replay(kv.rows("kv"))[0]) == ROWS
    kv.sql("COMMIT PREPARED 'truncated'")
    check_truncated(kv)


def test_with_a_changed_schema(kv):
    with kv.conn.transaction():
        kv.sql("UPDATE kv SET n = 5 WHERE id = 1")
        kv.sql("ALTER TABLE kv ADD extra int")
        kv.sql("TRUNCATE kv")
        kv.sql("INSERT INTO kv VALUES (1000, 1, 'new', 5)")
        kv.sql("ALTER TABLE kv DROP pad")
        kv.sql("INSERT INTO kv VALUES (1001, 1, 6)")
    rows = check_table(kv, "kv", kv.mode)
    check_every_version(kv, "kv", kv.mode, may_be_empty=True)
    assert len(replay([row._replace(values=row.values[:1]) for row in rows])[0]) == 2


def test_of_a_parent_by_inheritance(kv):
    """A child's rows go with its parent's, unless ONLY is said."""
    kv.sql("CREATE TABLE child () INHERITS (kv)")
    kv.sql("ALTER TABLE child REPLICA IDENTITY FULL")
    fill(kv, "child", first=5000)
    kv.flush()
    kv.sql("TRUNCATE ONLY kv")
    check_table(kv, "child", kv.mode)
    assert not log_of(kv, "child").replacements()
    kv.sql("TRUNCATE kv")
    kv.sql("INSERT INTO child VALUES (1000, 1, 'new')")
    assert set(replay(check_truncated(kv, "child"))[0]) == {(1000, 1, "new")}


def test_under_load(kv):
    with Load(kv, "kv") as load:
        for _ in range(4):
            load.wait_for_transactions(10)
            kv.sql("TRUNCATE kv")
        load.wait_for_transactions(20)
    check_truncated(kv)
    kv.wait_for_status("kv", "STREAMING")


@pytest.mark.parametrize("rows", ["rows after it", "nothing after it"])
@pytest.mark.parametrize("away", ["paused", "no worker", "worker ends after it"])
@pytest.mark.parametrize("mode", MODES)
def test_while_nothing_is_decoded(make_cluster, make_feed, mode, away, rows):
    feed = started(make_feed("shop", cluster=make_cluster(SETTINGS)), mode)

    def truncate():
        feed.sql("UPDATE kv SET n = 1 WHERE id = 1")
        feed.sql("TRUNCATE kv")
        if rows == "rows after it":
            fill(feed, "kv", first=1000, rows=10)

    if away == "paused":
        pause(feed)
        truncate()
        resume(feed)
    elif away == "no worker":
        with without_worker(feed.cluster):
            feed.reconnect()
            truncate()
        feed.reconnect()
    else:
        truncate()
        feed.cluster.terminate_feed_worker()
    check_truncated(feed)


@pytest.mark.parametrize("copy", ["first copy", "another copy"])
@pytest.mark.parametrize("mode", MODES)
def test_while_it_is_copied(feed, points, mode, copy):
    started(feed, mode)
    table = "kv"
    points.arm("in_snapshot", "sleep 1500")
    if copy == "first copy":
        table = "late"
        feed.table("late (id bigint PRIMARY KEY, n int, pad text)", full=False)
        fill(feed, "late")
        feed.sql("UPDATE late SET n = 1")
        feed.sql("ALTER TABLE late REPLICA IDENTITY FULL")
    else:
        feed.conn.execute(f"SELECT wal2delta.resync('{feed.schema}.kv')")
    try:
        wait_for(lambda: not points.armed(), 30, "the copy to be in the midst of the table")
    finally:
        points.disarm("in_snapshot")
    feed.sql(f"UPDATE {table} SET n = 2 WHERE id = 2")
    feed.sql(f"TRUNCATE {table}")
    fill(feed, table, first=1000, rows=10)
    check_table(feed, table, mode)
    check_every_version(feed, table, mode, may_be_empty=True)


def test_a_table_without_full(kv):
    """Truncated while it is not fed: empty, or copied, once it is again."""
    kv.sql("ALTER TABLE kv REPLICA IDENTITY DEFAULT")
    kv.sql("TRUNCATE kv")
    kv.sql("INSERT INTO kv VALUES (1000, 1, 'new')")
    kv.sql("ALTER TABLE kv REPLICA IDENTITY FULL")
    kv.sql("UPDATE kv SET n = 2")
    check_table(kv, "kv", kv.mode)


def test_many_in_a_row(kv):
    """A table that is filled and emptied all day, as staging tables are."""
    for n in range(20):
        fill(kv, "kv", first=1000, rows=20) if n else None
        kv.sql("TRUNCATE kv")
    fill(kv, "kv", first=1000, rows=20)
    check_truncated(kv)


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode == EVOLVE_MODE])
def test_a_large_history_in_bounded_memory(make_cluster, make_feed, mode):
    """The deletes of a million live rows: the worker's memory stays within what it may use."""
    feed = started(make_feed("shop", cluster=make_cluster({**SETTINGS, "wal2delta.max_memory": "64MB"})), mode)
    feed.sql("INSERT INTO kv SELECT i, 0, repeat('x', 100) FROM generate_series(1000, 1000999) i")
    feed.flush("300 s")
    worker = feed.cluster.feed_worker()
    feed.sql("TRUNCATE kv")
    feed.flush("300 s")
    assert feed.cluster.feed_worker() == worker
    with open(f"/proc/{worker}/status") as status:
        (peak,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    assert peak < 500 * 1024, f"{peak // 1024} MB at most"
    log = DeltaLog(home(feed, "kv"))
    rows = read_history(DELTA_RS, log.path, where="_pg_change_type = 'delete'")
    assert Counter(row.values[0] for row in rows).most_common(1)[0][1] == 1
    assert len(rows) == ROWS + 1_000_000
