"""Every name that PostgreSQL takes: of schemas, tables and columns. Folders are readable, each table has
its own, none lies outside the destination; columns keep their names, through all three readers. Names
that a history cannot have are refused with a message that says what to rename."""

import unicodedata

import pytest
from harness.ddl import quoted
from harness.deltalog import DeltaLog
from harness.feed import Feed
from harness.history import check
from harness.readers import READERS, read_by_all, read_columns
from harness.source import table_rows
from harness.waiting import wait_for

SOON = 20

NAMES = {
    "space": "my  table",
    "blank at the ends": " t ",
    "dots": "a.b..c",
    "dot": ".",
    "two dots": "..",
    "parent folder": "../x",
    "far parent folder": "../../../../../../tmp/escaped",
    "slash": "a/b",
    "absolute": "/tmp/x",
    "backslash": "a\\b",
    "parent folder in Windows' way": "..\\x",
    "single quote": "it's",
    "double quote": 'say "hi"',
    "backtick": "a`b",
    "percent": "100%",
    "percent code": "a%2Fb%20c%00",
    "percent code of a percent": "a%252Fb",
    "newline and tab": "a\nb\tc",
    "control characters": "a\x01b\x1b[31m",
    "delete": "a\x7fb",
    "wildcards": "a*b?c[d]",
    "shell": "$(touch x); `ls` | cat & #",
    "SQL": "x'; DROP TABLE t; --",
    "colon": "C:name",
    "URL": "s3://bucket/x?y=z#frag",
    "hive partition": "year=2024",
    "unicode": "Größe_и_数",
    "combining": "e\u0301 and \u00e9",
    "right to left": "\u202eabc\u05d0",
    "no-break space": "a\u00a0b\u200bc",
    "emoji": "🐘👩‍👩‍👧",
    "63 bytes": "x" * 63,
    "63 bytes of unicode": "ü" * 31 + "x",
    "63 bytes that all need a code": "/" * 63,
    "upper case": "UPPER",
    "key word": "select",
    "number": "1",
    "dash": "-rf",
    "tilde": "~root",
    "underscore": "_t",
    "like a log": "_delta_log",
    "like a history": "lb_t_history",
    "NUL-like": "NULL",
    "braces": "{0} {t}",
    "plus and at": "a+b@c",
}


class OddFeed:
    """A feed of a schema with any name: every statement says the schema itself."""

    def __init__(self, cluster, schema, destination):
        self.cluster, self.schema, self.destination = cluster, schema, destination
        self.conn = cluster.connect()
        self.conn.execute(f"CREATE SCHEMA {quoted(schema)}")

    def place(self, table):
        return f"{quoted(self.schema)}.{quoted(table)}"

    def table(self, table, columns="i int, v text", rows="(1, 'a')"):
        self.conn.execute(f"CREATE TABLE {self.place(table)} ({columns})")
        self.conn.execute(f"ALTER TABLE {self.place(table)} REPLICA IDENTITY FULL")
        self.conn.execute(f"INSERT INTO {self.place(table)} VALUES {rows}")

    def start(self):
        self.conn.execute("SELECT wal2delta.start(%s, %s)", [self.schema, str(self.destination)])

    def flush(self):
        self.conn.execute("SELECT wal2delta.flush('20 s')")

    view, wait_for_status = Feed.view, Feed.wait_for_status

    def path(self, table):
        """Where the view says that the history lies: a direct child of the destination."""
        row = self.view(table)
        assert row and row["status"] == "STREAMING", row
        children = {str(path): path for path in self.destination.iterdir()}
        found = row["destination"].removeprefix("file://")
        assert found in children, (found, sorted(children))
        return children[found]

    def check(self, table):
        """Flushes; through all readers the history replays to the table. Returns its rows."""
        self.flush()
        rows = read_by_all(self.path(table))
        check(self.path(table), rows, table_rows(self.cluster, self.place(table)))
        return rows

    def close(self):
        if self.conn.execute("SELECT 1 FROM wal2delta.schemas").fetchone():
            self.conn.execute("SELECT wal2delta.stop(%s)", [self.schema])
        slot = self.cluster.slot_name()
        wait_for(lambda: slot not in self.cluster.slots(), 30, "the slot to go with the last feed")
        self.conn.execute(f"DROP SCHEMA {quoted(self.schema)} CASCADE")
        self.conn.close()


@pytest.fixture
def make_odd(cluster):
    made = []

    def make(schema):
        made.append(OddFeed(cluster, schema, cluster.folder_for(f"odd{len(list(cluster.folder.rglob('lb_*')))}")))
        return made[-1]

    yield make
    for feed in made:
        feed.close()


@pytest.mark.parametrize("kind", NAMES)
def test_schemas(make_odd, kind):
    feed = make_odd(NAMES[kind])
    feed.table("t")
    feed.start()
    feed.flush()
    feed.conn.execute(f"UPDATE {feed.place('t')} SET i = 2")
    assert [row.values for row in feed.check("t")] == [(1, "a"), (1, "a"), (2, "a")]
    shown = feed.conn.execute("SELECT source_schema::text FROM wal2delta.schemas").fetchall()
    assert shown == [(NAMES[kind],)]


