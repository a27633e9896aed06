"""Histories that are kept: which column a value goes to, and which rows are deleted when the content is
copied anew. The matrix of DDL is in test_ddl_matrix.py, TRUNCATE in test_truncate.py."""

import pytest
from harness.ddl import EVOLVE_MODE, MODES, RESNAPSHOT, check_table, home, log_of
from harness.readers import read_by_all

SETTINGS = {"wal2delta.flush_interval": "300ms"}


def started(feed, ddl, *rows, mode=EVOLVE_MODE):
    feed.table(f"t ({ddl})")
    for row in rows:
        feed.sql(f"INSERT INTO t VALUES ({row})")
    feed.start(on_schema_change=mode)
    feed.flush()
    return feed


def check_kept(feed, lost=()):
    rows = check_table(feed, "t", EVOLVE_MODE, lost)
    assert not log_of(feed, "t").replacements()
    return rows


def names(feed):
    return [field.name for field in log_of(feed, "t").schema()][:-5]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("kind, value", [("text", "'new'"), ("int", "7")])
def test_a_column_is_dropped_and_added_again(feed, kind, value, at_once):
    """It looks like the one before; its values do not go there."""
    started(feed, f"id int, a {kind}", f"1, {value}", f"2, {value}")
    feed.sql(f"UPDATE t SET a = {value} WHERE id = 1")
    feed.flush()
    for change in ("DROP a, ADD a {}",) if at_once else ("DROP a", "ADD a {}"):
        feed.sql(f"ALTER TABLE t {change.format(kind)}")
    feed.sql(f"UPDATE t SET a = {value} WHERE id = 1")
    feed.sql(f"INSERT INTO t VALUES (3, {value})")
    rows = check_kept(feed)
    assert names(feed) == ["id", "a_old", "a"]
    assert rows[-1].values[1] is None and rows[-1].values[2] is not None


def test_names_change_places(feed):
    started(feed, "id int, a int, b int", "1, 1, 10", "2, 2, 20")
    feed.sql("UPDATE t SET a = 5 WHERE id = 1")
    with feed.conn.transaction():
        for change in ("a TO c", "b TO a", "c TO b"):
            feed.sql(f"ALTER TABLE t RENAME {change}")
    feed.sql("UPDATE t SET a = 7 WHERE id = 1")
    rows = check_kept(feed)
    assert names(feed) == ["id", "b", "a"]
    assert rows[-1].values == (1, 5, 7)


def test_a_key_that_was_added_tells_rows_apart(feed):
    """The rewrite has written each row anew: from there on, all have it."""
    started(feed, "n int", "0", "0")
    feed.sql("ALTER TABLE t ADD id serial PRIMARY KEY")
    feed.flush()
    feed.sql("INSERT INTO t (n) VALUES (0), (0)")
    feed.sql("DELETE FROM t WHERE id = 4")
    check_kept(feed)
    feed.sql("TRUNCATE t")
    rows = check_kept(feed)
    assert sorted(row.values for row in rows[-3:]) == [(0, 1), (0, 2), (0, 3)]


def test_a_column_without_a_default_tells_rows_apart(feed):
    """Earlier rows have NULL there, in the table as in the history."""
    started(feed, "id int", "1")
    feed.sql("ALTER TABLE t ADD c int")
    feed.sql("INSERT INTO t VALUES (1, 10), (1, 20)")
    feed.sql("DELETE FROM t WHERE c = 20")
    check_kept(feed)
    feed.sql("TRUNCATE t")
    rows = check_kept(feed)
    assert {row.values for row in rows[-2:]} == {(1, None), (1, 10)}


def test_a_column_with_a_default_does_not(feed):
    """Earlier rows have NULL in the history, and the default when they are changed."""
    started(feed, "id int", "1", "2", "3")
    feed.sql("ALTER TABLE t ADD c int DEFAULT 5")
    feed.sql("UPDATE t SET c = 6 WHERE id = 1")
    feed.sql("DELETE FROM t WHERE id = 2")
    check_kept(feed, lost=("c",))
    feed.sql("TRUNCATE t")
    rows = check_kept(feed, lost=("c",))
    assert {row.values for row in rows[-2:]} == {(1, 6), (3, None)}
    # What comes after that is whole.
    feed.sql("INSERT INTO t VALUES (1, 7), (1, 8)")
    feed.sql("DELETE FROM t WHERE c = 8")
    feed.sql("TRUNCATE t")
    rows = check_kept(feed, lost=("c",))
    assert rows[-1].values == (1, 7)


