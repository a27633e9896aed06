"""Every DDL against a table with rows: while others write, while the table is copied, while the feed is
paused and while no worker runs; with and without a row changed after it. Each time the history replays
to the table, no version shows a mix, and a new snapshot is taken where rows or columns are other ones
now, and only there."""

import random

import pytest
from harness import fail_points
from harness.ddl import EVOLVE_MODE, MODES, RESNAPSHOT, check_every_version, check_table, columns, home, live_at
from harness.ddl import log_of, pause, resume, without_worker
from harness.ddl_cases import ADDITIVE, CASES, COLUMN_CHANGES, NOTHING, NULLABLE, SNAPSHOT
from harness.ddl_cases import make, make_types, named
from harness.deltalog import DeltaLog
from harness.fail_points import FailPoints
from harness.feed import Feed
from harness.load import Load
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms", "allow_in_place_tablespaces": "on", **fail_points.SETTINGS}

# Rows changed around the DDL in a situation where nothing is decoded. Those of before show the old shape.
ROWS = ["rows before and after it", "a row before it", "a row after it", "no row"]

# Those that are tried in every situation.
SOME = named(
    "add", "add NOT NULL with a default", "drop", "drop and add the same", "rename a column", "swap two columns' names",
    "retype int to bigint", "retype varchar to other text", "several one after the other", "drop NOT NULL",
    "set NOT NULL", "cluster", "vacuum full", "tablespace", "indexes", "row security",
)  # fmt: skip


@pytest.fixture(scope="module")
def points(cluster):
    if not fail_points.library().exists():
        pytest.skip("the library with fail points is not installed")
    return FailPoints(cluster)


@pytest.fixture(scope="module")
def elsewhere(cluster):
    """A tablespace to move to."""
    cluster.sql("CREATE TABLESPACE elsewhere LOCATION ''")


def started(feed, mode, tables=("kv",)):
    make_types(feed)
    for table in tables:
        make(feed, table)
    feed.start(on_schema_change=mode)
    feed.flush()
    return feed


def check_outcome(feed, table, ddl, mode, before, row=True):
    """The history is right, and became so in the way that it should. `before`: (id, columns) of before;
    `row`: whether a row was changed after it, without which a metadata change may come later."""
    rows = check_table(feed, table, mode, ddl.lost)
    identity, old = before
    outcome = ddl.outcome if mode == RESNAPSHOT else ddl.evolve
    shapes = None if len(ddl.statements) > 1 or mode != RESNAPSHOT else [old, columns(feed, table)]
    log = check_every_version(feed, table, mode, shapes)
    assert log.metadata()["id"] == identity
    taken = len(log.replacements())
    if outcome == SNAPSHOT:
        assert 1 <= taken <= len(ddl.statements), f"{taken} new snapshots"
    elif outcome in (NOTHING, NULLABLE, ADDITIVE):
        assert taken == 0, f"{taken} new snapshots that were not needed"
    nullable = {field.name: field.nullable for field in log.schema()}
    if outcome == NULLABLE:
        assert nullable["must"] or not row
    elif outcome == NOTHING:
        assert [field.name for field in log.schema()][:-5] == old
        assert not nullable["must"]
    return rows


def run_among_rows(feed, table, ddl, rows):
    """The DDL with a row changed before and after it, as `rows` (see ROWS) says."""
    if "before" in rows:
        feed.sql(f"DELETE FROM {table} WHERE id = 3")
    ddl.run(feed, table)
    if "after" in rows:
        feed.sql(f"UPDATE {table} SET n = 2 WHERE id <= 2")


def before(feed, table):
    return log_of(feed, table).metadata()["id"], columns(feed, table)


def test_every_case_is_one(feed, elsewhere):
    """The statements do what they are there for: PostgreSQL takes each, on a table without a feed."""
    make_types(feed)
    for number, ddl in enumerate(CASES):
        make(feed, f"t{number}", rows=3)
        old = columns(feed, f"t{number}")
        ddl.run(feed, f"t{number}")
        new = columns(feed, f"t{number}")
        assert old == new or ddl in COLUMN_CHANGES, ddl.name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ddl", CASES, ids=str)
def test_under_load(feed, elsewhere, ddl, mode):
    """Rows are written before, during and after; those before go out in the old shape."""
    started(feed, mode)
    was = before(feed, "kv")
    with Load(feed, "kv") as load:
        load.wait_for_transactions(10)
        ddl.run(feed, "kv")
        load.wait_for_transactions(10)
    rows = check_outcome(feed, "kv", ddl, mode, was)
    assert len(rows) > 300
    feed.wait_for_status("kv", "STREAMING")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", ["a row before it", "a row after it"])
