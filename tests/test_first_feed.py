"""A first feed: existing rows, then insert, update, delete; what the rows of
the history and the views say."""

import datetime
import threading

import psycopg
import pytest
from harness.deltalog import DeltaLog
from harness.readers import READERS
from harness.waiting import wait_for

TABLES_COLUMNS = [
    "table_oid", "status", "committed_lsn", "last_write_time",
    "source_schema", "source_table", "destination", "reason", "rows_written",
    "snapshot_rows_done", "snapshot_rows_total", "lag_bytes", "last_error", "staged_bytes", "replaced_values",
]  # fmt: skip
SCHEMAS_COLUMNS = ["source_schema", "destination", "status", "options", "started_at"]


def lsn_number(conn, expression="pg_current_wal_insert_lsn()"):
    return int(conn.execute(f"SELECT {expression} - '0/0'::pg_lsn").fetchone()[0])


def utc_now(conn):
    return conn.execute("SELECT clock_timestamp() AT TIME ZONE 'UTC'").fetchone()[0]


@pytest.fixture
def orders(feed):
    feed.table("orders (id int PRIMARY KEY, item text NOT NULL, quantity int)")
    feed.sql("INSERT INTO orders VALUES (1, 'tea', 2), (2, 'coffee', NULL)")
    feed.sql("INSERT INTO orders VALUES (3, '', -1)")
    return feed


def test_existing_rows_are_inserts_of_one_snapshot(orders):
    before = utc_now(orders.conn)
    orders.start()
    rows = orders.check("orders")
    assert {(row.change, row.values) for row in rows} == {
        ("insert", (1, "tea", 2)), ("insert", (2, "coffee", None)), ("insert", (3, "", -1)),
    }  # fmt: skip
    xmin = dict(orders.sql("SELECT id, xmin::text::bigint FROM orders"))
    assert {row.values[0]: row.xid for row in rows} == xmin
    assert len({row.lsn for row in rows}) == 1 and len({row.time for row in rows}) == 1
    assert before <= rows[0].time <= utc_now(orders.conn)
    assert 0 < rows[0].lsn <= lsn_number(orders.conn)


def test_changes_carry_their_transaction(orders):
    orders.start()
    orders.flush()
    made = []
    for statement in (
        "INSERT INTO orders VALUES (4, 'milk', 1)",
        "UPDATE orders SET quantity = 5 WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
    ):
        before = lsn_number(orders.conn)
        with orders.conn.transaction():
            orders.sql(statement)
            xid = orders.value("SELECT pg_current_xact_id()::text::bigint")
        after = lsn_number(orders.conn)
        (time,) = orders.sql("SELECT pg_xact_commit_timestamp(%s::text::xid) AT TIME ZONE 'UTC'", [xid])[0]
        made.append((xid, before, after, time))
    rows = orders.check("orders")[3:]
    assert [(row.change, row.values) for row in rows] == [
        ("insert", (4, "milk", 1)),
        ("update_preimage", (1, "tea", 2)),
        ("update_postimage", (1, "tea", 5)),
        ("delete", (2, "coffee", None)),
    ]
    for row, (xid, before, after, time) in zip(rows, [made[0], made[1], made[1], made[2]], strict=True):
        assert (row.xid, row.time) == (xid, time)
        assert before <= row.lsn < after
    assert rows[1].lsn == rows[2].lsn and rows[2].sort_by == rows[1].sort_by + 1


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_sees_the_same(orders, reader):
    orders.start()
    orders.flush()
    orders.sql("UPDATE orders SET item = item || '!'")
    orders.sql("DELETE FROM orders WHERE id = 3")
    rows = orders.check("orders", reader)
    assert rows == orders.rows("orders")
    assert [row.values for row in rows if row.change == "delete"] == [(3, "!", -1)]


