"""Each bad input has an error that says what is wrong, a HINT with the remedy,
and leaves nothing half done. check() finds each beforehand."""

import json
import os
import re
import zlib

import psycopg
import pytest
from harness.cluster import server_user
from harness.waiting import wait_for

# What a caller can put right: input, privileges, prerequisites, resources.
SENSIBLE_CLASSES = ("0A", "22", "25", "3F", "42", "53", "55", "58")

BARE = {"wal2delta.flush_interval": None}


def refused(conn, query, params=None, *, says, hint, state=SENSIBLE_CLASSES):
    """The statement fails with a good error. `says` and `hint` are patterns."""
    with pytest.raises(psycopg.Error) as caught:
        conn.execute(query, params)
    error = caught.value.diag
    assert error.sqlstate.startswith(state), (error.sqlstate, error.message_primary)
    assert re.search(says, error.message_primary, re.I), error.message_primary
    assert error.message_hint, f"no HINT: {error.message_primary}"
    assert re.search(hint, error.message_hint, re.I), error.message_hint
    # The style of Postgres: a message is no sentence, a hint is one.
    assert not error.message_primary.endswith("."), error.message_primary
    assert error.message_hint.endswith((".", "…", "'", ";")) or "\n" in error.message_hint, error.message_hint
    if not conn.autocommit:
        conn.rollback()


def start(schema, destination, options=None):
    return (
        "SELECT wal2delta.start(%s, %s, %s::jsonb)",
        [schema, None if destination is None else str(destination), json.dumps(options or {})],
    )


def nothing_left(cluster, slots=0):
    assert cluster.value("SELECT count(*) FROM wal2delta.schemas") == slots
    wait_for(lambda: len(cluster.slots()) == slots, 20, f"{slots} slots to be left")


def failed_checks(cluster):
    """{what: what to do} of check()'s rows that are not right, but for the one
    that only pg_upgrade asks for: no test sets it."""
    rows = cluster.sql("SELECT * FROM wal2delta.check()")
    return {what: remedy for what, ok, remedy in rows if not ok and "pg_upgrade" not in what}


def told(checks, pattern):
    found = [f"{what}: {remedy}" for what, remedy in checks.items()]
    return any(re.search(pattern, line, re.I) for line in found)


@pytest.fixture
def shop(make_feed, cluster, request):
    """A schema with a row, not fed, and a destination of its own."""
    feed = make_feed("shop", destination=cluster.folder_for(f"shop_{zlib.crc32(request.node.name.encode()):08x}"))
    feed.table("t (i int)")
    feed.sql("INSERT INTO t VALUES (1)")
    return feed


# --- the server is not ready


def test_not_preloaded(make_cluster):
    cluster = make_cluster({**BARE, "shared_preload_libraries": ""}, extension=False)
    conn = cluster.connect()
    try:
        conn.execute("CREATE EXTENSION wal2delta")
    except psycopg.Error as error:
        assert "shared_preload_libraries" in (error.diag.message_hint or ""), error
        return
    folder = cluster.folder_for("x")
    conn.execute("CREATE SCHEMA shop")
    refused(
        conn, *start("shop", folder), says="preload", hint="(?=.*shared_preload_libraries)(?=.*restart)", state="55"
    )
    assert told(failed_checks(cluster), "shared_preload_libraries")
    assert cluster.slots() == [] and list(folder.iterdir()) == []


def test_wal_level_is_not_logical(make_cluster):
    cluster = make_cluster({"wal_level": "replica"})
    conn = cluster.connect()
    conn.execute("CREATE SCHEMA shop")
    refused(
        conn,
        *start("shop", cluster.folder_for("x")),
        says="wal_level",
        hint="(?=.*wal_level)(?=.*logical)(?=.*restart)",
        state="55",
    )
    nothing_left(cluster)
    assert told(failed_checks(cluster), "wal_level")


def test_no_free_slot(make_cluster):
    cluster = make_cluster({"max_replication_slots": "1"})
    conn = cluster.connect()
    conn.execute("CREATE SCHEMA shop")
    conn.execute("SELECT pg_create_logical_replication_slot('taken', 'test_decoding')")
    assert told(failed_checks(cluster), "max_replication_slots")
    refused(
        conn, *start("shop", cluster.folder_for("x")), says="slot", hint="max_replication_slots", state=("53", "55")
    )
    assert cluster.value("SELECT count(*) FROM wal2delta.schemas") == 0
    assert cluster.slots() == ["taken"]
    conn.execute("SELECT pg_drop_replication_slot('taken')")
    assert not told(failed_checks(cluster), "max_replication_slots")
    conn.execute(*start("shop", cluster.folder_for("x")))


