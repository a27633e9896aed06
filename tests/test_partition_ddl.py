"""DDL on partitioned tables: leaves attached, detached, dropped, truncated, rewritten; the root altered,
truncated, renamed, dropped; while rows are written, the feed is paused, or no worker runs."""

from collections import Counter

import pytest
from harness.ddl import check_table, home, inserted, log_of, pause, resume, without_worker
from harness.feed import Feed
from harness.history import replay
from harness.load import Load
from harness.readers import DELTA_RS, read_history
from harness.waiting import wait_for
from psycopg.errors import CheckViolation, OperationalError
from test_partitions import HIGH, SOON, check_root, fill, full, make_root, started

SETTINGS = {"wal2delta.flush_interval": "300ms"}


@pytest.fixture
def root(feed):
    return started(feed)


def spare(feed, rows=((1001, 1100),)):
    """A table that could be a leaf: other column order, rows, FULL."""
    feed.sql("CREATE TABLE spare (pad text, gone int, id bigint NOT NULL PRIMARY KEY, n int)")
    feed.sql("ALTER TABLE spare DROP gone")
    full(feed, "spare")
    for first, last in rows:
        feed.sql(f"INSERT INTO spare SELECT 'spare', i, 5 FROM generate_series({first}, {last}) i")


ATTACH = f"ALTER TABLE root ATTACH PARTITION spare {HIGH}"

# Name: statements. What is there before: `root` with `low` and `high`, 500 rows in each, and `spare`, whose
# rows lie where `high` has its.
CHANGES = {
    "detach": ("ALTER TABLE root DETACH PARTITION high",),
    "detach concurrently": ("ALTER TABLE root DETACH PARTITION high CONCURRENTLY",),
    "detach and drop": ("ALTER TABLE root DETACH PARTITION high", "DROP TABLE high"),
    "drop a leaf": ("DROP TABLE high",),
    "drop a leaf, attach another": ("DROP TABLE high", ATTACH),
    "swap leaves": ("BEGIN", "ALTER TABLE root DETACH PARTITION high", ATTACH, "COMMIT"),
    "swap leaves among rows": (
        "BEGIN", "UPDATE root SET n = 7 WHERE id IN (1, 1001)", "ALTER TABLE root DETACH PARTITION high", ATTACH,
        "UPDATE root SET n = 8 WHERE id IN (1, 1001)", "COMMIT",
    ),
    "detach and attach again": (
        "ALTER TABLE root DETACH PARTITION high", "UPDATE high SET n = 9 WHERE id < 1010",
        f"ALTER TABLE root ATTACH PARTITION high {HIGH}",
    ),
    "detach and attach unchanged": (
        "ALTER TABLE root DETACH PARTITION high", f"ALTER TABLE root ATTACH PARTITION high {HIGH}",
    ),
    "new empty leaf": ("CREATE TABLE rest PARTITION OF root DEFAULT", "ALTER TABLE rest REPLICA IDENTITY FULL",
                       "INSERT INTO root VALUES (2000000000, 1, 'in the default')"),
    "truncate a leaf": ("TRUNCATE high",),
    "truncate the root": ("TRUNCATE root",),
    "truncate a leaf among rows": (
        "BEGIN", "UPDATE root SET n = 7 WHERE id IN (1, 1001)", "TRUNCATE high",
        "INSERT INTO root VALUES (1001, 1, 'new')", "UPDATE root SET n = 8 WHERE id < 3", "COMMIT",
    ),
    "truncate the root among rows": (
        "BEGIN", "UPDATE root SET n = 7 WHERE id IN (1, 1001)", "TRUNCATE root",
        "INSERT INTO root VALUES (1001, 1, 'new')", "COMMIT",
    ),
    "add a column": ("ALTER TABLE root ADD extra int DEFAULT 5",),
    "drop a column": ("ALTER TABLE root DROP pad",),
    "rename a column": ("ALTER TABLE root RENAME pad TO padding",),
    "retype a column": ("ALTER TABLE root ALTER n TYPE bigint",),
    "several": ("ALTER TABLE root ADD extra int", "ALTER TABLE root DROP pad", "DROP TABLE high",
                "ALTER TABLE root RENAME n TO m"),
    "rewrite of a leaf": ("VACUUM FULL high", "CLUSTER low USING low_pkey"),
    "rename a leaf": ("ALTER TABLE high RENAME TO higher",),
    "indexes and constraints": ("CREATE INDEX ON root (n)", "ALTER TABLE root ADD CHECK (id <> 5000)",
                                "ALTER TABLE high ADD CHECK (id > 0)", "COMMENT ON TABLE high IS 'x'"),
}  # fmt: skip

