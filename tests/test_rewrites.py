"""Changes that the write-ahead log does not show, or shows as something else: rewrites that keep the
types, tables that were unlogged or without FULL for a while, tables that leave their schema and come
back, that trade names, that are dropped and made again. After each the history replays to the table: by
a new snapshot where rows have other values now, by nothing where they have not."""

import pytest
from harness.ddl import MODES, RESNAPSHOT, check_every_version, check_table, home, inserted, log_of, pause, resume
from harness.ddl import without_worker
from harness.load import Load
from harness.readers import DELTA_RS, read_history
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "300ms"}

SOON = 20


@pytest.fixture(params=MODES)
def kv(request, feed):
    """A started feed with 300 rows. `kv.mode`: how it takes a changed schema."""
    return started(feed, request.param)


def started(feed, mode):
    feed.mode = mode
    feed.table("kv (id bigint PRIMARY KEY, n int, pad text, twice int GENERATED ALWAYS AS (id * 2) STORED, m int)")
    feed.sql("INSERT INTO kv (id, n, pad, m) SELECT i, i, 'x', i FROM generate_series(1, 300) i")
    feed.start(on_schema_change=mode)
    feed.flush()
    return feed


def loaded(feed, *, before=10, after=10, table="kv"):
    """A load that has done something before and after what happens in the `with`."""

    class Around:
        def __enter__(self):
            self.load = Load(feed, table)
            self.load.__enter__()
            self.load.wait_for_transactions(before)
            return self.load

        def __exit__(self, kind, *rest):
            if kind is None:
                self.load.wait_for_transactions(after)
            self.load.__exit__(kind, *rest)

    return Around()


def check_new_values(feed, table="kv"):
    """It replays, and its rows came by a new snapshot in one commit: instead of those of before, or behind
    a delete for each of them."""
    rows = check_table(feed, table, feed.mode)
    log = check_every_version(feed, table, feed.mode)
    assert copies(feed, log) == 1
    return rows


def copies(feed, log):
    """How often the table was copied since its first copy."""
    if feed.mode == RESNAPSHOT:
        return len(log.replacements())
    assert not log.replacements(), "the history of an evolve feed is kept"
    return len({meta["configuration"]["wal2delta.cleared"] for _, meta in log.actions("metaData")
                if "wal2delta.cleared" in meta["configuration"]})  # fmt: skip


def check_same_values(feed, table="kv"):
    rows = check_table(feed, table, feed.mode)
    log = check_every_version(feed, table, feed.mode)
    assert log.replacements() == []
    return rows


# --- rewrites that keep the types

REWRITES = {
    "retype with USING": ("ALTER TABLE kv ALTER m TYPE int USING m + 1000",),
    "retype there and back": ("ALTER TABLE kv ALTER m TYPE bigint", "ALTER TABLE kv ALTER m TYPE int USING m * 2"),
    "in one statement with another": ("ALTER TABLE kv ALTER m TYPE int USING m + 1, ALTER m SET DEFAULT 5",),
    "another expression": ("ALTER TABLE kv ALTER twice SET EXPRESSION AS (id * 3)",),
    "of a parent": ("CREATE TABLE parent (m int)", "ALTER TABLE kv INHERIT parent",
                    "ALTER TABLE parent ALTER m TYPE int USING m - 1"),
    "then rewritten again": ("ALTER TABLE kv ALTER m TYPE int USING m + 1", "VACUUM FULL kv"),
    "in a transaction with rows": ("BEGIN", "UPDATE kv SET m = 7 WHERE id = 1",
                                   "ALTER TABLE kv ALTER m TYPE int USING m + 1",
                                   "UPDATE kv SET m = m + 1 WHERE id <= 2", "COMMIT"),
}  # fmt: skip


@pytest.mark.parametrize("rows", ["under load", "a row after it", "no row after it"])
@pytest.mark.parametrize("rewrite", REWRITES)
def test_values_that_a_rewrite_changed(kv, rewrite, rows):
    if rows == "under load":
        with loaded(kv):
            kv.sql("SELECT 1")
            for statement in REWRITES[rewrite]:
                kv.sql(statement)
    else:
        for statement in REWRITES[rewrite]:
            kv.sql(statement)
        if rows == "a row after it":
            kv.sql("UPDATE kv SET n = 5 WHERE id = 3")
    check_table(kv, "kv", kv.mode)
    log = check_every_version(kv, "kv", kv.mode)
    assert 1 <= copies(kv, log) <= len(REWRITES[rewrite])


