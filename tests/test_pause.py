"""pause and resume: nothing is written in between, and nothing is missing after. resync: one
table's history replaced by a new snapshot."""

import psycopg
import pytest
from harness.load import Load
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms"}


def pause(feed):
    feed.conn.execute("SELECT wal2delta.pause(%s)", [feed.schema])


def resume(feed):
    feed.conn.execute("SELECT wal2delta.resume(%s)", [feed.schema])


def versions(feed, table):
    return len(list((feed.path(table) / "_delta_log").glob("*.json")))


def schema_status(feed):
    return feed.conn.execute(
        "SELECT status FROM wal2delta.schemas WHERE source_schema::text = %s", [feed.schema]
    ).fetchone()[0]


def test_a_paused_feed_writes_nothing_and_misses_nothing(feed, make_feed):
    other = make_feed("other_than_paused")
    for one in (feed, other):
        one.table("t (id int PRIMARY KEY, n int)")
        one.sql("INSERT INTO t VALUES (1, 0)")
        one.start()
        one.flush()
    pause(feed)
    row = feed.wait_for_status("t", "PAUSED")
    assert row["committed_lsn"] is not None
    assert schema_status(feed) == "PAUSED"
    before = versions(feed, "t")
    feed.sql("UPDATE t SET n = 1")
    feed.table("young (id int)")
    feed.sql("INSERT INTO young VALUES (7)")
    other.sql("UPDATE t SET n = 1")
    # The feed that is not paused goes on, and flush does not wait for the other.
    assert len(other.events("t")) == 3
    assert versions(feed, "t") == before
    assert not feed.path("young").exists()

    resume(feed)
    feed.wait_for_status("t", "STREAMING")
    update = [("update_preimage", (1, 0)), ("update_postimage", (1, 1))]
    assert feed.events("t") == [("insert", (1, 0)), *update]
    assert feed.events("young") == [("insert", (7,))]
    assert other.events("t") == [("insert", (1, 0)), *update]


def test_flush_names_what_it_leaves_out(feed):
    feed.table("t (id int)")
    feed.sql("INSERT INTO t VALUES (1)")
    feed.start()
    feed.flush()
    pause(feed)
    feed.wait_for_status("t", "PAUSED")
    notices = []
    feed.conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    feed.sql("INSERT INTO t VALUES (2)")
    feed.flush()
    assert notices == ["tables of paused feeds were left out: t"]


def test_a_pause_outlives_worker_and_server(make_cluster, make_feed):
    feed = make_feed("shop", cluster=make_cluster(SETTINGS))
    feed.table("t (id int PRIMARY KEY, n int)")
    feed.sql("INSERT INTO t VALUES (1, 0)")
    feed.start()
    feed.flush()
    pause(feed)
    feed.wait_for_status("t", "PAUSED")
    before = versions(feed, "t")
    for number in range(1, 4):
        feed.sql("UPDATE t SET n = %s", [number])
        if number == 1:
            feed.cluster.terminate_feed_worker()
        else:
            feed.conn.close()
            feed.cluster.restart("immediate" if number == 2 else "fast")
            feed.conn = feed.cluster.connect()
        feed.wait_for_status("t", "PAUSED")
    assert versions(feed, "t") == before
    resume(feed)
    feed.wait_for_status("t", "STREAMING")
    assert [values[1] for _, values in feed.events("t")] == [0, 0, 1, 1, 2, 2, 3]


def test_pauses_under_load(feed):
    feed.table("a (id bigint PRIMARY KEY, n int, pad text)")
    feed.table("b (id bigint PRIMARY KEY, n int, pad text)")
    with Load(feed, "a", "b") as load:
        load.wait_for_transactions(5)
        feed.start()
        # The first pause comes while the tables are copied.
        for _ in range(5):
            pause(feed)
            load.wait_for_transactions(20)
            resume(feed)
            load.wait_for_transactions(20)
    for table in ("a", "b"):
        feed.wait_for_status(table, "STREAMING")
        assert len(feed.check(table)) > 20


def test_what_cannot_be_paused(feed):
    with pytest.raises(psycopg.errors.UndefinedObject, match="is not fed"):
        pause(feed)
    with pytest.raises(psycopg.errors.UndefinedObject, match="is not fed"):
        resume(feed)
    feed.start()
    notices = []
    feed.conn.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    resume(feed)
    pause(feed)
    pause(feed)
    resume(feed)
    name = f'feed of schema "{feed.schema}" is'
    assert notices == [f"{name} not paused", f"{name} paused already"]


