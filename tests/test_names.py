"""Names and lives of tables, feeds and databases."""

import pytest
from harness.deltalog import DeltaLog
from harness.readers import DELTA_RS, READERS, read_history
from harness.waiting import wait_for


def inserts(rows):
    return [row.values for row in rows if row.change == "insert"]


def test_two_schemas_with_one_table_name_to_one_destination(make_feed):
    first = make_feed("north")
    second = make_feed("south", destination=first.destination)
    third = make_feed("west", destination=first.destination)
    for feed, who in ((first, "n"), (second, "s"), (third, "w")):
        feed.table("orders (who text)")
        feed.sql("INSERT INTO orders VALUES (%s)", [who])
        feed.start()
        feed.flush()
        feed.sql("INSERT INTO orders VALUES (upper(%s))", [who])
        feed.flush()
    folders = {"lb_orders_history": "n", "lb_orders_history_1": "s", "lb_orders_history_2": "w"}
    assert sorted(path.name for path in first.destination.iterdir()) == sorted(folders)
    for folder, who in folders.items():
        assert inserts(read_history(DELTA_RS, first.destination / folder)) == [(who,), (who.upper(),)]
    for feed, folder in zip((first, second, third), folders, strict=True):
        assert feed.view("orders")["destination"].endswith(f"/{folder}")


def test_the_conflict_is_remembered_over_a_restart(make_cluster, make_feed):
    cluster = make_cluster()
    first = make_feed("north", cluster=cluster)
    second = make_feed("south", cluster=cluster, destination=first.destination)
    for feed, who in ((first, "n"), (second, "s")):
        feed.table("orders (who text)")
        feed.sql("INSERT INTO orders VALUES (%s)", [who])
        feed.start()
        feed.flush()
    cluster.restart()
    for feed, who in ((first, "N"), (second, "S")):
        feed.conn = cluster.connect()
        feed.sql("INSERT INTO orders VALUES (%s)", [who])
        feed.flush()
    assert inserts(first.rows("orders")) == [("n",), ("N",)]
    assert inserts(read_history(DELTA_RS, first.destination / "lb_orders_history_1")) == [("s",), ("S",)]
    assert len(list(first.destination.iterdir())) == 2


@pytest.fixture
def things(feed):
    feed.table("things (i int, v text)")
    feed.sql("INSERT INTO things VALUES (1, 'a')")
    feed.start()
    feed.flush()
    return feed


def test_a_renamed_table_keeps_its_history(things):
    things.sql("INSERT INTO things VALUES (2, 'b')")
    things.sql("ALTER TABLE things RENAME TO articles")
    things.sql("INSERT INTO articles VALUES (3, 'c')")
    things.flush()
    assert inserts(things.rows("things")) == [(1, "a"), (2, "b"), (3, "c")]
    assert not things.path("articles").exists()
    row = things.wait_for_status("articles", "STREAMING")
    assert row["destination"].endswith("/lb_things_history")
    assert things.view("things") is None
    assert not DeltaLog(things.path("things")).replacements()


def test_a_dropped_table_leaves_the_view_and_its_history_stays(things):
    things.table("other (i int)")
    things.sql("UPDATE things SET v = 'last'")
    things.sql("DROP TABLE things")
    things.sql("INSERT INTO other VALUES (1)")
    assert things.events("other") == [("insert", (1,))]
    wait_for(lambda: things.view("things") is None, 20, "the dropped table to leave the view")
    rows = things.rows("things")
    assert [(row.change, row.values) for row in rows] == [
        ("insert", (1, "a")), ("update_preimage", (1, "a")), ("update_postimage", (1, "last")),
    ]  # fmt: skip


def test_a_dropped_schema_with_other_feeds_going_on(things, make_feed):
    gone = make_feed("gone")
    gone.table("t (i int)")
    gone.sql("INSERT INTO t VALUES (1)")
    gone.start()
    gone.flush()
    gone.sql("INSERT INTO t VALUES (2)")
    gone.sql("DROP SCHEMA gone CASCADE")
    things.sql("INSERT INTO things VALUES (2, 'b')")
    assert inserts(things.check("things")) == [(1, "a"), (2, "b")]
    wait_for(lambda: gone.view("t") is None, 20, "the dropped schema's table to leave the view")
    assert inserts(gone.rows("t")) == [(1,), (2,)]