def test_a_rewrite_that_is_rolled_back(kv):
    with kv.conn.transaction(force_rollback=True):
        kv.sql("ALTER TABLE kv ALTER m TYPE int USING m + 1000")
    kv.sql("UPDATE kv SET n = 5 WHERE id = 3")
    check_same_values(kv)


@pytest.mark.parametrize("rows", ["a row after it", "no row after it"])
@pytest.mark.parametrize("away", ["paused", "no worker"])
def test_a_rewrite_while_nothing_is_decoded(make_cluster, make_feed, away, rows):
    feed = started(make_feed("shop", cluster=make_cluster(SETTINGS)), MODES[0])

    def rewrite():
        feed.sql("ALTER TABLE kv ALTER m TYPE int USING m + 1000")
        if rows == "a row after it":
            feed.sql("UPDATE kv SET n = 5 WHERE id = 3")

    if away == "paused":
        pause(feed)
        rewrite()
        resume(feed)
    else:
        with without_worker(feed.cluster):
            feed.reconnect()
            rewrite()
        feed.reconnect()
    check_new_values(feed)


@pytest.mark.parametrize("away", ["paused", "no worker"])
def test_a_rewrite_that_changes_nothing_while_nothing_is_decoded(make_cluster, make_feed, away):
    """VACUUM FULL and CLUSTER while the worker is away: no new snapshot."""
    feed = started(make_feed("shop", cluster=make_cluster(SETTINGS)), MODES[0])
    if away == "paused":
        pause(feed)
        feed.sql("VACUUM FULL kv")
        resume(feed)
    else:
        with without_worker(feed.cluster):
            feed.reconnect()
            feed.sql("CLUSTER kv USING kv_pkey")
        feed.reconnect()
    feed.sql("UPDATE kv SET n = 5 WHERE id = 3")
    check_same_values(feed)


# --- not logged for a while


@pytest.mark.parametrize("meanwhile", ["changed", "unchanged"])
def test_unlogged_for_a_while(kv, meanwhile):
    kv.sql("UPDATE kv SET n = 4 WHERE id = 3")
    kv.sql("ALTER TABLE kv SET UNLOGGED")
    if meanwhile == "changed":
        kv.sql("UPDATE kv SET n = 5 WHERE id = 3")
        kv.sql("DELETE FROM kv WHERE id = 4")
    kv.sql("ALTER TABLE kv SET LOGGED")
    kv.sql("UPDATE kv SET n = 6 WHERE id = 3")
    check_table(kv, "kv", kv.mode)
    check_every_version(kv, "kv", kv.mode)


def test_unlogged_for_a_longer_while(kv):
    """Seen as unlogged, then copied anew."""
    identity = log_of(kv, "kv").metadata()["id"]
    kv.sql("ALTER TABLE kv SET UNLOGGED")
    wait_for(lambda: "unlogged" in (kv.view("kv")["reason"] or "").lower(), SOON, "the reason to be shown")
    kv.sql("UPDATE kv SET n = 5 WHERE id = 3")
    kv.flush()
    kv.sql("ALTER TABLE kv SET LOGGED")
    kv.wait_for_status("kv", "STREAMING", SOON)
    kv.sql("DELETE FROM kv WHERE id = 5")
    check_table(kv, "kv", kv.mode)
    assert check_every_version(kv, "kv", kv.mode).metadata()["id"] == identity


def test_unlogged_under_load(kv):
    with loaded(kv) as load:
        for _ in range(2):
            kv.sql("ALTER TABLE kv SET UNLOGGED")
            load.wait_for_transactions(5)
            kv.sql("ALTER TABLE kv SET LOGGED")
            load.wait_for_transactions(5)
    kv.wait_for_status("kv", "STREAMING", SOON)
    check_table(kv, "kv", kv.mode)
    check_every_version(kv, "kv", kv.mode)


# --- without FULL for a while