def test_a_paused_feed_can_be_stopped(feed):
    feed.table("t (id int)")
    feed.sql("INSERT INTO t VALUES (1)")
    feed.start()
    feed.flush()
    pause(feed)
    feed.wait_for_status("t", "PAUSED")
    feed.stop()
    wait_for(lambda: feed.view("t") is None, 30, "the table to leave the view")
    # Nothing of it holds up the next feed of the schema.
    feed.start()
    feed.sql("INSERT INTO t VALUES (2)")
    feed.flush()
    assert [row.values for row in feed.rows("t")] == [(1,), (2,)]


def test_a_feed_stopped_right_after_a_table_was_created(feed):
    """Its history is just being made."""
    feed.start()
    feed.flush()
    with feed.conn.transaction():
        feed.table("t (id int)")
    feed.stop()
    feed.start()
    feed.sql("INSERT INTO t VALUES (1)")
    assert [values for _, values in feed.events("t")] == [(1,)]


def resync(feed, table):
    feed.sql("SELECT wal2delta.resync(%s::text::regclass)", [table])


def test_resync_replaces_one_history(feed):
    for table in ("t", "u"):
        feed.table(f"{table} (id int PRIMARY KEY, n int)")
        feed.sql(f"INSERT INTO {table} VALUES (1, 0), (2, 0)")
    feed.start()
    feed.flush()
    for table in ("t", "u"):
        feed.sql(f"UPDATE {table} SET n = 1 WHERE id = 1")
    feed.flush()
    resync(feed, "t")
    wait_for(lambda: len(feed.rows("t")) == 2, 30, "the history to be replaced")
    feed.sql("UPDATE t SET n = 2 WHERE id = 1")
    events = feed.events("t")
    assert sorted(events[:2]) == [("insert", (1, 1)), ("insert", (2, 0))]
    assert events[2:] == [("update_preimage", (1, 1)), ("update_postimage", (1, 2))]
    assert len(feed.events("u")) == 4


def test_resync_happens_once(feed):
    """Neither a new worker nor a pause takes the snapshot again."""
    feed.table("t (id int PRIMARY KEY, n int)")
    feed.sql("INSERT INTO t VALUES (1, 0)")
    feed.start()
    feed.flush()
    feed.sql("UPDATE t SET n = 1")
    feed.flush()
    resync(feed, "t")
    wait_for(lambda: len(feed.rows("t")) == 1, 30, "the history to be replaced")
    feed.sql("UPDATE t SET n = 2")
    feed.flush()
    feed.cluster.terminate_feed_worker()
    feed.wait_for_status("t", "STREAMING")
    pause(feed)
    resume(feed)
    feed.sql("UPDATE t SET n = 3")
    assert len(feed.check("t")) == 5


@pytest.mark.parametrize("worker", ["terminated", "paused"])
def test_resync_outlives_the_worker(feed, worker):
    feed.table("t (id int PRIMARY KEY, n int)")
    feed.sql("INSERT INTO t VALUES (1, 0)")
    feed.start()
    feed.flush()
    feed.sql("UPDATE t SET n = 1")
    feed.flush()
    if worker == "paused":
        pause(feed)
        feed.wait_for_status("t", "PAUSED")
        resync(feed, "t")
        resume(feed)
    else:
        resync(feed, "t")
        feed.cluster.terminate_feed_worker()
    wait_for(lambda: len(feed.rows("t")) == 1, 30, "the history to be replaced")
    assert feed.events("t") == [("insert", (1, 1))]


def test_resync_under_load(feed):
    feed.table("a (id bigint PRIMARY KEY, n int, pad text)")
    feed.start()
    with Load(feed, "a") as load:
        for _ in range(3):
            load.wait_for_transactions(30)
            resync(feed, "a")
    assert len(feed.check("a")) > 20


def test_what_cannot_be_resynced(feed):
    feed.table("t (id int)")
    with pytest.raises(psycopg.errors.UndefinedObject, match="is not fed"):
        resync(feed, "t")
    feed.start()
    feed.sql("CREATE VIEW v AS SELECT 1 AS one")
    with pytest.raises(psycopg.errors.WrongObjectType, match="only tables are fed"):
        resync(feed, "v")
    feed.sql("CREATE TABLE root (id int) PARTITION BY LIST (id)")
    feed.sql("CREATE TABLE leaf PARTITION OF root DEFAULT")
    with pytest.raises(psycopg.errors.WrongObjectType, match="no history of its own"):
        resync(feed, "leaf")
    with pytest.raises(psycopg.errors.UndefinedTable):
        feed.sql("SELECT wal2delta.resync(0::oid)")
