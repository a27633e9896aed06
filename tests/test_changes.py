"""How changes are made: TOAST, keys, COPY, ON CONFLICT, savepoints, prepared
and interleaved transactions. Each asserts the events, not only the replay."""

import pytest
from harness.readers import READERS
from harness.values import NAN
from harness.waiting import wait_for


@pytest.fixture
def kv(feed):
    """A started feed with a table that holds (1, 'a') and (2, 'b')."""
    feed.table("kv (k int PRIMARY KEY, v text)")
    feed.sql("INSERT INTO kv VALUES (1, 'a')")
    feed.sql("INSERT INTO kv VALUES (2, 'b')")
    feed.start()
    feed.flush()
    return feed


def news(feed, table="kv", after=2):
    """The events after the first two rows."""
    return feed.events(table)[after:]


def update(before, after):
    return [("update_preimage", before), ("update_postimage", after)]


# --- TOAST

BIG = "string_agg(md5(i::text), '') FROM generate_series(1, 3200) i"


@pytest.mark.parametrize("storage", ["EXTERNAL", "EXTENDED", "MAIN"])
def test_a_toasted_value_stays_when_another_column_changes(feed, storage):
    feed.table("t (i int, body text, n int)")
    feed.sql(f"ALTER TABLE t ALTER body SET STORAGE {storage}")
    feed.sql(f"INSERT INTO t SELECT 1, {BIG}")
    feed.sql("UPDATE t SET n = 0")
    body = feed.value("SELECT body FROM t")
    assert len(body) > 100_000
    feed.start()
    feed.flush()
    feed.sql("UPDATE t SET n = 1")
    feed.sql("UPDATE t SET i = 2")
    feed.sql("UPDATE t SET body = reverse(body), n = 2")
    feed.sql("UPDATE t SET body = 'short'")
    feed.sql(f"UPDATE t SET body = (SELECT {BIG})")
    feed.sql("DELETE FROM t")
    assert feed.events("t") == [
        ("insert", (1, body, 0)),
        *update((1, body, 0), (1, body, 1)),
        *update((1, body, 1), (2, body, 1)),
        *update((2, body, 1), (2, body[::-1], 2)),
        *update((2, body[::-1], 2), (2, "short", 2)),
        *update((2, "short", 2), (2, body, 2)),
        ("delete", (2, body, 2)),
    ]


def test_two_toasted_columns_of_which_one_changes(feed):
    feed.table("t (i int, left_body text, gone text, right_body bytea)")
    feed.sql("ALTER TABLE t ALTER left_body SET STORAGE EXTERNAL, ALTER right_body SET STORAGE EXTERNAL")
    feed.sql("ALTER TABLE t DROP COLUMN gone")
    feed.sql("INSERT INTO t VALUES (0)")
    feed.start()
    feed.flush()
    feed.sql("INSERT INTO t SELECT 1, repeat('l', 50000), convert_to(repeat('r', 50000), 'UTF8')")
    feed.sql("UPDATE t SET left_body = repeat('m', 50000) WHERE i = 1")
    feed.sql("UPDATE t SET right_body = NULL WHERE i = 1")
    left, middle, right = "l" * 50000, "m" * 50000, b"r" * 50000
    assert feed.events("t")[1:] == [
        ("insert", (1, left, right)),
        *update((1, left, right), (1, middle, right)),
        *update((1, middle, right), (1, middle, None)),
    ]


# --- keys and updates


def test_a_key_change_is_an_update(kv):
    kv.sql("UPDATE kv SET k = 10 WHERE k = 1")
    kv.sql("UPDATE kv SET k = k + 1")
    assert news(kv)[:2] == update((1, "a"), (10, "a"))
    assert sorted(news(kv)[2:], key=repr) == sorted(update((2, "b"), (3, "b")) + update((10, "a"), (11, "a")), key=repr)


def test_an_update_that_changes_nothing_is_an_event(kv):
    kv.sql("UPDATE kv SET v = v WHERE k = 1")
    kv.sql("UPDATE kv SET v = 'never' WHERE k = 99")
    assert news(kv) == update((1, "a"), (1, "a"))


