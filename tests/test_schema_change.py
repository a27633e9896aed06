"""Schema changes and TRUNCATE in the default mode: a new snapshot replaces the
content in one atomic commit; at no version does a reader see a mix."""

import pytest
from harness.deltalog import DeltaLog
from harness.history import Broken, order_problems, replay
from harness.load import Load
from harness.readers import DELTA_RS, READERS


@pytest.fixture
def kv(feed):
    feed.table("kv (k int PRIMARY KEY, v text, n int)")
    feed.sql("INSERT INTO kv SELECT i, 'v' || i, i FROM generate_series(1, 5) i")
    feed.start()
    feed.flush()
    feed.sql("UPDATE kv SET n = 0 WHERE k = 5")
    feed.flush()
    return feed


def check_every_version(feed, table):
    """Each version that holds rows replays without a fault, has the schema its
    rows have, and goes on in `_sort_by`."""
    log = DeltaLog(feed.path(table))
    highest = 0
    for version in log.commits:
        if not log.active(version):
            continue
        rows = feed.rows(table, DELTA_RS, version=version)
        replaced = any(number <= version for number in log.replacements())
        problems = order_problems(rows, starts_anew=replaced) + replay(rows)[1]
        if problems:
            raise Broken(f"version {version}", problems)
        if rows:
            assert rows[-1].sort_by >= highest, version
            highest = rows[-1].sort_by
    return log


