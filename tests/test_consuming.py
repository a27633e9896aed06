"""The examples of docs/consuming.md, as they stand there, on the histories of a feed."""

import re
import shutil
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from harness.feed import Feed
from harness.readers import DuckDB
from harness.spark import SPARK, WHY_NOT, available
from harness.waiting import wait_for

DOCUMENT = Path(__file__).parents[1] / "docs" / "consuming.md"
LAKE = "/var/lib/postgresql/lake"
ORDERS = "SELECT id, product, quantity FROM orders"
INVENTORY = "SELECT product, sum(quantity)::bigint, count(*) FROM orders GROUP BY product"


def blocks(heading):
    """The code below a heading."""
    text = DOCUMENT.read_text()
    (section,) = [part for part in re.split(r"^## ", text, flags=re.M) if part.startswith(heading + "\n")]
    return re.findall(r"^```(?:sql|python)\n(.*?)^```$", section, flags=re.M | re.S)


@pytest.fixture
def shop(cluster, tmp_path):
    feed = Feed(cluster, "shop", destination=cluster.folder_for(tmp_path.name))
    feed.table("orders (id bigint PRIMARY KEY, product text NOT NULL, quantity integer NOT NULL)")
    feed.table("visits (page text, visitor text)")
    feed.sql("INSERT INTO orders SELECT i, 'tea', i FROM generate_series(1, 10) i")
    feed.sql("INSERT INTO visits VALUES ('/', 'a'), ('/', 'a'), ('/tea', NULL)")
    feed.start()
    feed.flush()
    yield feed
    feed.close()


CHANGES = [
    "UPDATE orders SET quantity = quantity * 10 WHERE id <= 3",
    "DELETE FROM orders WHERE id = 3",
    "INSERT INTO orders VALUES (3, 'coffee', 7), (11, 'rice', 1)",
    "UPDATE orders SET id = 12, product = 'eggs' WHERE id = 4",
    "BEGIN; DELETE FROM orders WHERE id = 5; INSERT INTO orders VALUES (5, 'milk', 5);"
    " UPDATE orders SET quantity = 6 WHERE id = 5; DELETE FROM orders WHERE id = 11; COMMIT",
    "INSERT INTO orders VALUES (13, 'gone', 1); DELETE FROM orders WHERE id = 13",
    "UPDATE orders SET product = 'green tea' WHERE product = 'tea'",
]


def placed(code, feed):
    """The code, with the feed's destination for the one that the document has."""
    return code.replace(LAKE, str(feed.destination))


def rows(code, feed):
    return Counter(DuckDB().connection.execute(placed(code, feed)).fetchall())


def in_postgres(feed, query=ORDERS):
    return Counter(feed.sql(query))


# --- queries


def test_now_with_a_key(shop):
    (query, _) = blocks("The table as it is now")
    for change in CHANGES:
        shop.sql(change)
        shop.flush()
        assert rows(query, shop) == in_postgres(shop), change


def test_now_without_a_key(shop):
    (_, query) = blocks("The table as it is now")
    for change in [
        "INSERT INTO visits VALUES ('/', 'a'), (NULL, NULL), (NULL, NULL)",
        "DELETE FROM visits WHERE ctid = (SELECT min(ctid) FROM visits WHERE page = '/')",
        "UPDATE visits SET visitor = 'b' WHERE page = '/tea'",
        "DELETE FROM visits WHERE page IS NULL",
    ]:
        shop.sql(change)
        shop.flush()
        assert rows(query, shop) == in_postgres(shop, "SELECT page, visitor FROM visits"), change


def test_a_deferrable_key_needs_the_other_query(shop):
    """As the document says of them."""
    by_key, by_copies = blocks("The table as it is now")
    shop.sql("ALTER TABLE orders DROP CONSTRAINT orders_pkey, ADD PRIMARY KEY (id) DEFERRABLE")
    shop.sql("UPDATE orders SET id = 3 - id WHERE id <= 2")
    shop.flush()
    by_copies = by_copies.replace("page, visitor", "id, product, quantity").replace("lb_visits", "lb_orders")
    assert rows(by_copies, shop) == in_postgres(shop)
    assert rows(by_key, shop) != in_postgres(shop)


def test_as_it_was(shop):
    by_lsn, by_time = blocks("As it was")
    states = []
    for change in CHANGES:
        shop.sql(change)
        lsn, moment = shop.sql("SELECT pg_current_wal_insert_lsn() - '0/0', clock_timestamp() AT TIME ZONE 'UTC'")[0]
        states.append((str(lsn), str(moment), in_postgres(shop)))
    shop.flush()
    for lsn, moment, state in states:
        assert rows(by_lsn.replace("24512160", lsn), shop) == state
        assert rows(by_time.replace("2026-03-01 12:00:00", moment), shop) == state
    assert len({frozenset(state.items()) for _, _, state in states}) == len(states) - 1


