"""Every type, with its edge values, by snapshot and by stream, through all
three readers, under server settings that are as odd as they can be."""

import math
from decimal import Decimal

import pytest
from harness.deltalog import DeltaLog
from harness.feed import Feed
from harness.readers import CLICKHOUSE, LEFT_OUT, READERS, read_columns
from harness.type_samples import CONTRIB, MAKE_TYPES, SAMPLES
from harness.values import NAN

SETTINGS = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "iso_8601",
    "timezone": "Asia/Kolkata",
    "bytea_output": "escape",
    "extra_float_digits": "-3",
    "xmlbinary": "hex",
    "quote_all_identifiers": "on",
}

# Columns of dates in years that ClickHouse does not have.
FAR_DATES = ["far_date"]


def without(reader):
    return FAR_DATES if (reader.name, "far date") in LEFT_OUT else []


class Types:
    """One table with every type; the rows below 1000 came by the snapshot, the
    same rows again from 1000 on by the stream."""

    def __init__(self, cluster):
        self.feed = feed = Feed(cluster, "types")
        for role_setting in SETTINGS:
            # As odd for each new session as for the server.
            feed.sql(f"ALTER ROLE postgres SET {role_setting} = '{SETTINGS[role_setting]}'")
        feed.conn.close()
        feed.conn = cluster.connect()
        feed.sql(MAKE_TYPES)
        feed.sql("CREATE TABLE own (i int)")
        self.samples = SAMPLES + self._contrib()
        columns = ", ".join(f"{name} {type_name}" for name, type_name, _, _ in self.samples)
        feed.table(f"every (id int NOT NULL, touched int, {columns})")
        self.count = max(len(literals) for *_, literals in self.samples) + 1
        self._fill()
        feed.start()
        feed.flush()
        feed.sql("INSERT INTO every SELECT * FROM again")
        feed.sql("UPDATE every SET touched = 1 WHERE id >= 1000")
        self.rows = feed.check("every")

    def _contrib(self):
        there = {name for (name,) in self.feed.sql("SELECT name FROM pg_available_extensions")}
        samples = []
        for extension in sorted(there & set(CONTRIB)):
            self.feed.sql(f"CREATE EXTENSION {extension} SCHEMA public")
            samples += CONTRIB[extension]
        return samples

    def _fill(self):
        names = ", ".join(name for name, *_ in self.samples)
        for n in range(self.count):
            literals = [
                literals[n] if n < len(literals) else ("NULL" if n == len(literals) else literals[n % len(literals)])
                for *_, literals in self.samples
            ]
            values = ", ".join(literals)
            self.feed.sql(f"INSERT INTO every (id, touched, {names}) VALUES ({n}, 0, {values})")
        # An ordinary copy, so that the stream gets the very same values.
        self.feed.sql(f"CREATE VIEW again AS SELECT id + 1000 AS id, touched, {names} FROM every WHERE id < 1000")

    def column(self, name, rows):
        names = ["id", "touched"] + [sample[0] for sample in self.samples]
        return [row.values[names.index(name)] for row in rows]

    def snapshot(self):
        return [row for row in self.rows if row.values[0] < 1000]

    def streamed(self):
        return [row for row in self.rows if row.values[0] >= 1000 and row.change == "insert"]


@pytest.fixture(scope="module")
def types(cluster):
    return Types(cluster)


def by_id(rows):
    return {row.values[0] % 1000: row.values[2:] for row in rows}


def test_the_check_saw_both_ways(types):
    assert len(types.snapshot()) == len(types.streamed()) == types.count
    assert len(types.rows) == 4 * types.count


def test_snapshot_and_stream_are_the_same(types):
    snapshot, streamed = by_id(types.snapshot()), by_id(types.streamed())
    for n in range(types.count):
        for sample, left, right in zip(types.samples, snapshot[n], streamed[n], strict=True):
            assert repr(left) == repr(right), (sample[0], n)


def test_pre_and_postimage_are_the_same_but_for_the_change(types):
    pairs = [row for row in types.rows if row.change.startswith("update")]
    for before, after in zip(pairs[::2], pairs[1::2], strict=True):
        assert (before.values[1], after.values[1]) == (0, 1)
        assert repr(before.values[2:]) == repr(after.values[2:])


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_every_reader_shows_what_postgres_has(types, reader):
    left_out = without(reader)
    found = {row.values for row in types.feed.rows("every", reader, without=left_out) if "post" in row.change}
    expected = {row for row in types.feed.table_rows("every", without=left_out) if row[0] >= 1000}
    assert len(found) == types.count
    for row in sorted(found - expected, key=lambda row: row[0]):
        (other,) = [one for one in expected if one[0] == row[0]]
        assert row == other
    assert found == expected


