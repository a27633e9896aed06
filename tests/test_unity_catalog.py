"""History tables in Unity Catalog: against a server of it, with a proxy in front that wants a token and, for
buckets, gives out credentials."""

import re
import time
import zlib

import psycopg
import pytest
from harness.fault_proxy import FaultProxy
from harness.feed import Feed
from harness.stores import KEY, SECRET, StoredFeed, create_server
from harness.unity import CATALOG, SCHEMA, TOKEN, CatalogProxy, UnityServer, columns, unity_server
from harness.waiting import wait_for

pytestmark = pytest.mark.skipif(unity_server() is None, reason="no Unity Catalog: set UNITY_SERVER to its uc-server")

SYSTEM = ["_pg_change_type", "_pg_lsn", "_pg_xid", "_timestamp", "_sort_by"]


@pytest.fixture(scope="module")
def unity(cluster, tmp_path_factory):
    server = UnityServer(tmp_path_factory.mktemp("unity"), cluster.folder_for("tables"))
    yield server
    server.close()


@pytest.fixture
def proxy(unity):
    proxy = CatalogProxy(unity.port)
    yield proxy
    proxy.close()


def options(**values):
    return ", ".join(f"{name} '{value}'" for name, value in values.items())


def catalog_of(proxy, catalog=CATALOG, schema=SCHEMA):
    return {"catalog_url": proxy.url, "catalog": catalog, "schema": schema}


def make_mapping(cluster, name, **values):
    cluster.sql(f"CREATE USER MAPPING FOR CURRENT_USER SERVER {name} OPTIONS ({options(**values)})")


@pytest.fixture
def shop(cluster, unity, proxy, request):
    """A feed to a folder, by a server with a catalog; not started. Each has a schema of the catalog of its own."""
    name = f"lake_{zlib.crc32(request.node.name.encode()):08x}"
    unity.call("POST", "/schemas", {"name": name, "catalog_name": CATALOG})
    folder = cluster.folder_for("tables") / name
    cluster.sql(
        f"CREATE SERVER {name} FOREIGN DATA WRAPPER wal2delta "
        f"OPTIONS ({options(url=f'file://{folder}', **catalog_of(proxy, schema=name))})"
    )
    make_mapping(cluster, name, catalog_token=TOKEN)
    feed = CataloguedFeed(cluster, f"shop_{name}", destination=name)
    feed.unity, feed.folder, feed.name = unity, folder, name
    feed.table("t (i int PRIMARY KEY, v text)")
    feed.sql("INSERT INTO t VALUES (1, 'a')")
    yield feed
    feed.close()
    cluster.sql(f"DROP SERVER {name} CASCADE")


class CataloguedFeed(Feed):
    def path(self, table):
        return self.folder / f"lb_{table}_history"

    def registered(self, table="t"):
        return self.unity.table(f"lb_{table}_history", self.name)

    def wait_for_registered(self, what, table="t", says="to be registered"):
        """Waits until what is registered meets the condition, and returns it."""

        def met():
            found = self.registered(table)
            return found if found and what(found) else None

        try:
            return wait_for(met, 40, f"{table} {says}")
        except AssertionError as late:
            raise AssertionError(f"{late}; there is {self.registered(table)}, and {self.view(table)}") from None

    def last_error(self, table="t"):
        return self.view(table)["last_error"]

    def source_columns(self, table="t"):
        found = columns(self.registered(table))
        assert [name for name, *_ in found[-5:]] == SYSTEM
        return found[:-5]


def comments_of(table):
    return {name: comment for name, _, _, comment in columns(table)}


# --- what is registered


