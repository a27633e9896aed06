"""Types beyond those of test_types.py: every type of the catalog, contrib, PostGIS and pgvector, arrays of
and domains over them; types that change while the feed runs; databases in other encodings. By snapshot
and by stream the same values, whatever the server, the database and the role have set for output."""

import psycopg
import pytest
from harness.ddl import check_table
from harness.deltalog import DeltaLog
from harness.feed import Feed
from harness.readers import read_by_all

ODD = {
    "datestyle": "SQL, DMY",
    "intervalstyle": "iso_8601",
    "timezone": "Asia/Kolkata",
    "bytea_output": "escape",
    "extra_float_digits": "-10",
    "xmlbinary": "hex",
    "quote_all_identifiers": "on",
}
ODDER = {
    **ODD,
    "datestyle": "German, DMY",
    "intervalstyle": "sql_standard",
    "timezone": "America/St_Johns",
    "extra_float_digits": "-15",
}

# Extension: {type: literals}.
EXTENSIONS = {
    "hstore": {"hstore": ["'a=>1, \"b c\"=>NULL, \"\"=>\"x\\\"y\"'", "''"], "ghstore": []},
    "citext": {"citext": ["'MiXed'"]},
    "ltree": {"ltree": ["'top.middle.leaf'", "''"], "lquery": ["'*{1,2}.leaf|other'"], "ltxtquery": ["'a & !b'"]},
    "cube": {"cube": ["'(0.1,2),(3,1e-300)'", "'(1)'"]},
    "seg": {"seg": ["'1.00 .. 2.5'", "'~5.0'", "'<3'"]},
    "isn": {"ean13": ["'9780393040029'"], "isbn": ["'0-393-04002-X'"], "isbn13": ["'978-0-393-04002-9'"],
            "ismn": ["'M-2306-7118-7'"], "ismn13": ["'979-0-2306-7118-7'"], "issn": ["'1436-4522'"],
            "issn13": ["'977-1436-45200-8'"], "upc": ["'220356483481'"]},
    "intarray": {"query_int": ["'1&(2|!3)'"]},
    "lo": {"lo": ["4294967295"]},
    "vector": {"vector(3)": ["'[1,2.5,-3e-5]'"], "vector": ["'[0.1]'"], "halfvec": ["'[0.1,-2]'"],
               "sparsevec": ["'{1:0.1,3:-2}/5'"]},
    "postgis": {"geometry": ["'POINT(0.1 -2)'", "'SRID=4326;MULTIPOLYGON(((0 0,1 0,1 1,0 0)))'", "'POINT EMPTY'"],
                "geometry(PointZM,4326)": ["'SRID=4326;POINT(1 2 3 4)'"],
                "geography": ["'POINT(-71.06 42.28)'"], "geography(Point,4326)": ["'POINT(1 2)'"],
                "box2d": ["'BOX(0.1 1,2 3)'"], "box3d": ["'BOX3D(0.1 1 2,3 4 5)'"], "spheroid": [
                    "'SPHEROID[\"WGS84\",6378137,298.257223563]'"]},
    "postgis_raster": {"raster": ["ST_MakeEmptyRaster(2, 2, 0.5, 0.5, 1)"]},
    "postgis_topology": {"topology.topogeometry": ["ROW(1, 2, 3, 1)"], "topology.topoelement": ["'{1,2}'"]},
    "address_standardizer": {"stdaddr": ["ROW('a','b',NULL,NULL,'c',NULL,NULL,'',NULL,NULL,NULL,NULL,NULL,NULL,"
                                         "NULL,NULL)"]},
}  # fmt: skip

