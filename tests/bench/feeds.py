"""A feed as a benchmark uses it: the SQL interface, without the tests'
readers."""

import json

from harness.waiting import wait_for

# Longer than anything that is measured.
PATIENCE = "6 hours"
PATIENCE_SECONDS = 6 * 3600


class Feed:
    def __init__(self, cluster, schema, name=None):
        self.cluster, self.schema = cluster, schema
        self.destination = cluster.folder_for(name or schema)
        self.conn = cluster.connect(statement_timeout=0)

    def start(self, **options):
        self._call("start", self.schema, str(self.destination), json.dumps(options))

    def stop(self):
        """Returns when the slot has gone."""
        self._call("stop", self.schema)
        slot = self.cluster.slot_name()
        wait_for(lambda: slot not in self.cluster.slots(), 60, "the slot to go with the feed")

    def pause(self):
        self._call("pause", self.schema)
        wait_for(lambda: self._statuses() == ["PAUSED"], 60, "the feed's tables to be paused")

    def resume(self):
        self._call("resume", self.schema)

    def flush(self):
        self._call("flush", PATIENCE)

    def _call(self, function, *values):
        marks = ", ".join(["%s"] * len(values))
        casts = {"start": "%s, %s, %s::jsonb", "flush": "%s::interval"}
        return self.conn.execute(f"SELECT wal2delta.{function}({casts.get(function, marks)})", values).fetchone()[0]

    def _statuses(self):
        found = self.conn.execute(
            "SELECT DISTINCT status FROM wal2delta.tables WHERE source_schema::text = %s", [self.schema]
        )
        return [status for (status,) in found]

    def wait_until_streaming(self, tables=1):
        """Until so many tables stream, and none is anything else."""

        def streaming():
            found = self.conn.execute(
                "SELECT count(*), count(*) FILTER (WHERE status = 'STREAMING')"
                " FROM wal2delta.tables WHERE source_schema::text = %s",
                [self.schema],
            ).fetchone()
            return found == (tables, tables)

        wait_for(streaming, PATIENCE_SECONDS, f"{tables} tables of {self.schema} to stream")

    def worker(self):
        """The feed worker's process id."""
        return self.cluster.wait_for_feed_worker()

    def history(self, table):
        return self.destination / f"lb_{table}_history"

    def close(self):
        self.conn.close()