def test_the_table_is_declared_as_designed(orders):
    orders.start()
    orders.flush()
    log = DeltaLog(orders.path("orders"))
    assert [(field.name, field.type, field.nullable) for field in log.schema()] == [
        ("id", "integer", False), ("item", "string", False), ("quantity", "integer", True),
        ("_pg_change_type", "string", False), ("_pg_lsn", "long", False), ("_pg_xid", "integer", False),
        ("_timestamp", "timestamp_ntz", False), ("_sort_by", "long", False),
    ]  # fmt: skip
    (protocol,) = [action for _, action in log.actions("protocol")]
    assert (protocol["minReaderVersion"], protocol["minWriterVersion"]) == (3, 7)
    assert protocol["readerFeatures"] == ["timestampNtz"]
    assert set(protocol["writerFeatures"]) == {"timestampNtz", "invariants"}
    assert log.metadata()["partitionColumns"] == []


def test_progress_is_in_the_log_under_the_tables_identity(orders):
    orders.start()
    orders.flush()
    system, database, table = orders.sql(
        "SELECT (SELECT system_identifier FROM pg_control_system()), d.oid, 'orders'::regclass::oid"
        " FROM pg_database d WHERE datname = current_database()"
    )[0]
    ids = {txn["appId"] for _, txn in DeltaLog(orders.path("orders")).actions("txn")}
    assert ids and all(one.startswith(f"wal2delta/{system}/{database}/{table}/") for one in ids)


def test_columns_of_the_views(feed):
    for view, names in (("tables", TABLES_COLUMNS), ("schemas", SCHEMAS_COLUMNS)):
        cursor = feed.conn.execute(f"SELECT * FROM wal2delta.{view}")
        assert [column.name for column in cursor.description] == names


def test_the_views_show_the_feed(orders):
    asked = datetime.datetime.now(datetime.timezone.utc)
    orders.start(flush_interval="2s")
    orders.flush()
    orders.sql("INSERT INTO orders VALUES (4, 'milk', 1)")
    flushed = orders.flush()
    row = orders.view("orders")
    assert row["table_oid"] == orders.value("SELECT 'orders'::regclass::oid")
    assert (row["status"], row["reason"], row["last_error"]) == ("STREAMING", None, None)
    assert row["rows_written"] == 4
    assert str(orders.destination) in row["destination"]
    assert asked <= row["last_write_time"] <= datetime.datetime.now(datetime.timezone.utc)
    assert orders.value("SELECT %s::pg_lsn >= %s::pg_lsn", [row["committed_lsn"], flushed])
    assert row["lag_bytes"] >= 0
    schema = orders.sql("SELECT * FROM wal2delta.schemas WHERE source_schema::text = %s", [orders.schema])
    ((_, destination, status, options, started),) = schema
    assert (destination, status) == (str(orders.destination), "STREAMING")
    assert options["flush_interval"] == "2s"
    assert asked <= started <= datetime.datetime.now(datetime.timezone.utc)


def test_flush_covers_what_was_committed_before_it(orders):
    orders.start()
    for n in range(10, 15):
        orders.sql("INSERT INTO orders VALUES (%s, 'x', %s)", [n, n])
        reached = lsn_number(orders.conn)
        flushed = lsn_number(orders.conn, f"'{orders.flush()}'::pg_lsn")
        assert flushed >= orders.rows("orders")[-1].lsn
        assert flushed <= lsn_number(orders.conn) and reached <= lsn_number(orders.conn)
        assert orders.rows("orders")[-1].values == (n, "x", n)


def test_flush_gives_up_when_its_time_is_over(orders):
    orders.start()
    orders.flush()
    # A snapshot that cannot begin: nothing of this table can be in Delta yet.
    orders.table("held (id int)", full=False)
    orders.sql("INSERT INTO held VALUES (1)")
    with held_by_another(orders, "held"):
        orders.wait_for_status("held", "SNAPSHOTTING")
        with pytest.raises(psycopg.Error) as error:
            orders.flush("500 ms")
        assert error.value.sqlstate in ("57014", "55000", "55P03"), error.value
    assert [row.values for row in orders.check("held")] == [(1,)]