# Types of the catalog that need more than NULL; arrays, ranges and rows have values of their own.
VALUES = {
    "aclitem": "'postgres=r/postgres'", "int2vector": "'1 -2'", "oidvector": "'1 2'", "refcursor": "'a b'",
    "cid": "'5'", "txid_snapshot": "'10:20:10,14'", "regoper": "'+(integer,integer)'::regoperator::oid::regoper",
    "regoperator": "'+(integer,integer)'", "regconfig": "'english'", "regdictionary": "'simple'",
    "regrole": "'postgres'", "regcollation": "'\"C\"'", "regproc": "'now'", "regprocedure": "'abs(integer)'",
    "regclass": "'pg_class'", "regtype": "'timestamptz'", "regnamespace": "'pg_catalog'", "box": "'(1,2),(0.1,0)'",
    "lseg": "'[(0.1,0),(1,1)]'", "line": "'{0.1,-1,0}'", "path": "'[(0,0),(0.1,1)]'", "tid": "'(1,2)'",
    "pg_lsn": "'1/2'", "xml": "'<a/>'", "interval": "'1 year -2 days 3:04:05.6'", "timetz": "'1:02:03+05:30'",
    "date": "'2024-02-29'", "timestamptz": "'2024-02-29 1:02:03+00'", "timestamp": "'2024-02-29 1:02:03'",
    "float8": "0.1", "float4": "0.1", "money": "-1234.5", "bytea": r"'\x00ff'", "inet": "'10.1.2.3/8'",
    "jsonpath": "'$.a'", "tsquery": "'a & b'", "tsvector": "'a:1'", "uuid": "gen_random_uuid()", "bit": "B'1'",
}  # fmt: skip


class Sampled:
    """Tables of samples, filled before the feed starts and once more by the stream, after the settings
    have changed."""

    def __init__(self, feed):
        self.feed = feed
        self.tables = []

    def add(self, name, columns):
        """`columns`: [(name, type, literals)]."""
        definitions = ", ".join(f"{column} {type_name}" for column, type_name, _ in columns)
        self.feed.table(f"{name} (id int NOT NULL, {definitions})")
        count = max(len(literals) for *_, literals in columns)
        for n in range(count + 1):
            literals = ["NULL" if n == count or not some else some[n % len(some)] for *_, some in columns]
            self.feed.sql(f"INSERT INTO {name} VALUES ({n}, {', '.join(literals)})")
        self.tables.append((name, count + 1, [column for column, *_ in columns]))

    def feed_all(self):
        self.feed.start()
        self.feed.flush()
        set_everywhere(self.feed.cluster, self.feed.dbname, ODDER)
        for name, _, columns in self.tables:
            self.feed.sql(f"INSERT INTO {name} SELECT id + 1000, {', '.join(columns)} FROM {name}")

    def check(self, name):
        rows = check_table(self.feed, name)
        count, columns = next((count, columns) for table, count, columns in self.tables if table == name)
        snapshot = {row.values[0]: row.values[1:] for row in rows if row.values[0] < 1000}
        streamed = {row.values[0] - 1000: row.values[1:] for row in rows if row.values[0] >= 1000}
        assert len(snapshot) == len(streamed) == count
        for n in range(count):
            for column, left, right in zip(columns, snapshot[n], streamed[n], strict=True):
                assert repr(left) == repr(right), (column, n)


def set_everywhere(cluster, dbname, settings):
    """For the server, while it runs, for the database and for the role that workers are."""
    cluster.configure(**settings)
    cluster.reload()
    for name, value in settings.items():
        cluster.sql(f"ALTER DATABASE {dbname} SET {name} = '{value}'")
        cluster.sql(f"ALTER ROLE postgres SET {name} = '{value}'")
        cluster.sql(f"ALTER ROLE postgres IN DATABASE {dbname} SET {name} = '{value}'")


@pytest.fixture(scope="module")
def own(clusters):
    """A cluster whose settings are odd from the start."""
    cluster = clusters.make(ODD)
    yield cluster
    clusters.discard(cluster)


def there(feed, extension):
    """Makes the extension, if the server has it and the libraries that it needs."""
    where = "" if "topology" in extension else " SCHEMA public"
    try:
        feed.sql(f"CREATE EXTENSION {extension}{where} CASCADE")
    except (psycopg.errors.UndefinedFile, psycopg.errors.FeatureNotSupported):
        return False
    return True