def test_no_free_worker(make_cluster):
    # The launcher and Postgres' own logical replication launcher take them.
    cluster = make_cluster({"max_worker_processes": "2"})
    conn = cluster.connect()
    conn.execute("CREATE SCHEMA shop")
    assert told(failed_checks(cluster), "max_worker_processes")
    refused(
        conn, *start("shop", cluster.folder_for("x")), says="worker", hint="max_worker_processes", state=("53", "55")
    )
    nothing_left(cluster)


def test_all_is_well(make_cluster):
    cluster = make_cluster()
    assert failed_checks(cluster) == {}
    whats = " ".join(what for what, _, _ in cluster.sql("SELECT * FROM wal2delta.check()"))
    for topic in ("wal_level", "preload", "slot", "worker", "output_plugin_libraries"):
        assert topic in whats, whats


# --- the schema


def test_schema_missing(shop):
    refused(shop.conn, *start("no_such", shop.destination), says='"no_such" does not exist', hint=".", state="3F")
    nothing_left(shop.cluster)


def test_schema_name_missing(shop):
    try:
        refused(shop.conn, *start(None, shop.destination), says="null|schema", hint=".", state="22")
    finally:
        nothing_left(shop.cluster)


@pytest.mark.parametrize("schema", ["pg_catalog", "information_schema", "pg_toast", "wal2delta"])
def test_system_schemas(shop, schema):
    refused(shop.conn, *start(schema, shop.destination), says="system schema", hint=".")
    refused(shop.conn, "SELECT wal2delta.set_replica_identity_full(%s)", [schema], says="system schema", hint=".")
    nothing_left(shop.cluster)


def test_schema_already_fed(shop):
    shop.start()
    shop.flush()
    other = shop.cluster.folder_for("other")
    refused(shop.conn, *start("shop", shop.destination), says='"shop" is already fed', hint="stop", state=("42", "55"))
    refused(shop.conn, *start("shop", other), says='"shop" is already fed', hint="stop", state=("42", "55"))
    nothing_left(shop.cluster, slots=1)
    assert list(other.iterdir()) == []
    assert shop.events("t") == [("insert", (1,))]


def test_stop_of_a_schema_that_is_not_fed(shop):
    refused(shop.conn, "SELECT wal2delta.stop('shop')", says="not fed", hint=".")
    refused(shop.conn, "SELECT wal2delta.stop('no_such')", says="no_such", hint=".")


def test_full_for_a_missing_schema(shop):
    refused(
        shop.conn, "SELECT wal2delta.set_replica_identity_full('no_such')", says="does not exist", hint=".", state="3F"
    )


# --- the destination


@pytest.mark.parametrize(
    "destination, says, hint",
    [
        ("foo://bucket/path", "foo", "s3://|file://|absolute"),
        ("relative/path", "not an absolute path", "absolute"),
        ("./here", "not an absolute path", "absolute"),
        ("~/lake", "not an absolute path", "absolute"),
        ("", "empty", "absolute"),
    ],
)
def test_destinations_that_cannot_be(shop, destination, says, hint):
    refused(shop.conn, *start("shop", destination), says=says, hint=hint, state=("0A", "22", "42"))
    nothing_left(shop.cluster)


def test_destination_not_writable(shop):
    locked = shop.cluster.folder_for("locked")
    if server_user() is not None:
        os.chown(locked, 0, 0)
    locked.chmod(0o555)
    for destination in (locked, locked / "below"):
        refused(
            shop.conn,
            *start("shop", destination),
            says=str(destination) + "|" + str(locked),
            hint=".",
            state=("22", "42", "55", "58"),
        )
        nothing_left(shop.cluster)
    locked.chmod(0o755)


def test_a_file_in_the_way(shop):
    file = shop.cluster.folder_for("with_file") / "taken"
    file.write_text("mine")
    for destination in (file, file / "below"):
        refused(shop.conn, *start("shop", destination), says=str(file), hint=".", state=("22", "42", "55", "58"))
        nothing_left(shop.cluster)
    assert file.read_text() == "mine"