def test_column_names_that_need_column_mapping(feed):
    feed.table('odd ("a b" int, "x,y" text, "Ünï" text, "p(q)=r;{s}" text, plain int)')
    feed.sql("INSERT INTO odd VALUES (1, 'one', 'u', 'p', 10)")
    feed.start()
    feed.flush()
    feed.sql("UPDATE odd SET \"x,y\" = 'two'")
    for reader in READERS:
        assert [(row.change, row.values) for row in feed.check("odd", reader)] == [
            ("insert", (1, "one", "u", "p", 10)),
            ("update_preimage", (1, "one", "u", "p", 10)),
            ("update_postimage", (1, "two", "u", "p", 10)),
        ], reader.name
    names = [field.name for field in DeltaLog(feed.path("odd")).schema()]
    assert names[:5] == ["a b", "x,y", "Ünï", "p(q)=r;{s}", "plain"]


def test_column_mapping_is_used_only_where_a_name_needs_it(things):
    things.table('plain ("Ünï-quoted.name" int)')
    things.sql("INSERT INTO plain VALUES (1)")
    assert things.events("plain") == [("insert", (1,))]
    (protocol,) = [action for _, action in DeltaLog(things.path("plain")).actions("protocol")]
    assert "columnMapping" not in protocol["readerFeatures"]


@pytest.mark.parametrize(
    "name", ["Über Größe", "a.b", "per%20cent", "with'quote", 'double"quote', "UPPER", "x" * 63, "🐘"]
)
def test_table_names(things, name):
    quoted = '"' + name.replace('"', '""') + '"'
    things.sql(f"CREATE TABLE {quoted} (i int)".replace("%", "%%"), [])
    things.sql(f"ALTER TABLE {quoted} REPLICA IDENTITY FULL".replace("%", "%%"), [])
    things.sql(f"INSERT INTO {quoted} VALUES (5)".replace("%", "%%"), [])
    things.flush()
    row = things.wait_for_status(name, "STREAMING")
    folder = row["destination"].removeprefix("file://")
    assert folder.startswith(f"{things.destination}/lb_") and folder.endswith("_history")
    (path,) = [path for path in things.destination.iterdir() if path.name == folder.rpartition("/")[2]]
    for reader in READERS:
        assert [row.values for row in read_history(reader, path)] == [(5,)], reader.name


def test_a_table_name_never_leaves_the_destination(things):
    things.sql('CREATE TABLE "../../escaped" (i int)')
    things.sql('ALTER TABLE "../../escaped" REPLICA IDENTITY FULL')
    things.sql('INSERT INTO "../../escaped" VALUES (1)')
    things.sql("INSERT INTO things VALUES (2, 'b')")
    things.flush()
    around = {path for path in things.destination.parent.parent.rglob("*escaped*")}
    assert all(path.is_relative_to(things.destination) for path in around), around
    assert inserts(things.check("things")) == [(1, "a"), (2, "b")]


# --- stop and start again


def notices(conn):
    heard = []
    conn.add_notice_handler(lambda notice: heard.append((notice.severity, notice.message_primary)))
    return heard


def test_stop_ends_the_feed_and_keeps_the_tables(things):
    things.sql("INSERT INTO things VALUES (2, 'b')")
    things.flush()
    things.stop()
    things.sql("INSERT INTO things VALUES (3, 'not fed')")
    assert things.sql("SELECT * FROM wal2delta.schemas WHERE source_schema::text = %s", [things.schema]) == []
    assert things.view("things") is None
    wait_for(lambda: things.cluster.slots() == [], 20, "the slot to go with the last feed: it would keep WAL")
    assert inserts(things.rows("things")) == [(1, "a"), (2, "b")]


def test_one_of_two_feeds_is_stopped(things, make_feed):
    other = make_feed("other")
    other.table("t (i int)")
    other.sql("INSERT INTO t VALUES (1)")
    other.start()
    other.flush()
    other.stop()
    things.sql("INSERT INTO things VALUES (2, 'b')")
    assert inserts(things.check("things")) == [(1, "a"), (2, "b")]
    assert things.cluster.slots() == [things.cluster.slot_name()]
    assert inserts(other.rows("t")) == [(1,)]


def test_started_again_it_goes_on_without_a_snapshot(things):
    things.stop()
    things.sql("INSERT INTO things VALUES (2, 'missing')")
    heard = notices(things.conn)
    things.start()
    assert [(severity, "missing" in message) for severity, message in heard] == [("NOTICE", True)], heard
    things.sql("INSERT INTO things VALUES (3, 'c')")
    things.sql("DELETE FROM things WHERE i = 1")
    things.flush()
    rows = things.rows("things")
    assert [(row.change, row.values) for row in rows] == [
        ("insert", (1, "a")), ("insert", (3, "c")), ("delete", (1, "a")),
    ]  # fmt: skip
    assert [row.sort_by for row in rows] == sorted({row.sort_by for row in rows})
    assert not DeltaLog(things.path("things")).replacements()


