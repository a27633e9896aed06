"""Partitioned tables: one history per root, in the root's column order whatever its leaves look like, with
every change in any leaf; leaves that come, go and change. Leaves are no tables of their own; the children
of inheritance are."""

from collections import Counter

import pytest
from harness.ddl import check_every_version, check_table, columns, inserted, log_of
from harness.load import Load
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms"}

SOON = 20

# Tables that have a history from before they were a leaf.
WITH_HISTORY = {"spare"}

LOW, HIGH = "FOR VALUES FROM (MINVALUE) TO (1000)", "FOR VALUES FROM (1000) TO (1000000000)"

# The leaves of `root (id bigint, n int, pad text)`: as the root; in another order; with dropped columns in
# their midst; in another schema.
LEAVES = {
    "alike": "CREATE TABLE {leaf} PARTITION OF root {bounds}",
    "another order": "CREATE TABLE {leaf} (pad text, n int, id bigint NOT NULL);"
                     "ALTER TABLE root ATTACH PARTITION {leaf} {bounds}",
    "dropped columns": "CREATE TABLE {leaf} (a int, id bigint NOT NULL, b text, pad text, c int, n int, d int);"
                       "ALTER TABLE {leaf} DROP a, DROP b, DROP c, DROP d;"
                       "ALTER TABLE root ATTACH PARTITION {leaf} {bounds}",
    "dropped in the root": "ALTER TABLE root ADD gone int; CREATE TABLE {leaf} PARTITION OF root {bounds};"
                           "ALTER TABLE root DROP gone; ALTER TABLE root ADD late text; ALTER TABLE root DROP late",
}  # fmt: skip


def make_root(feed, low="alike", high="another order"):
    feed.sql("CREATE TABLE root (id bigint PRIMARY KEY, n int, pad text) PARTITION BY RANGE (id)")
    for leaf, how, bounds in (("low", low, LOW), ("high", high, HIGH)):
        for statement in LEAVES[how].format(leaf=leaf, bounds=bounds).split(";"):
            feed.sql(statement)
    full(feed)


def full(feed, *tables):
    """REPLICA IDENTITY FULL for these, or for the root and all below it."""
    names = tables or [name for (name,) in feed.sql("SELECT relid::regclass::text FROM pg_partition_tree('root')")]
    for name in names:
        feed.sql(f"ALTER TABLE {name} REPLICA IDENTITY FULL")


def fill(feed, table="root", rows=((1, 500), (1001, 1500))):
    for first, last in rows:
        feed.sql(f"INSERT INTO {table} (id, n, pad) SELECT i, 0, 'x' || i FROM generate_series({first}, {last}) i")


def started(feed, **kwargs):
    make_root(feed, **kwargs)
    fill(feed)
    feed.start()
    feed.flush()
    return feed


@pytest.fixture
def root(feed):
    return started(feed)


def check_root(feed, table="root", replaced=None):
    """The one history replays to the root; leaves are not in the view and have no folder."""
    rows = check_table(feed, table)
    log = check_every_version(feed, table)
    shown = {name for (name,) in feed.sql(
        "SELECT source_table::text FROM wal2delta.tables WHERE source_schema::text = %s", [feed.schema])}  # fmt: skip
    leaves = {name for (name,) in feed.sql(
        "SELECT relname::text FROM pg_class WHERE relispartition AND relnamespace = %s::regnamespace", [feed.schema]
    )}  # fmt: skip
    assert table in shown and not shown & leaves
    assert not [leaf for leaf in leaves - WITH_HISTORY if feed.path(leaf).exists()]
    if replaced is not None:
        assert len(log.replacements()) == replaced
    return rows


# --- columns, and where the rows come from


@pytest.mark.parametrize("high", LEAVES)
@pytest.mark.parametrize("when", ["before start", "after start"])
def test_the_columns_are_the_roots(feed, high, when):
    """Whatever the leaf's own order: by snapshot and by stream."""
    if when == "before start":
        started(feed, high=high)
    else:
        feed.start()
        make_root(feed, high=high)
        fill(feed)
    feed.sql("UPDATE root SET n = id WHERE id IN (1, 2, 1001, 1002)")
    feed.sql("DELETE FROM root WHERE id IN (3, 1003)")
    feed.sql("INSERT INTO root VALUES (5, 5, 'five'), (1999, 5, NULL) ON CONFLICT (id) DO UPDATE SET pad = 'again'")
    rows = check_root(feed, replaced=0)
    assert columns(feed, "root") == [field.name for field in log_of(feed, "root").schema()][:-5] == ["id", "n", "pad"]
    if when == "after start":
        assert Counter(row.change for row in rows)["insert"] == 1001