class held_by_another:
    """Gives `table` REPLICA IDENTITY FULL and, without a gap, holds it locked
    from another session, so that its snapshot has to wait."""

    def __init__(self, feed, table):
        self.feed, self.table = feed, table

    def __enter__(self):
        self.alter = self.feed.session(autocommit=False)
        self.holder = self.feed.session(autocommit=False)
        self.alter.execute(f"ALTER TABLE {self.table} REPLICA IDENTITY FULL")
        pid = self.holder.info.backend_pid
        lock = threading.Thread(
            target=self.holder.execute, args=[f"LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE"], daemon=True
        )
        lock.start()
        # Queued first, it has the lock as soon as the ALTER commits.
        wait_for(
            lambda: self.feed.value("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", [pid]),
            20, "the lock to be queued",
        )  # fmt: skip
        self.alter.commit()
        lock.join(20)
        assert not lock.is_alive()
        return self.holder

    def __exit__(self, *_):
        self.holder.commit()
        self.holder.close()
        self.alter.close()


def test_a_waiting_snapshot_holds_up_nothing_else(orders):
    orders.start()
    orders.flush()
    orders.table("held (id int)", full=False)
    orders.sql("INSERT INTO held VALUES (1)")
    with held_by_another(orders, "held") as holder:
        row = orders.wait_for_status("held", "SNAPSHOTTING")
        assert row["committed_lsn"] is None
        orders.sql("INSERT INTO orders VALUES (4, 'milk', 1)")
        wait_for(lambda: len(orders.rows("orders")) == 4, 20, "the other table's row to be in Delta")
        # Committed while the snapshot waits: once in the history, either way.
        holder.execute("INSERT INTO held VALUES (2)")
    row = orders.wait_for_status("held", "STREAMING")
    assert sorted(row.values for row in orders.check("held")) == [(1,), (2,)]
    assert orders.view("held")["committed_lsn"] is not None


def test_two_snapshots_side_by_side(orders):
    """One that waits does not keep the second worker from its table."""
    orders.start()
    orders.flush()
    for table in ("held", "free"):
        orders.table(f"{table} (id int)", full=False)
        orders.sql(f"INSERT INTO {table} VALUES (1)")
    with held_by_another(orders, "held"):
        orders.wait_for_status("held", "SNAPSHOTTING")
        orders.sql("ALTER TABLE free REPLICA IDENTITY FULL")
        orders.wait_for_status("free", "STREAMING")
        assert orders.status("held") == "SNAPSHOTTING"
    assert orders.events("held") == orders.events("free") == [("insert", (1,))]