def test_columns_comments_properties_place(shop, cluster):
    shop.sql(
        "CREATE TABLE all_types (id bigint NOT NULL, b boolean, s smallint, n numeric(10, 2), u numeric, d date,"
        " at timestamptz, ts timestamp, f real, g double precision, j jsonb, raw bytea)"
    )
    shop.sql("ALTER TABLE all_types REPLICA IDENTITY FULL")
    shop.sql("COMMENT ON TABLE all_types IS 'Of all, ''one'' \"each\"'")
    shop.sql("COMMENT ON COLUMN all_types.n IS 'Preis in €'")
    shop.sql("INSERT INTO all_types (id) VALUES (1)")
    shop.start()
    found = shop.wait_for_registered(lambda table: True, "all_types")
    assert found["table_type"] == "EXTERNAL" and found["data_source_format"] == "DELTA", found
    assert found["storage_location"] == f"file://{shop.path('all_types')}"
    assert found["comment"] == "Of all, 'one' \"each\""
    oid = cluster.value(f"SELECT '{shop.schema}.all_types'::regclass::oid")
    assert found["properties"]["wal2delta.source"].endswith(f"/{oid}")
    assert "_pg_lsn" in found["properties"]["delta.dataSkippingStatsColumns"]
    assert shop.source_columns("all_types") == [
        ("id", "long", False, None),
        ("b", "boolean", True, None),
        ("s", "short", True, None),
        ("n", "decimal(10,2)", True, "Preis in €"),
        ("u", "string", True, None),
        ("d", "date", True, None),
        ("at", "timestamp", True, None),
        ("ts", "timestamp_ntz", True, None),
        ("f", "float", True, None),
        ("g", "double", True, None),
        ("j", "string", True, None),
        ("raw", "binary", True, None),
    ]
    by_name = {column["name"]: column for column in found["columns"]}
    assert by_name["n"]["comment"] == "Preis in €"
    assert (by_name["n"]["type_name"], by_name["n"]["type_text"]) == ("DECIMAL", "decimal(10,2)")
    assert (by_name["id"]["type_name"], by_name["id"]["type_text"]) == ("LONG", "bigint")
    assert all(comments_of(found)[name] for name in SYSTEM)
    # The other table has a comment that says what it is.
    assert '"t"' in shop.wait_for_registered(lambda table: True)["comment"]
    shop.check("all_types")
    assert shop.last_error("all_types") is None


def test_odd_names(shop, unity):
    """A name that no catalog takes becomes one; two that differ in case stay two."""
    shop.sql('CREATE TABLE "Übung 1" (i int); CREATE TABLE "T" (i int)')
    for name in ('"Übung 1"', '"T"'):
        shop.sql(f"ALTER TABLE {name} REPLICA IDENTITY FULL; INSERT INTO {name} VALUES (1)")
    shop.start()

    def registered():
        listed = unity.call("GET", f"/tables?catalog_name={CATALOG}&schema_name={shop.name}")
        names = {table["name"] for table in listed.get("tables", [])}
        return names if len(names) == 3 else None

    names = wait_for(registered, 40, "three entries")
    assert "lb_t_history" in names
    assert any(re.fullmatch("lb_t_history_[0-9a-f]{8}", name) for name in names), names
    assert any(re.fullmatch("lb__bung_1_history_[0-9a-f]{8}", name) for name in names), names


@pytest.mark.parametrize("mode", ["resnapshot", "evolve"])
def test_changes_of_columns_and_comments(shop, mode):
    shop.start(on_schema_change=mode)
    before = shop.wait_for_registered(lambda table: True)
    shop.sql("ALTER TABLE t ADD COLUMN price numeric(8, 2)")
    shop.sql("INSERT INTO t VALUES (2, 'b', 1.5)")
    shop.wait_for_registered(lambda table: "price" in comments_of(table), says="to have the column")
    assert shop.source_columns() == [
        ("i", "integer", False, None),
        ("v", "string", True, None),
        ("price", "decimal(8,2)", True, None),
    ]
    shop.sql("COMMENT ON COLUMN t.price IS 'net'; COMMENT ON TABLE t IS 'goods'")
    after = shop.wait_for_registered(lambda table: table["comment"] == "goods", says="to have the comment")
    assert comments_of(after)["price"] == "net"
    shop.sql("COMMENT ON COLUMN t.price IS NULL")
    shop.wait_for_registered(lambda table: comments_of(table)["price"] is None, says="to have lost the comment")
    shop.sql("ALTER TABLE t RENAME COLUMN v TO name")
    shop.sql("INSERT INTO t VALUES (3, 'c', 2)")
    renamed = shop.wait_for_registered(lambda table: "name" in comments_of(table), says="to have the new name")
    assert ("delta.columnMapping.mode" in renamed["properties"]) == (mode == "evolve")
    # It is one and the same entry, with what was granted on it.
    assert renamed["table_id"] == before["table_id"]
    shop.flush()
    assert shop.last_error() is None


