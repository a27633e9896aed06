"""A feed goes on from the slot and into the tables that are its own: a slot
that was tampered with is a gap, and a copy of the cluster is another writer.
After each of these: no silent gap, never two writers, and the views say it."""

import json
import re
import shutil
from contextlib import contextmanager

import psycopg
import pytest
from harness.cluster import Clusters, own
from harness.copies import Copies, can_mount, catch_up, dump, follow, promote, restore
from harness.deltalog import DeltaLog
from harness.feed import Feed
from harness.history import history_problems
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms"}

# `quiet` has no change after its snapshot: only what happens to the slot can tell that it has a gap.
TABLES = ["busy", "quiet"]

# What a feed says that must not write: it was copied, and somebody else is the writer.
OF_ANOTHER_WRITER = r"another wal2delta|another (server|cluster|writer)|a copy of|was copied|promoted|timeline"


@pytest.fixture
def copies(clusters):
    with Copies(clusters) as copies:
        yield copies


@pytest.fixture
def copies_on_volumes(clusters):
    if not can_mount():
        pytest.skip("may not mount file systems")
    with Copies(clusters, volumes=True) as copies:
        yield copies


def fed(feed):
    for table in TABLES:
        feed.table(f"{table} (i int)")
        feed.sql(f"INSERT INTO {table} VALUES (1)")
    feed.start()
    feed.flush()
    feed.sql("INSERT INTO busy VALUES (2)")
    feed.flush()
    return feed


@pytest.fixture
def shop(feed):
    """A feed in the module's cluster, both of its tables streaming."""
    return fed(feed)


@pytest.fixture
def own_shop(make_cluster, make_feed):
    """The same in a cluster of its own, to be copied, stopped, or filled."""
    return fed(make_feed("shop", cluster=make_cluster(SETTINGS)))


def insert(feed, value):
    for table in TABLES:
        feed.sql(f"INSERT INTO {table} VALUES (%s)", [value])


def values(feed, table):
    return [row.values[0] for row in feed.rows(table)]


def check_unharmed(feed):
    """It streams, nothing is missing, and nobody replaced what it wrote."""
    for table in TABLES:
        feed.check(table)
        assert feed.status(table) == "STREAMING"
        assert not DeltaLog(feed.path(table)).replacements()


def check_copied_anew(feed):
    """Nothing is missing, because each history was replaced, once."""
    for table in TABLES:
        feed.wait_for_status(table, "STREAMING", timeout=60)
        feed.check(table)
        assert len(DeltaLog(feed.path(table)).replacements()) == 1


def words(feed):
    """All that the views say in words."""
    said = feed.conn.execute("SELECT concat_ws(' ', reason, last_error) FROM wal2delta.tables").fetchall()
    said += feed.conn.execute("SELECT concat_ws(' ', what, what_to_do) FROM wal2delta.check() WHERE NOT ok").fetchall()
    return "\n".join(text for (text,) in said)


def says(feed, pattern):
    return re.search(pattern, words(feed), re.I)


def wait_for_words(feed, pattern, timeout=8):
    try:
        return wait_for(lambda: says(feed, pattern), timeout, f"the views to say {pattern}")
    except AssertionError as silent:
        raise AssertionError(f"{silent}; they say {words(feed)!r}") from None


def have_a_new_worker(feed):
    """One that has looked at the histories, so that the views show what it knows."""
    feed.cluster.terminate_feed_worker()
    feed.cluster.wait_for_feed_worker()
    feed.flush()


# --- the slot


@contextmanager
def nobody_at_the_slot(feed):
    """The server runs without wal2delta meanwhile."""
    cluster = feed.cluster
    cluster.configure(shared_preload_libraries="")
    cluster.restart()
    feed.reconnect()
    try:
        yield cluster.slot_name()
    finally:
        cluster.configure(shared_preload_libraries="wal2delta")
        cluster.restart()
        feed.reconnect()


def drop_slot(feed, slot):
    feed.sql("SELECT pg_drop_replication_slot(%s)", [slot])


def test_a_slot_in_use_cannot_be_tampered_with(shop):
    slot = shop.cluster.slot_name()
    for attempt in (
        "pg_drop_replication_slot(%s)",
        "pg_replication_slot_advance(%s, pg_current_wal_lsn())",
        "pg_logical_slot_get_binary_changes(%s, NULL, NULL)",
    ):
        with pytest.raises(psycopg.errors.ObjectInUse):
            shop.sql(f"SELECT {attempt}", [slot])
    insert(shop, 3)
    check_unharmed(shop)


