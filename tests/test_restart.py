"""Servers and workers that end in the midst of a load: nothing twice, nothing
missing, and the feed goes on by itself."""

import os
import signal

import pytest
from harness.load import Load
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms"}

TABLES = ["one", "two"]

# Snapshot workers: those of the database but its feed worker, which has the slot, or is about to.
COPIERS = (
    "SELECT count(*) FROM pg_stat_activity, pg_replication_slots"
    " WHERE backend_type = 'wal2delta' AND datname IS NOT NULL AND pid <> active_pid"
)


@pytest.fixture
def streaming(make_cluster, make_feed):
    """A cluster of its own: these tests end it."""
    feed = make_feed("shop", cluster=make_cluster(SETTINGS))
    for table in TABLES:
        feed.table(f"{table} (id bigint PRIMARY KEY, n int, pad text)")
        feed.sql(f"INSERT INTO {table} SELECT i, 0, 'x' FROM generate_series(1, 500) i")
    feed.start()
    feed.flush()
    return feed


def grown(feed, table):
    """Waits until the history has more rows than now."""
    before = len(feed.rows(table))
    wait_for(lambda: len(feed.rows(table)) > before, 60, f"more rows in the history of {table}")


def confirm_all(feed):
    """The slot has passed everything so far."""
    until = feed.value("SELECT pg_current_wal_insert_lsn()")
    # The next record may begin behind the header of a page, and what is read so far end before it.
    feed.sql("SELECT pg_logical_emit_message(true, 'wal2delta test', '')")
    feed.flush()
    passed = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
    wait_for(lambda: feed.value(passed, [until]), 20, f"the slot to pass {until}")


def check_all(feed):
    for table in TABLES:
        rows = feed.check(table)
        assert len(rows) > 500
        assert feed.status(table) == "STREAMING"


def test_the_worker_is_terminated_again_and_again(streaming):
    with Load(streaming, *TABLES) as load:
        for _ in range(6):
            load.wait_for_transactions(20)
            old = streaming.cluster.terminate_feed_worker()
            assert streaming.cluster.wait_for_feed_worker() != old
        grown(streaming, "one")
    check_all(streaming)


@pytest.mark.parametrize("end", ["fast", "immediate", "kill"])
def test_the_server_ends_in_the_midst_of_a_load(streaming, end):
    cluster = streaming.cluster
    with Load(streaming, *TABLES) as load:
        for _ in range(2):
            grown(streaming, "two")
            load.wait_for_transactions(20)
            cluster.kill() if end == "kill" else cluster.stop(end)
            cluster.start()
            load.wait_for_transactions(20)
    streaming.reconnect()
    check_all(streaming)


def test_what_was_written_while_no_worker_ran(streaming):
    """Written just before the server ends; no flush was due."""
    streaming.cluster.configure(**{"wal2delta.flush_interval": "60s"})
    streaming.cluster.reload()
    wait_for(lambda: streaming.value("SHOW wal2delta.flush_interval") in ("60s", "1min"), 20, "the setting to be read")
    streaming.sql("INSERT INTO one VALUES (1001, 1, 'late')")
    streaming.cluster.stop("immediate")
    streaming.cluster.start()
    streaming.reconnect()
    streaming.sql("UPDATE one SET n = 2 WHERE id = 1001")
    assert streaming.events("one")[500:] == [
        ("insert", (1001, 1, "late")),
        ("update_preimage", (1001, 1, "late")), ("update_postimage", (1001, 2, "late")),
    ]  # fmt: skip


def test_replays_bring_nothing_twice(streaming):
    """The slot stands still while an old transaction is open, so a restarted
    worker decodes everything since then again."""
    opened = streaming.session(autocommit=False)
    opened.execute("INSERT INTO two VALUES (1001, 1, 'long open')")
    for n in range(5):
        streaming.sql("INSERT INTO one VALUES (%s, 1, 'x')", [2000 + n])
        streaming.flush()
        streaming.cluster.terminate_feed_worker()
    opened.execute("INSERT INTO one VALUES (3000, 1, 'long open')")
    opened.commit()
    opened.close()
    assert [values[0] for _, values in streaming.events("one")[500:]] == [2000, 2001, 2002, 2003, 2004, 3000]
    assert [values[0] for _, values in streaming.events("two")[500:]] == [1001]


