"""The feed worker's peak memory with default settings, in what asks most of it. Takes half an hour
and 40 GB of disk; run it by its path:

    pytest -s tests/measurements/memory.py

Each must stay within wal2delta.max_memory and 200 MB."""

import re
import time
from pathlib import Path

import pytest

MEGABYTE = 1 << 20
LIMIT = (256 + 200) * MEGABYTE
# Few shared buffers: a process's resident memory counts those it touched.
SETTINGS = {"shared_buffers": "16MB", "max_wal_size": "16GB", "wal2delta.flush_interval": "15s", "max_locks_per_transaction": "1024"}


@pytest.fixture
def measured(feed, request):
    """Starts the feed; at the end prints the worker's peak and fails if it is too high."""
    feed.conn.execute("SET statement_timeout = 0")
    feed.start()
    feed.flush()
    worker = feed.cluster.wait_for_feed_worker()
    begun = time.monotonic()
    yield feed
    status = Path(f"/proc/{worker}/status").read_text()
    peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
    seconds = time.monotonic() - begun
    print(f"\n{request.node.name}: {peak // MEGABYTE} MB at most, {seconds:.0f} s")
    assert feed.cluster.feed_worker() == worker, "the worker was restarted: its peak is not known"
    assert peak < LIMIT


def rows(feed, table):
    log = list((feed.path(table) / "_delta_log").glob("*.json"))
    return sum(int(n) for file in log for n in re.findall(r'numRecords\\":(\d+)', file.read_text()))


def test_a_transaction_of_10_million_rows(measured):
    measured.table("wide (id bigint, a int, b text, c timestamptz)")
    measured.sql(
        "INSERT INTO wide SELECT i, i % 1000, md5(i::text), now() FROM generate_series(1, 10000000) i"
    )
    measured.flush("1200 s")
    assert rows(measured, "wide") == 10_000_000


def test_a_transaction_of_200_rows_of_50_megabytes(measured):
    measured.table("huge (id int, body text)")
    measured.sql("ALTER TABLE huge ALTER body SET STORAGE EXTERNAL")
    with measured.conn.transaction():
        for id in range(200):
            measured.sql("INSERT INTO huge SELECT %s, repeat(md5(%s::text), %s)", [id, id, 50 * MEGABYTE // 32])
    measured.flush("1200 s")
    assert rows(measured, "huge") == 200


def test_2000_tables_that_change_in_each_interval(measured):
    names = [f"t{n}" for n in range(2000)]
    measured.sql("SELECT wal2delta.set_replica_identity_full(%s)", [measured.schema])
    for name in names:
        measured.sql(f"CREATE TABLE {name} (i int, body text)")
    for number in range(4):
        for name in names:
            measured.sql(f"INSERT INTO {name} SELECT {number}, repeat('x', 1000) FROM generate_series(1, 20)")
        measured.flush("1200 s")
    assert [rows(measured, name) for name in names[::100]] == [80] * 20


def test_a_store_that_is_down_for_10_minutes(measured):
    """Under 2,000 new and 2,000 changed rows a second."""
    measured.table("load (id bigint PRIMARY KEY, n int, pad text)")
    measured.sql("INSERT INTO load VALUES (0, 0, '')")
    measured.flush()
    folders = [measured.destination, measured.path("load"), measured.path("load") / "_delta_log"]
    for folder in folders:
        folder.chmod(0)
    begun, last = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < 600:
        ahead = int(2000 * passed) - last
        measured.sql(f"INSERT INTO load SELECT i, 0, md5(i::text) FROM generate_series({last + 1}, {last + ahead}) i")
        measured.sql(f"UPDATE load SET n = n + 1 WHERE id > {last}")
        last += ahead
        time.sleep(0.1)
    assert measured.view("load")["status"] == "FAILED"
    for folder in folders:
        folder.chmod(0o755)
    measured.flush("1200 s")
    assert rows(measured, "load") == 1 + 3 * last