def test_a_slot_that_nobody_uses_is_not_for_others_to_read(shop):
    """The plugin serves the feed worker alone: a consumed change would be lost."""
    with nobody_at_the_slot(shop) as slot:
        insert(shop, 3)
        for read in ("get", "peek"):
            with pytest.raises(psycopg.Error, match="wal2delta"):
                shop.sql(f"SELECT pg_logical_slot_{read}_binary_changes(%s, NULL, NULL)", [slot])
    insert(shop, 4)
    check_unharmed(shop)


def test_the_slot_is_dropped_while_the_worker_is_down__etl_935(shop):
    """And written in between: the gap is mended, in the quiet table too."""
    with nobody_at_the_slot(shop) as slot:
        insert(shop, 3)
        drop_slot(shop, slot)
        insert(shop, 4)
    insert(shop, 5)
    check_copied_anew(shop)


def test_the_slot_is_dropped_between_two_workers(shop):
    """No restart of the server: just after a worker has ended."""
    slot = shop.cluster.slot_name()

    def dropped():
        shop.sql("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [slot])
        try:
            drop_slot(shop, slot)
        except psycopg.errors.ObjectInUse:
            return False
        return True

    wait_for(dropped, 20, "a moment at which nobody has the slot")
    insert(shop, 3)
    check_copied_anew(shop)
    assert shop.cluster.slots() == [slot]


@pytest.mark.parametrize(
    "create",
    ["pg_create_logical_replication_slot(%s, 'test_decoding')", "pg_create_physical_replication_slot(%s, true)"],
    ids=["logical", "physical"],
)
def test_another_slot_has_its_name(shop, create):
    with nobody_at_the_slot(shop) as slot:
        insert(shop, 3)
        drop_slot(shop, slot)
        shop.sql(f"SELECT {create}", [slot])
        insert(shop, 4)
    insert(shop, 5)
    check_copied_anew(shop)
    plugin = shop.value("SELECT plugin FROM pg_replication_slots WHERE slot_name = %s", [slot])
    assert plugin == "wal2delta"


def test_the_views_say_why_tables_are_copied_anew(own_shop):
    """A prepared transaction delays the new slot, so that there is time to look."""
    with nobody_at_the_slot(own_shop) as slot:
        drop_slot(own_shop, slot)
        own_shop.sql("BEGIN")
        own_shop.sql("CREATE TABLE public.delays ()")
        own_shop.sql("PREPARE TRANSACTION 'delays'")
    try:
        wait_for_words(own_shop, "slot")
    finally:
        own_shop.sql("ROLLBACK PREPARED 'delays'")
    check_copied_anew(own_shop)


def set_mode(feed, mode):
    for table in TABLES:
        for folder in (feed.path(table), feed.path(table) / "_delta_log"):
            folder.chmod(mode)


def test_the_slot_is_invalidated__etl_9__powersync_554(make_cluster, make_feed):
    """The destination fails for so long that max_slot_wal_keep_size is passed."""
    shop = fed(make_feed("shop", cluster=make_cluster({**SETTINGS, "max_slot_wal_keep_size": "32MB"})))
    slot = shop.cluster.slot_name()
    since = shop.cluster.log_size()
    set_mode(shop, 0o500)
    try:
        insert(shop, 3)
        shop.wait_for_status("busy", "FAILED")
        shop.cluster.skip_wal(segments=5)
        shop.sql("CHECKPOINT")
        wait_for(
            lambda: f'invalidating obsolete replication slot "{slot}"' in shop.cluster.log_text(since),
            20, "the slot to be invalidated",
        )  # fmt: skip
        insert(shop, 4)
    finally:
        set_mode(shop, 0o755)
    insert(shop, 5)
    check_copied_anew(shop)
    wal_status = shop.value("SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", [slot])
    assert wal_status in ("reserved", "extended")
    assert shop.cluster.log_text(since).count("no usable replication slot") == 1, "no crash loop"


# --- copies of the cluster


def feed_of(copy, original):
    """The feed that the copy has of the original: the same schema and destination."""
    return Feed(copy, original.schema, destination=original.destination, create=False)


def check_the_copy_keeps_out(copy, original):
    """The copy was written to, with values from 100 on, and would like to feed."""
    wait_for_words(copy, OF_ANOTHER_WRITER)
    insert(copy, 101)
    copy.sql("SELECT wal2delta.resync('busy')")
    copy.cluster.restart()
    copy.reconnect()
    wait_for_words(copy, OF_ANOTHER_WRITER)
    insert(original, 5)
    check_unharmed(original)
    assert [value for table in TABLES for value in values(original, table) if value >= 100] == []


def test_a_promoted_base_backup_beside_its_original(own_shop, copies):
    backup = copies.standby(own_shop.cluster)
    backup.start()
    promote(backup)
    insert(own_shop, 3)
    clone = feed_of(backup, own_shop)
    insert(clone, 100)
    check_the_copy_keeps_out(clone, own_shop)


def test_a_second_failover_while_the_first_goes_on(own_shop, copies_on_volumes):
    """Both standbys were made alike, each on a fresh volume: their folders and
    files have the same inode numbers."""
    first, second = (copies_on_volumes.standby(own_shop.cluster) for _ in range(2))
    first.start()
    second.start()
    catch_up(first, own_shop.cluster)
    own_shop.cluster.stop("immediate")
    promote(first)
    promoted = feed_of(first, own_shop)
    wait_for(lambda: promoted.status("quiet"), 30, "the feed to be taken up")
    taken_over(promoted)
    promoted.flush()
    follow(second, first)
    catch_up(second, first)
    promote(second)
    clone = feed_of(second, own_shop)
    insert(clone, 100)
    wait_for_words(clone, OF_ANOTHER_WRITER)
    insert(promoted, 3)
    check_copied_anew(promoted)


def fork(feed, copies):
    feed.cluster.stop("fast")
    copy = copies.of_stopped(feed.cluster)
    feed.cluster.start()
    feed.reconnect()
    return copy


def test_a_fork_that_is_behind_its_original(own_shop, copies):
    """The history has more than the fork's WAL: it cannot be the fork's own."""
    forked = fork(own_shop, copies)
    own_shop.sql("INSERT INTO busy SELECT 3 FROM generate_series(1, 10000)")
    own_shop.sql("INSERT INTO quiet VALUES (3)")
    own_shop.flush()
    forked.start()
    clone = feed_of(forked, own_shop)
    insert(clone, 100)
    check_the_copy_keeps_out(clone, own_shop)


def test_a_fork_that_is_ahead_of_its_original(own_shop, copies):
    """By LSN the history could be the fork's own, but no transaction of the
    fork's WAL ends where the history does."""
    forked = fork(own_shop, copies)
    insert(own_shop, 3)
    own_shop.flush()
    forked.start()
    clone = feed_of(forked, own_shop)
    clone.sql("CREATE TABLE public.ahead AS SELECT generate_series(1, 10000)")
    insert(clone, 100)
    check_the_copy_keeps_out(clone, own_shop)


def test_two_forks_that_write_at_the_same_time(own_shop, copies):
    """Both have the tables open. One stops, and its next worker does not take
    what the other wrote for its own."""
    forked = fork(own_shop, copies)
    forked.start()
    clone = feed_of(forked, own_shop)
    insert(own_shop, 3)
    own_shop.flush()
    insert(clone, 3)
    clone.flush()
    insert(own_shop, 4)
    insert(clone, 100)
    both = (own_shop, clone)
    (stopped,) = wait_for(lambda: [feed for feed in both if says(feed, OF_ANOTHER_WRITER)], 8, "one of both to stop")
    (writer,) = set(both) - {stopped}
    have_a_new_worker(stopped)
    insert(stopped, 5)
    stopped.flush()
    wait_for_words(stopped, OF_ANOTHER_WRITER)
    insert(writer, 6)
    check_unharmed(writer)


# --- another writer was there


def commit_as_another(feed, table):
    """The table's last commit once more, as if another wal2delta with the same
    source had made it, further on in a WAL of its own."""
    log = DeltaLog(feed.path(table))
    actions = log.commits[log.version]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"] = {name: other_id(name, value) for name, value in action["commitInfo"].items()}
        if "txn" in action:
            action["txn"]["version"] += 2**30
        if "add" in action:
            file = log.file(action["add"])
            action["add"]["path"] = f"other-{file.name}"
            own(shutil.copy(file, file.with_name(f"other-{file.name}")))
    commit = feed.path(table) / "_delta_log" / f"{log.version + 1:020}.json"
    commit.write_text("".join(json.dumps(action) + "\n" for action in actions))
    own(commit)


def other_id(name, value):
    """What identifies a writer or a commit, as another has it: other hex digits."""
    digits = "0123456789abcdef"
    return value.translate(str.maketrans(digits, digits[1:] + "0")) if name.startswith("wal2delta") else value


@pytest.fixture
def taken(shop):
    """`busy` has a commit of another writer, and the feed has met it."""
    commit_as_another(shop, "busy")
    assert values(shop, "busy") == [1, 2, 2]
    insert(shop, 3)
    wait_for_words(shop, OF_ANOTHER_WRITER)
    return shop


def test_a_table_with_another_writer_stops_alone(taken):
    assert taken.status("busy") == "FAILED"
    assert values(taken, "busy") == [1, 2, 2]
    assert values(taken, "quiet") == [1, 3]
    taken.check("quiet")


def test_a_table_with_another_writer_stays_stopped(taken):
    have_a_new_worker(taken)
    insert(taken, 4)
    taken.flush()
    wait_for_words(taken, OF_ANOTHER_WRITER)
    assert taken.status("busy") == "FAILED"
    assert values(taken, "busy") == [1, 2, 2]


def test_what_to_do_about_another_writer_can_be_done(taken):
    named = re.findall(r"wal2delta\.(\w+)\(", words(taken))
    assert named, "a remedy"
    for function in named:
        assert taken.value("SELECT count(*) FROM pg_proc WHERE proname = %s", [function]), function


def test_a_new_snapshot_takes_the_table_back(taken):
    taken.stop()
    taken.start(snapshot=True)
    insert(taken, 4)
    taken.flush()
    for table in TABLES:
        # Of the log itself no check: the other's commit is part of it.
        assert history_problems(taken.rows(table), taken.table_rows(table), starts_anew=True) == []
        assert taken.status(table) == "STREAMING"


# --- the original is gone


def taken_over(feed):
    """Nobody but a person knows that the original is gone. Either the feed has
    begun anew by itself, or it says what it waits for and is started anew."""
    if says(feed, OF_ANOTHER_WRITER):
        feed.stop()
        feed.start(snapshot=True)


def test_a_standby_is_promoted_after_its_original_was_lost(own_shop, copies):
    standby = copies.standby(own_shop.cluster)
    standby.start()
    insert(own_shop, 3)
    catch_up(standby, own_shop.cluster)
    own_shop.cluster.stop("immediate")
    promote(standby)
    promoted = feed_of(standby, own_shop)
    insert(promoted, 4)
    wait_for(lambda: promoted.status("quiet"), 30, "the feed to be taken up")
    taken_over(promoted)
    insert(promoted, 5)
    check_copied_anew(promoted)


def test_a_backup_is_restored_after_its_original_was_lost(own_shop, copies):
    """The histories have rows that the restored database never had: they go,
    and order goes on from where they were."""
    backup = copies.base_backup(own_shop.cluster)
    own_shop.sql("INSERT INTO busy SELECT 3 FROM generate_series(1, 10000)")
    own_shop.sql("INSERT INTO quiet VALUES (3)")
    own_shop.flush()
    last = {table: own_shop.rows(table)[-1].sort_by for table in TABLES}
    own_shop.cluster.stop("immediate")
    backup.start()
    restored = feed_of(backup, own_shop)
    wait_for(lambda: restored.status("quiet"), 30, "the feed to be taken up")
    taken_over(restored)
    insert(restored, 4)
    check_copied_anew(restored)
    for table in TABLES:
        assert restored.rows(table)[0].sort_by > last[table]


# --- the server goes back in time, where it is


@contextmanager
def rolled_back(feed, copies):
    """What happens inside has never happened for the server, though it has for the histories:
    its volume goes back to a snapshot. The data directory keeps its identity."""
    cluster = feed.cluster
    cluster.stop("fast")
    snapshot = copies.of_stopped(cluster)
    cluster.start()
    feed.reconnect()
    yield
    cluster.stop("fast")
    copies.roll_back(cluster, snapshot)
    cluster.start()
    feed.reconnect()


HAS_NOT_MADE = "has changes that this server has not made"


def check_refused_until_resync(feed):
    for table in TABLES:
        wait_for(lambda table=table: feed.status(table) == "FAILED", 20, f"{table} to be refused")
    assert len(re.findall(HAS_NOT_MADE, words(feed))) == 2
    insert(feed, 5)
    feed.sql("CREATE TABLE public.later AS SELECT generate_series(1, 10000)")
    feed.flush()
    # The slot is past it by now: what was refused once stays so.
    have_a_new_worker(feed)
    feed.cluster.restart()
    feed.reconnect()
    wait_for(lambda: len(re.findall(HAS_NOT_MADE, words(feed))) == 2, 20, "both tables to stay refused")
    for table in TABLES:
        assert 5 not in values(feed, table) and not DeltaLog(feed.path(table)).replacements()
        feed.sql("SELECT wal2delta.resync(%s::regclass)", [table])
    check_copied_anew(feed)
    have_a_new_worker(feed)
    insert(feed, 6)
    check_copied_anew(feed)


def test_a_server_that_is_rolled_back_and_behind_its_histories(own_shop, copies):
    with rolled_back(own_shop, copies):
        own_shop.sql("INSERT INTO busy SELECT 3 FROM generate_series(1, 10000)")
        insert(own_shop, 3)
        own_shop.flush()
    check_refused_until_resync(own_shop)


def test_a_server_that_is_rolled_back_and_has_gone_on(own_shop, copies):
    """By LSN its histories could be its own: but another WAL record ends there."""
    with rolled_back(own_shop, copies):
        insert(own_shop, 3)
        own_shop.flush()
        own_shop.cluster.configure(shared_preload_libraries="")
    insert(own_shop, 4)
    own_shop.sql("CREATE TABLE public.meanwhile AS SELECT generate_series(1, 10000)")
    own_shop.cluster.configure(shared_preload_libraries="wal2delta")
    own_shop.cluster.restart()
    own_shop.reconnect()
    check_refused_until_resync(own_shop)


def test_a_server_that_is_rolled_back_to_after_its_last_change(own_shop, copies):
    """Its histories have nothing that it has not: they go on."""
    with rolled_back(own_shop, copies):
        own_shop.sql("CREATE TABLE public.meanwhile AS SELECT generate_series(1, 10000)")
        own_shop.flush()
    insert(own_shop, 3)
    check_unharmed(own_shop)


# --- copies of the database


def restored_into(feed, cluster, dbname, text):
    cluster.sql(f"CREATE DATABASE {dbname}")
    restore(cluster, text, dbname)
    copy = Feed(cluster, feed.schema, dbname=dbname, destination=feed.destination, create=False)
    assert copy.sql("SELECT count(*) FROM busy") == feed.sql("SELECT count(*) FROM busy")
    assert copy.sql("SELECT extname FROM pg_extension WHERE extname = 'wal2delta'") == [("wal2delta",)]
    return copy


def check_feeds_were_not_taken_along(copy, original):
    assert copy.sql("SELECT * FROM wal2delta.schemas") == []
    assert copy.sql("SELECT * FROM wal2delta.tables") == []
    insert(copy, 100)
    insert(original, 3)
    check_unharmed(original)
    assert copy.cluster.feed_worker(copy.dbname) is None


def check_the_same_destination_is_shared(copy, original):
    """A feed that is started in the copy has tables of its own."""
    copy.start()
    copy.flush()
    (destination,) = copy.sql("SELECT destination FROM wal2delta.tables WHERE source_table = 'busy'")[0]
    assert destination.endswith("/lb_busy_history_1"), destination
    insert(original, 4)
    check_unharmed(original)
    copy.stop()
    wait_for(lambda: copy.cluster.feed_worker(copy.dbname) is None, 20, "the copy's slot to go with its feed")


def test_a_dump_into_another_database(shop):
    copy = restored_into(shop, shop.cluster, "dumped", dump(shop.cluster))
    check_feeds_were_not_taken_along(copy, shop)
    check_the_same_destination_is_shared(copy, shop)


def test_a_dump_into_another_cluster(shop):
    elsewhere = Clusters()
    try:
        other = elsewhere.make(SETTINGS)
        copy = restored_into(shop, other, "dumped", dump(shop.cluster))
        check_feeds_were_not_taken_along(copy, shop)
        check_the_same_destination_is_shared(copy, shop)
    finally:
        elsewhere.close()


def test_a_database_made_from_the_fed_one_as_template(shop):
    """Copied as it is, with the rows that say what is fed."""
    with nobody_at_the_slot(shop):
        shop.conn.close()
        shop.cluster.sql("CREATE DATABASE from_template TEMPLATE postgres", dbname="template1")
    copy = Feed(shop.cluster, shop.schema, dbname="from_template", destination=shop.destination, create=False)
    check_feeds_were_not_taken_along(copy, shop)
    check_the_same_destination_is_shared(copy, shop)