def test_the_same_row_many_times_in_a_transaction(kv):
    with kv.conn.transaction():
        kv.sql("UPDATE kv SET v = 'x' WHERE k = 1")
        kv.sql("UPDATE kv SET v = 'y' WHERE k = 1")
        kv.sql("DELETE FROM kv WHERE k = 1")
        kv.sql("INSERT INTO kv VALUES (1, 'z')")
        kv.sql("INSERT INTO kv VALUES (3, 'brief')")
        kv.sql("DELETE FROM kv WHERE k = 3")
    assert news(kv) == [
        *update((1, "a"), (1, "x")), *update((1, "x"), (1, "y")), ("delete", (1, "y")),
        ("insert", (1, "z")), ("insert", (3, "brief")), ("delete", (3, "brief")),
    ]  # fmt: skip
    rows = kv.check("kv")[2:]
    assert len({(row.xid, row.lsn, row.time) for row in rows}) == 1
    assert [row.sort_by for row in rows] == list(range(rows[0].lsn, rows[0].lsn + 8))


def test_equal_rows_of_a_table_without_a_key(feed):
    feed.table("t (i int, f float8)")
    feed.sql("INSERT INTO t VALUES (1, 'NaN'), (1, 'NaN'), (NULL, NULL)")
    feed.start()
    feed.flush()
    feed.sql("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t)")
    feed.sql("UPDATE t SET i = 2 WHERE i IS NULL")
    assert feed.events("t")[3:] == [("delete", (1, NAN)), *update((None, None), (2, None))]


# --- COPY, ON CONFLICT, MERGE


def test_copy(kv):
    with kv.conn.transaction(), kv.conn.cursor() as cursor:
        with cursor.copy(f'COPY "{kv.schema}".kv FROM STDIN') as copy:
            for k in range(10, 10010):
                copy.write_row((k, f"row {k}"))
    rows = kv.check("kv")[2:]
    assert [(row.change, row.values) for row in rows] == [("insert", (k, f"row {k}")) for k in range(10, 10010)]
    assert len({(row.lsn, row.xid) for row in rows}) == 1


def test_copy_freeze_into_a_new_table(kv):
    with kv.conn.transaction(), kv.conn.cursor() as cursor:
        kv.sql("CREATE TABLE frozen (i int)")
        kv.sql("ALTER TABLE frozen REPLICA IDENTITY FULL")
        with cursor.copy("COPY frozen FROM STDIN (FREEZE)") as copy:
            copy.write("1\n2\n")
    assert news(kv, "frozen", 0) == [("insert", (1,)), ("insert", (2,))]


def test_on_conflict(kv):
    kv.sql("INSERT INTO kv VALUES (1, 'no'), (3, 'c') ON CONFLICT DO NOTHING")
    kv.sql("INSERT INTO kv VALUES (3, 'cc'), (4, 'd') ON CONFLICT (k) DO UPDATE SET v = excluded.v || kv.v")
    assert news(kv) == [("insert", (3, "c")), *update((3, "c"), (3, "ccc")), ("insert", (4, "d"))]


def test_merge(kv):
    kv.sql(
        "MERGE INTO kv USING (VALUES (1, 'A'), (2, NULL), (3, 'C')) AS s(k, v) ON kv.k = s.k"
        " WHEN MATCHED AND s.v IS NULL THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET v = s.v"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.k, s.v)"
    )
    found = news(kv)
    assert sorted(found, key=repr) == sorted(
        [*update((1, "a"), (1, "A")), ("delete", (2, "b")), ("insert", (3, "C"))], key=repr
    )


# --- savepoints