@pytest.mark.parametrize("meanwhile", ["updated", "inserted", "deleted", "unchanged"])
def test_identity_taken_away_and_given_back(kv, meanwhile):
    kv.sql("ALTER TABLE kv REPLICA IDENTITY DEFAULT")
    statement = {
        "updated": "UPDATE kv SET n = 5 WHERE id = 3",
        "inserted": "INSERT INTO kv (id) VALUES (1000)",
        "deleted": "DELETE FROM kv WHERE id = 3",
        "unchanged": "SELECT 1",
    }[meanwhile]
    kv.sql(statement)
    kv.sql("ALTER TABLE kv REPLICA IDENTITY FULL")
    kv.sql("UPDATE kv SET n = 6 WHERE id < 9")
    if meanwhile == "unchanged":
        check_same_values(kv)
    else:
        check_table(kv, "kv", kv.mode)
        check_every_version(kv, "kv", kv.mode)


def test_identity_taken_away_is_told(kv):
    kv.sql("ALTER TABLE kv REPLICA IDENTITY NOTHING")
    kv.sql("UPDATE kv SET n = 5 WHERE id = 3")
    kv.wait_for_status("kv", "SKIPPED", SOON)
    assert "FULL" in kv.view("kv")["reason"]
    kv.sql("ALTER TABLE kv REPLICA IDENTITY FULL")
    kv.wait_for_status("kv", "STREAMING", SOON)
    kv.sql("UPDATE kv SET n = 6 WHERE id < 9")
    check_table(kv, "kv", kv.mode)


def test_identity_under_load(kv):
    with loaded(kv) as load:
        for _ in range(3):
            kv.sql("ALTER TABLE kv REPLICA IDENTITY NOTHING")
            load.wait_for_transactions(5)
            kv.sql("ALTER TABLE kv REPLICA IDENTITY FULL")
            load.wait_for_transactions(5)
    kv.wait_for_status("kv", "STREAMING", SOON)
    check_table(kv, "kv", kv.mode)
    check_every_version(kv, "kv", kv.mode)


# --- other names, other schemas

DOOR = "CREATE VIEW door AS SELECT id, n, pad FROM kv"


def test_renamed_under_load(kv):
    """The history keeps its name; the load goes by a view, which follows."""
    kv.sql(DOOR)
    path = home(kv, "kv")
    with loaded(kv, table="door"):
        kv.sql("ALTER TABLE kv RENAME TO other")
    kv.wait_for_status("other", "STREAMING", SOON)
    assert home(kv, "other") == path
    check_same_values(kv, "other")
    assert kv.view("kv") is None


def test_two_tables_trade_their_names(kv):
    """Each history follows its table."""
    kv.sql("CREATE TABLE other (LIKE kv INCLUDING ALL)")
    kv.sql("ALTER TABLE other REPLICA IDENTITY FULL")
    kv.sql("INSERT INTO other (id, n) SELECT i, -i FROM generate_series(1, 100) i")
    kv.flush()
    paths = home(kv, "kv"), home(kv, "other")
    with loaded(kv):
        with kv.conn.transaction():
            kv.sql("ALTER TABLE kv RENAME TO third")
            kv.sql("ALTER TABLE other RENAME TO kv")
            kv.sql("ALTER TABLE third RENAME TO other")
    kv.flush()
    wait_for(lambda: (home(kv, "other"), home(kv, "kv")) == paths, SOON, "the view to show the new names")
    check_same_values(kv)
    check_same_values(kv, "other")


@pytest.mark.parametrize("meanwhile", ["changed", "unchanged"])
@pytest.mark.parametrize("seen", ["seen to be away", "back at once"])
def test_moved_to_a_schema_that_is_not_fed_and_back(kv, make_feed, meanwhile, seen):
    outside = make_feed(f"{kv.schema[:50]}_out")
    kv.sql("UPDATE kv SET n = 4 WHERE id = 3")
    kv.sql(f"ALTER TABLE kv SET SCHEMA {outside.schema}")
    if seen == "seen to be away":
        wait_for(lambda: kv.view("kv") is None, SOON, "the table to leave the view")
    if meanwhile == "changed":
        outside.sql("UPDATE kv SET n = 5 WHERE id = 3")
        outside.sql("DELETE FROM kv WHERE id = 4")
    if seen == "seen to be away":
        kv.flush()
    outside.sql(f"ALTER TABLE kv SET SCHEMA {kv.schema}")
    kv.wait_for_status("kv", "STREAMING", SOON)
    kv.sql("UPDATE kv SET n = 6 WHERE id = 3")
    check_table(kv, "kv", kv.mode)
    check_every_version(kv, "kv", kv.mode)


