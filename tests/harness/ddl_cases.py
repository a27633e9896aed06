"""Every DDL that changes a table, or might be taken for a change of it: what has to be done, and what
becomes of the history in each mode. For tables made by `make`."""

from dataclasses import dataclass

# What becomes of the history: a new snapshot replaces it; a column becomes nullable by metadata alone;
# nothing; any of these, as long as it replays.
SNAPSHOT, NULLABLE, NOTHING, ANY = "snapshot", "nullable", "nothing", "any"
# Of an `evolve` feed: its schema grows, no row is removed.
ADDITIVE = "additive"

# Columns after the three that a load writes. {t} is the table.
COLUMNS = (
    "id bigint PRIMARY KEY, n int, pad text, note varchar(20) DEFAULT 'as ever', amount numeric(10,2),"
    " at timestamptz DEFAULT '2024-02-29 12:00+00', must int NOT NULL DEFAULT 1, maybe int, a int, b int,"
    " twice int GENERATED ALWAYS AS (must * 2) STORED, kind mood DEFAULT 'calm', body text"
)
FILL = (
    "INSERT INTO {t} (id, n, pad, note, amount, maybe, a, b, body)"
    " SELECT i, 0, 'x', 'note ' || i, i * 1.25, i, i, -i, repeat(md5(i::text), CASE WHEN i % 50 = 0 THEN 200 END)"
    " FROM generate_series(1, {rows}) i"
)


def make_types(feed):
    feed.sql("CREATE TYPE mood AS ENUM ('calm', 'wild')")
    feed.sql("CREATE DOMAIN short_text AS text")
    feed.sql("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")


def make(feed, table, rows=300):
    feed.table(f"{table} ({COLUMNS})")
    feed.sql(FILL.format(t=table, rows=rows))


@dataclass(frozen=True)
class Ddl:
    name: str
    statements: tuple
    outcome: str
    evolve: str
    # Columns whose values of before an `evolve` history does not have.
    lost: tuple = ()
    # Run before the feed starts.
    prepare: str = ""

    def run(self, feed, table):
        for statement in self.statements:
            feed.sql(statement.format(t=table))

    def __str__(self):
        return self.name.replace(" ", "-")


def _ddl(name, *statements, outcome=SNAPSHOT, evolve=ADDITIVE, lost=(), prepare=""):
    # Braces of SQL would be taken for the table's place.
    return Ddl(name, tuple(statements), outcome, evolve, lost, prepare)


ALTER = "ALTER TABLE {t} "

