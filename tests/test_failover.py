"""A feed with the option `failover`: its slot is kept by a standby, and the feed goes on there
after a promotion, without loss or double (PostgreSQL's own logical slot synchronisation)."""

import pytest
from harness.copies import Copies, promote
from harness.feed import Feed
from harness.load import Load
from harness.waiting import wait_for

PRIMARY = {"wal2delta.flush_interval": "300ms", "synchronized_standby_slots": "standby"}
STANDBY = {
    "primary_slot_name": "standby",
    "sync_replication_slots": "on",
    "hot_standby_feedback": "on",
    "synchronized_standby_slots": "",
}
TABLE = "load (id bigint PRIMARY KEY, n int, pad text)"


@pytest.fixture
def primary(make_cluster):
    """A server whose standby's slot is there, and no standby yet."""
    cluster = make_cluster(PRIMARY)
    cluster.sql("SELECT pg_create_physical_replication_slot('standby', true)")
    return cluster


def standby_of(copies, primary):
    standby = copies.standby(primary)
    connection = f"host={primary.folder} port=5432 user=postgres dbname=postgres"
    standby.configure(**STANDBY, primary_conninfo=connection)
    standby.start()
    return standby


def wait_for_slot(standby, name):
    """Until the standby could go on with the slot after a promotion."""
    kept = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"
    wait_for(lambda: standby.sql(kept, [name]), 60, "the standby to keep the slot")


def test_the_feed_goes_on_after_a_promotion(clusters, primary):
    feed = Feed(primary, "shop")
    feed.table(TABLE)
    feed.table("quiet (id int)")
    feed.sql("INSERT INTO quiet VALUES (1)")
    feed.start(failover=True)
    with Copies(clusters) as copies:
        standby = standby_of(copies, primary)
        with Load(feed, "load") as load:
            load.wait_for_transactions(50)
            feed.flush()
            wait_for_slot(standby, primary.slot_name())
            load.wait_for_transactions(50)
            primary.stop("immediate")
        promote(standby)
        after = Feed(standby, "shop", destination=feed.destination, create=False)
        with Load(after, "load", seed=2) as load:
            load.wait_for_transactions(50)
        after.sql("INSERT INTO quiet VALUES (2)")
        # Not replaced by a new snapshot: the first version's rows are still there.
        assert after.events("quiet") == [("insert", (1,)), ("insert", (2,))]
        assert len(after.check("load")) > 100
        standby.restart()
        after.reconnect()
        after.sql("INSERT INTO quiet VALUES (3)")
        assert len(after.events("quiet")) == 3


def test_nothing_is_in_delta_that_the_standby_lacks(clusters, primary):
    feed = Feed(primary, "shop")
    feed.table("t (id int)")
    feed.sql("INSERT INTO t VALUES (1)")
    feed.start(failover=True)
    with Copies(clusters) as copies:
        standby = standby_of(copies, primary)
        feed.flush()
        wait_for_slot(standby, primary.slot_name())
        standby.stop("immediate")
        feed.sql("INSERT INTO t VALUES (2)")
        with pytest.raises(Exception, match="within the timeout"):
            feed.flush("2 s")
        assert [values for _, values in ((row.change, row.values) for row in feed.rows("t"))] == [(1,)]
        standby.start()
        assert len(feed.check("t")) == 2


def test_a_slot_becomes_one_that_standbys_keep(primary):
    """The option comes with a second feed of the database, and goes with it."""
    first, second = Feed(primary, "first"), Feed(primary, "second")
    for feed in (first, second):
        feed.table("t (id int)")
        feed.sql("INSERT INTO t VALUES (1)")
    kept = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    name = primary.slot_name()
    primary.configure(synchronized_standby_slots="")
    primary.reload()
    first.start()
    first.flush()
    assert primary.value(kept, [name]) is False
    second.start(failover=True)
    wait_for(lambda: primary.value(kept, [name]), 30, "the slot to be one that standbys keep")
    first.sql("INSERT INTO t VALUES (2)")
    assert len(first.check("t")) == 2
    second.stop()
    wait_for(lambda: not primary.value(kept, [name]), 30, "the slot to be an ordinary one")
    first.sql("INSERT INTO t VALUES (3)")
    assert len(first.check("t")) == 3
