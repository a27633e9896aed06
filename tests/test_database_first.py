"""The database comes first: what an operator does to databases, schemas, tables
and the extension works at once while feeds are busy, and leaves no orphan of a
slot, a worker, a lock, and no flood in the log. Nothing else costs anything."""

import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from harness import fail_points
from harness.copies import Copies, catch_up
from harness.fail_points import FailPoints
from harness.feed import Feed
from harness.load import Load
from harness.waiting import TimedOut, wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms"}

# A statement that waits for a feed fails, instead of being late.
AT_ONCE = {"lock_timeout": "3s", "statement_timeout": "5s"}

# What workers may log that end and start a few times; a retry without a pause logs thousands.
FEW_LINES = 100

WORKERS = "SELECT pid, datname FROM pg_stat_activity WHERE backend_type = 'wal2delta'"


def at_once(cluster, statement, dbname="postgres"):
    with cluster.connect(dbname, **AT_ONCE) as conn:
        conn.execute(statement)


def busy(feed, table="load"):
    """Started, with a table for a Load."""
    feed.table(f"{table} (id bigint PRIMARY KEY, n int, pad text)")
    feed.sql(f"INSERT INTO {table} SELECT i, 0, 'x' FROM generate_series(1, 500) i")
    feed.start()
    feed.flush()
    return feed


@pytest.fixture
def steady(make_feed):
    """A feed in the module's cluster that is to stay unharmed."""
    return busy(make_feed())


@pytest.fixture
def other_database(cluster, request):
    """A feed in a database of its own, not started, for tests that drop the database."""
    cluster.sql("CREATE DATABASE other")
    cluster.sql("CREATE EXTENSION wal2delta", dbname="other")
    destination = cluster.folder_for(f"other_{zlib.crc32(request.node.name.encode()):08x}")
    feed = Feed(cluster, "shop", dbname="other", destination=destination)
    yield feed
    if cluster.sql("SELECT 1 FROM pg_database WHERE datname = 'other'"):
        feed.reconnect()
        feed.close()
        cluster.sql("DROP DATABASE other")


needs_fail_points = pytest.mark.skipif(
    not fail_points.library().exists(), reason="the library with fail points is not installed"
)


@pytest.fixture
def failing(make_cluster):
    """A cluster with fail points: (cluster, its points)."""
    cluster = make_cluster({**SETTINGS, **fail_points.SETTINGS})
    return cluster, FailPoints(cluster)


@contextmanager
def under_load(feed):
    """Transactions before, meanwhile and after; then the history is right."""
    since = feed.cluster.log_size()
    with Load(feed, "load") as load:
        load.wait_for_transactions(20)
        yield load
        load.wait_for_transactions(100)
    feed.check("load")
    assert logged(feed.cluster, since) < FEW_LINES


def logged(cluster, since):
    """Number of lines that processes of wal2delta wrote."""
    return cluster.log_text(since).count("] wal2delta ")


def left_over(cluster, fed):
    """What wal2delta has beyond one slot and one worker for each database in
    `fed`, and any lock on something that a user may want to change or drop."""
    workers = [datname for _, datname in cluster.sql(WORKERS) if datname is not None and datname not in fed]
    slots = set(cluster.slots()) - {cluster.slot_name(dbname) for dbname in fed}
    locks = cluster.sql(
        "SELECT locktype, mode, relation::regclass::text FROM pg_locks JOIN pg_stat_activity USING (pid)"
        " WHERE backend_type = 'wal2delta' AND locktype NOT IN ('virtualxid', 'transactionid')"
    )
    return [*workers, *slots, *locks]


def wait_for_nothing_left(cluster, *fed):
    try:
        wait_for(lambda: not left_over(cluster, fed), 10, f"nothing to be left over, with feeds in {fed}")
    except TimedOut as late:
        raise AssertionError(f"{late}; there are {left_over(cluster, fed)}") from None


# --- tables and schemas