def test_snapshot_and_stream_are_the_same(feed):
    make_root(feed, low="dropped columns", high="another order")
    fill(feed)
    feed.start()
    feed.flush()
    snapshot = feed.rows("root")
    assert len(snapshot) == 1000
    with feed.conn.transaction():
        feed.sql("CREATE TEMPORARY TABLE kept ON COMMIT DROP AS TABLE root")
        feed.sql("DELETE FROM root")
        feed.sql("INSERT INTO root SELECT * FROM kept ORDER BY id")
    rows = check_root(feed, replaced=0)
    assert Counter(row.values for row in rows[2000:]) == Counter(row.values for row in snapshot)


def test_leaves_by_name_and_copy(root):
    """Rows written to a leaf itself, and by COPY into the root."""
    root.sql("INSERT INTO low (id, n, pad) VALUES (900, 1, 'to the leaf')")
    root.sql("UPDATE high SET pad = 'by the leaf' WHERE id = 1001")
    with root.conn.cursor() as cursor, cursor.copy(f"COPY {root.schema}.root (id, pad) FROM STDIN") as copy:
        for n in range(2000):
            copy.write_row((600 + n if n < 250 else 2000 + n, f"copied {n}"))
    check_root(root, replaced=0)


def test_rows_that_move_between_leaves(root):
    """A delete and an insert, as PostgreSQL logs them, of one transaction and in this order."""
    root.sql("UPDATE root SET id = 1700, n = 9 WHERE id = 7")
    rows = check_root(root, replaced=0)
    assert [(row.change, row.values) for row in rows[-2:]] == [
        ("delete", (7, 0, "x7")), ("insert", (1700, 9, "x7")),
    ]  # fmt: skip
    assert rows[-1].xid == rows[-2].xid
    root.sql("UPDATE root SET id = id + 2000 WHERE id < 100")
    check_root(root, replaced=0)


def test_one_transaction_over_several_leaves(root):
    """In the order of its changes, in one commit."""
    with root.conn.transaction():
        for id in (11, 1011, 12, 1012):
            root.sql("UPDATE root SET n = 5 WHERE id = %s", [id])
            root.sql("SAVEPOINT s")
            root.sql("DELETE FROM root WHERE id = %s", [id + 1])
            root.sql("ROLLBACK TO s")
    rows = check_root(root, replaced=0)
    assert [row.values[0] for row in rows[-8:]] == [11, 11, 1011, 1011, 12, 12, 1012, 1012]


def test_large_values_that_are_not_changed(feed):
    """TOASTed values, in a leaf with another column order."""
    started(feed)
    feed.sql("ALTER TABLE root ALTER pad SET STORAGE EXTERNAL")
    feed.sql("UPDATE root SET pad = repeat('long ', 10000) WHERE id IN (1, 1001)")
    feed.sql("UPDATE root SET n = n + 1 WHERE id IN (1, 1001)")
    feed.sql("UPDATE root SET id = 1800 WHERE id = 1")
    check_root(feed, replaced=0)


def test_an_empty_root(feed):
    """Without a row it is SKIPPED, as every table; the first row's event is in the history."""
    make_root(feed)
    feed.start()
    assert "empty" in feed.wait_for_status("root", "SKIPPED", SOON)["reason"].lower()
    feed.sql("INSERT INTO root VALUES (1001, 1, 'first')")
    feed.wait_for_status("root", "STREAMING", SOON)
    assert inserted(check_root(feed)) == [(1001, 1, "first")]


def test_a_root_without_leaves(feed):
    feed.sql("CREATE TABLE root (id bigint PRIMARY KEY, n int, pad text) PARTITION BY RANGE (id)")
    full(feed)
    feed.start()
    feed.wait_for_status("root", "SKIPPED", SOON)
    feed.sql(f"CREATE TABLE low PARTITION OF root {LOW}")
    full(feed)
    fill(feed, rows=[(1, 10)])
    feed.wait_for_status("root", "STREAMING", SOON)
    check_root(feed)