COLUMN_CHANGES = [
    _ddl("add", ALTER + "ADD extra int"),
    _ddl("add with a constant default", ALTER + "ADD extra text DEFAULT 'given'", lost=("extra",)),
    _ddl("add NOT NULL with a default", ALTER + "ADD extra int NOT NULL DEFAULT 7", lost=("extra",)),
    _ddl("add with a volatile default", ALTER + "ADD extra text DEFAULT clock_timestamp()::text", evolve=ANY),
    _ddl("add generated", ALTER + "ADD extra int GENERATED ALWAYS AS (id + 1) STORED", evolve=ANY),
    _ddl("add identity", ALTER + "ADD extra int GENERATED ALWAYS AS IDENTITY", evolve=ANY),
    _ddl("add two", ALTER + "ADD extra int, ADD extra_too text"),
    _ddl("add that is there", ALTER + "ADD IF NOT EXISTS note text", outcome=NOTHING, evolve=NOTHING),
    _ddl("drop", ALTER + "DROP note"),
    _ddl("drop NOT NULL column", ALTER + "DROP must CASCADE"),
    _ddl("drop the last", ALTER + "DROP body"),
    _ddl("drop the key", ALTER + "DROP CONSTRAINT {t}_pkey, ADD extra int"),
    _ddl("drop and add the same", ALTER + "DROP body, ADD body text", evolve=ANY),
    _ddl("drop, then add the same", ALTER + "DROP body", ALTER + "ADD body text", evolve=ANY),
    _ddl("rename a column", ALTER + "RENAME note TO remark"),
    _ddl("rename to odd", ALTER + 'RENAME note TO "a note, {{odd}}"'),
    _ddl("swap two columns' names",
         "BEGIN", ALTER + "RENAME a TO c", ALTER + "RENAME b TO a", ALTER + "RENAME c TO b", "COMMIT", evolve=ANY),
    _ddl("rename there and back", ALTER + "RENAME note TO remark", ALTER + "RENAME remark TO note",
         outcome=ANY, evolve=ANY),
    _ddl("retype int to bigint", ALTER + "ALTER maybe TYPE bigint", evolve=ANY),
    _ddl("retype int to text", ALTER + "ALTER maybe TYPE text USING 'n' || maybe", evolve=ANY),
    _ddl("retype bigint to int", ALTER + "ALTER a TYPE smallint", evolve=ANY),
    _ddl("retype to a longer varchar", ALTER + "ALTER note TYPE varchar(40)", outcome=ANY, evolve=NOTHING),
    _ddl("retype varchar to text", ALTER + "ALTER note TYPE text", outcome=ANY, evolve=NOTHING),
    _ddl("retype text to a domain", ALTER + "ALTER body TYPE short_text", outcome=ANY, evolve=NOTHING),
    _ddl("retype varchar to other text", ALTER + "ALTER note TYPE text USING upper(note)", evolve=ANY),
    _ddl("retype to a wider numeric", ALTER + "ALTER amount TYPE numeric(12,2)", evolve=ANY),
    _ddl("retype to numeric", ALTER + "ALTER amount TYPE numeric", evolve=ANY),
    _ddl("retype to another scale", ALTER + "ALTER amount TYPE numeric(10,1)", evolve=ANY),
    _ddl("retype timestamptz to timestamp", ALTER + "ALTER at TYPE timestamp USING at AT TIME ZONE 'UTC'",
         evolve=ANY),
    _ddl("retype enum to text", ALTER + "ALTER kind DROP DEFAULT, ALTER kind TYPE text", outcome=ANY, evolve=ANY),
    _ddl("add, drop and retype at once", ALTER + "DROP note, ADD m numeric(5,1) DEFAULT 1.5, ALTER maybe TYPE bigint",
         evolve=ANY),
    _ddl("several one after the other", ALTER + "ADD extra int", ALTER + "DROP note", ALTER + "RENAME a TO c",
         ALTER + "ALTER maybe TYPE bigint", evolve=ANY),
    _ddl("in a transaction with rows", "BEGIN", "UPDATE {t} SET n = n + 1 WHERE id = 1", ALTER + "ADD extra int",
         "UPDATE {t} SET extra = 5, n = n + 1 WHERE id = 1", ALTER + "DROP note",
         "DELETE FROM {t} WHERE id = 2", "COMMIT"),
    _ddl("rolled back to a savepoint", "BEGIN", "SAVEPOINT s", ALTER + "ADD extra int",
         "UPDATE {t} SET extra = 5 WHERE id = 1", "ROLLBACK TO s", "UPDATE {t} SET n = 7 WHERE id = 1", "COMMIT",
         outcome=NOTHING, evolve=NOTHING),
]  # fmt: skip

NULLABILITY = [
    _ddl("drop NOT NULL", ALTER + "ALTER must DROP NOT NULL", outcome=NULLABLE, evolve=NULLABLE),
    _ddl("drop NOT NULL and the default", ALTER + "ALTER must DROP NOT NULL, ALTER must DROP DEFAULT",
         outcome=NULLABLE, evolve=NULLABLE),
    _ddl("set NOT NULL", ALTER + "ALTER n SET NOT NULL", outcome=NOTHING, evolve=NOTHING),
    _ddl("drop and set NOT NULL", ALTER + "ALTER must DROP NOT NULL", ALTER + "ALTER must SET NOT NULL",
         outcome=ANY, evolve=ANY),
]  # fmt: skip

