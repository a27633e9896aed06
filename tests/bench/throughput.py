"""pgbench's TPC-B-like transactions with the feed on and off."""

import re
import time

from .feeds import Feed
from .machine import sync_seconds
from .processes import Meter
from .results import MEGABYTE, Column, Group
from .scene import SCHEMA, Scene, pgbench, run_pgbench
from .settings import settings
from .shapes import Shape

COLUMNS = [
    Column("tps", "transactions per second", 0),
    Column("latency", "mean latency, ms", 2, 1e-3),
    Column("behind", "behind at the end, s"),
    Column("cpu", "feed worker, CPU s"),
    Column("peak", "feed worker, peak MB", 0, MEGABYTE),
]

ON, OFF = "feed on", "feed off"
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
CLIENTS = 8


def throughput(clusters, options, say):
    changed = {"autovacuum": "on", "checkpoint_timeout": "5min"}
    group = Group(
        "throughput",
        "What the feed costs the database",
        f"pgbench, TPC-B-like, scale {options.scale}, {CLIENTS} clients, {options.seconds} s each, on the same "
        "machine, which it keeps busy. wal_level = logical and REPLICA IDENTITY FULL with the feed on and off. "
        "Behind at the end: what flush() takes once pgbench has ended.",
        COLUMNS,
        OFF,
        {"seconds": options.seconds, "runs": options.runs, "one sync to disk": f"{sync_seconds() * 1000:.2f} ms"},
        settings(**changed),
    )
    with Scene(clusters, Shape("pgbench", "", {}, []), **changed) as scene:
        initialise(scene, options.scale)
        for commit in ("on", "off"):
            for run in range(options.runs):
                for what in (OFF, ON) if run % 2 == 0 else (ON, OFF):
                    figures = measure(scene, what == ON, options.seconds, commit)
                    say(f"throughput, synchronous_commit {commit}, run {run + 1}, {what}: {figures['tps']:.0f} tps")
                    group.add(what, figures, f"synchronous_commit = {commit}")
    return group


def initialise(scene, scale):
    run_pgbench(scene.cluster, ["-i", "-q", "-s", str(scale)])
    for table in TABLES:
        scene.conn.execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    # The history is empty at first, and would join the feed in the midst of a measurement.
    scene.conn.execute("INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 1, 1, 0, now())")


def measure(scene, with_feed, seconds, commit):
    if with_feed:
        # A feed that is started again to the same destination goes on without a new copy.
        feed = Feed(scene.cluster, SCHEMA)
        feed.start()
        feed.wait_until_streaming(len(TABLES))
        feed.flush()
        meter = Meter(feed.worker())
    scene.conn.execute("VACUUM ANALYZE pgbench_branches, pgbench_tellers")
    scene.calm()
    told = pgbench(scene.cluster, clients=CLIENTS, seconds=seconds, commit=commit)
    figures = {
        "tps": float(re.search(r"^tps = ([\d.]+)", told, re.MULTILINE)[1]),
        "latency": float(re.search(r"^latency average = ([\d.]+) ms", told, re.MULTILINE)[1]) / 1000,
    }
    if with_feed:
        used = meter.read()
        begun = time.monotonic()
        feed.flush()
        figures |= {"behind": time.monotonic() - begun, "cpu": used["cpu"], "peak": used["peak"]}
        feed.stop()
        feed.close()
    return figures