@pytest.fixture(scope="module")
def contrib(own):
    feed = Feed(own, "contrib")
    sampled = Sampled(feed)
    for extension in EXTENSIONS:
        if not there(feed, extension):
            continue
        columns = []
        for n, (type_name, literals) in enumerate(EXTENSIONS[extension].items()):
            array = f"ARRAY[{', '.join(literals)}]::{type_name}[]"
            columns += [(f"c{n}", type_name, literals), (f"a{n}", f"{type_name}[]", [array])]
            feed.sql(f"CREATE DOMAIN {extension}_{n} AS {type_name}")
            feed.sql(f"CREATE DOMAIN {extension}_{n}_again AS {extension}_{n}")
            columns.append((f"d{n}", f"{extension}_{n}_again", literals))
        # A table's name is a type's name, too.
        sampled.add(f"has_{extension}", columns)
    sampled.feed_all()
    yield sampled
    feed.close()


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_types_of_extensions(contrib, extension):
    if f"has_{extension}" not in [name for name, *_ in contrib.tables]:
        pytest.skip(f"{extension} is not installed")
    contrib.check(f"has_{extension}")


def catalog_types(feed):
    """[(type, kind)] of all that can be a column, user-made ones left out; in names that can be columns."""
    return feed.sql(
        "SELECT typname::text, CASE WHEN typcategory = 'A' AND typelem <> 0 THEN 'array' ELSE typtype::text END"
        " FROM pg_type WHERE typnamespace IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)"
        " AND typtype <> 'p' AND typname !~ '^pg_toast' ORDER BY oid"
    )


def sample(type_name, kind):
    if type_name in VALUES:
        return [VALUES[type_name]]
    if kind == "array":
        element = VALUES.get(type_name[1:])
        return [f"'{{}}'::{type_name}"] + ([f"ARRAY[{element}, NULL]::{type_name}"] if element else [])
    return {"r": ["'empty'", "'(,)'"], "m": ["'{}'", "'{(,)}'"]}.get(kind, [])


# How many tables of 60 columns the types of PostgreSQL 17 fill.
CATALOG_TABLES = 8


class Catalog(Sampled):
    """Every type of the catalog, in tables of 60 columns."""

    def __init__(self, feed):
        super().__init__(feed)
        columns, self.refused = [], []
        for number, (name, kind) in enumerate(catalog_types(feed)):
            place = f'pg_catalog."{name}"'
            try:
                feed.sql(f"CREATE TEMPORARY TABLE probe (c {place}); DROP TABLE probe")
            except psycopg.Error:
                self.refused.append(name)
                continue
            literals = [f"({literal})::{place}" for literal in sample(name, kind)]
            columns.append((f"c{number}", place, literals))
        for first in range(0, len(columns), 60):
            self.add(f"t{first // 60}", columns[first : first + 60])
        self.feed_all()


@pytest.fixture(scope="module")
def catalog(own):
    feed = Feed(own, "everything")
    yield Catalog(feed)
    feed.close()


@pytest.mark.parametrize("number", range(CATALOG_TABLES))
def test_types_of_the_catalog(catalog, number):
    catalog.check(f"t{number}")


def test_most_of_the_catalog_was_tried(catalog):
    """Refused as columns are those of the information schema alone, whose place is another, and few more."""
    assert sum(len(columns) for *_, columns in catalog.tables) > 300, catalog.refused
    assert len(catalog.tables) == CATALOG_TABLES


# --- types that change while the feed runs