def test_a_default_that_the_catalog_forgets(feed):
    """VACUUM FULL writes it into the rows, before the history has the column."""
    started(feed, "id int PRIMARY KEY, n int", "1, 0", "2, 0", "3, 0")
    feed.sql("ALTER TABLE t ADD q int DEFAULT 5")
    feed.sql("VACUUM FULL t")
    feed.sql("UPDATE t SET q = 6 WHERE id = 2")
    feed.flush()
    feed.sql("TRUNCATE t")
    rows = check_kept(feed, lost=("q",))
    assert {row.values for row in rows[-3:]} == {(1, 0, None), (2, 0, 6), (3, 0, None)}


def test_a_default_that_the_leaves_alone_know(feed):
    feed.sql("CREATE TABLE t (id bigint, k int) PARTITION BY LIST (k)")
    for leaf, k in (("one", 1), ("two", 2)):
        feed.sql(f"CREATE TABLE {leaf} PARTITION OF t FOR VALUES IN ({k})")
        feed.sql(f"ALTER TABLE {leaf} REPLICA IDENTITY FULL")
    feed.sql("INSERT INTO t SELECT i, 1 + i %% 2 FROM generate_series(1, 4) i", [])
    feed.start(on_schema_change=EVOLVE_MODE)
    feed.flush()
    feed.sql("ALTER TABLE t ADD q int DEFAULT 5")
    feed.sql("UPDATE t SET q = 6 WHERE id = 2")
    feed.flush()
    feed.sql("TRUNCATE one")
    check_kept(feed, lost=("q",))


def test_all_columns_are_others_now(feed):
    started(feed, "id int", "1")
    feed.sql("ALTER TABLE t ADD c int")
    feed.sql("ALTER TABLE t DROP id")
    feed.sql("INSERT INTO t VALUES (10), (20)")
    feed.sql("DELETE FROM t WHERE c = 20")
    check_kept(feed)
    feed.sql("TRUNCATE t")
    check_kept(feed)


def test_rows_that_are_alike(feed):
    """Without a key: as many are deleted as there are."""
    started(feed, "n int, v float8", "1, 'NaN'", "1, 'NaN'", "NULL, NULL", "NULL, NULL", "NULL, -0.0")
    feed.sql("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE n IS NULL)")
    feed.sql("INSERT INTO t VALUES (1, 'NaN')")
    feed.sql("TRUNCATE t")
    rows = check_kept(feed)
    assert len([row for row in rows if row.change == "delete"]) == 1 + 5


def test_a_physical_name_is_given_once(feed):
    """A column that is called what the mapping would call another."""
    started(feed, 'id int, n int, "col-9" int', "1, 1, 100")
    feed.sql("ALTER TABLE t RENAME n TO m")
    feed.sql("UPDATE t SET m = 2")
    feed.flush()
    feed.alter(on_schema_change=RESNAPSHOT)
    feed.sql("ALTER TABLE t ADD x int DEFAULT 7")
    feed.sql("UPDATE t SET m = 3")
    check_table(feed, "t")
    places = [field.physical for field in log_of(feed, "t").schema()]
    assert len(set(places)) == len(places)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before, after, value", [("cidr", "inet", "10.0.0.1"), ("oid", "regclass", "1259")])
def test_a_type_that_prints_otherwise(feed, mode, before, after, value):
    """PostgreSQL does not rewrite the table; its rows read otherwise all the same."""
    started(feed, f"id int, a {before}", f"1, '{value}'", f"2, '{value}'", mode=mode)
    feed.sql(f"ALTER TABLE t ALTER a TYPE {after}")
    feed.sql("DELETE FROM t WHERE id = 1")
    check_table(feed, "t", mode)


def test_a_gap_does_not_cost_the_history(feed):
    """A row that came while the schema was not fed is deleted; then everything is."""
    started(feed, "id int", "1")
    feed.sql("UPDATE t SET id = 2")
    feed.flush()
    feed.stop()
    feed.sql("INSERT INTO t VALUES (10)")
    feed.start(on_schema_change=EVOLVE_MODE)
    feed.sql("DELETE FROM t WHERE id = 10")
    feed.flush()
    feed.sql("TRUNCATE t")
    feed.flush()
    assert not log_of(feed, "t").replacements()
    rows = [(row.change, row.values) for row in read_by_all(home(feed, "t"))]
    assert rows[-2:] == [("delete", (10,)), ("delete", (2,))]
    feed.sql("INSERT INTO t VALUES (3)")
    feed.sql("TRUNCATE t")
    feed.flush()
    rows = [(row.change, row.values) for row in read_by_all(home(feed, "t"))]
    assert rows[-2:] == [("insert", (3,)), ("delete", (3,))]