def test_delta_types(types):
    found = DeltaLog(types.feed.path("every")).types()
    assert {sample[0]: found[sample[0]] for sample in types.samples} == {
        name: delta_type for name, _, delta_type, _ in types.samples
    }


# Written by hand: what the comparison with Postgres rests on must not be
# decided by code alone.
BY_HAND = {
    "c_float8": [0.1, NAN, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 1e15, None],
    "n_38_10": [Decimal("9007199254740993.1234567891"), Decimal("-9999999999999999999999999999.9999999999")],
    "n_10_2": [0, Decimal("-0.01"), Decimal("99999999.99"), Decimal("-99999999.99"), None, None],
    "n_3_neg2": [99900, -12300, 0],
    "n_free": ["0", "1.50", "-1.500"],
    "c_char": ["      ", "ab    ", "  ab  ", "☃☃    "],
    "c_jsonb": ['{"a": [1, 2], "b": 1.50, "é": "☃\\n"}', "null", "100"],
    "c_json": ['{"b":  1, "a": [1,2 ], "b": null}'],
    "c_interval": ["1 year 2 mons 3 days 04:05:06.000007", "-1 mons +2 days -03:00:00", "00:00:00", "infinity"],
    "c_time": ["24:00:00", "00:00:00.000001"],
    "c_money": ["-$1,234,567.89", "$0.00"],
    "c_regclass": ["types.own", "pg_class", "-"],
    "c_regtype": ["types.mood", "integer", "timestamp with time zone"],
    "c_tstzrange": ['["2023-12-31 18:30:00+00",infinity]', "empty"],
    "c_composite": ['(1,"a ""b"", c","2023-12-31 18:30:00+00")', "(,,)", '(,"",)', None],
    "a_int": ["{}", "{1,NULL,-3}", "[2:3]={1,2}", "{{1,2},{3,4}}", None],
    "a_float": ["{0.1,NaN,-Infinity,1e-05}", None],
    "a_bytea": ['{"\\\\x00ff","\\\\x"}', None],
    "a_date": ["{2024-12-31,-infinity}", None],
    "a_timestamptz": ['{"2023-12-31 18:30:00+00",infinity}', None],
    "c_point": ["(0.1,-1e+300)", None],
    "c_enum": ["sad", 'it\'s "fine", really', "", None],
    "c_uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None],
    "c_bytea": [b"", b"\x00\xff\\'", b"\xde\xad\xbe\xef", None],
    "c_xml": ['<a b="ü">x</a>', "just text", "", None],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_values_written_by_hand(types, name):
    found = types.column(name, sorted(types.snapshot(), key=lambda row: row.values[0]))
    expected = BY_HAND[name]
    assert [repr(v) if isinstance(v, float) else v for v in found[: len(expected)]] == [
        repr(v) if isinstance(v, float) else v for v in expected
    ]


def test_timestamps_that_64_bits_cannot_hold_are_null(types):
    far = types.column("far_timestamp", sorted(types.snapshot(), key=lambda row: row.values[0]))
    assert far[3].micros == 2**63 - 1
    assert far[4] is None and far[5] is None


# A condition, and the same in ClickHouse's words where they differ.
CONDITIONS = {
    "n_38_10 = CAST('9007199254740993.1234567891' AS DECIMAL(38, 10))": None,
    "n_38 = CAST('99999999999999999999999999999999999999' AS DECIMAL(38, 0))": None,
    "n_10_2 = CAST('-0.01' AS DECIMAL(10, 2))": None,
    "n_19_4 = CAST('922337203685477.5808' AS DECIMAL(19, 4))": None,
    "c_timestamp = TIMESTAMP '2024-02-29 23:59:59.999999'":
        "c_timestamp = toDateTime64('2024-02-29 23:59:59.999999', 6, 'UTC')",
    "c_date = DATE '9999-12-31'": "c_date = toDate32('9999-12-31')",
    "c_int8 = 9007199254740993": None,
    "c_int2 = -32768": None,
    "c_float8 = 1e15": None,
    "c_text = ''": None,
    "c_text = 'ünï ☃ 🐘 e\u0301'": None,
    "c_enum = 'sad'": None,
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_statistics_lose_no_row(types, reader, condition):
    """A wrong bound in the statistics makes a reader skip the file."""
    if reader is CLICKHOUSE:
        condition = CONDITIONS[condition] or condition
    found = read_columns(reader, types.feed.path("every"), ["id", "_pg_change_type"], where=condition)
    ids = {id for id, _ in found if id < 1000}
    assert ids
    # Each row is there four times: snapshot, stream, preimage, postimage.
    every = ("insert", "update_preimage", "update_postimage")
    assert sorted(found) == sorted([(id, "insert") for id in ids] + [(id + 1000, what) for id in ids for what in every])


def test_not_null_is_kept_where_values_can_be(make_feed):
    feed = make_feed()
    feed.sql("CREATE DOMAIN must AS text NOT NULL")
    feed.table(
        "t (i int NOT NULL, v text NOT NULL, b bytea NOT NULL, f float8 NOT NULL, a int[] NOT NULL, opt int,"
        " n numeric(5,1) NOT NULL, free numeric NOT NULL, d date NOT NULL, ts timestamp NOT NULL,"
        " tz timestamptz NOT NULL,"
        " PRIMARY KEY (opt))"
    )
    feed.sql("INSERT INTO t VALUES (1, '', '', 0, '{}', 5, 'NaN', 'NaN', 'infinity', '-infinity', 'infinity')")
    feed.start()
    assert feed.events("t") == [("insert", (1, "", b"", 0.0, "{}", 5, None, "NaN", None, None, None))]
    nullable = {field.name: field.nullable for field in DeltaLog(feed.path("t")).schema()[:-5]}
    kept, dropped = ("i", "v", "b", "f", "a", "opt"), ("n", "d", "ts", "tz")
    assert [name for name in kept if nullable[name]] == []
    assert [name for name in dropped if not nullable[name]] == []


def test_types_made_in_the_transaction_of_the_row(make_feed):
    feed = make_feed()
    feed.table("t (i int)")
    feed.sql("INSERT INTO t VALUES (0)")
    feed.start()
    feed.flush()
    with feed.conn.transaction():
        feed.sql("CREATE TYPE fresh AS ENUM ('a', 'b')")
        feed.sql("CREATE TABLE made (i int, e fresh, many fresh[])")
        feed.sql("ALTER TABLE made REPLICA IDENTITY FULL")
        feed.sql("INSERT INTO made VALUES (1, 'b', '{a,b}')")
    assert feed.events("made") == [("insert", (1, "b", "{a,b}"))]
    feed.sql("ALTER TYPE fresh ADD VALUE 'c'")
    feed.sql("INSERT INTO made VALUES (2, 'c', NULL)")
    assert feed.events("made")[1:] == [("insert", (2, "c", None))]


def test_enum_renamed_after_the_row(make_feed):
    """A label is what it was when the row was written, or what it is now; the
    replay gives the table either way once the row is written again."""
    feed = make_feed()
    feed.sql("CREATE TYPE e AS ENUM ('old')")
    feed.table("t (i int, e e)")
    feed.sql("INSERT INTO t VALUES (1, 'old')")
    feed.start()
    feed.sql("INSERT INTO t VALUES (2, 'old')")
    assert feed.events("t") == [("insert", (1, "old")), ("insert", (2, "old"))]


def test_type_dropped_before_the_row_is_decoded(make_cluster, make_feed):
    """Decoding comes later than the drop: the flush interval is long here."""
    feed = make_feed("late", cluster=make_cluster({"wal2delta.flush_interval": "60s"}))
    feed.table("keep (i int)")
    feed.sql("INSERT INTO keep VALUES (0)")
    feed.start()
    feed.flush()
    with feed.conn.transaction():
        feed.sql("CREATE TYPE brief AS ENUM ('x')")
        feed.sql("CREATE TABLE gone (b brief)")
        feed.sql("ALTER TABLE gone REPLICA IDENTITY FULL")
        feed.sql("INSERT INTO gone VALUES ('x')")
    feed.sql("DROP TABLE gone")
    feed.sql("DROP TYPE brief")
    feed.sql("INSERT INTO keep VALUES (1)")
    assert feed.events("keep") == [("insert", (0,)), ("insert", (1,))]