@pytest.mark.parametrize("ddl", SOME + named("drop, then add the same", "retype to numeric"), ids=str)
def test_in_quiet(feed, elsewhere, ddl, rows, mode):
    """Nobody writes; with a row changed after it, and with none: the flush that follows brings it."""
    started(feed, mode)
    was = before(feed, "kv")
    run_among_rows(feed, "kv", ddl, rows)
    check_outcome(feed, "kv", ddl, mode, was, "after" in rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "copy, rows",
    [("first copy", ROWS[0]), ("another copy", ROWS[0]), ("another copy", ROWS[1])],
    ids=lambda value: value.replace(" ", "-"),
)
@pytest.mark.parametrize("ddl", SOME, ids=str)
def test_while_it_is_copied(feed, elsewhere, points, ddl, copy, rows, mode):
    """The copy stands still in the midst of the table when the DDL comes."""
    if copy == "first copy":
        make_types(feed)
        feed.start(on_schema_change=mode)
        points.arm("in_snapshot", "sleep 1500")
        make(feed, "hidden")
        feed.sql("ALTER TABLE hidden REPLICA IDENTITY DEFAULT")
        feed.sql("INSERT INTO hidden (id) VALUES (-1)")
        feed.sql("UPDATE hidden SET n = 1")
        feed.sql("ALTER TABLE hidden REPLICA IDENTITY FULL")
        table = "hidden"
    else:
        started(feed, mode)
        points.arm("in_snapshot", "sleep 1500")
        feed.conn.execute(f"SELECT wal2delta.resync('{feed.schema}.kv')")
        table = "kv"
    try:
        wait_for(lambda: not points.armed(), 30, "the copy to be in the midst of the table")
    finally:
        points.disarm("in_snapshot")
    run_among_rows(feed, table, ddl, rows)
    check_table(feed, table, mode, ddl.lost)
    log = check_every_version(feed, table, mode)
    assert len(log.replacements()) <= len(ddl.statements) + 1
    assert len({meta["id"] for _, meta in log.actions("metaData")}) == 1


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("ddl", SOME, ids=str)
def test_while_the_feed_is_paused(feed, elsewhere, ddl, rows, mode):
    started(feed, mode)
    was = before(feed, "kv")
    pause(feed)
    run_among_rows(feed, "kv", ddl, rows)
    resume(feed)
    feed.wait_for_status("kv", "STREAMING")
    check_outcome(feed, "kv", ddl, mode, was, "after" in rows)


WHILE_DOWN = SOME + named("drop, then add the same", "retype to numeric", "in a transaction with rows")


class WorkerDown:
    """A server that ran once without the library: each case with each of ROWS on a table of its own."""

    def __init__(self, cluster, mode):
        cluster.sql("CREATE TABLESPACE elsewhere LOCATION ''")
        self.mode = mode
        pairs = [(ddl, rows) for ddl in WHILE_DOWN for rows in ROWS]
        self.tables = {pair: f"t{number}" for number, pair in enumerate(pairs)}
        self.feed = feed = started(Feed(cluster, "down"), mode, self.tables.values())
        self.before = {table: before(feed, table) for table in self.tables.values()}
        with without_worker(cluster):
            feed.reconnect()
            for (ddl, rows), table in self.tables.items():
                run_among_rows(feed, table, ddl, rows)
        feed.reconnect()
        feed.flush()


@pytest.fixture(scope="module", params=MODES)
def down(request, clusters):
    cluster = clusters.make(SETTINGS)
    yield WorkerDown(cluster, request.param)
    clusters.discard(cluster)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("ddl", WHILE_DOWN, ids=str)
def test_while_no_worker_runs(down, ddl, rows):
    table = down.tables[ddl, rows]
    check_outcome(down.feed, table, ddl, down.mode, down.before[table], "after" in rows)


# --- many in a row