@pytest.mark.parametrize("how", ["resync", "start with a snapshot"])
def test_a_new_snapshot_comes_behind(feed, how):
    """Whatever the snapshot is for: nothing is removed."""
    started(feed, "id int, n int", "1, 0", "2, 0")
    feed.sql("UPDATE t SET n = 1")
    feed.flush()
    if how == "resync":
        feed.conn.execute(f"SELECT wal2delta.resync('{feed.schema}.t')")
    else:
        feed.stop()
        feed.sql("UPDATE t SET n = 2")
        feed.sql("INSERT INTO t VALUES (3, 0)")
        feed.start(on_schema_change=EVOLVE_MODE, snapshot=True)
    feed.sql("UPDATE t SET n = 5 WHERE id = 1")
    rows = check_kept(feed)
    assert [row.change for row in rows[6:8]] == ["delete", "delete"]


def test_modes_are_changed(feed):
    """From replacing to keeping and back: each alteration is treated by the mode of its time."""
    started(feed, "id int, a int", "1, 1", mode=RESNAPSHOT)
    feed.alter(on_schema_change=EVOLVE_MODE)
    feed.sql("ALTER TABLE t DROP a")
    feed.sql("INSERT INTO t VALUES (2)")
    check_kept(feed)
    assert names(feed) == ["id", "a"]
    feed.alter(on_schema_change=RESNAPSHOT)
    feed.sql("INSERT INTO t VALUES (3)")
    check_table(feed, "t")
    assert names(feed) == ["id"]


@pytest.mark.parametrize("own_row", [True, False])
def test_events_before_a_truncate_stay(feed, own_row):
    """Of transactions that were committed before it, in the same interval; also if it has rows itself."""
    started(feed, "id int", "1", mode=EVOLVE_MODE)
    feed.alter(flush_interval="1 h")
    feed.flush()
    feed.sql("INSERT INTO t VALUES (2)")
    feed.sql("UPDATE t SET id = 3 WHERE id = 2")
    with feed.conn.transaction():
        if own_row:
            feed.sql("INSERT INTO t VALUES (4)")
        feed.sql("TRUNCATE t")
        feed.sql("INSERT INTO t VALUES (5)")
    rows = check_kept(feed)
    assert [(row.change, row.values) for row in rows[:4]] == [
        ("insert", (1,)), ("insert", (2,)), ("update_preimage", (2,)), ("update_postimage", (3,)),
    ]  # fmt: skip
    assert {row.values for row in rows[4:6]} == {(1,), (3,)} and {row.change for row in rows[4:6]} == {"delete"}


def test_an_emptied_history_is_not_taken_for_a_new_one(feed):
    """Its rows are still there when its table is made to replace again."""
    started(feed, "id int, c int", "1, 1")
    feed.sql("TRUNCATE t")
    feed.flush()
    feed.alter(on_schema_change=RESNAPSHOT)
    feed.sql("ALTER TABLE t ALTER c TYPE text")
    feed.sql("INSERT INTO t VALUES (2, 'two')")
    assert check_table(feed, "t")[-1].values == (2, "two")


@pytest.mark.parametrize("mode", MODES)
def test_a_mapped_table_goes_on_mapped(feed, mode):
    """A new snapshot gives new columns new places in the files; what follows by metadata alone keeps them."""
    started(feed, '"a b" int', "1", mode=mode)
    feed.sql("ALTER TABLE t ADD c int NOT NULL DEFAULT 1")
    feed.sql("INSERT INTO t VALUES (2, 2)")
    feed.flush()
    feed.sql("ALTER TABLE t ALTER c DROP NOT NULL")
    feed.sql("INSERT INTO t VALUES (3, NULL)")
    rows = check_table(feed, "t", mode, lost=("c",) if mode == EVOLVE_MODE else ())
    assert rows[-1].values == (3, None)
    feed.alter(on_schema_change=RESNAPSHOT)
    feed.sql("ALTER TABLE t DROP c")
    feed.sql("INSERT INTO t VALUES (4)")
    check_table(feed, "t")


@pytest.mark.parametrize(
    "steps",
    [
        ["ADD c int", "RENAME c TO d"],
        ["ADD c int", "DROP c", "ADD c int"],
        ["ADD c int", "DROP c", "flush", "ADD d int", "ADD c int"],
        ["ADD c int", "flush", "ADD d int", "DROP c, ADD c int"],
        ["ADD c date", "RENAME c TO d", "ADD c date", "ALTER d TYPE varchar USING d::text"],
    ],
)  # fmt: skip
def test_several_changes_in_one_commit(make_cluster, make_feed, steps):
    """A column that no commit has yet keeps its place in the files when a later change maps columns."""
    feed = make_feed("shop", cluster=make_cluster({"wal2delta.flush_interval": "60s"}))
    started(feed, "id int, n int", "1, 0")
    for step in steps:
        if step == "flush":
            feed.flush()
            continue
        feed.sql("UPDATE t SET n = n + 1")
        feed.sql(f"ALTER TABLE t {step}")
        feed.sql("UPDATE t SET n = n + 1")
    check_kept(feed)
