"""The independent readers. Each gives a history table as Arrow; the values are
then brought into one form (values.py) by the types that the Delta log
declares, so that three engines can be compared row by row."""

import contextlib
import os
from collections import Counter
from functools import cached_property

import chdb
import duckdb
import duckdb_extension_delta
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from . import values
from .deltalog import DeltaLog
from .history import SYSTEM_COLUMNS, Broken, Row

# What one reader cannot show, by name, and why. Nothing else is left out.
LEFT_OUT = {
    ("clickhouse", "far date"): "its Date32 ends at 0000-01-01 and 9999-12-31 and it refuses the whole column",
}


def quoted(name, mark='"'):
    return mark + name.replace(mark, mark + mark) + mark


class DeltaRs:
    """delta-rs by its own query engine: its to_pandas and to_pyarrow refuse
    tables with column mapping."""

    name = "delta-rs"

    def arrow(self, path, columns, where="TRUE", version=None):
        table = DeltaTable(str(path), version=version)
        names = ", ".join(quoted(name) for name in columns)
        result = QueryBuilder().register("history", table).execute(f"SELECT {names} FROM history WHERE {where}")
        return pa.table(result.read_all())


class ClickHouse:
    name = "clickhouse"

    @cached_property
    def connection(self):
        # One for all queries: a new engine takes several times as long as the read of a small table.
        return chdb.connect(":memory:")

    def arrow(self, path, columns, where="TRUE", version=None):
        assert version is None, "not asked of this reader"
        # A backslash is an escape in its names and strings.
        names = ", ".join(quoted(name.replace("\\", "\\\\")) for name in columns)
        folder = str(path).replace("\\", "\\\\").replace("'", "\\'")
        query = (
            f"SELECT {names} FROM deltaLakeLocal('{folder}') WHERE {where} "
            "SETTINGS output_format_arrow_string_as_string = 0"
        )
        return self.query(query, "ArrowTable")

    def query(self, query, form):
        # It reads only what lies below the working directory.
        with contextlib.chdir("/"):
            try:
                return self.connection.query(query, form)
            except RuntimeError:
                # What it had put out by then would be in the next answer.
                self.connection.close()
                del self.connection
                raise


class DuckDB:
    name = "duckdb"

    def __init__(self, database=":memory:"):
        extension = os.path.join(
            duckdb_extension_delta.__path__[0], "extensions", f"v{duckdb.__version__}", "delta.duckdb_extension"
        )
        self.connection = duckdb.connect(str(database))
        self.connection.execute(f"LOAD '{extension}'")
        self.connection.execute("SET TimeZone = 'UTC'")

    def arrow(self, path, columns, where="TRUE", version=None):
        names = ", ".join(quoted(name) for name in columns)
        at = "" if version is None else f", version => {version}"
        folder = str(path).replace("'", "''")
        return self.connection.execute(f"SELECT {names} FROM delta_scan('{folder}'{at}) WHERE {where}").to_arrow_table()


READERS = [DeltaRs(), ClickHouse(), DuckDB()]
DELTA_RS, CLICKHOUSE, DUCKDB = READERS


def read_columns(reader, path, columns=None, where="TRUE", version=None):
    """The table's rows as tuples, `columns` in this order (default: all)."""
    types = DeltaLog(path).types(version)
    columns = list(types) if columns is None else columns
    table = reader.arrow(path, columns, where, version)
    assert len(table.column_names) == len(columns), table.column_names
    lists = [values.column_values(table.column(i), types[name]) for i, name in enumerate(columns)]
    return list(zip(*lists, strict=True))


def read_history(reader, path, without=(), version=None, where="TRUE"):
    """The history's rows in the order of `_sort_by`. `without`: source columns
    to leave out for this reader (see LEFT_OUT)."""
    names = [field.name for field in DeltaLog(path).schema(version)]
    assert names[-5:] == SYSTEM_COLUMNS, names
    source = [name for name in names[:-5] if name not in without]
    rows = [
        Row(row[-5], row[:-5], *row[-4:])
        for row in read_columns(reader, path, source + SYSTEM_COLUMNS, where, version)
    ]
    return sorted(rows, key=lambda row: row.sort_by)


def read_by_all(path, **kwargs):
    """The history's rows, which must be the same through every reader."""
    rows = read_history(DELTA_RS, path, **kwargs)
    for reader in READERS[1:]:
        found = read_history(reader, path, **kwargs)
        if found != rows:
            missing, more = Counter(rows) - Counter(found), Counter(found) - Counter(rows)
            raise Broken(
                f"history {path} by {reader.name}, {len(found)} rows, and by {DELTA_RS.name}, {len(rows)} rows",
                [f"{reader.name} lacks {row}" for row in missing] + [f"{reader.name} alone has {row}" for row in more],
            )
    return rows
