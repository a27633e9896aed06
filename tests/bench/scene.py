"""One cluster with the tables of a shape, the ways that are to follow them,
each made ready before the load, and the load."""

import os
import subprocess
import sys
from pathlib import Path

from harness.cluster import pg_config

from .settings import settings

SCHEMA = "shop"


class Scene:
    def __init__(self, clusters, shape, ways=(), **changed):
        self.clusters, self.shape, self.ways = clusters, shape, ways
        self.settings = settings(**changed)

    def __enter__(self):
        self.cluster = self.clusters.make(self.settings)
        try:
            self.conn = self.cluster.connect(statement_timeout=0, synchronous_commit="off")
            self._tables()
            for way in self.ways:
                way.prepare(self)
            self._load()
        except BaseException:
            self._tell_log()
            self.clusters.discard(self.cluster)
            raise
        return self

    def __exit__(self, kind, *_):
        if kind:
            self._tell_log()
        for way in self.ways:
            way.close()
        self.conn.close()
        self.clusters.discard(self.cluster)

    def _tell_log(self):
        """The server's side of what went wrong."""
        print(self.cluster.log_tail(lines=40), file=sys.stderr)

    def _tables(self):
        conn, shape = self.conn, self.shape
        conn.execute(f"CREATE SCHEMA {SCHEMA}")
        conn.execute(f"SET search_path = {SCHEMA}, pg_catalog")
        with conn.transaction():
            for name, columns in shape.tables.items():
                conn.execute(f"CREATE TABLE {name} ({columns})")
                conn.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        for statement in shape.before:
            conn.execute(statement)
        conn.execute(f"CREATE PUBLICATION bench FOR TABLES IN SCHEMA {SCHEMA}")

    def _load(self):
        conn, shape = self.conn, self.shape
        conn.execute("CHECKPOINT")
        first = self._position()
        for statement in shape.load:
            conn.execute(statement)
        if shape.script:
            script = self.cluster.folder / "script.sql"
            script.write_text(shape.script)
            pgbench(self.cluster, script, clients=4, transactions=shape.transactions // 4)
        # Everything of the load ends at or before `end`; what follows moves all readers past it.
        self.end = self._position()
        self.wal_bytes = conn.execute("SELECT (%s::pg_lsn - %s::pg_lsn)::bigint", [self.end, first]).fetchone()[0]
        self.mark()
        self.transactions = len(shape.load) + shape.transactions

    def _position(self):
        return self.conn.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]

    def mark(self):
        """A transaction after the load."""
        self.conn.execute("SELECT pg_logical_emit_message(true, 'bench', 'end')")

    def calm(self):
        """What was written so far is on the disk before the next measurement."""
        self.conn.execute("CHECKPOINT")
        os.sync()


def pgbench(cluster, script=None, clients=4, transactions=None, seconds=None, rate=None, commit="off"):
    """Runs pgbench on the schema, for so many transactions of each client or so
    many seconds; gives its output."""
    arguments = ["-n", "-M", "prepared", "-c", str(clients), "-j", "2"]
    arguments += ["-f", script] if script else []
    arguments += ["-t", str(transactions)] if transactions else []
    arguments += ["-T", str(seconds)] if seconds else []
    arguments += ["-R", str(rate)] if rate else []
    return run_pgbench(cluster, arguments, commit)


def run_pgbench(cluster, arguments, commit="off"):
    options = f"-c search_path={SCHEMA},pg_catalog -c synchronous_commit={commit}"
    done = subprocess.run(
        [Path(pg_config("bindir")) / "pgbench", *arguments, cluster.dsn()],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PGOPTIONS": options},
    )
    if done.returncode:
        raise RuntimeError(f"pgbench failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout
