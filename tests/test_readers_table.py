"""The table of docs/readers.md: each of its cells is tried, and the table is what the tests say."""

import json
import re
import shutil
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from harness.deltalog import DeltaLog
from harness.feed import Feed
from harness.more_readers import ALL_READERS, count_at_time, count_at_version
from harness.readers import DELTA_RS, read_columns, read_history
from harness.spark import WHY_NOT, available
from harness.type_samples import MAKE_TYPES, SAMPLES

TESTS = Path(__file__).parent
DOCUMENT = TESTS.parent / "docs" / "readers.md"
SPARK_VERSION = re.search("pyspark==(.*)", (TESTS / "spark-requirements.txt").read_text())[1]
DELTA_VERSION = re.search('name="delta-spark_.*rev="(.*?)"', (TESTS / "spark-jars.xml").read_text())[1]

HEADINGS = {
    "delta-rs": f"delta-rs {version('deltalake')}, its own SQL (`QueryBuilder`)",
    "pyarrow": "delta-rs, `to_pandas`, `to_pyarrow_dataset`",
    "polars": f"Polars {version('polars')}",
    "duckdb": f"DuckDB {version('duckdb')}",
    "clickhouse": f"ClickHouse {version('chdb-core')} (chDB)",
    "spark": f"Spark {SPARK_VERSION}, Delta {DELTA_VERSION}",
}

# Columns of a table of its own for each kind of type: see harness/type_samples.py.
TYPES = {
    "booleans, integers, floats with NaN and infinities":
        ["c_bool", "c_int2", "c_int4", "c_int8", "c_float4", "c_float8"],
    "text, uuid, enums": ["c_text", "c_varchar", "c_uuid", "c_enum"],
    "DECIMAL of up to 38 digits": ["n_10_2", "n_38_10", "n_38", "n_38_38"],
    "numeric that is kept as text": ["n_free", "n_39_2"],
    "dates, timestamps with and without zone, infinities as NULL": ["c_date", "c_timestamp", "c_timestamptz"],
    "timestamps before the year 1 and after 9999": ["far_timestamp", "far_timestamptz"],
    "dates before the year 0 and after 9999": ["far_date"],
    "bytea": ["c_bytea"],
    "arrays, json, ranges, intervals, as text": ["a_int", "a_text", "c_json", "c_jsonb", "c_tstzrange", "c_interval"],
}  # fmt: skip

ODD_TABLE = "Ü {b}/c~d"
ODD_NAME = f"names of tables with signs (`{ODD_TABLE}`)"

# All that is tried, in the document's order.
FEATURES = [
    *TYPES,
    "a table that was emptied",
    "a history that was replaced by a new snapshot",
    "more than 100 commits, those before the last checkpoint removed",
    "files that cannot have the rows asked for are not read",
    ODD_NAME,
    "names of columns that need column mapping",
    "`evolve`: a column was added",
    "`evolve`: a column was renamed",
    "`evolve`: a column was dropped",
    "an earlier version",
    "the version of a time",
]
MAPPED = ["names of columns that need column mapping", "`evolve`: a column was renamed"]

# (feature, engine): what the engine says. All other cells are right.
REFUSALS = {
    **{(feature, engine): "columnMapping" for feature in MAPPED for engine in ("pyarrow", "polars")},
    ("dates before the year 0 and after 9999", "clickhouse"): "out of allowed Date32 range",
    (ODD_NAME, "polars"): "No such file",
    ("the version of a time", "duckdb"): "only support at_clause with unit 'version'",
    ("the version of a time", "clickhouse"): "settings for a time: 0",
}
WORDS = {
    "No such file": "no, if they have blanks or letters beyond ASCII: it escapes them in the names of files",
    "columnMapping": "no: it refuses tables with `columnMapping`",
    "out of allowed Date32 range": "no: it refuses the column; others can be read",
    "only support at_clause with unit 'version'": "no: by version alone",
    "settings for a time: 0": "no: by version alone",
}


# By test_stored_readers.py.
STORED = {
    "in an S3 bucket": {},
    "names of tables with signs, in an S3 bucket": {"polars": WORDS["No such file"]},
}


