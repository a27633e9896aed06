"""A feed as a test uses it: a source schema, a destination of its own, one
connection, and the questions that tests ask again and again."""

import json

from . import fail_points
from .cluster import process_state, run
from .history import check
from .readers import DELTA_RS, read_history
from .source import table_rows
from .waiting import wait_for


class Feed:
    def __init__(self, cluster, schema, dbname="postgres", destination=None, create=True):
        self.cluster = cluster
        self.schema = schema
        self.dbname = dbname
        self.destination = destination or cluster.folder_for(f"{dbname}.{schema}")
        self.conn = cluster.connect(dbname)
        # Where faults are injected, several workers copy a table of a few pages.
        self.shared = fail_points.SETTINGS.items() <= cluster.settings.items()
        if create:
            self.sql(f'CREATE SCHEMA "{schema}"')

    # --- SQL; the schema is first in the search path

    def sql(self, query, params=None):
        self.conn.execute(f'SET search_path = "{self.schema}", public')
        return run(self.conn, query, params)

    def value(self, query, params=None):
        return self.sql(query, params)[0][0]

    def session(self, autocommit=True, **settings):
        conn = self.cluster.connect(self.dbname, autocommit=True, **settings)
        conn.execute(f'SET search_path = "{self.schema}", public')
        conn.autocommit = autocommit
        return conn

    def table(self, ddl, full=True):
        """CREATE TABLE `ddl`, REPLICA IDENTITY FULL unless told otherwise."""
        name = ddl.split("(")[0].strip()
        self.sql(f"CREATE TABLE {ddl}")
        if full:
            self.sql(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        return name

    # --- wal2delta

    def start(self, **options):
        self.conn.execute(
            "SELECT wal2delta.start(%s, %s, %s::jsonb)", [self.schema, str(self.destination), json.dumps(options)]
        )

    def alter(self, **options):
        self.conn.execute("SELECT wal2delta.alter(%s, %s::jsonb)", [self.schema, json.dumps(options)])

    def stop(self):
        self.conn.execute("SELECT wal2delta.stop(%s)", [self.schema])

    def flush(self, timeout="60 s"):
        return self.conn.execute("SELECT wal2delta.flush(%s)", [timeout]).fetchone()[0]

    def path(self, table):
        return self.destination / f"lb_{table}_history"

    def view(self, table, columns="*"):
        """The table's row of wal2delta.tables as a dict, or None."""
        cursor = self.conn.execute(
            f"SELECT {columns} FROM wal2delta.tables WHERE source_schema::text = %s AND source_table::text = %s",
            [self.schema, table],
        )
        names = [column.name for column in cursor.description]
        row = cursor.fetchone()
        return dict(zip(names, row, strict=True)) if row else None

    def status(self, table):
        row = self.view(table)
        return row and row["status"]

    def wait_for_status(self, table, status, timeout=30):
        def reached():
            row = self.view(table)
            return row if row and row["status"] == status else None

        try:
            return wait_for(reached, timeout, f"{self.schema}.{table} to be {status}")
        except AssertionError as late:
            raise AssertionError(f"{late}; the view says {self.view(table)}") from None

    # --- the history

    def rows(self, table, reader=DELTA_RS, **kwargs):
        return read_history(reader, self.path(table), **kwargs)

    def table_rows(self, table, **kwargs):
        return table_rows(self.cluster, f'"{self.schema}"."{table}"', self.dbname, **kwargs)

    def check(self, table, reader=DELTA_RS):
        """Flushes, and fails unless the history replays to the table and keeps
        every rule. Nobody may be writing. Returns the history's rows."""
        self.flush()
        rows = self.rows(table, reader)
        check(self.path(table), rows, self.table_rows(table), self.shared)
        return rows

    def events(self, table, reader=DELTA_RS):
        """[(change type, source values), …] of a history that passed `check`."""
        return [(row.change, row.values) for row in self.check(table, reader)]

    def reconnect(self):
        """A new connection, after a restart of the server."""
        self.conn.close()
        self.conn = self.cluster.connect(self.dbname)

    def come_back(self):
        """Waits until the server has ended all sessions because of a killed process, and accepts new ones."""
        session = self.conn.info.backend_pid
        wait_for(lambda: process_state(session) is None, 20, "the server to end its sessions")
        self.cluster.wait_for_connections()
        self.reconnect()

    def close(self):
        """Leaves the cluster as it was, for the module's next test."""
        if self.cluster.server is None:
            return
        if self.conn.broken or self.conn.closed:
            self.conn = self.cluster.connect(self.dbname)
        self.conn.rollback()
        fed = self.conn.execute(
            "SELECT 1 FROM wal2delta.schemas WHERE source_schema::text = %s", [self.schema]
        ).fetchone()
        if fed:
            self.stop()
        if not self.conn.execute("SELECT 1 FROM wal2delta.schemas").fetchone():
            slot = self.cluster.slot_name(self.dbname)
            wait_for(lambda: slot not in self.cluster.slots(), 30, "the slot to go with the last feed")
        self.conn.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')
        self.conn.close()
