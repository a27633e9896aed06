"""One form for every value, whichever engine it comes from, so that rows can
be compared with `==` and counted in multisets.

Dates and timestamps are Python's where Python has them; years outside 1 to
9999 are numbers with a name. Timestamps with and without zone are both naive
UTC: the schema tells them apart. There is one NaN, so that it equals itself
inside tuples."""

import datetime
import math
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

NAN = float("nan")
_EPOCH = datetime.datetime(1970, 1, 1)
_DAYS = range(datetime.date.min.toordinal(), datetime.date.max.toordinal() + 1)
_DAY_ZERO = datetime.date(1970, 1, 1).toordinal()
_MICROS_MIN = (datetime.datetime.min - _EPOCH) // datetime.timedelta(microseconds=1)
_MICROS_MAX = (datetime.datetime.max - _EPOCH) // datetime.timedelta(microseconds=1)


@dataclass(frozen=True)
class FarDate:
    days: int


@dataclass(frozen=True)
class FarTimestamp:
    micros: int


def date(days):
    """From days since 1970-01-01."""
    if days is None:
        return None
    ordinal = days + _DAY_ZERO
    return datetime.date.fromordinal(ordinal) if ordinal in _DAYS else FarDate(days)


def timestamp(micros):
    """From microseconds since 1970-01-01 00:00 UTC."""
    if micros is None:
        return None
    if _MICROS_MIN <= micros <= _MICROS_MAX:
        return _EPOCH + datetime.timedelta(microseconds=micros)
    return FarTimestamp(micros)


def number(value):
    return NAN if isinstance(value, float) and math.isnan(value) else value


def _text(value):
    return value.decode() if isinstance(value, bytes) else value


def column_values(column, delta_type):
    """The values of an Arrow column that Delta declares as `delta_type`."""
    if delta_type == "date":
        return [date(days) for days in column.cast(pa.date32()).cast(pa.int32()).to_pylist()]
    if delta_type.startswith("timestamp"):
        zone = column.type.tz
        return [timestamp(m) for m in column.cast(pa.timestamp("us", zone)).cast(pa.int64()).to_pylist()]
    values = column.to_pylist()
    if delta_type == "string":
        return [_text(value) for value in values]
    if delta_type in ("float", "double"):
        return [number(value) for value in values]
    if delta_type == "boolean":
        return [None if value is None else bool(value) for value in values]
    if delta_type.startswith("decimal"):
        return [None if value is None else Decimal(value) for value in values]
    return values