def test_a_folder_with_something_else_in_it(shop):
    folder = shop.cluster.folder_for("photos")
    (folder / "holiday.jpg").write_text("x")
    refused(
        shop.conn, *start("shop", folder), says=str(folder), hint="empty|other|another", state=("22", "42", "55", "58")
    )
    nothing_left(shop.cluster)
    assert [path.name for path in folder.iterdir()] == ["holiday.jpg"]


def test_a_folder_that_does_not_exist_yet_is_made(shop):
    shop.destination = shop.cluster.folder_for("new") / "a" / "b"
    shop.start()
    assert shop.events("t") == [("insert", (1,))]


def test_a_destination_as_a_file_url(shop):
    shop.conn.execute(*start("shop", f"file://{shop.destination}"))
    assert shop.events("t") == [("insert", (1,))]


def test_check_finds_a_destination_that_has_gone_bad(shop):
    shop.start()
    shop.flush()
    assert failed_checks(shop.cluster) == {}
    shop.destination.chmod(0o555)
    if server_user() is not None:
        os.chown(shop.destination, 0, 0)
    try:
        assert told(failed_checks(shop.cluster), re.escape(str(shop.destination)))
    finally:
        shop.destination.chmod(0o777)
    assert failed_checks(shop.cluster) == {}


# --- options


@pytest.mark.parametrize(
    "options, says",
    [
        ({"flush_intervall": "1s"}, "flush_intervall"),
        ({"flush_interval": "soon"}, "flush_interval"),
        ({"flush_interval": -1}, "flush_interval"),
        ({"flush_interval": "0"}, "flush_interval"),
        ({"flush_interval": [1]}, "flush_interval"),
        ({"on_schema_change": "ignore"}, "on_schema_change"),
        ({"on_schema_change": 1}, "on_schema_change"),
        ({"exclude": "t"}, "exclude"),
        ({"exclude": [1]}, "exclude"),
        ({"snapshot": "yes"}, "snapshot"),
        ({"snapshot": 1}, "snapshot"),
    ],
    ids=str,
)
def test_options_that_cannot_be(shop, options, says):
    refused(shop.conn, *start("shop", shop.destination, options), says=says, hint=".", state="22")
    nothing_left(shop.cluster)
    assert list(shop.destination.iterdir()) == []


def test_an_unknown_option_lists_the_known_ones(shop):
    refused(
        shop.conn, *start("shop", shop.destination, {"colour": "red"}), says="colour",
        hint="(?=.*flush_interval)(?=.*on_schema_change)(?=.*exclude)(?=.*snapshot)", state="22",
    )  # fmt: skip


@pytest.mark.parametrize("options", ["[]", '"x"', "1", "null"])
def test_options_that_are_no_object(shop, options):
    refused(
        shop.conn, "SELECT wal2delta.start('shop', %s, %s::jsonb)", [str(shop.destination), options],
        says="option|object", hint=".", state="22",
    )  # fmt: skip
    nothing_left(shop.cluster)


def test_start_after_a_write_in_the_same_transaction(shop):
    conn = shop.session(autocommit=False)
    conn.execute("INSERT INTO shop.t VALUES (2)")
    refused(conn, *start("shop", shop.destination), says="transaction", hint=".", state=("25", "55"))
    nothing_left(shop.cluster)


def test_start_that_is_rolled_back(shop):
    conn = shop.session(autocommit=False)
    conn.execute(*start("shop", shop.destination))
    conn.rollback()
    conn.close()
    assert shop.cluster.value("SELECT count(*) FROM wal2delta.schemas") == 0
    wait_for(lambda: shop.cluster.slots() == [], 30, "the slot of a start that was rolled back to go")


# --- tables that cannot be fed; the others go on


@pytest.mark.parametrize(
    "columns, told_name, mend",
    [
        ("_sort_by int", "_sort_by", "RENAME COLUMN _sort_by TO sorted"),
        ("i int, _pg_lsn text", "_pg_lsn", "RENAME COLUMN _pg_lsn TO lsn"),
        ('"_TIMESTAMP" int', "_TIMESTAMP", 'RENAME COLUMN "_TIMESTAMP" TO at'),
        ('id int, "ID" int', "ID", 'RENAME COLUMN "ID" TO id2'),
        ('"Ä" int, "ä" int', "ä", 'RENAME COLUMN "ä" TO ae'),
    ],
)
def test_column_names_that_cannot_be(shop, columns, told_name, mend):
    shop.table(f"bad ({columns})")
    values = ", ".join("1" for _ in columns.split(","))
    shop.sql(f"INSERT INTO bad VALUES ({values})")
    shop.start()
    row = shop.wait_for_status("bad", "FAILED")
    assert told_name.lower() in row["last_error"].lower() and "rename" in row["last_error"].lower()
    shop.sql("INSERT INTO t VALUES (2)")
    flush_despite_failed(shop, "t", 2)
    assert not (shop.path("bad") / "_delta_log").exists()
    shop.sql(f"ALTER TABLE bad {mend}")
    shop.wait_for_status("bad", "STREAMING", 60)
    shop.sql("DELETE FROM bad")
    assert [change for change, _ in shop.events("bad")] == ["insert", "delete"]