# Name: statements. None of them changes a value or a column.
HARMLESS = {
    "comments": ("COMMENT ON TABLE {t} IS 'x'", "COMMENT ON COLUMN {t}.note IS 'x'"),
    "defaults": (ALTER + "ALTER maybe SET DEFAULT 5", ALTER + "ALTER maybe DROP DEFAULT"),
    "indexes": ("CREATE INDEX {t}_i ON {t} (n)", "REINDEX TABLE {t}", "ALTER INDEX {t}_i RENAME TO {t}_j",
                "DROP INDEX {t}_j"),
    "indexes concurrently": ("CREATE INDEX CONCURRENTLY {t}_i ON {t} (n)", "REINDEX TABLE CONCURRENTLY {t}",
                             "DROP INDEX CONCURRENTLY {t}_i"),
    "check": (ALTER + "ADD CONSTRAINT c CHECK (id > 0)", ALTER + "DROP CONSTRAINT c"),
    "check, validated later": (ALTER + "ADD CONSTRAINT c CHECK (id > 0) NOT VALID", ALTER + "VALIDATE CONSTRAINT c",
                               ALTER + "RENAME CONSTRAINT c TO d"),
    "unique": (ALTER + "ADD UNIQUE (id, n)",),
    "foreign key": ("CREATE TABLE {t}_other (r bigint REFERENCES {t})",),
    "exclusion": (ALTER + "ADD EXCLUDE USING btree (id WITH =)",),
    "drop the key alone": (ALTER + "DROP CONSTRAINT {t}_pkey", ALTER + "ADD PRIMARY KEY (id)"),
    "owner": (ALTER + "OWNER TO pg_monitor", ALTER + "OWNER TO postgres"),
    "grants": ("GRANT ALL ON {t} TO PUBLIC", "GRANT SELECT (n) ON {t} TO pg_monitor"),
    "storage": (ALTER + "ALTER body SET STORAGE EXTERNAL", ALTER + "ALTER body SET COMPRESSION pglz"),
    "statistics": (ALTER + "ALTER n SET STATISTICS 500", "CREATE STATISTICS {t}_s ON n, id FROM {t}", "ANALYZE {t}"),
    "column options": (ALTER + "ALTER n SET (n_distinct = 5)",),
    "fillfactor": (ALTER + "SET (fillfactor = 50, autovacuum_enabled = off)",),
    "tablespace": (ALTER + "SET TABLESPACE elsewhere", ALTER + "SET TABLESPACE pg_default"),
    "trigger": ("CREATE TRIGGER w AFTER INSERT ON {t} EXECUTE FUNCTION nothing()", ALTER + "DISABLE TRIGGER w"),
    "rule": ("CREATE RULE r AS ON DELETE TO {t} WHERE old.id < 0 DO NOTHING",),
    "row security": (ALTER + "ENABLE ROW LEVEL SECURITY", ALTER + "FORCE ROW LEVEL SECURITY",
                     "CREATE POLICY p ON {t} USING (true)"),
    "publication": ("CREATE PUBLICATION {t}_p FOR TABLE {t}", "DROP PUBLICATION {t}_p"),
    "vacuum": ("VACUUM (FREEZE, ANALYZE) {t}",),
    "vacuum full": ("VACUUM FULL {t}",),
    "cluster": ("CLUSTER {t} USING {t}_pkey",),
    "cluster on": (ALTER + "CLUSTER ON {t}_pkey", ALTER + "SET WITHOUT CLUSTER"),
    "identity FULL again": (ALTER + "REPLICA IDENTITY FULL",),
    "identity of a column": (ALTER + "ALTER id ADD GENERATED BY DEFAULT AS IDENTITY", ALTER + "ALTER id DROP IDENTITY"),
    "generated no more": (ALTER + "ALTER twice DROP EXPRESSION",),
    "access method": (ALTER + "SET ACCESS METHOD heap",),
    "inherit": ("CREATE TABLE {t}_parent (n int)", ALTER + "INHERIT {t}_parent", ALTER + "NO INHERIT {t}_parent"),
    "a child": ("CREATE TABLE {t}_child () INHERITS ({t})",),
    "composite type of it": ("CREATE TABLE {t}_holder (whole {t})",),
    "enum value": ("ALTER TYPE mood ADD VALUE IF NOT EXISTS 'new'",),
    "drop of nothing": (ALTER + "DROP COLUMN IF EXISTS nothing",),
}  # fmt: skip

CASES = (
    COLUMN_CHANGES
    + NULLABILITY
    + [_ddl(name, *statements, outcome=NOTHING, evolve=NOTHING) for name, statements in HARMLESS.items()]
)


def named(*names):
    """Those of the cases, in this order."""
    found = {case.name: case for case in CASES}
    return [found[name] for name in names]