def test_alteration_without_a_row(shop):
    """What no row brings comes with the next look."""
    shop.start(on_schema_change="evolve")
    shop.wait_for_registered(lambda table: True)
    shop.sql("ALTER TABLE t ADD COLUMN more int")
    shop.wait_for_registered(lambda table: "more" in comments_of(table), says="to have the column")


def test_server_without_the_delta_interface(shop, proxy):
    """Its tables cannot be changed: the entry is made anew."""
    proxy.without = "/delta/v1/"
    shop.start(on_schema_change="evolve")
    before = shop.wait_for_registered(lambda table: True)
    shop.sql("ALTER TABLE t ADD COLUMN more int")
    after = shop.wait_for_registered(lambda table: "more" in comments_of(table), says="to have the column")
    assert after["table_id"] != before["table_id"]
    shop.check("t")


# --- how much is asked


def test_nothing_is_asked_while_nothing_changes(shop, proxy, cluster):
    shop.start()
    shop.wait_for_registered(lambda table: True)
    shop.flush()
    asked = len(proxy.requests)
    for i in range(2, 7):
        shop.sql(f"INSERT INTO t VALUES ({i}, 'x')")
        shop.flush()
    assert proxy.requests[asked:] == []
    # A worker that begins compares, and finds that all is as it should be.
    cluster.terminate_feed_worker()
    wait_for(lambda: len(proxy.requests) > asked, 30, "the catalog to be asked")
    shop.sql("INSERT INTO t VALUES (7, 'x')")
    shop.check("t")
    assert all(line.startswith("GET") for line in proxy.requests[asked:]), proxy.requests[asked:]
    assert len(proxy.calls("POST /tables")) == 1


# --- what fails


def test_catalog_that_is_down(shop, unity, proxy, cluster):
    shop.start()
    shop.wait_for_registered(lambda table: True)
    mark = cluster.log_size()
    unity.stop()
    try:
        shop.sql("ALTER TABLE t ADD COLUMN more int; INSERT INTO t VALUES (2, 'b', 3)")
        shop.table("u (i int)")
        shop.sql("INSERT INTO u VALUES (1)")
        wait_for(lambda: "catalog" in (shop.last_error("u") or "") if shop.view("u") else None, 40, "the error")
        for i in range(3, 6):
            shop.sql(f"INSERT INTO t VALUES ({i}, 'x', {i})")
            shop.check("t")
        shop.check("u")
        assert shop.status("t") == shop.status("u") == "STREAMING"
        assert "could not reach" in shop.last_error("t") and shop.name in shop.last_error("t")
        checks = cluster.sql("SELECT what_to_do FROM wal2delta.check() WHERE NOT ok")
        assert len(checks) == 1 and "catalog_url" in checks[0][0], checks
        # And with a worker that has never reached it.
        cluster.terminate_feed_worker()
        shop.sql("INSERT INTO t VALUES (6, 'x', 6)")
        shop.check("t")
    finally:
        unity.start()
    shop.wait_for_registered(lambda table: "more" in comments_of(table), says="to have the column")
    shop.wait_for_registered(lambda table: True, "u")
    wait_for(lambda: shop.last_error("t") is None and shop.last_error("u") is None, 20, "the error to go")
    text = cluster.log_text(mark)
    assert text.count("could not reach schema") == 2, text
    assert text.count("registered again") == 1, text
    assert not cluster.sql("SELECT what FROM wal2delta.check() WHERE NOT ok")


def test_name_is_taken(shop, unity, cluster):
    elsewhere = f"file://{cluster.folder_for('tables')}/elsewhere_{shop.name}"
    taken = {
        "name": "lb_t_history",
        "catalog_name": CATALOG,
        "schema_name": shop.name,
        "table_type": "EXTERNAL",
        "data_source_format": "DELTA",
        "columns": [],
        "storage_location": elsewhere,
    }
    unity.call("POST", "/tables", taken)
    shop.start()
    row = shop.wait_for_status("t", "STREAMING")
    row = wait_for(lambda: shop.view("t") if shop.last_error() else None, 40, "the error")
    assert row["status"] == "STREAMING" and "another table's" in row["last_error"], row
    assert re.search(r"Rename or drop that table.*SET schema", row["last_error"]), row
    # Others are not kept waiting by it, and it is left alone.
    shop.table("u (i int)")
    shop.sql("INSERT INTO u VALUES (1)")
    shop.wait_for_registered(lambda table: True, "u")
    assert shop.registered()["storage_location"] == elsewhere
    unity.call("DELETE", f"/tables/{CATALOG}.{shop.name}.lb_t_history")
    shop.wait_for_registered(lambda table: table["storage_location"] != elsewhere)
    wait_for(lambda: shop.last_error() is None, 20, "the error to go")