@pytest.mark.parametrize(
    "statement",
    [
        "REINDEX TABLE t",
        "REINDEX TABLE CONCURRENTLY t",
        "VACUUM FULL t",
        "CLUSTER t USING t_pkey",
        "ALTER TABLE t SET (fillfactor = 50)",
        "ALTER TABLE t ADD COLUMN extra int",
        "TRUNCATE t",
        "DROP TABLE t",
    ],
)
def test_a_fed_table_is_changed(steady, statement):
    steady.table("t (i int PRIMARY KEY)")
    steady.sql("INSERT INTO t SELECT generate_series(1, 1000)")
    steady.flush()
    with under_load(steady):
        steady.sql("INSERT INTO t VALUES (1001)")
        with steady.session(**AT_ONCE) as conn:
            conn.execute(statement)
        if not statement.startswith("DROP"):
            steady.sql("INSERT INTO t VALUES (1002)")
    if not statement.startswith("DROP"):
        steady.check("t")
    wait_for_nothing_left(steady.cluster, "postgres")


def test_a_fed_schema_is_dropped__moonlink_603__moonlink_787(steady, make_feed):
    with under_load(steady):
        gone = busy(make_feed("gone"))
        gone.sql("INSERT INTO load VALUES (1001, 1, 'last')")
        at_once(steady.cluster, "DROP SCHEMA gone CASCADE")
        wait_for(lambda: gone.view("load") is None, 20, "the dropped table to leave the view")
    assert gone.rows("load")[-1].values == (1001, 1, "last")
    wait_for_nothing_left(steady.cluster, "postgres")


@needs_fail_points
@pytest.mark.parametrize("statement", ["DROP TABLE copied", "ALTER TABLE copied ADD x int", "VACUUM FULL copied"])
def test_a_copy_gives_way_to_a_statement(failing, make_feed, statement):
    """The store takes its time with the copy's data file; the statement does not wait for it."""
    cluster, points = failing
    feed = busy(make_feed("shop", cluster=cluster))
    feed.table("copied (i int)", full=False)
    feed.sql("INSERT INTO copied SELECT generate_series(1, 1000)")
    feed.flush()
    points.arm("before_data_put", "hang")
    log = cluster.log_size()
    feed.sql("ALTER TABLE copied REPLICA IDENTITY FULL")
    wait_for(lambda: not points.armed(), 20, "the copy to be under way")
    with feed.session(lock_timeout="2s") as conn:
        conn.execute(statement)
    if "DROP" in statement:
        feed.flush()
    else:
        assert len(feed.check("copied")) == 1000
    assert "failed" not in cluster.log_text(log)


@needs_fail_points
def test_a_slow_store_does_not_make_a_copy_fail(failing, make_feed):
    cluster, points = failing
    feed = busy(make_feed("shop", cluster=cluster))
    feed.table("copied (i int)", full=False)
    feed.sql("INSERT INTO copied SELECT generate_series(1, 1000)")
    feed.flush()
    points.arm("before_data_put", "sleep 1500")
    log = cluster.log_size()
    feed.sql("ALTER TABLE copied REPLICA IDENTITY FULL")
    wait_for(lambda: not points.armed(), 20, "the copy to be under way")
    assert len(feed.check("copied")) == 1000
    assert "failed" not in cluster.log_text(log)


# --- the extension


def test_the_extension_is_dropped_and_made_again__citus_1558__pg_net_200(make_cluster, make_feed):
    feed = busy(make_feed("shop", cluster=make_cluster(SETTINGS)))
    with under_load(feed) as load:
        for _ in range(3):
            at_once(feed.cluster, "DROP EXTENSION wal2delta")
            wait_for_nothing_left(feed.cluster)
            at_once(feed.cluster, "CREATE EXTENSION wal2delta")
            feed.start(snapshot=True)
            feed.flush()
            load.wait_for_transactions(10)
    wait_for_nothing_left(feed.cluster, "postgres")


def test_the_extension_is_dropped_and_made_again_in_one_breath(make_cluster, make_feed):
    feed = busy(make_feed("shop", cluster=make_cluster(SETTINGS)))
    with under_load(feed):
        for _ in range(3):
            at_once(feed.cluster, "DROP EXTENSION wal2delta; CREATE EXTENSION wal2delta")
            feed.start(snapshot=True)
    wait_for_nothing_left(feed.cluster, "postgres")


def test_a_drop_of_the_extension_is_rolled_back(steady):
    with under_load(steady), steady.session(autocommit=False, **AT_ONCE) as conn:
        conn.execute("DROP EXTENSION wal2delta")
        conn.rollback()
    assert steady.status("load") == "STREAMING"
    wait_for_nothing_left(steady.cluster, "postgres")


