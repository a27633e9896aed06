"""Ways to read a history that only the table of docs/readers.md needs: Polars, delta-rs by PyArrow, and what was."""

import polars as pl
import pyarrow.compute as pc
from deltalake import DeltaTable

from .readers import CLICKHOUSE, DELTA_RS, DUCKDB
from .spark import SPARK


class Polars:
    name = "polars"

    def arrow(self, path, columns, where="TRUE", version=None, **options):
        frame = pl.scan_delta(str(path), version=version, **options).filter(pl.sql_expr(where))
        return frame.select(columns).collect().to_arrow()


class PyArrow:
    """Of delta-rs, whose to_pandas goes the same way."""

    name = "pyarrow"

    def arrow(self, path, columns, where="TRUE", version=None, **options):
        table = DeltaTable(str(path), version=version, **options)
        return table.to_pyarrow_dataset().to_table(columns, filter=None if where == "TRUE" else greater(where))


def greater(where):
    column, sign, number = where.split()
    assert sign == ">", where
    return pc.field(column) > int(number)


POLARS, PYARROW = Polars(), PyArrow()
ALL_READERS = [DELTA_RS, PYARROW, POLARS, DUCKDB, CLICKHOUSE, SPARK]


def count_at_version(reader, path, version):
    """How many rows there were."""
    if reader is CLICKHOUSE:
        query = f"SELECT count() FROM deltaLakeLocal('{path}') SETTINGS delta_lake_snapshot_version = {version}"
        return reader.query(query, "ArrowTable").column(0)[0].as_py()
    return reader.arrow(path, ["i"], version=version).num_rows


def count_at_time(reader, path, moment):
    if reader in (DELTA_RS, PYARROW):
        table = DeltaTable(str(path))
        table.load_as_version(moment)
        return count_at_version(reader, path, table.version())
    if reader is POLARS:
        return count_at_version(reader, path, moment)
    if reader is SPARK:
        return reader.arrow(path, ["i"], timestampAsOf=moment.strftime("%Y-%m-%d %H:%M:%S.%f")).num_rows
    if reader is DUCKDB:
        reader.connection.execute(f"ATTACH IF NOT EXISTS '{path}' AS at_time (TYPE delta)")
        query = f"SELECT count(*) FROM at_time AT (TIMESTAMP => TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S.%f}')"
        return reader.connection.execute(query).fetchone()[0]
    settings = reader.query("SELECT name FROM system.settings WHERE name LIKE 'delta_lake%time%'", "ArrowTable")
    raise NotImplementedError(f"settings for a time: {settings.num_rows}")
