"""The throw-away cluster itself, without wal2delta: a harness that lies makes
every test above it worthless."""

import datetime
from decimal import Decimal

import pytest
from harness.cluster import children_of, process_state
from harness.source import decimal_of, table_rows
from harness.values import FarDate, FarTimestamp
from harness.waiting import TimedOut, wait_for

BARE = {"shared_preload_libraries": "", "wal2delta.flush_interval": None}


@pytest.fixture(scope="module")
def bare(clusters):
    cluster = clusters.make(BARE, extension=False)
    yield cluster
    clusters.discard(cluster)


@pytest.mark.parametrize("end", ["smart", "fast", "immediate", "kill"])
def test_data_outlives_every_way_to_end(bare, end):
    bare.sql(f"CREATE TABLE survived_{end} AS SELECT 1 AS one")
    pid, children = bare.server.pid, children_of(bare.server.pid)
    assert children
    bare.kill() if end == "kill" else bare.stop(end)
    assert process_state(pid) is None and not any(map(process_state, children))
    bare.start()
    assert bare.value(f"SELECT one FROM survived_{end}") == 1


def test_settings_count_after_a_restart(bare):
    bare.configure(work_mem="7MB")
    bare.restart()
    assert bare.value("SHOW work_mem") == "7MB"
    assert bare.value("SHOW listen_addresses") == ""


def test_a_server_that_cannot_start_shows_its_log(make_cluster):
    with pytest.raises(AssertionError, match="no_such_setting"):
        make_cluster({**BARE, "no_such_setting": "1"})


def test_waiting_ends_and_says_for_what():
    assert wait_for(lambda: "now", 1, "anything") == "now"
    with pytest.raises(TimedOut, match="a miracle .last value: None"):
        wait_for(lambda: None, 0.1, "a miracle")


def test_table_rows_are_in_the_readers_form(bare):
    bare.sql("CREATE DOMAIN price AS numeric(6,2)")
    bare.sql("CREATE DOMAIN dear AS price CHECK (VALUE > 1 OR VALUE = 'NaN')")
    bare.sql(
        "CREATE TABLE forms (gone int, f4 real, n dear, x numeric, d date, ts timestamp, tz timestamptz,"
        ' c char(4), r regclass, i interval, "odd % ""name""" text, pair int4range)'
    )
    bare.sql("ALTER TABLE forms DROP COLUMN gone")
    bare.sql(
        "INSERT INTO forms VALUES"
        " (0.1, 12.5, 1e20, '2024-01-01', '2024-01-01 10:00', '2024-01-01 10:00+05',"
        "  'ab', 'forms', '1 y 2 d', 'x', '[1,3]'),"
        " ('NaN', 'NaN', 'NaN', 'infinity', '-infinity', '294276-12-31', '', NULL, NULL, '', 'empty'),"
        " (NULL, NULL, NULL, '4713-01-01 BC', '4713-01-01 BC', '294247-01-01', NULL, NULL, NULL, NULL, NULL)"
    )
    first, second, third = table_rows(bare, "public.forms")
    assert first == (
        0.10000000149011612, Decimal("12.50"), "100000000000000000000", datetime.date(2024, 1, 1),
        datetime.datetime(2024, 1, 1, 10), datetime.datetime(2024, 1, 1, 5),
        "ab  ", "public.forms", "1 year 2 days", "x", "[1,4)",
    )  # fmt: skip
    assert repr(second) == "(nan, None, 'NaN', None, None, None, '    ', None, None, '', 'empty')"
    assert third[3:6] == (FarDate(-2440550), FarTimestamp(-210863520000000000), FarTimestamp(9223371244800000000))


def test_the_last_microsecond_that_fits(bare):
    bare.sql(
        "CREATE TABLE limits AS SELECT '294247-01-10 04:00:54.775807'::timestamp AS last,"
        " '294247-01-10 04:00:54.775808'::timestamp AS past, '0001-12-31 23:59:59.999999 BC'::timestamptz AS bc"
    )
    assert table_rows(bare, "public.limits") == [(FarTimestamp(2**63 - 1), None, FarTimestamp(-62135596800000001))]


@pytest.mark.parametrize(
    "type_name, expected",
    [
        ("numeric(38,10)", (38, 10)),
        ("numeric(3,-2)", (5, 0)),
        ("numeric(3,5)", (5, 5)),
        ("numeric(39,1)", None),
        ("numeric(37,-2)", None),
        ("numeric", None),
        ("numeric(5)", (5, 0)),
    ],
)
def test_which_decimal_a_numeric_becomes(bare, type_name, expected):
    bare.sql("DROP TABLE IF EXISTS modifiers")
    bare.sql(f"CREATE TABLE modifiers (n {type_name})")
    typmod = bare.value("SELECT atttypmod FROM pg_attribute WHERE attrelid = 'modifiers'::regclass AND attname = 'n'")
    assert decimal_of(typmod) == expected
