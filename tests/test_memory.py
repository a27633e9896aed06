"""The feed worker's memory stays bounded: wal2delta.max_memory and 200 MB, in
a large transaction and with large rows."""

import hashlib
import re
from pathlib import Path

from harness.deltalog import DeltaLog
from harness.readers import DELTA_RS, READERS, read_columns

MEGABYTE = 1 << 20

# Few shared buffers: a process's resident memory counts those it touched.
SETTINGS = {
    "wal2delta.max_memory": "64MB",
    "shared_buffers": "16MB",
    "max_wal_size": "4GB",
}
LIMIT = (64 + 200) * MEGABYTE


def peak_memory(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def same_worker_below_limit(feed, worker, limit=LIMIT):
    assert feed.cluster.feed_worker() == worker, "the worker was restarted: its peak is not known"
    peak = peak_memory(worker)
    assert peak < limit, f"{peak // MEGABYTE} MB"


def test_a_large_transaction(feed):
    feed.table("wide (id int, body text)")
    feed.sql("INSERT INTO wide VALUES (0, 'first')")
    feed.start()
    feed.flush()
    worker = feed.cluster.wait_for_feed_worker()
    feed.sql("INSERT INTO wide SELECT i, repeat(md5(i::text), 32) FROM generate_series(1, 300000) i")
    feed.flush("180 s")
    same_worker_below_limit(feed, worker)
    # Summed by the engine: 300 MB of rows are nothing for Python lists.
    found = read_columns(DELTA_RS, feed.path("wide"), ["id", "_pg_xid", "_pg_lsn", "_sort_by"])
    found.sort(key=lambda row: row[3])
    assert [id for id, *_ in found] == list(range(300001))
    assert len({(xid, lsn) for _, xid, lsn, _ in found[1:]}) == 1
    assert [order for *_, order in found[1:]] == list(range(found[1][2], found[1][2] + 300000))
    body = hashlib.md5(b"299999").hexdigest() * 32
    assert read_columns(DELTA_RS, feed.path("wide"), ["body"], where="id = 299999") == [(body,)]


def test_a_large_snapshot(feed):
    feed.table("wide (id int, body text)")
    feed.table("small (id int)")
    feed.sql("INSERT INTO wide SELECT i, repeat(md5(i::text), 32) FROM generate_series(1, 300000) i")
    feed.sql("INSERT INTO small VALUES (1)")
    feed.start()
    worker = feed.cluster.wait_for_feed_worker()
    feed.flush("180 s")
    same_worker_below_limit(feed, worker)
    found = read_columns(DELTA_RS, feed.path("wide"), ["id", "_sort_by", "_pg_lsn"])
    assert sorted(id for id, *_ in found) == list(range(1, 300001))
    # There are gaps if two workers have shared the copy.
    assert len({order for _, order, _ in found}) == 300000
    assert {lsn for *_, lsn in found} == {min(order for _, order, _ in found)}


def test_large_files_are_merged(feed):
    """Into one that is larger than all the memory allowed."""
    feed.table("wide (id int, body text)")
    feed.sql("INSERT INTO wide VALUES (0, 'first')")
    feed.start()
    feed.flush()
    worker = feed.cluster.wait_for_feed_worker()
    for part in range(9):
        feed.sql(
            "INSERT INTO wide SELECT i, (SELECT string_agg(md5(i || ' ' || n), '') FROM generate_series(1, 32) n) "
            f"FROM generate_series({part * 20000 + 1}, {part * 20000 + 20000}) i"
        )
        feed.flush("180 s")
    feed.conn.execute("SELECT wal2delta.optimize(%s::regclass)", [f"{feed.schema}.wide"])
    same_worker_below_limit(feed, worker)
    files = DeltaLog(feed.path("wide")).active().values()
    assert max(file["size"] for file in files) > 64 * MEGABYTE
    found = read_columns(DELTA_RS, feed.path("wide"), ["id", "_sort_by"])
    assert [id for id, _ in sorted(found, key=lambda row: row[1])] == list(range(180001))


def test_large_rows(make_cluster, make_feed):
    """Rows of 50 MB and the default setting. Inserts stay within the bound; of an update, Postgres
    itself holds the old row several times while it decodes."""
    row = 50 * MEGABYTE
    feed = make_feed("large", cluster=make_cluster({**SETTINGS, "wal2delta.max_memory": None}))
    limit = (256 + 200) * MEGABYTE
    feed.table("huge (id int, body text, n int)")
    feed.sql("ALTER TABLE huge ALTER body SET STORAGE EXTERNAL")
    feed.sql("INSERT INTO huge VALUES (0, 'small', 0)")
    feed.start()
    feed.flush()
    worker = feed.cluster.wait_for_feed_worker()
    with feed.conn.transaction():
        for id in range(1, 7):
            feed.sql(
                "INSERT INTO huge SELECT %s, string_agg(md5((i * %s)::text), ''), 0 FROM generate_series(1, %s) i",
                [id, id, row // 32],
            )
    digests = dict(feed.sql("SELECT id, md5(body) FROM huge"))
    feed.flush("180 s")
    same_worker_below_limit(feed, worker, limit)
    feed.sql("UPDATE huge SET n = 1 WHERE id > 4")
    feed.sql("DELETE FROM huge WHERE id = 6")
    feed.flush("180 s")
    same_worker_below_limit(feed, worker, limit + 5 * row)
    events = [("insert", id, 0) for id in range(7)]
    for id in (5, 6):
        events += [("update_preimage", id, 0), ("update_postimage", id, 1)]
    events.append(("delete", 6, 1))
    for reader in READERS:
        found = read_columns(reader, feed.path("huge"), ["_sort_by", "_pg_change_type", "id", "n"])
        assert [event for _, *event in sorted(found)] == [list(event) for event in events], reader.name
        bodies = read_columns(reader, feed.path("huge"), ["body"], where="id = 6")
        assert [hashlib.md5(body.encode()).hexdigest() for (body,) in bodies] == [digests[6]] * 4, reader.name


def test_many_tables_that_change_in_each_interval(feed):
    worker = None
    names = [f"t{n}" for n in range(300)]
    feed.sql("SELECT wal2delta.set_replica_identity_full(%s)", [feed.schema])
    for name in names:
        feed.sql(f"CREATE TABLE {name} (i int, body text)")
    feed.start()
    feed.flush()
    worker = feed.cluster.wait_for_feed_worker()
    for round in range(3):
        with feed.conn.transaction():
            for name in names:
                feed.sql(f"INSERT INTO {name} SELECT {round}, repeat('x', 1000) FROM generate_series(1, 100)")
        feed.flush("180 s")
    same_worker_below_limit(feed, worker)
    for name in names[::50]:
        assert [row.values[0] for row in feed.rows(name)] == [0] * 100 + [1] * 100 + [2] * 100
