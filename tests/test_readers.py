"""The three readers bring the same values into the same form: tried on a table
that none of them wrote for itself, without wal2delta."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from harness.readers import LEFT_OUT, READERS, read_columns, read_history
from harness.values import NAN, FarDate, FarTimestamp

DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999)
PRECISE = Decimal("9007199254740993.1234567890")

COLUMNS = {
    "b": (pa.bool_(), [True, False, None]),
    "i2": (pa.int16(), [-32768, 32767, None]),
    "i4": (pa.int32(), [-(2**31), 2**31 - 1, None]),
    "i8": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "f4": (pa.float32(), [0.5, NAN, None]),
    "f8": (pa.float64(), [0.1, float("-inf"), None]),
    "n": (pa.decimal128(38, 10), [PRECISE, -PRECISE, None]),
    "d": (pa.date32(), [DAY, datetime.date(1, 1, 1), None]),
    "ts": (pa.timestamp("us"), [MOMENT, datetime.datetime(1, 1, 1), None]),
    "tz": (pa.timestamp("us", "UTC"), [MOMENT, datetime.datetime(9999, 12, 31), None]),
    "s": (pa.string(), ["", "ünï ☃ 🐘", None]),
    "by": (pa.binary(), [b"", b"\x00\xff", None]),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain")
    arrays = {}
    for name, (kind, column) in COLUMNS.items():
        aware = name == "tz"
        given = [v.replace(tzinfo=datetime.timezone.utc) if aware and v else v for v in column]
        arrays[name] = pa.array(given, kind)
    write_deltalake(str(path), pa.table(arrays))
    return path


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_values_in_one_form(path, reader):
    expected = list(zip(*(column for _, column in COLUMNS.values()), strict=True))
    found = read_columns(reader, path)
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert [list(map(type, row)) for row in sorted(found, key=repr)] == [
        list(map(type, row)) for row in sorted(expected, key=repr)
    ]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_some_rows_and_columns(path, reader):
    assert read_columns(reader, path, ["s", "i2"], where="i2 > 0") == [("ünï ☃ 🐘", 32767)]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_dates_beyond_pythons(tmp_path, reader):
    days = pa.array(np.array([-800000, 3932896], dtype="int32")).view(pa.date32())
    micros = pa.array(np.array([-210000000000000000, 9000000000000000000])).view(pa.timestamp("us"))
    write_deltalake(str(tmp_path), pa.table({"d": days, "ts": micros}))
    moments = {FarTimestamp(-210000000000000000), FarTimestamp(9000000000000000000)}
    assert {ts for (ts,) in read_columns(reader, tmp_path, ["ts"])} == moments
    if (reader.name, "far date") in LEFT_OUT:
        # The entry is still needed: the reader does refuse the column.
        with pytest.raises(RuntimeError, match="Date32"):
            read_columns(reader, tmp_path, ["d"])
    else:
        assert {d for (d,) in read_columns(reader, tmp_path, ["d"])} == {FarDate(-800000), FarDate(3932896)}


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_history_rows_come_in_order(tmp_path, reader):
    table = pa.table(
        {
            "k": pa.array([1, 2], pa.int32()),
            "gone": ["x", "y"],
            "_pg_change_type": ["delete", "insert"],
            "_pg_lsn": [20, 10],
            "_pg_xid": pa.array([8, 7], pa.int32()),
            "_timestamp": pa.array([MOMENT, MOMENT], pa.timestamp("us")),
            "_sort_by": [20, 10],
        }
    )
    write_deltalake(str(tmp_path), table)
    rows = read_history(reader, tmp_path, without=["gone"])
    assert [(r.change, r.values, r.lsn, r.xid, r.time, r.sort_by) for r in rows] == [
        ("insert", (2,), 10, 7, MOMENT, 10),
        ("delete", (1,), 20, 8, MOMENT, 20),
    ]