def flush_despite_failed(feed, table, count):
    """A failed table must not hold up the others, whatever flush() says."""
    wait_for(lambda: feed.path(table).exists() and len(feed.rows(table)) == count, 30, f"{count} rows of {table}")


def test_a_table_whose_folder_is_taken_fails_alone(shop):
    shop.start()
    shop.flush()
    shop.path("blocked").write_text("a file in the way")
    shop.table("blocked (i int)")
    shop.sql("INSERT INTO blocked VALUES (1)")
    shop.sql("INSERT INTO t VALUES (2)")
    flush_despite_failed(shop, "t", 2)
    row = shop.wait_for_status("blocked", "FAILED")
    assert "lb_blocked_history" in row["last_error"]
    shop.path("blocked").unlink()
    shop.wait_for_status("blocked", "STREAMING", 90)
    assert shop.events("blocked") == [("insert", (1,))]


# --- rights


@pytest.fixture
def clerk(shop):
    """A session of an ordinary role that owns the schema."""
    shop.sql("DROP ROLE IF EXISTS clerk")
    shop.sql("CREATE ROLE clerk LOGIN")
    shop.sql("ALTER SCHEMA shop OWNER TO clerk")
    shop.sql("ALTER TABLE t OWNER TO clerk")
    conn = shop.cluster.connect(user="clerk")
    yield conn
    conn.close()
    shop.stop() if shop.sql("SELECT * FROM wal2delta.schemas") else None
    shop.sql("DROP OWNED BY clerk CASCADE")
    shop.sql("DROP ROLE clerk")


FUNCTIONS = [
    "wal2delta.start('shop', '/tmp/x')",
    "wal2delta.stop('shop')",
    "wal2delta.flush()",
    "wal2delta.set_replica_identity_full('shop')",
    "wal2delta.check()",
]


@pytest.mark.parametrize("call", FUNCTIONS)
def test_functions_are_not_for_everybody(clerk, call):
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for (function|schema)"):
        clerk.execute(f"SELECT * FROM {call}")


@pytest.mark.parametrize("view", ["tables", "schemas"])
def test_views_are_not_for_everybody(clerk, view):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        clerk.execute(f"SELECT * FROM wal2delta.{view}")


def test_a_local_folder_needs_pg_write_server_files(shop, clerk):
    shop.sql("GRANT USAGE ON SCHEMA wal2delta TO clerk")
    shop.sql("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA wal2delta TO clerk")
    refused(
        clerk,
        *start("shop", shop.destination),
        says="permission|privilege",
        hint="pg_write_server_files",
        state="42501",
    )
    nothing_left(shop.cluster)
    shop.sql("GRANT pg_write_server_files TO clerk")
    clerk.execute(*start("shop", shop.destination))
    assert shop.events("t") == [("insert", (1,))]


def test_the_plugin_is_for_the_worker_alone(shop):
    """Anyone with REPLICATION may name any plugin; this one says no."""
    shop.start()
    shop.flush()
    with pytest.raises(psycopg.Error) as caught:
        shop.conn.execute("SELECT pg_create_logical_replication_slot('foreign_slot', 'wal2delta')")
    assert "wal2delta" in caught.value.diag.message_primary
    shop.conn.execute("SET output_plugin_libraries = wal2delta")
    with pytest.raises(psycopg.Error) as caught:
        shop.conn.execute("SELECT pg_create_logical_replication_slot('foreign_slot', 'wal2delta')")
    assert "wal2delta" in caught.value.diag.message_primary and caught.value.diag.message_hint
    assert shop.cluster.slots() == [shop.cluster.slot_name()]
    shop.sql("INSERT INTO t VALUES (2)")
    assert shop.events("t") == [("insert", (1,)), ("insert", (2,))]