def test_what_changed(shop):
    (query,) = blocks("What changed between two times")
    times = []
    for change in [*CHANGES[:2], "SELECT 1", "UPDATE orders SET quantity = 70 WHERE id = 7", CHANGES[2]]:
        times.append(str(shop.value("SELECT clock_timestamp() AT TIME ZONE 'UTC'")))
        shop.sql(change)
    shop.flush()

    def changed(since, until):
        code = query.replace("2026-03-01 12:00:00", since).replace("2026-03-01 13:00:00", until)
        return [row[2:] for row in DuckDB().connection.execute(placed(code, shop)).fetchall()]

    assert changed(times[0], times[2]) == [
        ("update", 1, 1, 10),
        ("update", 2, 2, 20),
        ("update", 3, 3, 30),
        ("delete", 3, 30, None),
    ]
    assert changed(times[2], times[3]) == []
    assert changed(times[3], "9999-01-01") == [
        ("update", 7, 7, 70),
        ("insert", 3, None, 7),
        ("insert", 11, None, 1),
    ]


# --- loads


class Target:
    """A database in a file that an example loads. `query` asks it what `source` asks Postgres."""

    def __init__(self, file, feed, heading, query, source):
        self.file, self.feed, self.query, self.source = file, feed, query, source
        once, self.each_time = (placed(code, feed) for code in blocks(heading))
        self.connection = DuckDB(file).connection
        self.connection.execute(once)

    def statements(self):
        return duckdb.extract_statements(self.each_time)

    def reopen(self):
        self.connection.close()
        self.connection = DuckDB(self.file).connection

    def rows(self):
        return Counter(self.connection.execute(self.query).fetchall())

    def load(self):
        """All there is, and the target is like the table."""
        self.feed.flush()
        self.connection.execute(self.each_time)
        assert self.rows() == in_postgres(self.feed, self.source)


LOADS = {
    "Load what is new, by `_sort_by`": ("FROM orders", ORDERS),
    "A materialised inventory": ("FROM inventory", INVENTORY),
}


@pytest.fixture(params=LOADS)
def target(request, shop, tmp_path):
    made = Target(tmp_path / "target.db", shop, request.param, *LOADS[request.param])
    yield made
    made.connection.close()


def test_loads_with_changes_between(target, shop):
    target.load()
    for change in CHANGES:
        shop.sql(change)
        target.load()
        target.load()
    # Several of them at once.
    for change in ["DELETE FROM orders", *CHANGES[2:]]:
        shop.sql(change)
    target.load()


def test_a_load_is_interrupted(target, shop):
    """After each of its statements but the last two, COMMIT and DETACH."""
    target.load()
    for done in range(len(target.statements()) - 1):
        before = target.rows()
        shop.sql("UPDATE orders SET quantity = quantity + 1 WHERE id <= 3")
        shop.flush()
        for statement in target.statements()[:done]:
            target.connection.execute(statement)
        target.reopen()
        assert target.rows() == before
        target.load()


def test_rows_come_while_it_loads(target, shop):
    """A load sees one version, whichever that is: what comes later is for the next one."""
    for key, statement in enumerate(target.statements()):
        shop.sql("INSERT INTO orders VALUES (%s, 'late', 1)", [100 + key])
        shop.flush()
        target.connection.execute(statement)
    assert target.rows() != in_postgres(shop, target.source)
    target.load()


@pytest.mark.parametrize("mode", ["resnapshot", "evolve"])
def test_a_history_is_replaced(target, shop, mode):
    shop.alter(on_schema_change=mode)
    target.load()
    for change in [
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 'tea', 1), (2, 'rice', 2)",
        "TRUNCATE orders; INSERT INTO orders VALUES (2, 'rice', 3), (4, 'tea', 5)",
        "SELECT wal2delta.resync('shop.orders')",
    ]:
        shop.sql(change)
        target.load()
    # Changes and a replacement between two loads.
    shop.sql("DELETE FROM orders WHERE id = 2")
    shop.flush()
    shop.sql("ALTER TABLE orders ADD note text DEFAULT 'x'")
    shop.sql("INSERT INTO orders VALUES (5, 'tea', 1)")
    target.load()


# --- Spark


