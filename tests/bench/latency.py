"""From a transaction's commit to its row being readable in Delta, under a steady
load of single-row transactions; and what the flush interval costs."""

import re
import threading
import time

import pyarrow.parquet as pq

from . import lake
from .feeds import Feed
from .machine import sync_seconds
from .processes import Meter
from .results import MEGABYTE, Column, Group
from .scene import SCHEMA, Scene, pgbench
from .settings import settings
from .shapes import Shape

COLUMNS = [
    Column("median", "median, ms", 0, 1e-3),
    Column("p99", "99 %, ms", 0, 1e-3),
    Column("greatest", "greatest, ms", 0, 1e-3),
    Column("tps", "transactions per second", 0),
    Column("commits_per_hour", "commits per hour", 0),
    Column("files_per_hour", "data files per hour", 0),
    Column("compacted_per_hour", "files by compaction per hour", 0),
    Column("cpu", "feed worker, CPU s per minute"),
    Column("peak", "peak MB", 0, MEGABYTE),
]

ABOUT = (
    "pgbench inserts single rows at a fixed rate, from {clients} sessions, synchronous_commit on. A row's latency is "
    "from its `_timestamp`, the commit's time, until the version that brings it has its name in the Delta log."
)

CLIENTS = 16
POLL_SECONDS = 0.002
TABLE = "events"
SCRIPT = "INSERT INTO events (n, note) VALUES (:client_id, 'a note of some forty characters, as it were');\n"
INTERVALS = ("100 ms", "500 ms", "1 s", "5 s", "15 s")
# An interval is measured over at least so many of its commits.
COMMITS = 4


class Arrivals(threading.Thread):
    """When each new version of a Delta table had its name: {version: seconds
    since 1970}."""

    def __init__(self, table):
        super().__init__(daemon=True)
        self.log, self.next = table / "_delta_log", lake.last_version(table) + 1
        self.seen = {}
        self._end = threading.Event()

    def run(self):
        while not self._end.wait(POLL_SECONDS):
            while (self.log / f"{self.next:020}.json").exists():
                self.seen[self.next] = time.time()
                self.next += 1

    def stop(self):
        self._end.set()
        self.join()


def latencies(table, seen):
    """Sorted seconds from commit to arrival, of each row."""
    found = []
    for version, add in lake.added(table, min(seen)):
        if version in seen:
            committed = pq.ParquetFile(table / add["path"]).read(columns=["_timestamp"]).column(0)
            found += [seen[version] - micros / 1e6 for micros in committed.cast("int64").to_pylist()]
    return sorted(found)


def shape():
    columns = "id bigint GENERATED ALWAYS AS IDENTITY, n int, note text"
    return Shape("events", "", {TABLE: columns}, ["INSERT INTO events (n, note) VALUES (0, 'first')"])


def measure(clusters, interval, rate, seconds):
    with Scene(clusters, shape()) as scene:
        script = scene.cluster.folder / "script.sql"
        script.write_text(SCRIPT)
        feed = Feed(scene.cluster, SCHEMA)
        feed.start(flush_interval=interval)
        feed.wait_until_streaming()
        feed.flush()
        scene.calm()
        table = feed.history(TABLE)
        arrivals = Arrivals(table)
        first = arrivals.next
        meter = Meter(feed.worker())
        arrivals.start()
        begun = time.monotonic()
        told = pgbench(scene.cluster, script, clients=CLIENTS, seconds=seconds, rate=rate, commit="on")
        # Until the interval's own commit: flush() would shorten the last rows' way.
        done = int(re.search(r"actually processed: (\d+)", told)[1])
        deadline = time.monotonic() + 60
        while lake.rows([table]) < done + 1 and time.monotonic() < deadline:
            time.sleep(0.5)
        took = time.monotonic() - begun
        used = meter.read()
        arrivals.stop()
        found = latencies(table, arrivals.seen)
        assert len(found) == done, f"{len(found)} rows in Delta instead of {done}"
        commits, files, compacted = lake.files(table, first)
        feed.close()
    return {
        "median": found[len(found) // 2],
        "p99": found[len(found) * 99 // 100],
        "greatest": found[-1],
        "tps": float(re.search(r"^tps = ([\d.]+)", told, re.MULTILINE)[1]),
        "commits_per_hour": commits / seconds * 3600,
        "files_per_hour": files / seconds * 3600,
        "compacted_per_hour": compacted / seconds * 3600,
        "cpu": used["cpu"] / took * 60,
        "peak": used["peak"],
    }


def group_of(name, title, options, **more):
    told = {"rate": f"{options.rate} per second", "seconds": options.seconds, **more}
    told["one sync to disk"] = f"{sync_seconds() * 1000:.2f} ms"
    return Group(name, title, ABOUT.format(clients=CLIENTS), COLUMNS, "", told, settings())


def latency(clusters, options, say):
    group = group_of("latency", "Latency at flush_interval = 100 ms", options, runs=options.runs)
    for run in range(options.runs):
        figures = measure(clusters, "100 ms", options.rate, options.seconds)
        say(f"latency, run {run + 1}: median {figures['median'] * 1000:.0f} ms, 99 % {figures['p99'] * 1000:.0f} ms")
        group.add("100 ms", figures)
    return group


def intervals(clusters, options, say):
    group = group_of("intervals", "The flush interval: latency against files and CPU", options)
    for interval in INTERVALS:
        count, unit = interval.split()
        seconds = max(options.seconds, round(float(count) * (0.001 if unit == "ms" else 1) * COMMITS))
        figures = measure(clusters, interval, options.rate, seconds)
        say(f"interval {interval}: median {figures['median'] * 1000:.0f} ms, CPU {figures['cpu']:.1f} s a minute")
        group.add(interval, figures)
    return group