@pytest.mark.parametrize("between", ["nothing", "an altered column", "an added column"])
@pytest.mark.parametrize("end", ["worker", "server"])
def test_no_event_of_a_new_table_is_lost(streaming, end, between):
    """Its first rows are written, and not in Delta yet, when the worker ends; by then the slot is
    behind the table's creation."""
    streaming.cluster.configure(**{"wal2delta.flush_interval": "60s"})
    streaming.cluster.reload()
    streaming.table("young (id bigint PRIMARY KEY, n int)")
    streaming.sql("INSERT INTO one VALUES (5000, 1, 'x')")
    streaming.flush()
    streaming.sql("INSERT INTO one VALUES (5001, 1, 'x')")
    confirm_all(streaming)
    if between != "nothing":
        change = "ALTER n TYPE bigint" if "altered" in between else "ADD m int"
        streaming.sql(f"ALTER TABLE young {change}")
    streaming.sql("INSERT INTO young (id, n) VALUES (1, 1)")
    streaming.sql("UPDATE young SET n = 2")
    if end == "worker":
        streaming.cluster.terminate_feed_worker()
    else:
        streaming.cluster.stop("immediate")
        streaming.cluster.start()
        streaming.reconnect()
    streaming.cluster.wait_for_feed_worker()
    streaming.sql("DELETE FROM young")
    changes = ["insert", "update_preimage", "update_postimage", "delete"]
    assert [change for change, _ in streaming.events("young")] == changes


def test_a_prepared_transaction_outlives_a_restart(streaming):
    streaming.sql("BEGIN")
    streaming.sql("INSERT INTO one VALUES (1001, 1, 'prepared')")
    streaming.sql("PREPARE TRANSACTION 'p'")
    streaming.sql("INSERT INTO one VALUES (1002, 1, 'between')")
    streaming.flush()
    streaming.cluster.restart("immediate")
    streaming.reconnect()
    streaming.sql("COMMIT PREPARED 'p'")
    assert [values[0] for _, values in streaming.events("one")[500:]] == [1002, 1001]


def test_a_snapshot_that_is_cut_off_starts_anew(streaming):
    # Large enough for two workers.
    streaming.shared = True
    streaming.table("big (id bigint PRIMARY KEY, n int, pad text)", full=False)
    streaming.sql("INSERT INTO big SELECT i, 0, repeat(md5(i::text), 8) FROM generate_series(1, 400000) i")
    with Load(streaming, "big", sessions=1) as load:
        streaming.sql("ALTER TABLE big REPLICA IDENTITY FULL")
        for _ in range(2):
            # The view may show it when it is done.
            wait_for(lambda: streaming.value(COPIERS) > 0, 60, "the copy to begin")
            streaming.cluster.terminate_feed_worker()
            load.wait_for_transactions(5)
        streaming.wait_for_status("big", "STREAMING", timeout=120)
    assert len(streaming.check("big")) > 390000


def test_a_fast_stop_does_not_wait_for_the_feed(streaming):
    with Load(streaming, *TABLES) as load:
        load.wait_for_transactions(50)
        streaming.cluster.stop("fast", timeout=10)
        streaming.cluster.start()
    streaming.reconnect()
    check_all(streaming)


def test_a_transaction_older_than_the_slots_point_comes_first(streaming):
    """It began before the tables were made that it changes last, and is the first that a new worker finds."""
    long = streaming.session(autocommit=False)
    long.execute("INSERT INTO one VALUES (2001, 0, 'early')")
    for table in ("young (id bigint PRIMARY KEY, n int)", "low (id bigint PRIMARY KEY, n int)"):
        streaming.table(table)
    streaming.sql("CREATE TABLE root (id bigint, n int) PARTITION BY RANGE (id)")
    streaming.sql("ALTER TABLE root ATTACH PARTITION low FOR VALUES FROM (MINVALUE) TO (MAXVALUE)")
    streaming.sql("ALTER TABLE root REPLICA IDENTITY FULL")
    for table in ("young", "root"):
        streaming.sql(f"INSERT INTO {table} SELECT i, 0 FROM generate_series(1, 10) i")
    confirm_all(streaming)
    old = streaming.cluster.terminate_feed_worker()
    assert streaming.cluster.wait_for_feed_worker() != old
    for table in ("young", "root"):
        long.execute(f"INSERT INTO {table} VALUES (11, 1)")
        long.execute(f"UPDATE {table} SET n = n + 1")
    long.commit()
    for table in ("young", "root"):
        assert len(streaming.check(table)) == 10 + 1 + 2 * 11
        assert [row.change for row in streaming.rows(table)][:11] == ["insert"] * 11
    assert len(streaming.check("one")) == 501


def test_what_a_new_worker_finds_first_is_decoded_once(streaming):
    def decoded():
        return streaming.value("SELECT total_bytes FROM pg_stat_replication_slots")

    def insert(first):
        streaming.sql("INSERT INTO one SELECT i, 0, 'x' FROM generate_series(%s::int, 9999 + %s::int) i", [first, first])

    confirm_all(streaming)
    before = decoded()
    insert(10_001)
    confirm_all(streaming)
    once = decoded() - before
    # The slot as it is now outlives the crash.
    streaming.sql("CHECKPOINT")
    worker = streaming.cluster.wait_for_feed_worker()
    os.kill(worker, signal.SIGSTOP)
    insert(20_001)
    # The server starts all its processes anew, and these statistics with them.
    os.kill(worker, signal.SIGKILL)
    streaming.come_back()
    assert streaming.cluster.wait_for_feed_worker() != worker
    streaming.flush()
    assert 0.9 * once < decoded() < 1.5 * once
    assert len(streaming.check("one")) == 20_500