class Histories:
    """`expected[feature]` is what `found(feature, reader)` has to be."""

    def __init__(self, cluster):
        self.expected, self.read = {}, {}
        self.feed = feed = Feed(cluster, "shop")
        self.kept = Feed(cluster, "kept")
        feed.sql(MAKE_TYPES)
        self.types()
        self.tables()
        feed.start()
        feed.flush()
        self.changes()
        self.many_commits()
        self.columns_change()
        for feature, table in self.typed.items():
            self.history(feature, table)

    def found(self, feature, reader):
        return self.read[feature](reader)

    def expect(self, feature, expected, read):
        self.expected[feature], self.read[feature] = expected, read

    def history(self, feature, table):
        path = self.feed.path(table)
        expected = self.feed.table_rows(table)
        self.expect(feature, expected, lambda reader: [row.values for row in read_history(reader, path)])

    def columns(self, feature, expected, path, columns):
        self.expect(feature, expected, lambda reader: read_columns(reader, path, columns))

    def types(self):
        samples = {name: (kind, literals) for name, kind, _, literals in SAMPLES}
        self.typed = {feature: f"types_{number}" for number, feature in enumerate(TYPES)}
        for feature, table in self.typed.items():
            columns = [(name, *samples[name]) for name in TYPES[feature]]
            listed = ", ".join(f"{name} {kind}" for name, kind, _ in columns)
            self.feed.table(f"{table} (n int NOT NULL, {listed})")
            for n in range(max(len(literals) for *_, literals in columns) + 1):
                values = ", ".join(literals[n] if n < len(literals) else "NULL" for *_, literals in columns)
                self.feed.sql(f"INSERT INTO {table} VALUES ({n}, {values})")

    def tables(self):
        for ddl in (
            "emptied (i int)",
            "replaced (i int)",
            "many (i int)",
            f'"{ODD_TABLE}" (i int)',
            'odd (i int, "a b;c=d" text)',
        ):
            name = ddl.partition(" (")[0]
            self.feed.sql(f"CREATE TABLE {ddl}; ALTER TABLE {name} REPLICA IDENTITY FULL")
            if name != "many":
                self.feed.sql(f"INSERT INTO {name} VALUES (1)")

    def changes(self):
        feed = self.feed
        feed.sql("DELETE FROM replaced; INSERT INTO replaced VALUES (2); UPDATE odd SET \"a b;c=d\" = 'x'")
        feed.flush()
        feed.sql("TRUNCATE emptied; SELECT wal2delta.resync('shop.replaced')")
        feed.flush()
        self.columns("a table that was emptied", [], feed.path("emptied"), ["i"])
        self.columns("a history that was replaced by a new snapshot", [(2,)], feed.path("replaced"), ["i"])
        self.columns(ODD_NAME, [(1,)], feed.view(ODD_TABLE)["destination"], ["i"])
        odd = [("insert", 1, None), ("update_preimage", 1, None), ("update_postimage", 1, "x")]
        columns = ["_pg_change_type", "i", "a b;c=d"]
        self.columns("names of columns that need column mapping", odd, feed.path("odd"), columns)

    def many_commits(self):
        feed = self.feed
        for i in range(105):
            feed.sql(f"INSERT INTO many VALUES ({i})")
            feed.flush()
        path = feed.path("many")
        feed.check("many")
        log = DeltaLog(path)
        brought = log.rows_by_version()

        def rows_at(version):
            return sum(len(rows) for number, rows in brought.items() if number <= version)

        version, moment = widest_gap(log)
        self.expect("an earlier version", rows_at(20), lambda reader: count_at_version(reader, path, 20))
        self.expect("the version of a time", rows_at(version), lambda reader: count_at_time(reader, path, moment))
        checkpoint = json.loads((path / "_delta_log" / "_last_checkpoint").read_text())["version"]
        assert checkpoint >= 100
        cleaned = self.copy(path, "cleaned", [f"_delta_log/{number:020}.json" for number in range(checkpoint)])
        self.expect(
            "more than 100 commits, those before the last checkpoint removed",
            list(range(105)),
            lambda reader: reader.arrow(cleaned, ["i"]).column("i").to_pylist(),
        )
        last = max(row.sort_by for row in read_history(DELTA_RS, path, where="i < 50"))
        early = [
            file for file, add in log.active().items() if json.loads(add["stats"])["maxValues"]["_sort_by"] <= last
        ]
        assert len(early) == 50
        skipping = self.copy(path, "skipping", early)
        self.expect(
            "files that cannot have the rows asked for are not read",
            [(i,) for i in range(50, 105)],
            lambda reader: read_columns(reader, skipping, ["i"], where=f"_sort_by > {last}"),
        )

    def copy(self, path, name, without):
        """The history without some of its files."""
        copy = path.with_name(name)
        shutil.copytree(path, copy)
        for file in without:
            (copy / file).unlink()
        return copy

    def columns_change(self):
        kept = self.kept
        for table in ("added", "renamed", "dropped"):
            kept.table(f"{table} (i int, a text)")
            kept.sql(f"INSERT INTO {table} VALUES (1, 'x')")
        kept.start(on_schema_change="evolve")
        kept.flush()
        kept.sql("ALTER TABLE added ADD b int; INSERT INTO added VALUES (2, 'y', 3)")
        kept.sql("ALTER TABLE renamed RENAME a TO b; INSERT INTO renamed VALUES (2, 'y')")
        kept.sql("ALTER TABLE dropped DROP a; INSERT INTO dropped VALUES (2)")
        kept.flush()
        for feature, table, columns, rows in [
            ("`evolve`: a column was added", "added", ["i", "a", "b"], [(1, "x", None), (2, "y", 3)]),
            ("`evolve`: a column was renamed", "renamed", ["i", "b"], [(1, "x"), (2, "y")]),
            ("`evolve`: a column was dropped", "dropped", ["i", "a"], [(1, "x"), (2, None)]),
        ]:
            self.columns(feature, rows, kept.path(table), columns)

    def close(self):
        self.kept.close()
        self.feed.close()


