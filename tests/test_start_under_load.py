"""A feed that starts while others write and create tables: the slot's catalog must be right for
every transaction that is decoded, in the first worker and in one that begins from the slot again."""

import threading

import pytest
from harness.waiting import wait_for


class Starting:
    """A call of start() that waits for an open transaction, with what is said in the log meanwhile."""

    def __init__(self, feed):
        self.feed = feed
        self.conn = feed.cluster.connect()
        arguments = [feed.schema, str(feed.destination)]
        call = "SELECT wal2delta.start(%s, %s)"
        self.thread = threading.Thread(target=lambda: self.conn.execute(call, arguments), daemon=True)
        self.thread.start()

    def said(self, text):
        wait_for(lambda: text in self.feed.cluster.log_text(), 60, text)

    def returned(self):
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.mark.parametrize("altered", ["at once", "later"])
@pytest.mark.parametrize("third_begins", ["before the consistent point", "after start"])
def test_a_table_made_while_the_slot_is_made(make_cluster, make_feed, third_begins, altered):
    """PostgreSQL's snapshot builder does not track what commits before it has seen the end of all
    transactions that ran at first."""
    feed = make_feed("shop", cluster=make_cluster())
    feed.table("old (id bigint PRIMARY KEY, n int)")
    feed.sql("INSERT INTO old VALUES (1, 1)")
    first, second, third = (feed.session(autocommit=False) for _ in range(3))
    first.execute("INSERT INTO old VALUES (2, 1)")
    starting = Starting(feed)
    starting.said("logical decoding found initial starting point")
    second.execute("INSERT INTO old VALUES (3, 1)")
    feed.table("t (id bigint PRIMARY KEY, n int)")
    first.commit()
    starting.said("logical decoding found initial consistent point")
    if third_begins == "before the consistent point":
        third.execute("INSERT INTO t VALUES (1, 1)")
    second.commit()
    starting.said("logical decoding found consistent point")
    third.commit()
    starting.returned()
    third.execute("INSERT INTO t VALUES (2, 1)")
    third.commit()
    if altered == "later":
        # Nothing has had it copied but that it was there.
        feed.check("t")
    feed.sql("ALTER TABLE t ADD m int")
    third.execute("INSERT INTO t VALUES (3, 1, 2)")
    third.commit()
    for id in (10, 11):
        feed.check("t")
        assert len(feed.check("old")) == 3
        feed.cluster.terminate_feed_worker()
        feed.sql("INSERT INTO t VALUES (%s, 1, 1)", [id])
    feed.check("t")
    assert "could not map filenumber" not in feed.cluster.log_text()