def test_table_that_the_catalog_refuses(shop, unity, cluster):
    """Its place lies in that of another table: only the catalog knows."""
    unity.call(
        "POST",
        "/tables",
        {
            "name": "all_of_it",
            "catalog_name": CATALOG,
            "schema_name": shop.name,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "columns": [],
            "storage_location": f"file://{shop.folder}",
        },
    )
    shop.start()
    wait_for(lambda: shop.view("t") and shop.last_error(), 40, "the error")
    assert re.search(r"answers 400 .*must be no other table's", shop.last_error()), shop.last_error()
    shop.check("t")


def refused(shop, *, says, hint, state):
    with pytest.raises(psycopg.Error) as caught:
        shop.start()
    error = caught.value.diag
    told = (error.sqlstate, error.message_primary, error.message_hint)
    assert error.sqlstate == state and re.search(says, error.message_primary), told
    assert re.search(hint, error.message_hint), told
    assert TOKEN not in repr(told) and not error.message_primary.endswith("."), told


def test_wrong_token(shop, cluster):
    cluster.sql(f"ALTER USER MAPPING FOR CURRENT_USER SERVER {shop.name} OPTIONS (SET catalog_token 'dapi-wrong')")
    refused(shop, says="401 Unauthorized UNAUTHENTICATED", hint="SET catalog_token", state="42501")
    cluster.sql(f"ALTER USER MAPPING FOR CURRENT_USER SERVER {shop.name} OPTIONS (DROP catalog_token)")
    refused(shop, says="401 Unauthorized", hint="ADD catalog_token", state="42501")


def test_not_permitted(shop, proxy):
    proxy.refused = (403, "PERMISSION_DENIED", "User lacks USE SCHEMA.")
    refused(shop, says="403 Forbidden PERMISSION_DENIED: User lacks USE SCHEMA", hint="USE SCHEMA", state="42501")


@pytest.mark.parametrize(("option", "hint"), [("catalog", "Create the catalog"), ("schema", "Create the schema")])
def test_missing(shop, cluster, option, hint):
    cluster.sql(f"ALTER SERVER {shop.name} OPTIONS (SET {option} 'no_such')")
    refused(shop, says="no_such.* does not exist", hint=hint, state="42704")


def test_unreachable(shop, cluster):
    cluster.sql(f"ALTER SERVER {shop.name} OPTIONS (SET catalog_url 'http://127.0.0.1:1')")
    refused(shop, says="could not reach .*refused", hint="catalog_url", state="58030")


def test_something_else_is_there(shop, cluster, s3):
    cluster.sql(f"ALTER SERVER {shop.name} OPTIONS (SET catalog_url '{s3.url}')")
    refused(shop, says="no Unity Catalog|answers 4", hint="catalog_url|external location", state="22023")


def test_token_that_is_not_valid_any_more(shop, proxy, cluster):
    """The feed goes on, and takes up the next one by itself."""
    shop.start()
    shop.wait_for_registered(lambda table: True)
    proxy.token = "dapi-next"
    shop.table("u (i int)")
    shop.sql("INSERT INTO u VALUES (1)")
    wait_for(lambda: shop.view("u") and "catalog_token" in (shop.last_error("u") or ""), 40, "the error")
    assert shop.status("u") == "STREAMING"
    cluster.sql(f"ALTER USER MAPPING FOR CURRENT_USER SERVER {shop.name} OPTIONS (SET catalog_token 'dapi-next')")
    shop.wait_for_registered(lambda table: True, "u")
    shop.check("u")