@pytest.mark.parametrize("when", ["before start", "after start"])
def test_several_levels(feed, when):
    """Each level with a column order of its own; a default partition at each."""
    if when == "after start":
        feed.start()
    feed.sql("CREATE TABLE root (id bigint, n int, pad text) PARTITION BY RANGE (id)")
    feed.sql("CREATE TABLE sub (pad text, x int, id bigint, n int) PARTITION BY LIST (n)")
    feed.sql("ALTER TABLE sub DROP x")
    feed.sql(f"ALTER TABLE root ATTACH PARTITION sub {LOW}")
    feed.sql("CREATE TABLE sub_zero (n int, id bigint, pad text)")
    feed.sql("ALTER TABLE sub ATTACH PARTITION sub_zero FOR VALUES IN (0)")
    feed.sql("CREATE TABLE sub_rest PARTITION OF sub DEFAULT PARTITION BY HASH (id)")
    for n in range(2):
        feed.sql(f"CREATE TABLE sub_rest{n} PARTITION OF sub_rest FOR VALUES WITH (MODULUS 2, REMAINDER {n})")
    feed.sql("CREATE TABLE rest PARTITION OF root DEFAULT")
    full(feed)
    fill(feed)
    if when == "before start":
        feed.start()
        feed.flush()
    feed.sql("UPDATE root SET n = id % 5 WHERE id % 3 = 0")
    feed.sql("UPDATE root SET id = 5000 + id WHERE id < 20")
    feed.sql("TRUNCATE sub_rest")
    feed.sql("INSERT INTO root VALUES (30, 4, 'after'), (NULL, NULL, NULL)")
    check_root(feed)
    feed.sql("DELETE FROM root WHERE n = 0")
    check_root(feed)


# --- identity


@pytest.mark.parametrize("when", ["at start", "attached later", "taken away"])
def test_a_leaf_without_full(feed, when):
    """The root is FAILED, with the leaf's name and what to do; mended, it replays."""
    if when == "at start":
        make_root(feed)
        feed.sql("ALTER TABLE high REPLICA IDENTITY DEFAULT")
        fill(feed)
        feed.start()
    else:
        started(feed)
        if when == "taken away":
            feed.sql("ALTER TABLE high REPLICA IDENTITY DEFAULT")
        else:
            feed.sql("DROP TABLE high")
            feed.sql(f"CREATE TABLE high PARTITION OF root {HIGH}")
            fill(feed, rows=[(1001, 1500)])
        feed.sql("UPDATE root SET n = 5 WHERE id IN (1, 1001)")
    error = feed.wait_for_status("root", "FAILED", SOON)["last_error"]
    assert "high" in error and "REPLICA IDENTITY FULL" in error
    feed.sql("ALTER TABLE high REPLICA IDENTITY FULL")
    feed.wait_for_status("root", "STREAMING", 60)
    feed.sql("UPDATE root SET n = 6 WHERE id IN (1, 1001)")
    check_root(feed)


def test_the_identity_of_the_root_itself_does_not_matter(feed):
    """Only leaves have rows: a root that is not FULL is fed if its leaves are."""
    make_root(feed)
    feed.sql("ALTER TABLE root REPLICA IDENTITY DEFAULT")
    fill(feed)
    feed.start()
    feed.wait_for_status("root", "STREAMING", SOON)
    feed.sql("UPDATE root SET n = 6 WHERE id IN (1, 1001)")
    check_root(feed)


def test_set_replica_identity_full_reaches_all(feed):
    """Leaves of now and those that come later."""
    make_root(feed)
    for table in ("root", "low", "high"):
        feed.sql(f"ALTER TABLE {table} REPLICA IDENTITY DEFAULT")
    feed.sql("SELECT wal2delta.set_replica_identity_full(%s)", [feed.schema])
    feed.sql("CREATE TABLE rest PARTITION OF root DEFAULT")
    fill(feed)
    feed.start()
    feed.wait_for_status("root", "STREAMING", SOON)
    feed.sql("INSERT INTO root VALUES (2000000000, 1, 'in the default')")
    feed.sql("UPDATE root SET n = 7 WHERE id IN (1, 1001, 2000000000)")
    check_root(feed)


