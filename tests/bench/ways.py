"""The ways to follow a load. Each is made ready before the load and measured
after it: wall seconds, CPU seconds, peak memory in bytes, and what else it can
tell."""

import sys
import time
from pathlib import Path

from harness.cluster import pg_config
from harness.waiting import wait_for

from . import lake
from .feeds import Feed
from .processes import Meter, run_client, settle
from .scene import SCHEMA
from .settings import has_plugin

# Options of the output plugins, as their users set them.
PLUGINS = {
    "pgoutput binary": ("pgoutput", {"proto_version": "1", "publication_names": "bench", "binary": "true"}),
    "pgoutput text": ("pgoutput", {"proto_version": "1", "publication_names": "bench"}),
    "wal2json": ("wal2json", {"format-version": "2"}),
    "test_decoding": ("test_decoding", {}),
    "decoderbufs": ("decoderbufs", {}),
}

NOTHING = {"format-version": "2", "include-transaction": "false", "add-tables": "nowhere.nothing"}


class Wal2delta:
    """From `resume` until `flush` returns: all of the load is committed to
    Delta, and synced. The feed was paused before the load."""

    name = "wal2delta"

    def prepare(self, scene):
        tables = len(scene.shape.tables)
        self.feed = Feed(scene.cluster, SCHEMA)
        self.feed.start()
        self.feed.wait_until_streaming(tables)
        self.feed.flush()
        self.feed.pause()
        self.histories = [self.feed.history(table) for table in scene.shape.tables]
        self.rows = lake.rows(self.histories)
        self.bytes = lake.size(self.feed.destination)

    def measure(self, scene):
        # A paused worker reads on, and forgets: it is at the WAL's end before it is measured.
        worker = self.feed.worker()
        settle(worker)
        meter = Meter(worker)
        begun = time.monotonic()
        self.feed.resume()
        self.feed.flush()
        seconds = time.monotonic() - begun
        figures = meter.read()
        if self.feed.worker() != worker:
            raise AssertionError(f"the feed worker was started again:\n{scene.cluster.log_tail()}")
        rows = lake.rows(self.histories) - self.rows
        if rows != scene.shape.history_rows:
            raise AssertionError(f"{scene.shape.name}: {rows} rows in Delta instead of {scene.shape.history_rows}")
        return {"seconds": seconds, **figures, "bytes": lake.size(self.feed.destination) - self.bytes, "rows": rows}

    def close(self):
        self.feed.close()


class WithSlot:
    """A way with a replication slot of its own."""

    def prepare(self, scene):
        self.slot = "".join(c if c.isalnum() else "_" for c in self.name.lower())
        scene.conn.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [self.slot, self.plugin])

    def close(self):
        pass

    def serving(self, scene):
        found = scene.conn.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [self.slot]
        ).fetchone()
        return found[0]

    def check_decoded(self, scene):
        """Fails unless all transactions of the load were decoded."""

        def decoded():
            scene.conn.execute("SELECT pg_stat_clear_snapshot()")
            found = scene.conn.execute(
                "SELECT total_txns FROM pg_stat_replication_slots WHERE slot_name = %s", [self.slot]
            ).fetchone()
            return found[0] >= scene.transactions

        wait_for(decoded, 30, f"{self.name} to have decoded {scene.transactions} transactions")


class Received(WithSlot):
    """Through a walsender and `pg_recvlogical` to /dev/null: what any program
    outside the server pays before it does any work."""

    def __init__(self, name):
        self.name = name
        self.plugin, self.options = PLUGINS[name]

    def measure(self, scene):
        command = [Path(pg_config("bindir")) / "pg_recvlogical", "--dbname", scene.cluster.dsn()]
        command += ["--slot", self.slot, "--start", "--no-loop", "--endpos", scene.end, "--file", "/dev/null"]
        for option, value in self.options.items():
            command += ["--option", f"{option}={value}"]
        figures = run_client(command, lambda: self.serving(scene))
        self.check_decoded(scene)
        return figures


class Peeked(WithSlot):
    """By an SQL function, so in a process of the server, rows counted there."""

    def __init__(self, name, plugin, options, binary=False):
        self.name, self.plugin, self.options = name, plugin, options
        self.function = f"pg_logical_slot_peek{'_binary' if binary else ''}_changes"

    def measure(self, scene):
        options = [word for pair in self.options.items() for word in pair]
        with scene.cluster.connect(statement_timeout=0) as conn:
            pid = conn.info.backend_pid
            meter = Meter(pid)
            begun = time.monotonic()
            count = conn.execute(
                f"SELECT count(*) FROM {self.function}(%s, %s, NULL, VARIADIC %s::text[])",
                [self.slot, scene.end, options],
            ).fetchone()[0]
            seconds = time.monotonic() - begun
            used = meter.read()
        if (count > 0) if self.options is NOTHING else (count < scene.shape.changes):
            raise AssertionError(f"{self.name}: {count} rows for {scene.shape.changes} changes")
        self.check_decoded(scene)
        return {"seconds": seconds, "cpu": used["cpu"], "cpu_server": used["cpu"], "peak": used["peak"]}


class Script(WithSlot):
    """The script of plain_script.py, for shapes of one table."""

    name = "Python script"
    plugin = "wal2json"

    def measure(self, scene):
        (table,) = scene.shape.tables
        folder = scene.cluster.folder / "plain"
        command = [sys.executable, Path(__file__).with_name("plain_script.py"), scene.cluster.dsn()]
        command += [f"{SCHEMA}.{table}", folder, "--slot", self.slot, "--until", scene.end]
        figures = run_client(command, lambda: self.serving(scene))
        self.check_decoded(scene)
        rows = lake.rows([folder])
        if rows != scene.shape.history_rows:
            raise AssertionError(f"the script wrote {rows} rows instead of {scene.shape.history_rows}")
        return {**figures, "bytes": lake.size(folder), "rows": rows}


FLOOR = "decoding alone, in the server"


def floor():
    return Peeked(FLOOR, "wal2json", NOTHING)


def few():
    """What every shape is measured with."""
    return [Wal2delta(), Received("pgoutput binary"), *([floor()] if has_plugin("wal2json") else [])]


def every():
    """All ways that this server has the plugins for."""
    ways = [Wal2delta()]
    ways += [Received(name) for name, (plugin, _) in PLUGINS.items() if has_plugin(plugin)]
    ways += [Peeked("pgoutput binary, in the server", *PLUGINS["pgoutput binary"], binary=True)]
    return ways + ([floor(), Script()] if has_plugin("wal2json") else [])