def test_what_a_savepoint_rolled_back_is_absent(kv):
    with kv.conn.transaction():
        kv.sql("INSERT INTO kv VALUES (3, 'kept')")
        kv.sql("SAVEPOINT one")
        kv.sql("INSERT INTO kv VALUES (4, 'gone')")
        kv.sql("SAVEPOINT two")
        kv.sql("UPDATE kv SET v = 'gone too' WHERE k = 1")
        kv.sql("RELEASE two")
        kv.sql("ROLLBACK TO one")
        kv.sql("INSERT INTO kv VALUES (5, 'after')")
        kv.sql("RELEASE one")
    with kv.conn.transaction(force_rollback=True):
        kv.sql("DELETE FROM kv")
    assert news(kv) == [("insert", (3, "kept")), ("insert", (5, "after"))]


def test_the_first_statement_in_a_subtransaction(kv):
    with kv.conn.transaction():
        kv.sql("SAVEPOINT s")
        kv.sql("INSERT INTO kv VALUES (3, 'nested')")
        kv.sql("RELEASE s")
        top = kv.value("SELECT pg_current_xact_id()::text::bigint")
    rows = kv.check("kv")[2:]
    assert [(row.change, row.values, row.xid) for row in rows] == [("insert", (3, "nested"), top)]


def test_many_subtransactions_keep_their_order(kv):
    kv.sql(
        "DO $$ BEGIN FOR n IN 10..300 LOOP"
        " BEGIN INSERT INTO kv VALUES (n, 'x'); IF n % 3 = 0 THEN RAISE 'no'; END IF;"
        " EXCEPTION WHEN raise_exception THEN NULL; END;"
        " END LOOP; END $$"
    )
    assert [values[0] for _, values in news(kv)] == [n for n in range(10, 301) if n % 3]


# --- transactions beside each other


def test_interleaved_transactions_come_in_commit_order(kv):
    one, two = kv.session(autocommit=False), kv.session(autocommit=False)
    one.execute("INSERT INTO kv VALUES (11, 'one')")
    two.execute("INSERT INTO kv VALUES (21, 'two')")
    one.execute("INSERT INTO kv VALUES (12, 'one')")
    two.execute("UPDATE kv SET v = 'two' WHERE k = 2")
    two.commit()
    kv.flush()
    one.execute("UPDATE kv SET v = 'one' WHERE k = 1")
    one.commit()
    assert news(kv) == [
        ("insert", (21, "two")), *update((2, "b"), (2, "two")),
        ("insert", (11, "one")), ("insert", (12, "one")), *update((1, "a"), (1, "one")),
    ]  # fmt: skip


def test_a_prepared_transaction_comes_when_it_is_committed(kv):
    kv.sql("BEGIN")
    kv.sql("INSERT INTO kv VALUES (3, 'prepared')")
    xid = kv.value("SELECT pg_current_xact_id()::text::bigint")
    kv.sql("PREPARE TRANSACTION 'kept'")
    kv.sql("BEGIN")
    kv.sql("INSERT INTO kv VALUES (4, 'given up')")
    kv.sql("PREPARE TRANSACTION 'gone'")
    kv.sql("INSERT INTO kv VALUES (5, 'between')")
    kv.flush()
    assert [row.values for row in kv.rows("kv")][2:] == [(5, "between")]
    kv.sql("COMMIT PREPARED 'kept'")
    kv.sql("ROLLBACK PREPARED 'gone'")
    kv.sql("INSERT INTO kv VALUES (6, 'after')")
    rows = kv.check("kv")[2:]
    assert [row.values for row in rows] == [(5, "between"), (3, "prepared"), (6, "after")]
    assert rows[1].xid == xid


def test_an_open_transaction_holds_up_nobody(kv):
    opened = kv.session(autocommit=False)
    opened.execute("INSERT INTO kv VALUES (3, 'open')")
    kv.sql("INSERT INTO kv VALUES (4, 'done')")
    kv.flush()
    assert [row.values for row in kv.rows("kv")][2:] == [(4, "done")]
    opened.commit()
    assert news(kv) == [("insert", (4, "done")), ("insert", (3, "open"))]


def test_asynchronous_commits_are_flushed_too(kv):
    kv.sql("SET synchronous_commit = off")
    for k in range(10, 30):
        kv.sql("INSERT INTO kv VALUES (%s, 'async')", [k])
    assert [values[0] for _, values in news(kv)] == list(range(10, 30))


def test_a_transaction_over_several_tables(kv):
    kv.table("other (i int)")
    with kv.conn.transaction():
        kv.sql("INSERT INTO kv VALUES (3, 'c')")
        kv.sql("INSERT INTO other VALUES (1)")
        kv.sql("INSERT INTO kv VALUES (4, 'd')")
    kv.check("kv")
    (other,) = kv.check("other")
    assert {(row.xid, row.lsn, row.time) for row in kv.rows("kv")[2:]} == {(other.xid, other.lsn, other.time)}


def test_logical_messages_do_no_harm(kv):
    kv.sql("SELECT pg_logical_emit_message(true, 'x', 'in a transaction')")
    kv.sql("SELECT pg_logical_emit_message(false, 'x', 'outside')")
    kv.sql("INSERT INTO kv VALUES (3, 'c')")
    assert news(kv) == [("insert", (3, "c"))]


# --- shapes


def test_dropped_added_and_generated_columns(feed):
    feed.table("t (a int, gone text, i int, twice int GENERATED ALWAYS AS (i * 2) STORED, same text)")
    feed.sql("INSERT INTO t (a, gone, i, same) VALUES (1, 'x', 10, 's')")
    feed.sql("ALTER TABLE t DROP COLUMN gone")
    feed.sql("ALTER TABLE t ADD COLUMN late int DEFAULT 7 NOT NULL")
    feed.sql("INSERT INTO t (a, i, same, late) VALUES (2, 20, NULL, 8)")
    feed.start()
    feed.flush()
    feed.sql("UPDATE t SET i = i + 1 WHERE a = 1")
    assert sorted(feed.events("t")[:2]) == [("insert", (1, 10, 20, "s", 7)), ("insert", (2, 20, 40, None, 8))]
    assert feed.events("t")[2:] == update((1, 10, 20, "s", 7), (1, 11, 22, "s", 7))


def test_triggers_and_foreign_keys_bring_their_own_events(feed):
    feed.table("parent (p int PRIMARY KEY)")
    feed.table("child (c int, p int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE)")
    feed.sql("INSERT INTO parent VALUES (1), (2)")
    feed.sql("INSERT INTO child VALUES (11, 1), (12, 2)")
    feed.start()
    feed.flush()
    feed.sql("DELETE FROM parent WHERE p = 1")
    feed.sql("UPDATE parent SET p = 3 WHERE p = 2")
    assert feed.events("parent")[2:] == [("delete", (1,)), *update((2,), (3,))]
    assert feed.events("child")[2:] == [("delete", (11, 1)), *update((12, 2), (12, 3))]


def test_a_rewritten_table_has_no_events(kv):
    kv.sql("VACUUM FULL kv")
    kv.sql("CLUSTER kv USING kv_pkey")
    kv.sql("REINDEX TABLE kv")
    kv.sql("UPDATE kv SET v = 'after' WHERE k = 1")
    assert news(kv) == update((1, "a"), (1, "after"))


def test_many_tables_in_one_flush(feed):
    tables = [f"t{n}" for n in range(60)]
    for table in tables:
        feed.table(f"{table} (i int)")
    feed.start()
    for n, table in enumerate(tables):
        feed.sql(f"INSERT INTO {table} VALUES ({n})")
    feed.flush()
    assert [feed.rows(table)[0].values for table in tables] == [(n,) for n in range(60)]


def test_a_checkpoint_comes_by_itself_and_changes_nothing(kv):
    for k in range(10, 35):
        kv.sql("INSERT INTO kv VALUES (%s, 'x')", [k])
        kv.flush()
    log = kv.path("kv") / "_delta_log"
    wait_for(lambda: (log / "_last_checkpoint").exists(), 30, "a checkpoint")
    assert list(log.glob("*.checkpoint*.parquet"))
    for reader in READERS:
        assert [values[0] for _, values in kv.events("kv", reader)] == [1, 2, *range(10, 35)], reader.name