def test_moved_to_a_schema_of_another_feed(kv, make_feed):
    """From then on it is the other feed's: what came before stays where it was."""
    there = make_feed(f"{kv.schema[:50]}_too")
    there.table("own (i int)")
    there.sql("INSERT INTO own VALUES (1)")
    there.start(on_schema_change=kv.mode)
    there.flush()
    old = home(kv, "kv")
    count = len(read_history(DELTA_RS, old))
    kv.sql("UPDATE kv SET n = 4 WHERE id = 3")
    kv.sql(f"ALTER TABLE kv SET SCHEMA {there.schema}")
    there.sql("UPDATE kv SET n = 5 WHERE id = 3")
    there.wait_for_status("kv", "STREAMING", SOON)
    check_table(there, "kv", kv.mode)
    assert home(there, "kv").parent == there.destination
    assert kv.view("kv") is None
    rows = read_history(DELTA_RS, old)
    assert len(rows) == count + 2 and rows[-1].values[1] == 4


def test_the_schema_is_renamed(kv):
    """A feed is of a schema, whatever its name."""
    kv.sql("UPDATE kv SET n = 4 WHERE id = 3")
    path, old = home(kv, "kv"), kv.schema
    kv.schema = f"{kv.schema[:50]}_new"
    kv.conn.execute(f"ALTER SCHEMA {old} RENAME TO {kv.schema}")
    kv.sql("UPDATE kv SET n = 5 WHERE id = 3")
    kv.wait_for_status("kv", "STREAMING", SOON)
    assert home(kv, "kv") == path
    check_same_values(kv)


# --- dropped and made again


@pytest.mark.parametrize("how", ["in one transaction", "one after the other", "with other columns"])
def test_dropped_and_made_again(kv, how):
    """Another table of the same name: it has a history of its own, and the old one stays as it was."""
    kv.sql("UPDATE kv SET n = 4 WHERE id = 3")
    kv.flush()
    old = home(kv, "kv")
    before = read_history(DELTA_RS, old)
    extra = ", other text" if how == "with other columns" else ""
    statements = [
        "DROP TABLE kv",
        f"CREATE TABLE kv (id bigint PRIMARY KEY, n int, pad text{extra})",
        "ALTER TABLE kv REPLICA IDENTITY FULL",
        "INSERT INTO kv VALUES (1, 1, 'new')",
    ]
    if how == "in one transaction":
        with kv.conn.transaction():
            for statement in statements:
                kv.sql(statement)
    else:
        for statement in statements:
            kv.sql(statement)
    kv.sql("UPDATE kv SET n = 2")
    kv.flush()
    kv.wait_for_status("kv", "STREAMING", SOON)
    assert home(kv, "kv").name == "lb_kv_history_1"
    rows = check_same_values(kv)
    assert [row.change for row in rows] == ["insert", "update_preimage", "update_postimage"]
    assert read_history(DELTA_RS, old) == before


def test_dropped_and_made_again_under_load(kv):
    """As often as not, and faster than anybody looks."""
    with loaded(kv):
        for _ in range(4):
            with kv.conn.transaction():
                kv.sql("DROP TABLE kv")
                kv.sql("CREATE TABLE kv (id bigint PRIMARY KEY, n int, pad text)")
                kv.sql("ALTER TABLE kv REPLICA IDENTITY FULL")
                kv.sql("INSERT INTO kv SELECT i, 0, 'x' FROM generate_series(1, 50) i")
    kv.flush()
    kv.wait_for_status("kv", "STREAMING", SOON)
    check_same_values(kv)


def test_a_copy_takes_the_name(kv):
    """Made from a query, swapped in: how people rewrite a table by hand."""
    old = home(kv, "kv")
    with kv.conn.transaction():
        kv.sql("CREATE TABLE fresh AS SELECT id, n + 1 AS n, pad FROM kv")
        kv.sql("ALTER TABLE fresh REPLICA IDENTITY FULL")
        kv.sql("DROP TABLE kv")
        kv.sql("ALTER TABLE fresh RENAME TO kv")
    kv.sql("UPDATE kv SET n = 2 WHERE id = 1")
    kv.flush()
    kv.wait_for_status("kv", "STREAMING", SOON)
    assert home(kv, "kv") != old
    assert len(inserted(check_table(kv, "kv", kv.mode))) == 300
