"""What was committed, by a witness that wal2delta has no part in: triggers that
write each statement's rows, counted, to a table in a schema that is not fed."""

from collections import Counter, defaultdict
from typing import NamedTuple

SETUP = """
    CREATE SCHEMA audit;
    CREATE TABLE audit.log (relation oid, name text, xid bigint, operation text, rows bigint);
    CREATE FUNCTION audit.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO audit.log
            SELECT TG_RELID, TG_TABLE_NAME, pg_current_xact_id()::text::bigint & 4294967295, lower(TG_OP), count(*)
            FROM changed HAVING count(*) > 0;
        RETURN NULL;
    END $$;
"""

# The change types that count, and the statements that they are from.
OPERATIONS = {"insert": "insert", "delete": "delete", "update_postimage": "update"}


def witness(table):
    """The statements that put `table` under audit."""
    return [
        f"CREATE TRIGGER note_{operation} AFTER {operation} ON {table} REFERENCING {rows} TABLE AS changed"
        " FOR EACH STATEMENT EXECUTE FUNCTION audit.note()"
        for operation, rows in (("insert", "NEW"), ("update", "NEW"), ("delete", "OLD"))
    ]


class Noted(NamedTuple):
    """What the audit has on one table: {(xid, operation): rows}."""

    name: str
    events: Counter


NOTHING = Noted("", Counter())


def take(conn):
    """{relation: Noted} of what was committed and not taken before."""
    taken = {}
    by_table = defaultdict(Counter)
    for relation, name, xid, operation, rows in conn.execute("DELETE FROM audit.log RETURNING *"):
        by_table[relation][xid, operation] += rows
        taken[relation] = Noted(name, by_table[relation])
    return taken


def events_of(rows):
    return Counter((row.xid, OPERATIONS[row.change]) for row in rows if row.change in OPERATIONS)


def differences(rows, noted):
    """In words, how the history's `rows` differ from what was noted."""
    found = events_of(rows)
    missing, extra = noted - found, found - noted
    return [f"transaction {xid}: {n} {what} events missing" for (xid, what), n in missing.items()] + [
        f"transaction {xid}: {n} {what} events that never were" for (xid, what), n in extra.items()
    ]