def test_started_again_with_a_snapshot_it_replays_to_the_table(things):
    things.sql("INSERT INTO things VALUES (2, 'b')")
    things.flush()
    last = things.rows("things")[-1]
    things.stop()
    things.sql("INSERT INTO things VALUES (3, 'in between')")
    things.sql("DELETE FROM things WHERE i = 1")
    heard = notices(things.conn)
    things.start(snapshot=True)
    assert heard == []
    things.sql("INSERT INTO things VALUES (4, 'd')")
    rows = things.check("things")
    assert inserts(rows) == [(2, "b"), (3, "in between"), (4, "d")]
    assert rows[0].sort_by > last.sort_by and rows[0].lsn >= last.lsn
    assert len(DeltaLog(things.path("things")).replacements()) == 1


def test_a_table_that_is_new_since_the_stop_gets_its_snapshot(things):
    things.stop()
    things.table("newer (i int)")
    things.sql("INSERT INTO newer VALUES (1)")
    things.start()
    things.sql("INSERT INTO newer VALUES (2)")
    assert inserts(things.check("newer")) == [(1,), (2,)]


def test_started_again_elsewhere_it_begins_anew(things):
    things.stop()
    old = things.destination
    things.destination = things.cluster.folder_for(f"{things.schema}_elsewhere")
    heard = notices(things.conn)
    things.sql("INSERT INTO things VALUES (2, 'b')")
    things.start()
    assert heard == []
    assert inserts(things.check("things")) == [(1, "a"), (2, "b")]
    assert inserts(read_history(DELTA_RS, old / "lb_things_history")) == [(1, "a")]


def test_stopped_and_started_in_one_breath(make_feed):
    """The last feed's stop ends the worker and its slot: a start that comes
    before that is over must not lean on them."""
    for n in range(5):
        feed = make_feed(f"breath{n}")
        feed.table("t (i int)")
        feed.sql("INSERT INTO t VALUES (1)")
        feed.start()
        feed.sql("INSERT INTO t VALUES (2)")
        assert inserts(feed.check("t")) == [(1,), (2,)]
        feed.stop()


# --- several databases


def test_several_databases_in_one_cluster(make_cluster, make_feed):
    cluster = make_cluster()
    names = ["one", "two"]
    feeds = []
    for name in names:
        cluster.sql(f"CREATE DATABASE {name}")
        cluster.sql("CREATE EXTENSION wal2delta", dbname=name)
        feeds.append(make_feed("shop", cluster=cluster, dbname=name))
    for n, feed in enumerate(feeds):
        feed.table("t (i int)")
        feed.sql(f"INSERT INTO t VALUES ({n})")
        feed.start()
    assert cluster.slots() == sorted(cluster.slot_name(name) for name in names)
    for n, feed in enumerate(feeds):
        feed.sql(f"INSERT INTO t VALUES ({n + 10})")
    for n, feed in enumerate(feeds):
        assert feed.events("t") == [("insert", (n,)), ("insert", (n + 10,))]
        assert len(feed.sql("SELECT * FROM wal2delta.schemas")) == 1
    assert cluster.feed_worker("one") != cluster.feed_worker("two")
    cluster.terminate_feed_worker("one")
    for feed in feeds:
        feed.sql("INSERT INTO t VALUES (99)")
        assert feed.events("t")[-1] == ("insert", (99,))


def test_two_feeds_of_one_database(make_feed):
    feeds = [make_feed(name) for name in ("left_side", "right_side")]
    for feed in feeds:
        feed.table("t (i int)")
        feed.sql("INSERT INTO t VALUES (0)")
        feed.start()
        feed.flush()
    with feeds[0].conn.transaction():
        feeds[0].sql("INSERT INTO left_side.t VALUES (1)")
        feeds[0].sql("INSERT INTO right_side.t VALUES (2)")
    left, right = (feed.check("t") for feed in feeds)
    assert (inserts(left), inserts(right)) == ([(0,), (1,)], [(0,), (2,)])
    assert left[1].xid == right[1].xid and left[1].lsn == right[1].lsn
    assert feeds[0].cluster.slots() == [feeds[0].cluster.slot_name()]
