"""Snapshot and stream join without a gap and without a double."""

import threading

from harness.load import Load
from harness.waiting import wait_for


def in_background(function):
    """Runs `function` in a thread; the returned function waits for its end and
    raises what it raised."""
    outcome = []

    def work():
        try:
            outcome.append((True, function()))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def finish(timeout=120):
        thread.join(timeout)
        assert outcome, f"still running after {timeout} s"
        fine, value = outcome[0]
        if not fine:
            raise value
        return value

    finish.running = thread.is_alive
    return finish


def test_a_transaction_open_across_the_first_start(make_cluster, make_feed):
    """The slot waits for it; its rows come exactly once, and so do those of a
    transaction that commits while start waits."""
    feed = make_feed("shop", cluster=make_cluster())
    feed.table("t (i int, v text)")
    feed.sql("INSERT INTO t VALUES (0, 'before')")
    opened = feed.session(autocommit=False)
    opened.execute("INSERT INTO t VALUES (1, 'open')")
    opened.execute("SAVEPOINT s")
    opened.execute("INSERT INTO t VALUES (2, 'open, in a savepoint')")
    starting = in_background(feed.start)
    other = feed.session()

    def waits():
        return other.execute(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype IN ('transactionid', 'virtualxid')"
        ).fetchone()[0]

    wait_for(lambda: waits() or not starting.running(), 30, "start to wait for the open transaction, or to return")
    other.execute("INSERT INTO t VALUES (3, 'meanwhile')")
    opened.execute("UPDATE t SET v = 'changed' WHERE i = 0")
    opened.execute("INSERT INTO t VALUES (4, 'late')")
    opened.commit()
    starting()
    assert sorted(values[0] for change, values in feed.events("t") if change == "insert") == [0, 1, 2, 3, 4]


def test_a_transaction_open_across_a_later_start(make_feed):
    """The slot exists, so start waits for nobody: the open transaction's rows
    are not in the snapshot and come by the stream, all of them."""
    first, feed = make_feed("first"), make_feed("second")
    first.table("t (i int)")
    first.sql("INSERT INTO t VALUES (1)")
    first.start()
    first.flush()
    feed.table("t (i int)")
    feed.sql("INSERT INTO t SELECT generate_series(1, 100)")
    opened, given_up, nested = (feed.session(autocommit=False) for _ in range(3))
    opened.execute("INSERT INTO t VALUES (101)")
    opened.execute("SAVEPOINT s")
    opened.execute("DELETE FROM t WHERE i = 1")
    xid = opened.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()[0]
    given_up.execute("INSERT INTO t VALUES (-1)")
    nested.execute("SAVEPOINT first_thing")
    nested.execute("INSERT INTO t VALUES (102)")
    nested_xid = nested.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()[0]
    feed.start()
    feed.wait_for_status("t", "STREAMING")
    feed.sql("INSERT INTO t VALUES (103)")
    opened.execute("INSERT INTO t VALUES (104)")
    opened.commit()
    given_up.rollback()
    nested.commit()
    rows = feed.check("t")
    assert sorted(row.values[0] for row in rows[:100]) == list(range(1, 101)), "the snapshot"
    streamed = [(row.change, row.values[0]) for row in rows[100:]]
    assert streamed == [("insert", 103), ("insert", 101), ("delete", 1), ("insert", 104), ("insert", 102)]
    assert {row.xid for row in rows[101:104]} == {xid}
    assert rows[104].xid == nested_xid


def test_continuous_writers_during_start_and_snapshot(feed):
    feed.table("big (id bigint PRIMARY KEY, n int, pad text)")
    feed.sql("INSERT INTO big SELECT i, 0, repeat(md5(i::text), 4) FROM generate_series(1, 100000) i")
    with Load(feed, "big", sessions=3) as load:
        load.wait_for_transactions(20)
        feed.start()
        feed.wait_for_status("big", "STREAMING", timeout=120)
        load.wait_for_transactions(50)
    rows = feed.check("big")
    snapshot_lsn = rows[0].lsn
    snapshot = [row for row in rows if row.lsn == snapshot_lsn]
    assert len(snapshot) > 90000 and {row.change for row in snapshot} == {"insert"}
    assert {row.change for row in rows} == {"insert", "delete", "update_preimage", "update_postimage"}
    assert len(rows) - len(snapshot) >= 50


def test_several_tables_at_once(feed):
    tables = [f"t{n}" for n in range(6)]
    for n, table in enumerate(tables):
        feed.table(f"{table} (id bigint PRIMARY KEY, n int, pad text)")
        feed.sql(f"INSERT INTO {table} SELECT i, 0, repeat('x', 100) FROM generate_series(1, {2000 * n + 1}) i")
    with Load(feed, *tables, sessions=3) as load:
        load.wait_for_transactions(20)
        feed.start()
        for table in tables:
            feed.wait_for_status(table, "STREAMING", timeout=120)
        load.wait_for_transactions(50)
    for table in tables:
        assert feed.check(table)


def test_tables_made_and_filled_under_load(feed):
    """New tables and tables that get FULL late, while others stream."""
    feed.table("steady (id bigint PRIMARY KEY, n int, pad text)")
    feed.sql("INSERT INTO steady VALUES (1, 0, '')")
    feed.start()
    with Load(feed, "steady", sessions=2) as load:
        for n in range(8):
            feed.table(f"late{n} (id bigint PRIMARY KEY, n int, pad text)", full=False)
            feed.sql(f"INSERT INTO late{n} SELECT i, 0, 'x' FROM generate_series(1, 500) i")
            with Load(feed, f"late{n}", sessions=1) as busy:
                busy.wait_for_transactions(3)
                feed.sql(f"ALTER TABLE late{n} REPLICA IDENTITY FULL")
                busy.wait_for_transactions(10)
        load.wait_for_transactions(20)
    feed.flush()
    for n in range(8):
        feed.wait_for_status(f"late{n}", "STREAMING")
        feed.check(f"late{n}")
    feed.check("steady")