def test_token_is_never_shown(shop, proxy, cluster):
    """Not even by a catalog that repeats it."""
    mark = cluster.log_size()
    shop.start()
    shop.wait_for_registered(lambda table: True)
    proxy.token = "another"
    shop.table("u (i int)")
    shop.sql("INSERT INTO u VALUES (1)")
    error = wait_for(lambda: shop.view("u") and shop.last_error("u"), 40, "the error")
    assert "not accepted: Bearer ***" in error, error
    checks = cluster.sql("SELECT * FROM wal2delta.check()")
    assert any("Bearer ***" in (what or "") for _, _, what in checks), checks
    shop.flush()
    shown = [cluster.log_text(mark), repr(checks), repr(cluster.sql("SELECT * FROM wal2delta.tables"))]
    shown.append(repr(cluster.sql("SELECT * FROM wal2delta.schemas")))
    shown.append(repr(cluster.sql("SELECT srvoptions FROM pg_foreign_server")))
    shown += [file.read_text() for file in shop.folder.rglob("*.json")]
    assert not any(TOKEN in text for text in shown)


def test_folder_is_not_for_everybody(shop, cluster):
    cluster.sql(f"CREATE ROLE clerk LOGIN; ALTER SCHEMA {shop.schema} OWNER TO clerk")
    cluster.sql("GRANT EXECUTE ON FUNCTION wal2delta.start(name, text, jsonb) TO clerk")
    cluster.sql(f"GRANT USAGE ON FOREIGN SERVER {shop.name} TO clerk")
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as caught:
            cluster.sql("SELECT wal2delta.start(%s, %s)", [shop.schema, shop.name], user="clerk")
        assert "pg_write_server_files" in caught.value.diag.message_hint
    finally:
        cluster.sql(f"ALTER SCHEMA {shop.schema} OWNER TO postgres; DROP OWNED BY clerk; DROP ROLE clerk")


# --- options


@pytest.mark.parametrize(
    ("listed", "says", "hint"),
    [
        ("url 's3://b', catalog_url 'http://c', catalog 'main'", '"catalog_url" needs the option "schema"', "schema"),
        ("url 's3://b', schema 'x'", '"schema" needs the option "catalog_url"', "catalog_url"),
        ("url 's3://b', catalog_ulr 'http://c'", 'invalid option "catalog_ulr"', '"catalog_url"'),
        ("url 's3://b', catalog_token 'hunter2'", "not one of a server", "user mapping"),
        ("url 's3://b', catalog_url 'c', catalog 'm', schema 's'", "not an HTTP address", "https://"),
        ("url 's3://b', catalog_url 'http://me:hunter2@c', catalog 'm', schema 's'", "user or password", "catalog_token"),
        ("url 'az://c/x', catalog_url 'http://c', catalog 'm', schema 's'", "account", "abfss://"),
        ("url 'file:///x'", "not the URL of an object store", "wal2delta.start"),
    ],
)  # fmt: skip
def test_options(cluster, listed, says, hint):
    with pytest.raises(psycopg.Error) as caught:
        cluster.sql(f"CREATE SERVER x FOREIGN DATA WRAPPER wal2delta OPTIONS ({listed})")
    error = caught.value.diag
    told = (error.message_primary, error.message_hint)
    assert says in told[0] and hint in told[1] and "hunter2" not in repr(told), told


# --- credentials that the catalog gives out


@pytest.fixture
def vended(cluster, unity, s3, tmp_path, request):
    """A feed to a bucket whose credentials are the catalog's: (feed, catalog's proxy, store's proxy)."""
    proxy = CatalogProxy(unity.port)
    store = FaultProxy(s3.port, keys={KEY: SECRET})
    name = f"vended_{zlib.crc32(request.node.name.encode()):08x}"
    bucket = s3.bucket()
    unity.location(name, f"s3://{bucket}/bronze")
    create_server(cluster, name, store.url, bucket, **catalog_of(proxy))
    make_mapping(cluster, name, catalog_token=TOKEN)
    feed = StoredFeed(cluster, name, s3, bucket, tmp_path, destination=name)
    feed.table(f"{name}_t (i int)")
    yield feed, proxy, store
    feed.close()
    cluster.sql(f"DROP SERVER {name} CASCADE")
    proxy.close()
    store.close()


def write_for(feed, proxy, store, table, seconds):
    """Writes for a while; the store refuses each token from its end on. What was given out meanwhile."""
    ends = time.monotonic() + seconds
    before, row = len(proxy.given), 0
    while time.monotonic() < ends:
        store.expired_tokens.update(token for token, _, until, _ in proxy.given if until <= time.time())
        row += 1
        feed.sql(f"INSERT INTO {table} VALUES ({row})")
        # Left to itself it commits once a second.
        wrote = feed.value("SELECT pg_current_wal_flush_lsn()")
        is_there = "SELECT committed_lsn >= %s FROM wal2delta.tables WHERE source_table::text = %s"
        wait_for(lambda: feed.sql(is_there, [wrote, table]) == [(True,)], 60, "the row to be in Delta")
    assert row >= seconds // 3
    return proxy.given[before - 1 :]