# --- databases


def test_another_database_is_dropped(steady):
    with under_load(steady):
        for name in ("plain", "forced"):
            steady.cluster.sql(f"CREATE DATABASE {name}")
            with steady.cluster.connect(name) as conn:
                conn.execute("CREATE EXTENSION wal2delta")
        at_once(steady.cluster, "DROP DATABASE plain")
        at_once(steady.cluster, "DROP DATABASE forced WITH (FORCE)")
    wait_for_nothing_left(steady.cluster, "postgres")


@pytest.mark.parametrize("how", ["", "WITH (FORCE)"], ids=["plain", "forced"])
def test_a_fed_database_is_dropped__pipelinedb_1969(steady, other_database, how):
    busy(other_database)
    other_database.conn.close()
    with under_load(steady):
        at_once(steady.cluster, f"DROP DATABASE other {how}")
    wait_for_nothing_left(steady.cluster, "postgres")


def test_a_refused_drop_of_a_fed_database_harms_nothing(steady, other_database):
    """Another session is in the way; Postgres waits 5 s for it."""
    busy(other_database)
    with under_load(other_database), pytest.raises(psycopg.errors.ObjectInUse):
        steady.cluster.sql("DROP DATABASE other")
    wait_for_nothing_left(steady.cluster, "postgres", "other")


def test_a_fed_database_is_renamed(steady, other_database):
    busy(other_database)
    other_database.conn.close()
    with under_load(steady):
        at_once(steady.cluster, "ALTER DATABASE other RENAME TO renamed")
        other_database.dbname = "renamed"
        other_database.reconnect()
        other_database.sql("INSERT INTO load VALUES (1001, 1, 'renamed')")
        other_database.check("load")
        other_database.conn.close()
        at_once(steady.cluster, "ALTER DATABASE renamed RENAME TO other")
    other_database.dbname = "other"


def test_a_fed_database_is_a_template(steady, other_database):
    busy(other_database)
    other_database.conn.close()
    with under_load(steady):
        at_once(steady.cluster, "CREATE DATABASE copy TEMPLATE other")
    other_database.reconnect()
    other_database.sql("INSERT INTO load VALUES (1001, 1, 'after')")
    other_database.check("load")
    assert steady.cluster.feed_worker("copy") is None
    at_once(steady.cluster, "DROP DATABASE copy")
    wait_for_nothing_left(steady.cluster, "postgres", "other")


def test_a_database_is_dropped_after_its_feeds_were_stopped(steady, other_database):
    busy(other_database)
    with under_load(steady):
        other_database.stop()
        other_database.conn.close()
        wait_for_nothing_left(steady.cluster, "postgres")
        at_once(steady.cluster, "DROP DATABASE other")


def test_the_slot_goes_with_the_last_feed(make_cluster):
    feed = busy(Feed(make_cluster({"wal2delta.flush_interval": "1h"}), "shop"))
    feed.sql("INSERT INTO load VALUES (1001, 1, 'last')")
    feed.stop()
    wait_for(lambda: feed.rows("load")[-1].values == (1001, 1, "last"), 20, "the last change to be written")
    wait_for_nothing_left(feed.cluster)


def test_the_last_feed_is_stopped_while_its_worker_is_away(make_cluster):
    """Nobody but the next worker can drop the slot, which would keep WAL for ever."""
    feed = busy(Feed(make_cluster(SETTINGS), "shop"))
    for _ in range(3):
        feed.cluster.terminate_feed_worker()
        feed.stop()
        wait_for_nothing_left(feed.cluster)
        feed.start()


def test_the_extension_is_dropped_while_the_server_runs_without_its_library(make_cluster):
    feed = busy(Feed(make_cluster(SETTINGS), "shop"))
    feed.cluster.configure(shared_preload_libraries="")
    feed.cluster.restart()
    at_once(feed.cluster, "DROP EXTENSION wal2delta")
    feed.cluster.configure(shared_preload_libraries="wal2delta")
    feed.cluster.restart()
    wait_for_nothing_left(feed.cluster)


# --- commands that have nothing to do with feeds