class Tables:
    """One table for each name; by snapshot one row, by stream another."""

    def __init__(self, cluster):
        self.feed = OddFeed(cluster, "tables", cluster.folder_for("tables"))
        for name in NAMES.values():
            self.feed.table(name, "i int, v text", "(1, 'snapshot')")
        self.feed.start()
        self.feed.flush()
        for name in NAMES.values():
            self.feed.conn.execute(f"INSERT INTO {self.feed.place(name)} VALUES (2, 'stream')")
        self.feed.flush()


@pytest.fixture(scope="module")
def tables(clusters, module_settings):
    cluster = clusters.make(module_settings)
    yield Tables(cluster)
    clusters.discard(cluster)


@pytest.mark.parametrize("kind", NAMES)
def test_tables(tables, kind):
    path = tables.feed.path(NAMES[kind])
    assert path.name.startswith("lb_") and path.name.endswith("_history") and len(path.name.encode()) <= 255
    assert not any(unicodedata.category(c) == "Cc" for c in path.name), "a folder's name with control characters"
    rows = tables.feed.check(NAMES[kind])
    assert [row.values for row in rows] == [(1, "snapshot"), (2, "stream")]


def test_each_table_has_a_folder_of_its_own(tables):
    paths = {tables.feed.path(name) for name in NAMES.values()}
    assert len(paths) == len(NAMES) == len(list(tables.feed.destination.iterdir()))


def test_nothing_outside_the_destination(tables):
    """No folder of the server's own file system has anything that such a name could have made."""
    lake = tables.feed.destination.parent
    assert [path.name for path in lake.iterdir()] == ["tables"]
    assert not [path for path in tables.feed.cluster.folder.rglob("*escaped*") if not path.is_relative_to(lake)]


@pytest.mark.parametrize("name", ["Größe_и_数", "my table", "upper", "UPPER", "a-b_c"])
def test_a_folder_is_readable(make_odd, name):
    """Letters of any script, digits, dash and underscore are as they are."""
    feed = make_odd("readable")
    feed.table(name)
    feed.start()
    feed.flush()
    kept = "".join(c for c in name if c.isalnum() or c in "_-")
    found = feed.path(name).name
    assert all(c in found for c in kept)
    assert found == f"lb_{name}_history" or " " in name


def test_tables_that_are_equal_but_for_case(make_odd):
    feed = make_odd("cases")
    for number, name in enumerate(("orders", "Orders", "ORDERS")):
        feed.table(name, rows=f"({number}, 'x')")
    feed.start()
    feed.flush()
    assert [read_columns(READERS[0], feed.path(name), ["i"]) for name in ("orders", "Orders", "ORDERS")] == [
        [(0,)], [(1,)], [(2,)],
    ]  # fmt: skip


def test_tables_whose_folders_could_be_one(make_odd):
    """Encoded and literal forms of one name, and forms of one letter."""
    feed = make_odd("clashes")
    names = ["a/b", "a%2Fb", "a%2fb", "a%252Fb", "a_b", "a b", "a%20b", "\u00e9", "e\u0301", "a.b", "a%2Eb"]
    for number, name in enumerate(names):
        feed.table(name, rows=f"({number}, 'x')")
    feed.start()
    feed.flush()
    for number, name in enumerate(names):
        assert read_columns(READERS[0], feed.path(name), ["i"]) == [(number,)], name


def test_a_table_is_renamed_to_and_from_odd_names(make_odd):
    feed = make_odd("renamed")
    feed.table("a")
    feed.start()
    feed.flush()
    path = feed.path("a")
    old = "a"
    for name in ("../x", "a%2Fb", 'say "hi"', "🐘"):
        feed.conn.execute(f"ALTER TABLE {feed.place(old)} RENAME TO {quoted(name)}")
        feed.conn.execute(f"UPDATE {feed.place(name)} SET i = i + 1")
        feed.flush()
        wait_for(lambda: feed.view(name), SOON, "the new name to be shown")  # noqa: B023
        assert feed.path(name) == path
        old = name
    assert len(feed.check(name)) == 9


# --- columns


class Columns:
    """One table with a column for each name, filled by snapshot and by stream."""

    def __init__(self, cluster):
        self.names = list(NAMES.values())
        self.feed = OddFeed(cluster, "columns", cluster.folder_for("columns"))
        columns = ", ".join(f"{quoted(name)} int" for name in self.names)
        self.feed.table("t", columns, f"({', '.join(str(n) for n in range(len(self.names)))})")
        self.feed.start()
        self.feed.flush()
        update = ", ".join(f"{quoted(name)} = {quoted(name)} + 1000" for name in self.names)
        self.feed.conn.execute(f"UPDATE {self.feed.place('t')} SET {update}")
        self.feed.flush()
        self.path = self.feed.path("t")