class Job:
    """The streaming job, and the table that it fills."""

    def __init__(self, feed, folder):
        self.folder = folder
        once, self.stream, self.now = (
            placed(code, feed).replace("/data", str(folder)) for code in blocks("Spark: a stream into a current table")
        )
        self.names = {"spark": SPARK.session}
        SPARK.session.sql(once)

    def rows(self):
        return Counter(tuple(row) for row in SPARK.session.sql(self.now).collect())

    def run(self, **options):
        """Until all is read that was there when it began."""
        source = "".join(f".option({name!r}, {value!r})" for name, value in options.items())
        exec(self.stream.replace('.format("delta")', '.format("delta")' + source), self.names)
        return self.rows()

    def begin(self):
        """The running stream."""
        stream = self.stream.replace("availableNow=True", 'processingTime="1 second"')
        exec(stream.replace("stream.awaitTermination()", ""), self.names)
        return self.names["stream"]

    def fails(self, says, **options):
        with pytest.raises(Exception, match=says) as caught:
            self.run(**options)
        assert type(caught.value).__name__ == "StreamingQueryException"

    def anew(self):
        shutil.rmtree(self.folder / "orders_checkpoint")
        SPARK.session.sql(f"DELETE FROM delta.`{self.folder}/orders_last`")


@pytest.fixture
def job(shop, tmp_path):
    if not available():
        pytest.skip(WHY_NOT)
    return Job(shop, tmp_path)


def test_a_stream_into_a_current_table(job, shop):
    assert job.run() == in_postgres(shop)
    for changes in (CHANGES[:2], CHANGES[2:]):
        for change in changes:
            shop.sql(change)
            shop.flush()
        assert job.run() == in_postgres(shop)
    # Old changes once more, as after an interruption, or late.
    history = SPARK.session.read.format("delta").load(str(shop.path("orders")))
    job.names["merge"](history.where("_pg_change_type = 'insert'"), 0)
    assert job.rows() == in_postgres(shop)


def test_a_stream_of_a_replaced_history(job, shop):
    job.run()
    shop.sql("DELETE FROM orders WHERE id = 1")
    shop.sql("SELECT wal2delta.resync('shop.orders')")
    shop.sql("INSERT INTO orders VALUES (20, 'new', 1)")
    shop.flush()
    for _ in range(2):
        job.fails("DELTA_SOURCE_TABLE_IGNORE_CHANGES")
    assert job.run(skipChangeCommits="true") != in_postgres(shop)
    job.anew()
    assert job.run() == in_postgres(shop)


def test_a_stream_of_a_history_that_is_kept(job, shop):
    shop.alter(on_schema_change="evolve")
    running = job.begin()
    shop.sql("TRUNCATE orders; INSERT INTO orders VALUES (1, 'tea', 1), (2, 'tea', 2)")
    shop.sql("SELECT wal2delta.resync('shop.orders')")
    shop.flush()
    wait_for(lambda: job.rows() == in_postgres(shop), 60, "the stream to bring the snapshot")
    shop.sql("ALTER TABLE orders ADD note text")
    shop.sql("INSERT INTO orders VALUES (20, 'new', 1, 'a note')")
    shop.flush()
    wait_for(lambda: not running.isActive, 60, "the stream to end at the new column")
    assert "DELTA_SCHEMA_CHANGED_WITH_VERSION" in str(running.exception())
    assert job.run() == in_postgres(shop)


def test_a_stream_and_files_that_are_merged(job, shop):
    """Each row comes once."""
    seen = []

    def read():
        history = SPARK.session.readStream.format("delta").load(str(shop.path("orders")))
        counted = history.writeStream.foreachBatch(lambda batch, _: seen.append(batch.count()))
        counted = counted.option("checkpointLocation", f"{job.folder}/counted").trigger(availableNow=True)
        counted.start().awaitTermination()

    def change(ids):
        for id in ids:
            shop.sql(f"INSERT INTO orders VALUES ({id}, 'new', 1)")
            shop.flush()

    read()
    change(range(100, 105))
    shop.sql("SELECT wal2delta.optimize('shop.orders')")
    change(range(105, 108))
    read()
    assert sum(seen) == len(shop.rows("orders"))
    shop.sql("SELECT wal2delta.optimize('shop.orders')")
    read()
    assert sum(seen) == len(shop.rows("orders"))


def test_a_stream_and_columns_that_are_renamed(job, shop):
    shop.sql("ALTER TABLE orders ADD note text")
    shop.flush()
    shop.alter(on_schema_change="evolve")
    job.run()

    def rename(before, after):
        shop.sql(f"ALTER TABLE orders RENAME {before} TO {after}")
        shop.sql("UPDATE orders SET quantity = quantity + 1")
        shop.flush()

    rename("note", "remark")
    job.fails("DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG")
    job.anew()
    tracking = {"schemaTrackingLocation": f"{job.folder}/orders_checkpoint/schema"}
    assert job.run(**tracking) == in_postgres(shop)
    rename("remark", "comment")
    job.fails("DELTA_STREAMING_METADATA_EVOLUTION", **tracking)
    job.fails("DELTA_STREAMING_CANNOT_CONTINUE_PROCESSING_POST_SCHEMA_EVOLUTION", **tracking)
    assert job.run(**tracking, allowSourceColumnRename="always") == in_postgres(shop)