@pytest.mark.parametrize(
    "statement, fields",
    [
        (
            "ALTER TABLE t ADD CONSTRAINT big CHECK (i > 5)",
            {"sqlstate": "23514", "constraint_name": "big", "table_name": "t", "schema_name": "public"},
        ),
        ("CREATE TABLE u (i no_such_type)", {"sqlstate": "42704", "statement_position": "19"}),
        (
            "DO $$ BEGIN INSERT INTO t VALUES (1); END $$",
            {"sqlstate": "23505", "constraint_name": "t_pkey", "message_detail": "Key (i)=(1) already exists."},
        ),
        (
            "DO $$ BEGIN RAISE 'a' USING DETAIL = 'b', HINT = 'c', ERRCODE = '12345'; END $$",
            {"sqlstate": "12345", "message_detail": "b", "message_hint": "c", "context": "PL/pgSQL"},
        ),
    ],
    ids=["constraint", "position", "constraint in a block", "raised"],
)
def test_an_error_keeps_all_its_fields(cluster, statement, fields):
    """Applications act on them."""
    with cluster.connect() as conn, pytest.raises(psycopg.Error) as caught:
        conn.autocommit = False
        conn.execute("CREATE TABLE public.t (i int PRIMARY KEY)")
        conn.execute("INSERT INTO public.t VALUES (1)")
        conn.execute(statement)
    error = {name: str(getattr(caught.value.diag, name)) for name in fields}
    assert {name: value[: len(fields[name])] for name, value in error.items()} == fields


# --- the server stops


@needs_fail_points
@pytest.mark.parametrize("point", ["before_data_put", "after_data_put", "before_commit_put", "after_commit_put"])
def test_a_fast_stop_while_the_store_hangs__pg_durable_308(failing, make_feed, point):
    cluster, points = failing
    feed = busy(make_feed("shop", cluster=cluster))
    with Load(feed, "load") as load:
        points.arm(point, "hang")
        wait_for(lambda: not points.armed(), 20, "the store to hang")
        load.wait_for_transactions(20)
        cluster.stop("fast", timeout=5)
        cluster.start()
        load.wait_for_transactions(20)
    feed.reconnect()
    feed.check("load")


# --- checkpoints


def test_a_checkpoint_while_a_slot_is_invalidated(make_cluster, make_feed):
    """It waits for the process that has the slot: a worker that cannot write."""
    settings = {**SETTINGS, "max_slot_wal_keep_size": "32MB", "checkpoint_timeout": "1h"}
    feed = busy(make_feed("shop", cluster=make_cluster(settings)))
    feed.path("load").joinpath("_delta_log").chmod(0o500)
    feed.sql("INSERT INTO load VALUES (1001, 1, 'not written')")
    feed.wait_for_status("load", "FAILED")
    feed.cluster.skip_wal(segments=5)
    since = feed.cluster.log_size()
    with Load(feed, "load"):
        at_once(feed.cluster, "CHECKPOINT")
    assert "invalidating obsolete replication slot" in feed.cluster.log_text(since)
    feed.path("load").joinpath("_delta_log").chmod(0o755)
    feed.wait_for_status("load", "STREAMING", timeout=60)
    feed.check("load")
    wait_for_nothing_left(feed.cluster, "postgres")


# --- a standby


@pytest.fixture
def standby(clusters, steady):
    """A running standby of the module's cluster, which has all that is in `steady`."""
    with Copies(clusters) as copies:
        standby = copies.standby(steady.cluster)
        standby.start()
        catch_up(standby, steady.cluster)
        yield standby


def test_a_standby_has_no_feed(standby, steady):
    with under_load(steady) as load:
        load.wait_for_transactions(50)
        catch_up(standby, steady.cluster)
        assert standby.sql(WORKERS) == []
        assert standby.slots() == []
        assert standby.value("SELECT source_schema::text FROM wal2delta.schemas") == steady.schema
    assert logged(standby, 0) == 0


@pytest.mark.parametrize(
    "call",
    [
        "start(:schema)",
        "stop(:schema)",
        "flush('1 s')",
        "set_replica_identity_full(:schema)",
    ],
)  # fmt: skip
def test_a_standby_says_that_it_is_one(standby, steady, call):
    with pytest.raises(psycopg.Error) as refused:
        standby.sql(f"SELECT wal2delta.{call.replace(':schema', repr(steady.schema))}")
    assert refused.value.sqlstate in ("25006", "55000"), str(refused.value)


