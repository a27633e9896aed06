"""A guard of the hot paths: instructions for each row of the benchmarks' load, from a decoded change to
Arrow columns and from those to Parquet. They are the same in every run, so that a tenth more is seen."""

import platform

import pytest
from bench.shapes import SHAPES
from harness import callgrind
from harness.callgrind import Callgrind, inclusive
from harness.ddl import pause, resume

SETTINGS = {"wal2delta.flush_interval": "1h", "autovacuum": "off"}

SHAPE = SHAPES["orders"](20_000)

# Instructions per row of the history. Whoever makes a path faster writes the new figure here.
PATHS = {
    "wal2delta::decode::plugin::change": 3860,
    "wal2delta::lake::parquet::Encoder::write": 5380,
}


@pytest.fixture(scope="module")
def counted(clusters):
    """Instructions of each path, for all rows of the load."""
    if not callgrind.available() or platform.machine() != "x86_64":
        pytest.skip("needs valgrind on x86-64")
    from harness.feed import Feed

    cluster = clusters.make(SETTINGS)
    feed = Feed(cluster, "shop")
    for table, columns in SHAPE.tables.items():
        feed.table(f"{table} ({columns})")
    feed.start()
    feed.flush()
    pause(feed)
    for statement in SHAPE.load:
        feed.sql(statement)
    feed.conn.close()
    cluster.stop()
    counter = Callgrind(cluster)
    cluster.start()
    feed.reconnect()
    worker = cluster.wait_for_feed_worker()
    resume(feed)
    feed.flush()
    assert cluster.feed_worker() == worker
    feed.conn.close()
    cluster.stop()
    yield {path: counter.inclusive(worker, path)[1] for path in PATHS}
    clusters.discard(cluster)


@pytest.mark.parametrize("path", PATHS)
def test_a_path_has_not_become_slower(counted, path):
    each = counted[path] / SHAPE.history_rows
    assert each > 0, f"{path} was not called, or has another name"
    assert each < 1.1 * PATHS[path], f"{path}: {each:.0f} instructions per row, were {PATHS[path]}"
    assert each > 0.8 * PATHS[path], f"{path}: {each:.0f} instructions per row, say so in PATHS"


def test_counts_of_a_function():
    """Names are written once, and costs with what is called on the line behind the call."""
    profile = """
fn=(1) main
12 5
cfn=(2) change
calls=3 0
13 900
cfn=(3) other
calls=1 0
14 7
fn=(2)
20 800
cfn=(2)
calls=1 0
21 50
""".strip().splitlines()
    assert inclusive(profile, "change") == (4, 950)
    assert inclusive(profile, "nothing") == (0, 0)
