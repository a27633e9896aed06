"""A table's rows copied into Delta, beside COPY of the same table to
/dev/null."""

import time

from .feeds import Feed
from .lake import rows, size
from .processes import Meter, Watch, workers_of
from .results import MEGABYTE, Column, Group
from .scene import SCHEMA, Scene
from .settings import settings
from .shapes import SHAPES

COLUMNS = [
    Column("seconds", "seconds"),
    Column("cpu", "CPU s"),
    Column("private", "private memory, peak MB", 0, MEGABYTE),
    Column("bytes", "MB written", 1, MEGABYTE),
]

COPY = "COPY … (FORMAT binary)"


def snapshot(clusters, options, say):
    shape = SHAPES["orders"](options.rows)
    group = Group(
        "snapshot",
        "Snapshot of a table",
        "The table that the load leaves. wal2delta: from start() until the table streams, the making of the slot "
        "included; its CPU and memory are those of all its processes, by samples. COPY: to /dev/null, in the server.",
        COLUMNS,
        COPY,
        {"rows": options.rows, "runs": options.runs},
        settings(),
    )
    with Scene(clusters, shape) as scene:
        scene.conn.execute("VACUUM ANALYZE orders")
        expected = scene.conn.execute("SELECT count(*) FROM orders").fetchone()[0]
        steps = [(COPY, copy), ("wal2delta", feed)]
        for run in range(options.runs):
            for what, step in steps if run % 2 == 0 else reversed(steps):
                scene.calm()
                figures = step(scene, run, expected)
                say(f"snapshot, run {run + 1}, {what}: {figures['seconds']:.2f} s")
                group.add(what, figures)
    return group


def copy(scene, _run, expected):
    with scene.cluster.connect(statement_timeout=0) as conn:
        meter = Meter(conn.info.backend_pid)
        begun = time.monotonic()
        done = conn.execute(f"COPY {SCHEMA}.orders TO '/dev/null' (FORMAT binary)").rowcount
        seconds = time.monotonic() - begun
        used = meter.read()
    assert done == expected, f"{done} rows copied instead of {expected}"
    return {"seconds": seconds, "cpu": used["cpu"]}


def feed(scene, run, expected):
    made = Feed(scene.cluster, SCHEMA, f"snapshot{run}")
    with Watch(lambda: workers_of(scene.cluster)) as watch:
        begun = time.monotonic()
        made.start()
        made.wait_until_streaming()
        seconds = time.monotonic() - begun
    found = rows([made.history("orders")])
    made.stop()
    made.close()
    assert found == expected, f"{found} rows in the snapshot instead of {expected}"
    return {"seconds": seconds, "cpu": watch.cpu, "private": watch.private, "bytes": size(made.destination)}
