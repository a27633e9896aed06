"""Cost as things grow: the number of tables, of rows, of commits."""

import time

from . import lake
from .compare import SHAPE_COLUMNS, one_run
from .feeds import Feed
from .processes import Meter, memory
from .results import MEGABYTE, Column, Group
from .scene import SCHEMA, Scene
from .settings import settings
from .shapes import MIDDLE_COLUMNS, MIDDLE_VALUES, Shape, insert, many, middle
from .ways import Wal2delta

COLUMNS = [SHAPE_COLUMNS[1], SHAPE_COLUMNS[0], *SHAPE_COLUMNS[2:]]

COMMIT_COLUMNS = [
    Column("flush", "flush, ms", 1, 1e-3),
    Column("slowest", "slowest of them, ms", 1, 1e-3),
    Column("cpu_main", "decoding thread, CPU ms per commit", 1, 1e-3),
    Column("cpu_threads", "writer threads, CPU ms per commit", 1, 1e-3),
    Column("resident", "resident MB", 0, MEGABYTE),
    Column("peak", "peak MB", 0, MEGABYTE),
    Column("files", "files in the log's folder", 0),
]

TABLES = (1, 10, 100, 1000)
# Times --rows.
SIZES = (0.5, 5)
LARGEST = 50
# A commit's cost is the median of so many, the one named being the last.
WINDOW = 100
# wal2delta.log_retention of the group commits.
RETENTION = "2min"


def tables(clusters, options, say):
    group = Group(
        "tables",
        "Growth: tables",
        "The same number of rows and transactions, over more and more tables. wal2delta drains them from a pause.",
        COLUMNS,
        options={"rows": options.rows // 2, "runs": options.runs},
        settings=settings(),
    )
    for count in TABLES:
        drained(clusters, many(options.rows // 2, count), options.runs, say, group, f"{count:,}")
    return group


def sizes(clusters, options, say):
    factors = SIZES + ((LARGEST,) if options.largest else ())
    group = Group(
        "sizes",
        "Growth: rows",
        "One table of 4 columns, 10,000 rows a transaction. wal2delta drains them from a pause.",
        COLUMNS,
        options={"runs": options.runs},
        settings=settings(),
    )
    for factor in factors:
        rows = int(options.rows * factor)
        drained(clusters, middle(rows), options.runs, say, group, f"{rows:,}")
    return group


def drained(clusters, shape, runs, say, group, what):
    for run in range(runs):
        (figures,) = one_run(clusters, shape, lambda: [Wal2delta()], run, say).values()
        group.add(what, figures)


def commits(clusters, options, say):
    """Every commit brings one row and is asked for by flush()."""
    changed = {"wal2delta__log_retention": RETENTION}
    steps = sorted({step for step in (100, 1000, 5000, 10_000) if step < options.commits} | {options.commits})
    group = Group(
        "commits",
        "Growth: commits",
        f"One row and flush(), again and again, upkeep beside it; at each commit the last {WINDOW} up to it. "
        f"What is kept of the log for a day is kept for {RETENTION} here, in which there are about as many commits as "
        "in a day with one every 15 s.",
        COMMIT_COLUMNS,
        options={"commits": options.commits},
        settings=settings(**changed),
    )
    shape = Shape("growing", "", {"growing": MIDDLE_COLUMNS}, [insert("growing", MIDDLE_VALUES, 0, 0)])
    with Scene(clusters, shape, **changed) as scene:
        feed = Feed(scene.cluster, SCHEMA)
        feed.start(flush_interval="1 hour")
        feed.wait_until_streaming()
        feed.flush()
        scene.calm()
        worker = feed.worker()
        first = lake.last_version(feed.history("growing"))
        done = 0
        for step in steps:
            while done < step - min(WINDOW, step - done):
                commit(scene, feed, done)
                done += 1
            meter = Meter(worker)
            taken = []
            while done < step:
                taken.append(commit(scene, feed, done))
                done += 1
            figures = figures_of(feed, taken, meter, worker)
            say(f"commit {step}: {figures['flush'] * 1000:.1f} ms")
            group.add(f"{step:,}", figures)
        made = lake.last_version(feed.history("growing")) - first
        assert made >= options.commits, f"{made} commits instead of {options.commits}"
        feed.close()
    return group


def commit(scene, feed, number):
    """Seconds that flush() took after one insert."""
    scene.conn.execute(insert("growing", MIDDLE_VALUES, number, number))
    begun = time.monotonic()
    feed.flush()
    return time.monotonic() - begun


def figures_of(feed, taken, meter, worker):
    used = meter.read()
    return {
        "flush": sorted(taken)[len(taken) // 2],
        "slowest": max(taken),
        "cpu_main": used["cpu_main"] / len(taken),
        "cpu_threads": used["cpu_threads"] / len(taken),
        "resident": memory(worker, "VmRSS"),
        "peak": used["peak"],
        "files": sum(1 for _ in (feed.history("growing") / "_delta_log").iterdir()),
    }