# No new snapshot: no row of before is another one now, or gone, but by its own event.
QUIET = {"new empty leaf", "rewrite of a leaf", "rename a leaf", "indexes and constraints"}
# The load's own statements would fail.
WITHOUT_LOAD = {"drop a column", "rename a column", "several", "retype a column"}


def run(feed, change):
    for statement in CHANGES[change]:
        feed.sql(statement)


def check_change(feed, change):
    rows = check_table(feed, "root")
    if not change.startswith("truncate the root"):
        check_root(feed)
    if change in QUIET:
        assert not log_of(feed, "root").replacements()
    return rows


@pytest.mark.parametrize("row", ["a row after it", "no row after it"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_in_quiet(root, change, row):
    spare(root)
    root.flush()
    root.sql("UPDATE root SET n = 4 WHERE id IN (2, 1002)")
    run(root, change)
    if row == "a row after it":
        root.sql("UPDATE root SET id = id + 1 WHERE id = 500")
        root.sql("DELETE FROM root WHERE id = 2")
    check_change(root, change)


@pytest.mark.parametrize("change", [change for change in CHANGES if change not in WITHOUT_LOAD])
def test_changes_under_load(root, change):
    """What the load writes may have no leaf for a while: those transactions are rolled back."""
    root.sql("CREATE TABLE others PARTITION OF root FOR VALUES FROM (1000000000) TO (1500000000)")
    full(root, "others")
    spare(root)
    root.flush()
    with Load(Forgiven(root), "root") as load:
        load.wait_for_transactions(10)
        run(root, change)
        load.wait_for_transactions(10)
    check_change(root, change)


class Forgiven:
    """The feed, for a load: sessions where a row that has no leaf is no error of the load."""

    def __init__(self, feed):
        self.feed = feed

    def session(self, **kwargs):
        return Forgiving(self.feed.session(**kwargs))


class Forgiving:
    def __init__(self, conn):
        self._conn = conn

    def __getattr__(self, name):
        return getattr(self._conn, name)

    def execute(self, *args):
        try:
            return self._conn.execute(*args)
        except CheckViolation as error:
            raise OperationalError(str(error)) from error


@pytest.mark.parametrize("away", ["paused", "no worker"])
@pytest.mark.parametrize("change", CHANGES)
def test_changes_while_nothing_is_decoded(away_feeds, change, away):
    feed = away_feeds[away, change]
    check_change(feed, change)


@pytest.fixture(scope="module")
def away_feeds(clusters):
    """A feed for each change, all changed while the server ran once without the library, or paused."""
    cluster = clusters.make({**SETTINGS, "max_connections": "100"})
    feeds = {}
    for number, (away, change) in enumerate((away, change) for away in ("no worker", "paused") for change in CHANGES):
        feeds[away, change] = feed = Feed(cluster, f"f{number}")
        make_root(feed)
        fill(feed)
        spare(feed)
        feed.start()
        feed.flush()
    with without_worker(cluster):
        for (away, change), feed in feeds.items():
            feed.reconnect()
            if away == "no worker":
                run(feed, change)
    for (away, change), feed in feeds.items():
        feed.reconnect()
        if away == "paused":
            pause(feed)
            run(feed, change)
            resume(feed)
    yield feeds
    clusters.discard(cluster)


# --- what becomes of leaves and histories


def test_a_table_that_becomes_a_leaf(root):
    """Its own history stays as it was; its rows are the root's from then on."""
    root.sql("DROP TABLE high")
    spare(root)
    root.flush()
    old = home(root, "spare")
    root.sql("UPDATE spare SET n = 6 WHERE id = 1001")
    root.sql(ATTACH)
    root.sql("UPDATE root SET n = 7 WHERE id = 1001")
    rows = check_root(root)
    assert (1001, 7, "spare") in {row.values for row in rows}
    wait_for(lambda: root.view("spare") is None, SOON, "the new leaf to leave the view")
    assert read_history(DELTA_RS, old)[-1].values[2] == 6, "an event of after the ATTACH in the leaf's own history"


@pytest.mark.parametrize("how", ["", " CONCURRENTLY"])
def test_a_leaf_that_becomes_a_table(root, how):
    """Its rows leave the root's history, and it gets one of its own."""
    root.sql("UPDATE root SET n = 6 WHERE id = 1001")
    root.sql(f"ALTER TABLE root DETACH PARTITION high{how}")
    root.sql("UPDATE high SET n = 7 WHERE id = 1001")
    root.wait_for_status("high", "STREAMING", SOON)
    root.sql("DELETE FROM high WHERE id = 1002")
    check_root(root)
    rows = check_table(root, "high")
    assert len(replay(rows)[0]) == 499


def test_a_leaf_that_goes_back_and_forth(root):
    for n in range(3):
        root.sql("ALTER TABLE root DETACH PARTITION high")
        root.sql(f"UPDATE high SET n = {n} WHERE id = 1001")
        root.sql(f"ALTER TABLE root ATTACH PARTITION high {HIGH}")
        root.sql(f"UPDATE root SET n = {n} WHERE id = 1002")
    check_root(root)


def test_the_root_is_renamed(root):
    path = home(root, "root")
    root.sql("ALTER TABLE root RENAME TO stem")
    root.sql("UPDATE stem SET n = 6 WHERE id IN (1, 1001)")
    root.wait_for_status("stem", "STREAMING", SOON)
    assert home(root, "stem") == path
    check_root(root, "stem", replaced=0)


def test_the_root_is_dropped_and_made_again(root):
    old = home(root, "root")
    before = Counter(read_history(DELTA_RS, old))
    root.sql("DROP TABLE root")
    make_root(root, low="another order", high="alike")
    fill(root, rows=[(1, 10), (1001, 1010)])
    root.sql("UPDATE root SET n = 6 WHERE id IN (1, 1001)")
    root.flush()
    root.wait_for_status("root", "STREAMING", SOON)
    assert home(root, "root") != old
    assert len(inserted(check_root(root))) == 20
    assert Counter(read_history(DELTA_RS, old)) == before


def test_a_table_is_made_partitioned(feed):
    """By renaming, as people do it: the new root takes the name, the old table is its leaf."""
    feed.table("root (id bigint PRIMARY KEY, n int, pad text)")
    fill(feed)
    feed.start()
    feed.flush()
    with feed.conn.transaction():
        feed.sql("ALTER TABLE root RENAME TO old")
        feed.sql("CREATE TABLE root (LIKE old INCLUDING ALL) PARTITION BY RANGE (id)")
        feed.sql("ALTER TABLE root ATTACH PARTITION old FOR VALUES FROM (MINVALUE) TO (10000)")
        feed.sql("CREATE TABLE rest PARTITION OF root DEFAULT")
        full(feed)
    feed.sql("INSERT INTO root VALUES (20000, 1, 'new')")
    feed.sql("UPDATE root SET n = 5 WHERE id = 1")
    feed.flush()
    feed.wait_for_status("root", "STREAMING", SOON)
    check_root(feed)


def test_resync_of_a_root(root):
    root.conn.execute(f"SELECT wal2delta.resync('{root.schema}.root')")
    root.sql("UPDATE root SET n = 6 WHERE id IN (1, 1001)")
    check_root(root, replaced=1)


def test_many_leaves_come_and_go_under_load(root):
    """A leaf a day, the oldest dropped: what partitions are for."""
    with Load(root, "root") as load:
        for n in range(6):
            name = f"day{n}"
            bounds = f"FOR VALUES FROM ({2_000_000_000 + n * 100}) TO ({2_000_000_100 + n * 100})"
            root.sql(f"CREATE TABLE {name} PARTITION OF root {bounds}")
            root.sql(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
            root.sql(f"INSERT INTO root SELECT i, 0, 'd' FROM generate_series({2_000_000_000 + n * 100}, "
                     f"{2_000_000_050 + n * 100}) i")  # fmt: skip
            load.wait_for_transactions(3)
            if n >= 2:
                root.sql(f"DROP TABLE day{n - 2}")
    check_root(root)


def test_a_leaf_of_two_roots(feed):
    """From one root to the other, in a transaction with rows, and back."""
    for name in "ab":
        feed.sql(f"CREATE TABLE {name} (id bigint, n int, pad text) PARTITION BY RANGE (id)")
        feed.sql(f"CREATE TABLE {name}_rest PARTITION OF {name} DEFAULT")
    feed.sql("CREATE TABLE leaf PARTITION OF a FOR VALUES FROM (0) TO (100)")
    full(feed, "a", "b", "a_rest", "b_rest", "leaf")
    feed.sql("INSERT INTO a SELECT i, 0, 'x' FROM generate_series(1, 200) i")
    feed.sql("INSERT INTO b SELECT i, 0, 'y' FROM generate_series(200, 300) i")
    feed.start()
    feed.flush()
    with feed.conn.transaction():
        feed.sql("UPDATE a SET n = 1 WHERE id IN (1, 150)")
        feed.sql("ALTER TABLE a DETACH PARTITION leaf")
        feed.sql("UPDATE leaf SET n = 2 WHERE id = 2")
        feed.sql("ALTER TABLE b ATTACH PARTITION leaf FOR VALUES FROM (0) TO (100)")
        feed.sql("UPDATE b SET n = 3 WHERE id IN (3, 250)")
    feed.sql("UPDATE b SET n = 4 WHERE id IN (4, 251)")
    check_table(feed, "a")
    check_table(feed, "b")
    feed.sql("ALTER TABLE b DETACH PARTITION leaf")
    feed.sql("ALTER TABLE a ATTACH PARTITION leaf FOR VALUES FROM (0) TO (100)")
    check_table(feed, "a")
    check_table(feed, "b")


# --- the database first


def test_no_session_waits_for_a_copy_that_waits(root):
    """A copy that cannot have all partitions yet holds none: others work on them, and nobody is ended by a
    deadlock."""
    with root.session(autocommit=False) as one, root.session(statement_timeout="5s") as other:
        one.execute("LOCK TABLE high IN ACCESS EXCLUSIVE MODE")
        root.conn.execute(f"SELECT wal2delta.resync('{root.schema}.root')")
        root.wait_for_status("root", "SNAPSHOTTING", SOON)
        workers = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'wal2delta' AND datname IS NOT NULL"
        wait_for(lambda: root.value(workers) == 2, SOON, "the snapshot worker")
        other.execute("TRUNCATE low")
        one.execute("LOCK TABLE low IN ACCESS EXCLUSIVE MODE")
        one.rollback()
    check_root(root)


def test_an_attached_partition_is_given_full(make_feed, feed):
    """Wherever it is: `set_replica_identity_full` is for the tables of the schema and what belongs to them."""
    other = make_feed(f"{feed.schema[:50]}_attached")
    feed.sql("SELECT wal2delta.set_replica_identity_full(%s)", [feed.schema])
    started(feed)
    feed.sql(f"CREATE TABLE {other.schema}.rest (LIKE root INCLUDING ALL)")
    feed.sql(f"ALTER TABLE root ATTACH PARTITION {other.schema}.rest DEFAULT")
    feed.sql("INSERT INTO root VALUES (2000000000, 1, 'x')")
    feed.sql("UPDATE root SET n = 5 WHERE id = 2000000000")
    check_root(feed)
    # What somebody does to a leaf on purpose stays.
    feed.sql("ALTER TABLE low REPLICA IDENTITY DEFAULT")
    assert feed.value("SELECT relreplident FROM pg_class WHERE oid = 'low'::regclass") == "d"
