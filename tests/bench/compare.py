"""The load by all ways that follow it (`compare`), and other shapes of load by
the few that matter (`shapes`)."""

from .results import MEGABYTE, Column, Group
from .scene import Scene
from .settings import settings
from .shapes import SHAPES
from .ways import every, few

COLUMNS = [
    Column("seconds", "seconds"),
    Column("cpu", "CPU s"),
    Column("cpu_main", "decoding thread, CPU s"),
    Column("cpu_threads", "writer threads, CPU s"),
    Column("cpu_server", "server process, CPU s"),
    Column("cpu_client", "client, CPU s"),
    Column("peak", "peak MB", 0, MEGABYTE),
    Column("bytes", "MB written", 1, MEGABYTE),
]

SHAPE_COLUMNS = [
    Column("seconds", "seconds"),
    Column("per_million", "seconds per million changes"),
    Column("cpu", "CPU s"),
    Column("cpu_main", "decoding thread, CPU s"),
    Column("cpu_threads", "writer threads, CPU s"),
    Column("peak", "peak MB", 0, MEGABYTE),
    Column("bytes", "MB written", 1, MEGABYTE),
    Column("wal", "MB of WAL", 1, MEGABYTE),
]

ABOUT = (
    "The WAL of the load is there before anything is measured; each way has a slot of its own from before the load, "
    "and starts at it. wal2delta: from resume() of a paused feed until flush() returns, so decoded, encoded, committed "
    "and synced, the rows counted. pg_recvlogical writes to /dev/null. The order is turned around in every other run."
)


def one_run(clusters, shape, make_ways, run, say):
    """{way: figures} of one load on a cluster of its own."""
    ways = make_ways()
    figures = {}
    with Scene(clusters, shape, ways) as scene:
        say(f"{shape.name}: {scene.wal_bytes / MEGABYTE:,.0f} MB of WAL")
        for way in ways if run % 2 == 0 else reversed(ways):
            scene.calm()
            figures[way.name] = way.measure(scene)
            figures[way.name]["per_million"] = figures[way.name]["seconds"] / (shape.changes / 1e6)
            figures[way.name]["wal"] = scene.wal_bytes
            say(f"{shape.name}, run {run + 1}, {way.name}: {figures[way.name]['seconds']:.2f} s")
    # In the order of the list, whichever came first.
    return {way.name: figures[way.name] for way in ways}


def compare(clusters, options, say):
    shape = SHAPES["orders"](options.rows)
    group = Group(
        "compare",
        "The load, by everything that can follow it",
        f"{shape.about}. {ABOUT}",
        COLUMNS,
        "pgoutput binary",
        {"rows": options.rows, "runs": options.runs},
        settings(),
    )
    for run in range(options.runs):
        for what, figures in one_run(clusters, shape, every, run, say).items():
            group.add(what, figures)
    return group


def shapes(clusters, options, say):
    group = Group(
        "shapes",
        "Shapes of load",
        "The same, for loads that differ in what they ask most of.",
        SHAPE_COLUMNS,
        "pgoutput binary",
        {"rows": options.rows, "runs": options.runs},
        settings(),
    )
    for name in options.shapes:
        shape = SHAPES[name](options.rows)
        for run in range(options.runs):
            for what, figures in one_run(clusters, shape, few, run, say).items():
                group.add(what, figures, f"{shape.name}: {shape.about}")
    return group