def test_many_flushes_at_once(orders):
    orders.start()
    sessions = [orders.session() for _ in range(8)]
    seen = []

    def write_and_flush(n, conn):
        conn.execute("INSERT INTO orders VALUES (%s, 'x', 0)", [100 + n])
        conn.execute("SELECT wal2delta.flush()")
        seen.append(100 + n in {row.values[0] for row in orders.rows("orders")})

    threads = [threading.Thread(target=write_and_flush, args=one) for one in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == [True] * 8
    assert len(orders.check("orders")) == 11


def test_rows_come_by_themselves_after_the_feeds_interval(make_cluster, make_feed):
    """The feed's own flush_interval takes precedence over the setting."""
    feed = make_feed("shop", cluster=make_cluster({"wal2delta.flush_interval": "1h"}))
    feed.table("t (i int)")
    feed.sql("INSERT INTO t VALUES (1)")
    feed.start(flush_interval="200 ms")
    feed.flush()
    feed.sql("INSERT INTO t VALUES (2)")
    wait_for(lambda: len(feed.rows("t")) == 2, 20, "the row to be written without a flush")
    assert feed.events("t") == [("insert", (1,)), ("insert", (2,))]


def test_committed_lsn_moves_while_the_table_is_idle(orders):
    orders.start()
    orders.flush()
    version = DeltaLog(orders.path("orders")).version
    orders.sql("CREATE TABLE public.busy AS SELECT generate_series(1, 1000) AS i")
    orders.sql("DROP TABLE public.busy")
    target = orders.value("SELECT pg_current_wal_insert_lsn()")
    wait_for(
        lambda: orders.value("SELECT %s::pg_lsn >= %s::pg_lsn", [orders.view("orders")["committed_lsn"], target]),
        20, "committed_lsn to pass writes elsewhere",
    )  # fmt: skip
    assert DeltaLog(orders.path("orders")).version == version, "an idle table needs no commits"


def test_an_idle_feed_lets_the_slot_move(orders):
    orders.start()
    orders.flush()
    slot = orders.cluster.slot_name()

    def confirmed():
        return orders.value("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", [slot])

    orders.sql("CREATE TABLE public.busy2 AS SELECT 1 AS i")
    orders.sql("DROP TABLE public.busy2")
    target = orders.value("SELECT pg_current_wal_insert_lsn()")
    wait_for(
        lambda: orders.value("SELECT %s::pg_lsn >= %s::pg_lsn", [confirmed(), target]),
        20, "the slot to pass writes elsewhere",
    )  # fmt: skip


def test_a_table_made_right_after_start(orders):
    """Created, given FULL by the event trigger, filled, updated and deleted
    from at once: not one event is missing, and none is a snapshot's."""
    orders.sql("SELECT wal2delta.set_replica_identity_full(%s)", [orders.schema])
    orders.start()
    for n in range(5):
        orders.sql(f"CREATE TABLE quick{n} (k int, v text)")
        orders.sql(f"INSERT INTO quick{n} VALUES (1, 'one'), (2, 'two')")
        orders.sql(f"UPDATE quick{n} SET v = 'uno' WHERE k = 1")
        orders.sql(f"DELETE FROM quick{n} WHERE k = 2")
    with orders.conn.transaction():
        orders.sql("CREATE TABLE whole (k int)")
        orders.sql("INSERT INTO whole VALUES (1)")
        orders.sql("UPDATE whole SET k = 2")
        orders.sql("DELETE FROM whole")
    orders.sql("CREATE TABLE copied AS SELECT k FROM generate_series(1, 3) k")
    for n in range(5):
        assert orders.events(f"quick{n}") == [
            ("insert", (1, "one")),
            ("insert", (2, "two")),
            ("update_preimage", (1, "one")),
            ("update_postimage", (1, "uno")),
            ("delete", (2, "two")),
        ]
    assert orders.events("whole") == [
        ("insert", (1,)), ("update_preimage", (1,)), ("update_postimage", (2,)), ("delete", (2,)),
    ]  # fmt: skip
    assert sorted(orders.events("copied")) == [("insert", (1,)), ("insert", (2,)), ("insert", (3,))]
    assert sorted(orders.events("orders"))[0] == ("insert", (1, "tea", 2))


def test_full_is_set_on_old_and_new_tables_of_that_schema_alone(feed):
    def identity(name):
        return feed.value("SELECT relreplident::text FROM pg_class WHERE oid = %s::regclass", [name])

    feed.table("before (i int)", full=False)
    feed.sql("SELECT wal2delta.set_replica_identity_full(%s)", [feed.schema])
    feed.table("after (i int)", full=False)
    feed.sql("CREATE TABLE public.elsewhere (i int)")
    try:
        assert (identity("before"), identity("after"), identity("public.elsewhere")) == ("f", "f", "d")
    finally:
        feed.sql("DROP TABLE public.elsewhere")


def test_the_default_destination(make_cluster, make_feed):
    cluster = make_cluster()
    feed = make_feed("plain", cluster=cluster)
    feed.table("t (i int)")
    feed.sql("INSERT INTO t VALUES (1)")
    feed.conn.execute("SELECT wal2delta.start('plain')")
    feed.destination = cluster.data / "wal2delta"
    assert feed.events("t") == [("insert", (1,))]
