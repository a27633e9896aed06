"""One table's trouble is its own: the others go on, and it comes back without a
lost or doubled row."""

import os

from harness.feed import Feed
from harness.readers import DELTA_RS, read_history
from harness.waiting import wait_for

READ_ONLY, WRITABLE = 0o500, 0o755


def set_mode(feed, table, mode):
    for folder in (feed.path(table), feed.path(table) / "_delta_log"):
        os.chmod(folder, mode)


def state(feed, table):
    return feed.view(table)["status"]


def test_a_folder_that_cannot_be_written_fails_its_table_alone(feed):
    for name in ("good", "bad"):
        feed.table(f"{name} (k int PRIMARY KEY)")
        feed.sql(f"INSERT INTO {name} VALUES (1)")
    feed.start(flush_interval="200ms")
    feed.flush()
    since = feed.cluster.log_size()
    set_mode(feed, "bad", READ_ONLY)
    try:
        feed.sql("INSERT INTO bad VALUES (2)")
        wait_for(lambda: state(feed, "bad") == "FAILED", 60, "the failure to be shown")
        assert "ermission" in feed.view("bad")["last_error"]
        for k in range(2, 6):
            feed.sql("INSERT INTO good VALUES (%s)", [k])
            wait_for(lambda k=k: len(feed.rows("good")) == k, 30, "the other table's changes")
        feed.sql("UPDATE bad SET k = 20 WHERE k = 2")
    finally:
        set_mode(feed, "bad", WRITABLE)
    wait_for(lambda: state(feed, "bad") == "STREAMING", 90, "the table to come back")
    assert [row.change for row in feed.check("bad")] == ["insert", "insert", "update_preimage", "update_postimage"]
    feed.check("good")
    # Once per change of state, not once per try.
    assert feed.cluster.log_text(since).count('table "bad" failed') == 1


def test_a_folder_that_cannot_be_looked_at_is_not_taken_for_none(feed):
    """A worker that begins meanwhile waits: its table must not get a second history."""
    feed.table("hidden (k int PRIMARY KEY)")
    feed.sql("INSERT INTO hidden VALUES (1)")
    feed.start(flush_interval="200ms")
    feed.flush()
    feed.path("hidden").chmod(0)
    try:
        feed.cluster.terminate_feed_worker()
        feed.cluster.wait_for_feed_worker()
        feed.sql("INSERT INTO hidden VALUES (2)")
        wait_for(lambda: "ermission" in (feed.view("hidden")["last_error"] or ""), 30, "the failure to be shown")
    finally:
        feed.path("hidden").chmod(0o755)
    wait_for(lambda: state(feed, "hidden") == "STREAMING", 60, "the table to come back")
    assert feed.events("hidden") == [("insert", (1,)), ("insert", (2,))]
    assert [path.name for path in feed.destination.iterdir()] == ["lb_hidden_history"]


def test_a_log_that_cannot_be_read_is_not_taken_for_a_damaged_one(feed):
    """A worker that begins meanwhile waits: the last rows of a dropped table are in the WAL alone."""
    for name in ("dropped", "stays"):
        feed.table(f"{name} (k int PRIMARY KEY)")
        feed.sql(f"INSERT INTO {name} VALUES (1)")
    feed.start(flush_interval="60s")
    feed.flush()
    history = feed.path("dropped")
    (history / "_delta_log").chmod(0o300)
    try:
        feed.sql("INSERT INTO dropped VALUES (2)")
        feed.sql("DROP TABLE dropped")
        feed.cluster.terminate_feed_worker()
        feed.cluster.wait_for_feed_worker()
        wait_for(lambda: "ermission" in (feed.view("stays")["last_error"] or ""), 30, "the failure to be shown")
    finally:
        (history / "_delta_log").chmod(0o755)
    wait_for(lambda: state(feed, "stays") == "STREAMING", 60, "the feed to come back")
    feed.flush()
    assert [row.values for row in read_history(DELTA_RS, history)] == [(1,), (2,)]


def test_a_row_that_cannot_be_read_fails_its_table_alone(feed):
    """Its type's output function raises an error: a label is gone from the catalog."""
    feed.sql("CREATE TYPE mood AS ENUM ('sad', 'glad'); CREATE TYPE pair AS (m mood)")
    feed.table("good (k int PRIMARY KEY, v text)")
    feed.table("bad (k int PRIMARY KEY, p pair)")
    feed.sql("INSERT INTO bad VALUES (1, ROW('sad'))")
    feed.start(flush_interval="200ms")
    feed.flush()
    feed.sql("SET allow_system_table_mods = on")
    feed.sql("DELETE FROM pg_enum WHERE enumtypid = 'mood'::regtype AND enumlabel = 'sad'")
    feed.sql("UPDATE bad SET k = 2")
    feed.sql("INSERT INTO good VALUES (1, 'a')")
    wait_for(lambda: len(feed.rows("good")) == 1, 60, "the other table's change")
    wait_for(lambda: state(feed, "bad") == "FAILED", 60, "the failure to be shown")
    assert "could not be read" in feed.view("bad")["last_error"]
    feed.sql("INSERT INTO good VALUES (2, 'b')")
    feed.check("good")


def test_a_character_without_an_equivalent_is_replaced(cluster):
    """One that the database's encoding holds and UTF-8 has no place for."""
    cluster.sql("CREATE DATABASE eucjp ENCODING 'EUC_JP' TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'")
    cluster.sql("CREATE EXTENSION wal2delta", dbname="eucjp")
    feed = Feed(cluster, "texts", dbname="eucjp")
    feed.table("odd (k int PRIMARY KEY, v text)")
    feed.start()
    feed.sql("INSERT INTO odd VALUES (1, 'a' || convert_from('\\xa2af', 'EUC_JP') || 'b')")
    feed.flush()
    assert [row.values for row in feed.rows("odd")] == [(1, "a\ufffdb")]
    feed.stop()
