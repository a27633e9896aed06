"""Tables that cannot take part yet: SKIPPED, with a reason that a person
understands, and picked up when the reason is gone. The flush interval of this
module's cluster is 1 s."""

import pytest
from harness.waiting import wait_for

# Well above one flush interval on a busy machine.
SOON = 20


@pytest.fixture
def started(feed):
    feed.table("ready (i int)")
    feed.sql("INSERT INTO ready VALUES (1)")
    feed.start()
    feed.flush()
    return feed


def reason(feed, table):
    return feed.wait_for_status(table, "SKIPPED", SOON)["reason"]


def lacks_full(reason):
    return bool(reason) and "replica identity" in reason.lower() and "FULL" in reason


def test_without_replica_identity_full(started):
    started.table("t (i int PRIMARY KEY, v text)", full=False)
    started.sql("INSERT INTO t VALUES (1, 'a')")
    assert lacks_full(reason(started, "t"))
    started.sql("UPDATE t SET v = 'b'")
    started.sql("ALTER TABLE t REPLICA IDENTITY FULL")
    row = started.wait_for_status("t", "STREAMING", SOON)
    assert row["reason"] is None
    started.sql("UPDATE t SET v = 'c'")
    assert started.events("t") == [
        ("insert", (1, "b")), ("update_preimage", (1, "b")), ("update_postimage", (1, "c")),
    ]  # fmt: skip


def test_another_replica_identity(started):
    started.table("t (i int NOT NULL UNIQUE)", full=False)
    started.sql("ALTER TABLE t REPLICA IDENTITY USING INDEX t_i_key")
    started.sql("INSERT INTO t VALUES (1)")
    assert lacks_full(reason(started, "t"))


def test_empty(started):
    started.table("t (i int)")
    assert "empty" in reason(started, "t").lower()
    started.sql("INSERT INTO t VALUES (7)")
    started.wait_for_status("t", "STREAMING", SOON)
    assert started.events("t") == [("insert", (7,))]


def test_a_table_whose_only_rows_were_rolled_back_is_empty(started):
    started.table("t (i int)")
    with started.conn.transaction(force_rollback=True):
        started.sql("INSERT INTO t VALUES (1)")
    started.flush()
    assert "empty" in reason(started, "t").lower()


def test_emptied_again_at_once(started):
    """Filled and emptied: the events are there, whatever the status says."""
    started.table("t (i int)")
    started.sql("INSERT INTO t VALUES (1)")
    started.sql("DELETE FROM t")
    assert started.events("t") == [("insert", (1,)), ("delete", (1,))]


def test_unlogged(started):
    started.sql("CREATE UNLOGGED TABLE t (i int)")
    started.sql("ALTER TABLE t REPLICA IDENTITY FULL")
    started.sql("INSERT INTO t VALUES (1), (2)")
    assert "unlogged" in reason(started, "t").lower()
    started.sql("ALTER TABLE t SET LOGGED")
    started.wait_for_status("t", "STREAMING", SOON)
    started.sql("INSERT INTO t VALUES (3)")
    assert [values for _, values in started.events("t")] == [(1,), (2,), (3,)]


@pytest.mark.parametrize(
    "kind, ddl",
    [
        ("view", "CREATE VIEW {} AS SELECT 1 AS i"),
        ("materialized view", "CREATE MATERIALIZED VIEW {} AS SELECT 1 AS i"),
        ("sequence", "CREATE SEQUENCE {}"),
    ],
)
def test_what_is_no_table_never_takes_part(started, kind, ddl):
    started.sql(ddl.format("other"))
    started.sql("INSERT INTO ready VALUES (2)")
    started.flush()
    started.table("after (i int)")
    reason(started, "after")
    assert started.status("other") in (None, "SKIPPED")
    assert not started.path("other").exists()
    assert started.events("ready")[-1] == ("insert", (2,))


def test_a_temporary_table_never_takes_part(started):
    started.sql("CREATE TEMPORARY TABLE passing (i int)")
    started.sql("ALTER TABLE passing REPLICA IDENTITY FULL")
    started.sql("INSERT INTO passing VALUES (1)")
    started.flush()
    assert started.status("passing") is None
    assert not started.path("passing").exists()


def test_excluded(feed):
    for table in ("wanted", "unwanted"):
        feed.table(f"{table} (i int)")
        feed.sql(f"INSERT INTO {table} VALUES (1)")
    feed.start(exclude=["unwanted"])
    feed.sql("INSERT INTO unwanted VALUES (2)")
    assert feed.events("wanted") == [("insert", (1,))]
    assert "exclude" in reason(feed, "unwanted").lower()
    assert not feed.path("unwanted").exists()


def test_several_reasons_in_a_row(started):
    started.sql("CREATE UNLOGGED TABLE t (i int)")
    assert "unlogged" in reason(started, "t").lower() or "empty" in reason(started, "t").lower()
    started.sql("ALTER TABLE t SET LOGGED")
    started.sql("INSERT INTO t VALUES (1)")
    wait_for(lambda: lacks_full(started.view("t")["reason"]), SOON, "the next reason to be shown")
    started.sql("ALTER TABLE t REPLICA IDENTITY FULL")
    started.wait_for_status("t", "STREAMING", SOON)
    assert started.events("t") == [("insert", (1,))]