# --- an idle feed


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_an_idle_feed_writes_no_wal_and_uses_no_cpu(make_cluster, make_feed):
    cluster = make_cluster({"wal2delta.flush_interval": "2s", "autovacuum": "off"})
    cluster.sql("CREATE EXTENSION pg_walinspect")
    feed = busy(make_feed("shop", cluster=cluster))
    cluster.sql("CHECKPOINT")
    wait_for(lambda: len(cluster.sql(WORKERS)) == 2, 20, "only the launcher and the feed worker to be there")
    workers = [pid for pid, _ in cluster.sql(WORKERS)]
    start = cluster.value("SELECT pg_current_wal_insert_lsn()")
    used = {pid: processor_seconds(pid) for pid in workers}
    time.sleep(10)  # The time itself is what is measured.
    used = {pid: processor_seconds(pid) - before for pid, before in used.items()}
    assert sum(used.values()) < 0.1, used
    assert records_since(cluster, start) == []
    assert [pid for pid, _ in cluster.sql(WORKERS)] == workers


def records_since(cluster, start):
    """WAL records but for those that an idle server writes."""
    end = cluster.value("SELECT pg_current_wal_flush_lsn()")
    if end == start:
        return []
    return cluster.sql(
        "SELECT * FROM pg_get_wal_records_info(%s, %s)"
        " WHERE record_type NOT IN ('RUNNING_XACTS', 'CHECKPOINT_ONLINE', 'CHECKPOINT_REDO')",
        [start, end],
    )


def test_an_idle_feed_does_not_keep_wal_of_another_database__etl_429__npgsql_6143(steady, cluster):
    restart = "SELECT restart_lsn FROM pg_replication_slots WHERE slot_name = %s"
    slot = cluster.slot_name()
    cluster.sql("CREATE DATABASE heavy")
    with closing(cluster.connect("heavy")) as heavy:
        heavy.execute("CREATE TABLE t AS SELECT i, repeat('x', 500) FROM generate_series(1, 100000) i")
        written = heavy.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
        # The server logs its running transactions, where the slot may stand, now and then by itself.
        heavy.execute("SELECT pg_log_standby_snapshot()")
        wait_for(
            lambda: cluster.value(f"SELECT ({restart}) >= %s::pg_lsn", [slot, written]), 20, "restart_lsn to follow"
        )
    cluster.sql("DROP DATABASE heavy")
    steady.check("load")


# --- start


@pytest.fixture
def waiting_start(make_cluster, make_feed):
    """A start() that waits for a transaction of another database: (feed, that
    session, the call's future)."""
    feed = make_feed("shop", cluster=make_cluster(SETTINGS))
    feed.table("t (i int)")
    feed.sql("INSERT INTO t VALUES (1)")
    feed.cluster.sql("CREATE DATABASE other")
    with ThreadPoolExecutor(1) as pool, closing(feed.cluster.connect("other", autocommit=False)) as foreign:
        foreign.execute("CREATE TABLE t ()")
        starting = pool.submit(feed.start)
        wait_for(feed.cluster.new_slot_waits, 20, "the new slot to wait for the transaction")
        yield feed, foreign, starting


def test_a_foreign_transaction_delays_start(waiting_start):
    feed, foreign, starting = waiting_start
    with feed.session() as conn:
        conn.execute("INSERT INTO t VALUES (2)")
    assert not starting.done()
    foreign.commit()
    starting.result(20)
    feed.sql("INSERT INTO t VALUES (3)")
    assert sorted(values for _, values in feed.events("t")) == [(1,), (2,), (3,)]


def test_start_is_cancelled_while_it_waits(waiting_start):
    feed, foreign, starting = waiting_start
    feed.cluster.sql("SELECT pg_cancel_backend(%s)", [feed.conn.info.backend_pid])
    with pytest.raises(psycopg.errors.QueryCanceled):
        starting.result(5)
    assert feed.sql("SELECT * FROM wal2delta.schemas") == []
    # The foreign transaction is still open: nothing of ours waits for it.
    wait_for_nothing_left(feed.cluster)
    foreign.commit()
    feed.start()
    assert feed.events("t") == [("insert", (1,))]