CHANGES = {
    "add": "ALTER TABLE kv ADD COLUMN extra int",
    "add with a default": "ALTER TABLE kv ADD COLUMN extra text NOT NULL DEFAULT 'given'",
    "add with a volatile default": "ALTER TABLE kv ADD COLUMN extra text DEFAULT clock_timestamp()::text",
    "drop": "ALTER TABLE kv DROP COLUMN n",
    "rename": "ALTER TABLE kv RENAME COLUMN v TO w",
    "retype": "ALTER TABLE kv ALTER COLUMN n TYPE bigint",
    "retype to text": "ALTER TABLE kv ALTER COLUMN n TYPE text USING 'n' || n",
    "drop and add the same name": "ALTER TABLE kv DROP COLUMN n, ADD COLUMN n int",
    "all at once": "ALTER TABLE kv DROP COLUMN v, ADD COLUMN m numeric(5,1) DEFAULT 1.5, ALTER COLUMN n TYPE bigint",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_table_replays_in_its_new_shape(kv, change):
    before = kv.rows("kv")
    kv.sql("INSERT INTO kv VALUES (6, 'under the old schema', 6)")
    kv.sql(CHANGES[change])
    kv.sql("INSERT INTO kv (k) VALUES (7)")
    kv.sql("DELETE FROM kv WHERE k = 1")
    rows = kv.check("kv")
    columns = [name for (name,) in kv.sql(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'kv'::regclass AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum"
    )]  # fmt: skip
    log = check_every_version(kv, "kv")
    assert [field.name for field in log.schema()][:-5] == columns
    assert len(log.replacements()) == 1
    assert rows[0].sort_by > before[-1].sort_by and rows[0].lsn >= before[-1].lsn


def test_what_was_buffered_goes_out_under_the_old_schema(kv):
    """The last version before the replacement has the row that was written
    before the change."""
    kv.sql("INSERT INTO kv VALUES (6, 'old', 6)")
    kv.sql("ALTER TABLE kv ADD COLUMN extra int")
    kv.sql("INSERT INTO kv VALUES (7, 'new', 7, 7)")
    kv.check("kv")
    (replaced,) = DeltaLog(kv.path("kv")).replacements()
    old = kv.rows("kv", DELTA_RS, version=replaced - 1)
    assert old[-1].values == (6, "old", 6)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_follows(kv, reader):
    kv.sql("ALTER TABLE kv ADD COLUMN extra int, DROP COLUMN v")
    kv.sql("INSERT INTO kv VALUES (6, 6, 60)")
    assert ("insert", (6, 6, 60)) in kv.events("kv", reader)


def test_changes_and_rows_in_one_transaction(kv):
    with kv.conn.transaction():
        kv.sql("INSERT INTO kv VALUES (6, 'before', 6)")
        kv.sql("ALTER TABLE kv ADD COLUMN extra int")
        kv.sql("INSERT INTO kv VALUES (7, 'after', 7, 70)")
        kv.sql("ALTER TABLE kv DROP COLUMN n")
        kv.sql("UPDATE kv SET v = 'changed' WHERE k = 1")
    kv.check("kv")
    check_every_version(kv, "kv")


def test_a_change_that_is_rolled_back_changes_nothing(kv):
    with kv.conn.transaction(force_rollback=True):
        kv.sql("ALTER TABLE kv ADD COLUMN extra int")
        kv.sql("INSERT INTO kv VALUES (6, 'gone', 6, 6)")
    kv.sql("INSERT INTO kv VALUES (7, 'kept', 7)")
    assert kv.events("kv")[-1] == ("insert", (7, "kept", 7))
    assert not DeltaLog(kv.path("kv")).replacements()


def test_several_changes_in_a_row(kv):
    for n in range(4):
        kv.sql(f"ALTER TABLE kv ADD COLUMN c{n} int DEFAULT {n}")
        kv.sql("UPDATE kv SET v = v || '.' WHERE k = 2")
    kv.sql("ALTER TABLE kv DROP COLUMN c1, DROP COLUMN c2")
    kv.check("kv")
    check_every_version(kv, "kv")


def test_a_change_under_load(make_feed):
    feed = make_feed()
    feed.table("kv (id bigint PRIMARY KEY, n int, pad text)")
    feed.sql("INSERT INTO kv SELECT i, 0, 'x' FROM generate_series(1, 5000) i")
    feed.start()
    feed.flush()
    with Load(feed, "kv") as load:
        for n in range(3):
            load.wait_for_transactions(20)
            feed.sql(f"ALTER TABLE kv ADD COLUMN c{n} int DEFAULT {n}")
            load.wait_for_transactions(20)
    feed.check("kv")
    check_every_version(feed, "kv")


@pytest.mark.parametrize(
    "harmless",
    [
        "COMMENT ON TABLE kv IS 'x'",
        "COMMENT ON COLUMN kv.v IS 'x'",
        "ALTER TABLE kv ALTER COLUMN v SET DEFAULT 'd'",
        "CREATE INDEX ON kv (v)",
        "ALTER TABLE kv ADD CHECK (k > 0)",
        "ALTER TABLE kv SET (fillfactor = 50)",
        "ANALYZE kv",
        "VACUUM kv",
    ],
)
def test_what_changes_no_column_takes_no_snapshot(kv, harmless):
    version = DeltaLog(kv.path("kv")).version
    kv.sql(harmless)
    kv.sql("INSERT INTO kv (k, v) VALUES (6, 'w')")
    assert kv.events("kv")[-1] == ("insert", (6, "w", None))
    assert DeltaLog(kv.path("kv")).version == version + 1


# --- TRUNCATE


def test_truncate_empties_the_history(kv):
    kv.sql("INSERT INTO kv VALUES (6, 'x', 6)")
    kv.sql("TRUNCATE kv")
    assert kv.check("kv") == []
    kv.sql("INSERT INTO kv VALUES (7, 'new', 7)")
    assert kv.events("kv") == [("insert", (7, "new", 7))]
    check_every_version(kv, "kv")


def test_order_goes_on_after_truncate(kv):
    last = kv.rows("kv")[-1]
    kv.sql("TRUNCATE kv")
    kv.flush()
    kv.sql("INSERT INTO kv VALUES (7, 'new', 7)")
    (row,) = kv.check("kv")
    assert row.sort_by > last.sort_by and row.lsn > last.lsn


def test_truncate_in_a_transaction_with_rows(kv):
    with kv.conn.transaction():
        kv.sql("INSERT INTO kv VALUES (6, 'before', 6)")
        kv.sql("TRUNCATE kv")
        kv.sql("INSERT INTO kv VALUES (7, 'after', 7)")
        kv.sql("UPDATE kv SET n = 8")
    kv.sql("INSERT INTO kv VALUES (9, 'later', 9)")
    kv.check("kv")
    check_every_version(kv, "kv")


def test_truncate_that_is_rolled_back(kv):
    with kv.conn.transaction(force_rollback=True):
        kv.sql("TRUNCATE kv")
    kv.sql("DELETE FROM kv WHERE k = 1")
    assert kv.events("kv")[-1] == ("delete", (1, "v1", 1))


def test_truncate_of_several_tables_with_cascade(feed):
    feed.table("parent (p int PRIMARY KEY)")
    feed.table("child (c serial, p int REFERENCES parent)")
    feed.table("bystander (i int)")
    feed.sql("INSERT INTO parent VALUES (1)")
    feed.sql("INSERT INTO child (p) VALUES (1)")
    feed.sql("INSERT INTO bystander VALUES (1)")
    feed.start()
    feed.flush()
    feed.sql("TRUNCATE parent RESTART IDENTITY CASCADE")
    feed.sql("INSERT INTO parent VALUES (2)")
    feed.sql("INSERT INTO child (p) VALUES (2)")
    assert [values for _, values in feed.events("parent")] == [(2,)]
    assert [values for _, values in feed.events("child")] == [(1, 2)]
    assert feed.events("bystander") == [("insert", (1,))]


def test_truncate_under_load(feed):
    feed.table("kv (id bigint PRIMARY KEY, n int, pad text)")
    feed.sql("INSERT INTO kv VALUES (1, 0, 'x')")
    feed.start()
    feed.flush()
    with Load(feed, "kv") as load:
        for _ in range(3):
            load.wait_for_transactions(20)
            feed.sql("TRUNCATE kv")
        load.wait_for_transactions(20)
    feed.check("kv")
