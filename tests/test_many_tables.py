"""Two thousand tables that all change: each is in Delta within two intervals, with few files open."""

import time

from harness.processes import open_files
from harness.waiting import wait_for

TABLES = 2000
INTERVAL = 15

SETTINGS = {"wal2delta.flush_interval": f"{INTERVAL}s", "max_locks_per_transaction": "256"}

# Of the worker: its server's files, a few of each task that runs, and no more for more tables.
MOST_FILES = 200

CREATE = """
DO $$ BEGIN
    FOR i IN {first}..{last} LOOP
        EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, v text)', i);
        EXECUTE format('ALTER TABLE t%s REPLICA IDENTITY FULL', i);
    END LOOP;
END $$
"""

# A transaction for each table.
CHANGE = """
DO $$ BEGIN
    FOR i IN 1..{tables} LOOP
        EXECUTE format('INSERT INTO t%s VALUES ({round}, ''x'')', i);
        COMMIT;
    END LOOP;
END $$
"""


def test_all_tables_are_written_within_two_intervals(feed):
    for first in range(1, TABLES, 100):
        feed.sql(CREATE.format(first=first, last=first + 99))
    feed.start()
    feed.sql(CHANGE.format(tables=TABLES, round=0))
    feed.flush("300 s")
    worker = feed.cluster.wait_for_feed_worker()
    most = 0
    for round in range(1, 4):
        feed.sql(CHANGE.format(tables=TABLES, round=round))
        changed = feed.value("SELECT pg_current_wal_insert_lsn()")
        begun = time.monotonic()

        def written(changed=changed):
            nonlocal most
            most = max(most, open_files(worker))
            behind = "SELECT count(*) FROM wal2delta.tables WHERE source_schema::text = %s AND committed_lsn < %s"
            return feed.value(behind, [feed.schema, changed]) == 0

        wait_for(written, 2 * INTERVAL, "all tables to be written", pause=0.2)
        print(f"round {round}: {time.monotonic() - begun:.1f} s, {most} open files")
    assert most < MOST_FILES
    assert feed.cluster.feed_worker() == worker
    for table in (1, 777, TABLES):
        assert [row.values[0] for row in feed.check(f"t{table}")] == list(range(4))