def widest_gap(log):
    """(a version, a moment after it and before the next one), as far from both as there is. Some readers go by the time
    that a commit tells, some by that of its file."""

    def times(version):
        ((_, told),) = [found for found in log.actions("commitInfo") if found[0] == version]
        file = log.path / "_delta_log" / f"{version:020}.json"
        return told["timestamp"] / 1000, file.stat().st_mtime

    gaps = [(min(times(n + 1)) - max(times(n)), n) for n in range(20, 100)]
    width, version = max(gaps)
    return version, datetime.fromtimestamp(max(times(version)) + width / 2, UTC)


@pytest.fixture(scope="module")
def histories(cluster):
    made = Histories(cluster)
    yield made
    made.close()


def in_order(found):
    return sorted(found, key=repr) if isinstance(found, list) else found


@pytest.mark.parametrize("reader", ALL_READERS, ids=lambda reader: reader.name)
@pytest.mark.parametrize("feature", FEATURES)
def test_cell(histories, feature, reader):
    if reader.name == "spark" and not available():
        pytest.skip(WHY_NOT)
    says = REFUSALS.get((feature, reader.name))
    if says:
        with pytest.raises(Exception, match=says):
            histories.found(feature, reader)
    else:
        assert in_order(histories.found(feature, reader)) == in_order(histories.expected[feature])


def test_the_document_has_this_table():
    def line(*cells):
        return "| " + " | ".join(cells) + " |"

    def cell(feature, engine):
        says = REFUSALS.get((feature, engine))
        return WORDS[says] if says else "yes"

    lines = [line("", *HEADINGS.values()), "|" + "---|" * (1 + len(HEADINGS))]
    lines += [line(feature, *(cell(feature, engine) for engine in HEADINGS)) for feature in FEATURES]
    lines += [line(feature, *(told.get(engine, "yes") for engine in HEADINGS)) for feature, told in STORED.items()]
    table = "\n".join(lines)
    assert table in DOCUMENT.read_text(), f"docs/readers.md has another table than:\n{table}"