@pytest.fixture(scope="module")
def columns(clusters, module_settings):
    cluster = clusters.make(module_settings)
    yield Columns(cluster)
    clusters.discard(cluster)


def test_columns_keep_their_names(columns):
    assert [field.name for field in DeltaLog(columns.path).schema()][:-5] == columns.names


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
@pytest.mark.parametrize("kind", NAMES)
def test_columns(columns, kind, reader):
    name = NAMES[kind]
    found = read_columns(reader, columns.path, [name], where="_pg_change_type <> 'update_preimage'")
    number = columns.names.index(name)
    assert sorted(found) == [(number,), (number + 1000,)]


def test_all_columns_at_once(columns):
    assert len(columns.feed.check("t")) == 3


@pytest.mark.parametrize("kind", NAMES)
def test_a_column_is_added_later(make_odd, kind):
    """A table without odd names gets one: by a new snapshot the history has it."""
    feed = make_odd("added")
    feed.table("t")
    feed.start()
    feed.flush()
    feed.conn.execute(f"ALTER TABLE {feed.place('t')} ADD {quoted(NAMES[kind])} int DEFAULT 7")
    feed.conn.execute(f"UPDATE {feed.place('t')} SET i = 2")
    assert feed.check("t")[-1].values == (2, "a", 7)
    assert [field.name for field in DeltaLog(feed.path("t")).schema()][:-5] == ["i", "v", NAMES[kind]]


RESERVED = ["_pg_change_type", "_pg_lsn", "_pg_xid", "_timestamp", "_sort_by", "_PG_LSN", "_Sort_By"]


def reserve(feed, column, when):
    """A table with a column of this name, and another table that is fine; started."""
    feed.table("other")
    columns = f"i int, v text, {quoted(column)} int" if when == "from the start" else "i int, v text, w int"
    feed.table("t", columns, "(1, 'a', 5)")
    feed.start()
    if when != "from the start":
        feed.flush()
        change = f"ADD {quoted(column)} int" if when == "added later" else f"RENAME w TO {quoted(column)}"
        feed.conn.execute(f"ALTER TABLE {feed.place('t')} {change}")
        feed.conn.execute(f"UPDATE {feed.place('t')} SET i = 2")
    return feed.wait_for_status("t", "FAILED", SOON)


@pytest.mark.parametrize("when", ["from the start", "added later", "renamed to"])
@pytest.mark.parametrize("name", [*RESERVED, "V"])
def test_reserved_columns(make_odd, name, when):
    """The table is FAILED with a message that says what to rename; others go on, and flush does not wait.
    V: equal to another column but for case."""
    feed = make_odd("reserved")
    error = reserve(feed, name, when)["last_error"]
    assert name in error and "rename" in error.lower(), error
    feed.conn.execute(f"UPDATE {feed.place('other')} SET i = 2")
    assert len(feed.check("other")) == 3


@pytest.mark.parametrize("when", ["from the start", "added later"])
def test_a_reserved_column_is_renamed(make_odd, when):
    """Once it has another name the table is fed again."""
    feed = make_odd("mended")
    reserve(feed, "_sort_by", when)
    feed.conn.execute(f"ALTER TABLE {feed.place('t')} RENAME _sort_by TO fine")
    feed.conn.execute(f"UPDATE {feed.place('t')} SET i = 3")
    feed.wait_for_status("t", "STREAMING", SOON)
    feed.check("t")
    names = [field.name for field in DeltaLog(feed.path("t")).schema()][:-5]
    assert "fine" in names and "_sort_by" not in names


def test_as_many_columns_as_there_can_be(make_odd):
    feed = make_odd("wide")
    names = [f"c{n}" for n in range(1600)]
    feed.table("t", ", ".join(f"{name} int" for name in names), f"({', '.join(['1'] * 300 + ['NULL'] * 1300)})")
    feed.start()
    feed.flush()
    feed.conn.execute(f"UPDATE {feed.place('t')} SET c1599 = 5, c0 = NULL")
    rows = feed.check("t")
    assert [field.name for field in DeltaLog(feed.path("t")).schema()][:-5] == names
    assert rows[-1].values == (None, *[1] * 299, *[None] * 1299, 5)


def test_a_table_without_columns(make_odd):
    """PostgreSQL allows it; it has rows all the same."""
    feed = make_odd("bare")
    feed.conn.execute(f"CREATE TABLE {feed.place('none')} ()")
    feed.conn.execute(f"ALTER TABLE {feed.place('none')} REPLICA IDENTITY FULL")
    feed.conn.execute(f"INSERT INTO {feed.place('none')} DEFAULT VALUES")
    feed.start()
    feed.flush()
    feed.conn.execute(f"INSERT INTO {feed.place('none')} DEFAULT VALUES")
    feed.conn.execute(f"DELETE FROM {feed.place('none')} WHERE ctid = '(0,1)'")
    rows = feed.check("none")
    assert [(row.change, row.values) for row in rows] == [("insert", ()), ("insert", ()), ("delete", ())]