# --- leaves elsewhere, and other kinds of tables


@pytest.mark.parametrize("fed", ["fed as well", "not fed"])
def test_leaves_in_another_schema(make_feed, feed, fed):
    """A leaf belongs to its root's feed wherever it lies; to the feed of its own schema it is nothing."""
    other = make_feed(f"{feed.schema[:50]}_leaf")
    make_root(feed)
    feed.sql("ALTER TABLE high SET SCHEMA " + other.schema)
    fill(feed)
    if fed == "fed as well":
        other.table("own (i int)")
        other.sql("INSERT INTO own VALUES (1)")
        other.start()
    feed.start()
    feed.flush()
    feed.sql("UPDATE root SET n = 6 WHERE id IN (1, 1001)")
    feed.sql("UPDATE root SET id = 1900 WHERE id = 9")
    check_root(feed, replaced=0)
    assert other.view("high") is None and not other.path("high").exists()
    other.sql("ALTER TABLE high SET SCHEMA " + feed.schema)
    feed.sql("UPDATE root SET n = 7 WHERE id IN (1, 1001)")
    check_root(feed)


def test_a_leaf_of_a_schema_that_is_fed_with_its_root_elsewhere(make_feed, feed):
    """The root's schema is not fed: nor is the leaf."""
    other = make_feed(f"{feed.schema[:50]}_root")
    make_root(other)
    other.sql("ALTER TABLE high SET SCHEMA " + feed.schema)
    fill(other)
    feed.table("own (i int)")
    feed.sql("INSERT INTO own VALUES (1)")
    feed.start()
    other.sql("UPDATE root SET n = 6 WHERE id = 1001")
    assert feed.events("own") == [("insert", (1,))]
    assert feed.view("high") is None and not feed.path("high").exists()


def test_children_of_inheritance_are_tables_of_their_own(feed):
    feed.table("parent (id bigint PRIMARY KEY, n int)")
    feed.sql("CREATE TABLE child (extra text) INHERITS (parent)")
    full(feed, "child")
    feed.sql("INSERT INTO parent VALUES (1, 0)")
    feed.sql("INSERT INTO child VALUES (2, 0, 'c')")
    feed.start()
    feed.flush()
    feed.sql("UPDATE parent SET n = n + 1")
    feed.sql("INSERT INTO child VALUES (3, 0, 'd')")
    feed.flush()
    changes = ["insert", "update_preimage", "update_postimage"]
    assert [(row.change, row.values[0]) for row in feed.rows("parent")] == [(change, 1) for change in changes]
    assert check_table(feed, "child")[-1].values == (3, 0, "d")
    feed.sql("ALTER TABLE child NO INHERIT parent")
    feed.sql("UPDATE child SET n = 9")
    check_table(feed, "child")
    check_table(feed, "parent")


def test_an_unlogged_leaf(feed):
    """Its changes are not in the log: the root must not pretend to have them."""
    make_root(feed)
    feed.sql("DROP TABLE high")
    feed.sql(f"CREATE UNLOGGED TABLE high PARTITION OF root {HIGH}")
    full(feed)
    fill(feed)
    feed.start()
    row = wait_for(lambda: feed.view("root"), SOON, "the root to be shown")
    row = wait_for(lambda: feed.view("root") if feed.status("root") == "FAILED" else None, SOON, f"FAILED, not {row}")
    assert "high" in row["last_error"] and "unlogged" in row["last_error"].lower()


def test_restart_in_between(make_cluster, make_feed):
    feed = make_feed("shop", cluster=make_cluster(SETTINGS))
    started(feed)
    with Load(feed, "root") as load:
        for end in ("fast", "immediate"):
            load.wait_for_transactions(15)
            feed.cluster.stop(end)
            feed.cluster.start()
            load.wait_for_transactions(15)
        feed.cluster.terminate_feed_worker()
        load.wait_for_transactions(15)
    feed.reconnect()
    check_root(feed, replaced=0)


def test_under_load_from_the_start(feed):
    make_root(feed, low="dropped columns")
    fill(feed)
    with Load(feed, "root", sessions=3) as load:
        load.wait_for_transactions(20)
        feed.start()
        feed.wait_for_status("root", "STREAMING", 120)
        load.wait_for_transactions(50)
    check_root(feed, replaced=0)