def test_credentials_are_vended_and_replaced_in_time(vended, unity):
    feed, proxy, store = vended
    table = f"{feed.schema}_t"
    proxy.gives(KEY, SECRET, life=6)
    feed.start()
    write_for(feed, proxy, store, table, seconds=2)
    feed.wait_for_status(table, "STREAMING")
    # From here on they are the feed worker's alone.
    given = write_for(feed, proxy, store, table, seconds=15)
    # By one request at a time, and not more often than need be.
    assert 4 <= len(given) <= 6, given
    assert all(asked_at < ends for (_, _, ends, _), (_, asked_at, _, _) in zip(given, given[1:], strict=False)), given
    assert store.expired_met == 0
    location = f"s3://{feed.bucket}/bronze"
    assert all(asked == {"url": location, "operation": "PATH_READ_WRITE"} for _, _, _, asked in proxy.given)
    assert unity.table(f"lb_{table}_history")["storage_location"] == f"{location}/lb_{table}_history"
    feed.check(table)
    assert feed.view(table)["status"] == "STREAMING"


def test_catalog_is_down_until_its_credentials_have_run_out(vended):
    """As long as they are valid the feed goes on; it goes on again once there are others."""
    feed, proxy, store = vended
    table = f"{feed.schema}_t"
    proxy.gives(KEY, SECRET, life=16)
    feed.start()
    write_for(feed, proxy, store, table, seconds=2)
    feed.wait_for_status(table, "STREAMING")
    proxy.refused = (503, "UNAVAILABLE", "Try again.")
    ends = proxy.given[-1][2]
    # In their last quarter others are asked for; meanwhile they are still used.
    wait_for(lambda: time.time() > ends - 3.5, 20, "their last quarter")
    asked = len(proxy.calls("POST /temporary"))
    feed.sql(f"INSERT INTO {table} VALUES (-1)")
    feed.flush()
    assert time.time() < ends
    assert len(proxy.calls("POST /temporary")) == asked + 1
    assert feed.view(table)["status"] == "STREAMING"
    wait_for(lambda: time.time() > ends, 20, "the credentials to run out")
    store.expired_tokens.update(token for token, *_ in proxy.given)
    feed.sql(f"INSERT INTO {table} VALUES (-2)")
    row = feed.wait_for_status(table, "FAILED", timeout=100)
    assert "could not get credentials" in row["last_error"] and "503" in row["last_error"], row
    proxy.refused = None
    feed.wait_for_status(table, "STREAMING", timeout=60)
    feed.check(table)


def test_store_takes_the_credentials_no_longer(vended, cluster):
    """Sooner than the catalog had said: others are asked for. What the store says of them is not shown."""
    feed, proxy, store = vended
    table = f"{feed.schema}_t"
    proxy.gives(KEY, SECRET, life=3600)
    mark = cluster.log_size()
    feed.start()
    write_for(feed, proxy, store, table, seconds=2)
    before = len(proxy.given)
    store.expired_tokens.update(token for token, *_ in proxy.given)
    feed.sql(f"INSERT INTO {table} VALUES (-1)")
    feed.check(table)
    assert store.expired_met and len(proxy.given) > before
    token = proxy.given[-1][0]
    store.fail("PUT", answer=(403, "AccessDenied", f"not with {token}"))
    feed.sql(f"INSERT INTO {table} VALUES (-2)")
    row = feed.wait_for_status(table, "FAILED")
    assert "not with ***" in row["last_error"], row
    store.mend()
    feed.check(table)
    assert token not in cluster.log_text(mark) and SECRET not in cluster.log_text(mark)


def test_catalog_without_credentials_for_the_store(vended):
    feed, proxy, _ = vended
    proxy.gives(KEY, SECRET, life=6)
    proxy.keys = None
    proxy.vends_none = True
    with pytest.raises(psycopg.Error) as caught:
        feed.start()
    assert "gives out no credentials" in caught.value.diag.message_primary
    assert "user mapping" in caught.value.diag.message_hint