@pytest.fixture
def t(feed):
    feed.sql("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    feed.sql("CREATE TYPE pair AS (x int, y text)")
    feed.sql("CREATE DOMAIN word AS text CHECK (VALUE <> 'no')")
    feed.table("t (i int, m mood, p pair, w word, many pair[])")
    feed.sql("INSERT INTO t VALUES (1, 'sad', ROW(1, 'a'), 'w', ARRAY[ROW(1, 'a')::pair])")
    feed.start()
    feed.flush()
    return feed


def test_an_enum_is_extended(t):
    """Values are added before, after and between, and used at once."""
    for n, where in enumerate(("", "BEFORE 'sad'", "AFTER 'sad'")):
        t.sql(f"ALTER TYPE mood ADD VALUE 'new {n}' {where}")
        t.sql(f"INSERT INTO t (i, m) VALUES (2, 'new {n}')")
        t.sql(f"UPDATE t SET m = 'new {n}' WHERE i = 1")
    check_table(t, "t")
    assert not DeltaLog(t.path("t")).replacements()


def test_a_label_is_renamed(t):
    """PostgreSQL shows it in rows of before, too. The history has the labels that rows had; `resync`
    makes it do the same."""
    t.sql("INSERT INTO t (i, m) VALUES (2, 'glad')")
    t.sql("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
    t.sql("INSERT INTO t (i, m) VALUES (3, 'blue')")
    t.flush()
    assert [row.values[1] for row in t.rows("t")] == ["sad", "glad", "blue"]
    resync(t)
    check_table(t, "t")


def resync(feed):
    feed.conn.execute(f"SELECT wal2delta.resync('{feed.schema}.t')")


@pytest.mark.parametrize("row", ["a row after it", "no row after it"])
@pytest.mark.parametrize(
    "change", ["ADD ATTRIBUTE z int", "DROP ATTRIBUTE y", "RENAME ATTRIBUTE x TO xx", "ADD ATTRIBUTE z int CASCADE"]
)
def test_a_composite_type_is_changed(t, change, row):
    """PostgreSQL prints rows of before in the new shape; after a `resync` so does the history."""
    t.sql(f"ALTER TYPE pair {change}")
    if row == "a row after it":
        t.sql("UPDATE t SET i = 2")
        t.sql("INSERT INTO t (i, w) VALUES (3, 'x')")
    t.flush()
    resync(t)
    check_table(t, "t")


def test_a_domain_is_changed(t):
    t.sql("ALTER DOMAIN word ADD CONSTRAINT short CHECK (length(VALUE) < 100)")
    t.sql("ALTER DOMAIN word SET DEFAULT 'd'")
    t.sql("ALTER DOMAIN word SET NOT NULL")
    t.sql("INSERT INTO t VALUES (2, 'sad', NULL, 'x', NULL)")
    t.sql("ALTER DOMAIN word DROP NOT NULL")
    t.sql("UPDATE t SET w = NULL")
    check_table(t, "t")
    assert not DeltaLog(t.path("t")).replacements()


@pytest.mark.parametrize("change", ["TYPE mood RENAME TO x", "TYPE pair RENAME TO x", "DOMAIN word RENAME TO x"])
def test_a_type_is_renamed(t, change):
    t.sql(f"ALTER {change}")
    t.sql("UPDATE t SET i = 2")
    check_table(t, "t")
    assert not DeltaLog(t.path("t")).replacements()


def test_types_and_rows_of_one_transaction(t):
    """Made, changed and used before anybody else sees them."""
    with t.conn.transaction():
        t.sql("CREATE TYPE span AS RANGE (subtype = float8, multirange_type_name = spans)")
        t.sql("CREATE TYPE size AS ENUM ('s')")
        t.sql("ALTER TYPE size RENAME VALUE 's' TO 'xs'")
        t.sql("CREATE DOMAIN sizes AS size[]")
        t.sql("CREATE TYPE whole AS (s size, many sizes, span span, spans spans, nested pair)")
        t.sql("ALTER TABLE t ADD whole whole, ADD whole_too whole[]")
        t.sql("UPDATE t SET whole = ROW('xs', '{xs}', '[0.1,2)', '{[0.1,2)}', ROW(1, '\"'))")
        t.sql("UPDATE t SET whole_too = ARRAY[whole]")
    rows = check_table(t, "t")
    assert rows[-1].values[5] == '(xs,{xs},"[0.1,2)","{[0.1,2)}","(1,"""""""")")'


# --- other encodings

TEXTS = {
    "LATIN1": ["café", "ÿþ÷", "plain", "\u0080\u009f"],
    "LATIN9": ["€Šž"],
    "WIN1251": ["Привет, мир"],
    "KOI8R": ["Привет"],
    "EUC_JP": ["日本語、ｱｲｳ"],
    "WIN1252": ["smart “quotes” €"],
}


@pytest.fixture
def database(make_cluster, make_feed):
    def make(encoding):
        cluster = make_cluster()
        kind = f"ENCODING '{encoding}' LOCALE 'C' LOCALE_PROVIDER 'libc' TEMPLATE template0"
        cluster.sql(f"CREATE DATABASE other {kind}")
        cluster.sql("CREATE EXTENSION wal2delta", dbname="other")
        return make_feed("shop", cluster=cluster, dbname="other")

    return make


@pytest.mark.parametrize("encoding", TEXTS)
def test_text_is_converted(database, encoding):
    """Values, labels, column names, and what types print; by snapshot and by stream."""
    feed = database(encoding)
    text = TEXTS[encoding][0]
    feed.sql(f"CREATE TYPE label AS ENUM ('{text}')")
    feed.table(f't (i int, "{text}" text, c char(30), j jsonb, a text[], e label, x xml, m label[])')
    for n, one in enumerate(TEXTS[encoding]):
        row = [n, one, one, f'{{"{one}": "{one}"}}', [one], text, f"<a>{one}</a>", [text]]
        feed.sql("INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s, %s, %s::label[])", row)
    feed.start()
    feed.flush()
    feed.sql("INSERT INTO t SELECT * FROM t")
    feed.sql("UPDATE t SET i = i + 100")
    assert feed.value("SHOW client_encoding") == encoding
    rows = check_table(feed, "t")
    assert [row.values[1] for row in rows[: len(TEXTS[encoding])]] == TEXTS[encoding]
    assert rows[0].values[5] == text
    assert DeltaLog(feed.path("t")).schema()[1].name == text


@pytest.mark.parametrize("encoding, byte", [("WIN1251", 0x98), ("WIN1252", 0x81)])
def test_what_has_no_equivalent_is_replaced(database, encoding, byte):
    """A character that PostgreSQL keeps and cannot convert; the rest of the value stays."""
    feed = database(encoding)
    feed.table("t (i int, v text, c char(5))")
    feed.sql(f"INSERT INTO t VALUES (1, 'a' || chr({byte}) || 'b', chr({byte}))")
    feed.start()
    feed.flush()
    feed.sql(f"INSERT INTO t VALUES (2, 'c' || chr({byte}) || 'd', chr({byte}))")
    feed.flush("20 s")
    rows = read_by_all(feed.path("t"))
    assert [row.values for row in rows] == [(1, "a\ufffdb", "\ufffd    "), (2, "c\ufffdd", "\ufffd    ")]


def written_as_bytes(feed):
    """A feed of a SQL_ASCII database, where text is whatever bytes somebody wrote."""
    feed.table("t (i int, v text)")
    feed.sql(r"INSERT INTO t VALUES (1, E'caf\xc3\xa9'), (2, E'caf\xe9 \xff\xfe!'), (3, 'plain')")
    feed.start()
    feed.flush()
    feed.sql(r"INSERT INTO t VALUES (4, E'\xf0\x9f\x90\x98'), (5, E'\xf0\x9f'), (6, E'\xed\xa0\x80')")
    feed.flush()
    return feed


def test_sql_ascii(database):
    """UTF-8 stays, each other byte is U+FFFD; the table goes on."""
    rows = read_by_all(written_as_bytes(database("SQL_ASCII")).path("t"))
    assert [row.values[1] for row in rows[:4]] == ["café", "caf\ufffd \ufffd\ufffd!", "plain", "🐘"]
    assert set(rows[4].values[1]) == set(rows[5].values[1]) == {"\ufffd"}
    assert [row.values[0] for row in rows] == [1, 2, 3, 4, 5, 6]


def test_what_was_replaced_is_counted(database):
    """The view has a column for it."""
    row = written_as_bytes(database("SQL_ASCII")).view("t")
    counted = [name for name in row if "replaced" in name]
    assert counted and row[counted[0]] >= 3, list(row)


def test_names_in_sql_ascii(database):
    """A table's and a column's name that are no UTF-8: fed, with U+FFFD in their place."""
    feed = database("SQL_ASCII")
    feed.table("t (i int)")
    feed.sql("INSERT INTO t VALUES (1)")
    with feed.cluster.connect("other", client_encoding="SQL_ASCII") as conn:
        conn.execute(b'CREATE TABLE shop."caf\xe9" ("\xe9" int)')
        conn.execute(b'ALTER TABLE shop."caf\xe9" REPLICA IDENTITY FULL')
        conn.execute(b'INSERT INTO shop."caf\xe9" VALUES (5)')
    feed.start()
    feed.flush()
    assert [row.values for row in feed.rows("t")] == [(1,)]
    (folder,) = [path for path in feed.destination.iterdir() if path.name.startswith("lb_caf")]
    assert DeltaLog(folder).schema()[0].name == "\ufffd"
    assert [row.values for row in read_by_all(folder)] == [(5,)]