class Shuffler:
    """Random DDL on the columns of `kv` that the load does not write."""

    def __init__(self, feed, seed):
        self.feed, self.dice, self.made = feed, random.Random(seed), 0
        self.names = []
        # Columns whose values of before an `evolve` history does not have.
        self.given = set()

    def step(self):
        what = self.dice.choice(("add", "add", "rename", "retype", "drop", "two", "harmless"))
        if what == "add" or not self.names:
            return self.add()
        name = self.dice.choice(self.names)
        if what == "rename":
            self.names[self.names.index(name)] = new = self.fresh()
            (self.given.add if name in self.given else self.given.discard)(new)
            return f"RENAME {name} TO {new}"
        if what == "retype":
            return f"ALTER {name} TYPE {self.dice.choice(('text', 'varchar', 'varchar(900)'))} USING {name}::text"
        if what == "harmless":
            return self.dice.choice((f"ALTER {name} SET STATISTICS 50", "SET (fillfactor = 70)"))
        self.names.remove(name)
        return f"DROP {name}" + (f", {self.add()}" if what == "two" else "")

    def fresh(self):
        self.made += 1
        while f"c{self.made}" in self.names:
            self.made += 1
        return f"c{self.made}"

    def add(self):
        # Sometimes a name that was there before.
        name = self.dice.choice([f"c{n}" for n in range(self.made + 2)])
        name = self.fresh() if name in self.names else name
        self.names.append(name)
        kind = self.dice.choice(("int", "text DEFAULT 'd'", "int NOT NULL DEFAULT 5", "date"))
        (self.given.add if "DEFAULT" in kind else self.given.discard)(name)
        return f"ADD {name} {kind}"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", ["nothing ends", "the worker ends"])
@pytest.mark.parametrize("number", range(3))
def test_random_changes_under_load(feed, seed, mode, end, number):
    """Twenty changes in a row, as fast as they go; now and then the worker is terminated."""
    feed.table("kv (id bigint PRIMARY KEY, n int, pad text)")
    feed.sql("INSERT INTO kv SELECT i, 0, 'x' FROM generate_series(1, 500) i")
    feed.start(on_schema_change=mode)
    feed.flush()
    shuffler = Shuffler(feed, f"{seed}/{number}")
    done = []
    with Load(feed, "kv") as load:
        for n in range(20):
            done.append(shuffler.step())
            feed.sql(f"ALTER TABLE kv {done[-1]}")
            if n % 3 == 0:
                load.wait_for_transactions(2)
            if n % 7 == 5 and end == "the worker ends":
                feed.cluster.terminate_feed_worker()
    print(f"seed {seed}: {done}")
    lost = tuple(shuffler.given.intersection(shuffler.names))
    check_table(feed, "kv", mode, lost if mode == EVOLVE_MODE else ())
    check_every_version(feed, "kv", mode)


# --- what goes out when


@pytest.mark.parametrize("ddl", [case for case in COLUMN_CHANGES if case.outcome == SNAPSHOT], ids=str)
def test_what_was_buffered_goes_out_in_the_old_shape(feed, ddl):
    """The version right before the replacement replays to the table as it was right before the DDL."""
    started(feed, RESNAPSHOT)
    feed.sql("UPDATE kv SET n = 5 WHERE id < 9")
    feed.sql("DELETE FROM kv WHERE id = 10")
    rows = set(feed.table_rows("kv"))
    old = columns(feed, "kv")
    if ddl.statements[0] == "BEGIN" or len(ddl.statements) > 1:
        # What is in the same transaction is no row of before.
        ddl = named("add")[0]
    ddl.run(feed, "kv")
    feed.sql("UPDATE kv SET n = 6 WHERE id < 9")
    check_table(feed, "kv")
    log = DeltaLog(home(feed, "kv"))
    first = log.replacements()[0]
    assert [field.name for field in log.schema(first - 1)][:-5] == old
    assert set(live_at(log, first - 1)) == rows


def test_a_nullable_column_takes_null(feed):
    """The first NULL of a column that was NOT NULL is in Delta, and its rows of before are as they were."""
    started(feed, RESNAPSHOT)
    feed.sql("UPDATE kv SET n = 1 WHERE id = 1")
    feed.flush()
    feed.sql("ALTER TABLE kv ALTER must DROP NOT NULL")
    feed.sql("UPDATE kv SET must = NULL WHERE id = 1")
    check_table(feed, "kv")
    log = check_every_version(feed, "kv")
    assert not log.replacements()
    assert {field.name: field.nullable for field in log.schema()}["must"]
    feed.sql("UPDATE kv SET must = 1")
    feed.sql("ALTER TABLE kv ALTER must SET NOT NULL")
    feed.sql("UPDATE kv SET must = 2 WHERE id = 1")
    check_table(feed, "kv")
    assert not log_of(feed, "kv").replacements()


