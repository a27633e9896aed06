"""Feeds to an S3 server: what is promised of a disk holds for it too, whatever the store does."""

import random
import re
import threading
import time
import zlib
from pathlib import Path

import pytest
from harness.deltalog import DeltaLog
from harness.fault_proxy import CLOCK_IS_OFF, FORBIDDEN, NO_BUCKET, SLOW_DOWN, FaultProxy
from harness.stores import KEY, SECRET, StoredFeed, alter_mapping, check_upkeep, create_mapping, create_server


@pytest.fixture
def shop(cluster, s3, proxy, tmp_path, request):
    """A feed to a server `lake`, not started."""
    made = []
    name = f"lake_{zlib.crc32(request.node.name.encode()):08x}"
    bucket = s3.bucket()
    create_server(cluster, name, proxy.url, bucket)
    create_mapping(cluster, name)
    feed = StoredFeed(cluster, f"shop_{name}", s3, bucket, tmp_path, destination=name)
    made.append(feed)
    feed.table("t (i int PRIMARY KEY, v text)")
    yield feed
    proxy.mend()
    proxy.keys = {KEY: SECRET}
    feed.close()
    cluster.sql(f"DROP SERVER {name} CASCADE")


def fill(feed, first, count=100):
    feed.sql(f"INSERT INTO t SELECT i, repeat('x', 20) || i FROM generate_series({first}, {first + count - 1}) i")


def test_snapshot_and_changes(shop):
    fill(shop, 1)
    shop.start()
    shop.wait_for_status("t", "STREAMING")
    shop.sql("UPDATE t SET v = 'new' WHERE i <= 10")
    shop.sql("DELETE FROM t WHERE i > 90")
    assert len(shop.check("t")) == 130
    assert shop.view("t")["destination"] == f"s3://{shop.bucket}/bronze/lb_t_history"
    # A later life of the feed goes on where this one ends.
    shop.stop()
    shop.start()
    fill(shop, 1000)
    shop.flush()
    assert shop.view("t")["status"] == "STREAMING"


def test_small_files_are_merged(shop):
    """More than goes up in one piece."""
    shop.start()
    for commit in range(12):
        shop.sql(
            "INSERT INTO t SELECT %s + i, (SELECT string_agg(md5(i || ' ' || n), '') FROM generate_series(1, 100) n) "
            "FROM generate_series(1, 500) i",
            [commit * 1000],
        )
        shop.flush()
    before = shop.check("t")
    shop.conn.execute("SELECT wal2delta.optimize(%s::regclass)", [f"{shop.schema}.t"])
    assert shop.check("t") == before
    log = DeltaLog(shop.path("t"))
    added = [add for _, add in log.actions("add")]
    assert added[-1]["size"] > 8 << 20
    assert list(log.active()) == [added[-1]["path"]]
    fill(shop, 100_000)
    assert len(shop.check("t")) == len(before) + 100


# --- what the store does


def test_two_feeds_and_many_versions(shop, cluster, s3, tmp_path):
    """Checkpoints, and a table that is read from them."""
    shop.start()
    for round in range(25):
        fill(shop, 1 + round * 10, 10)
        shop.flush()
    assert any("checkpoint.parquet" in key for key in s3.keys(shop.bucket))
    cluster.terminate_feed_worker()
    fill(shop, 10_000, 10)
    check_upkeep(shop, cluster)
    other = StoredFeed(cluster, shop.schema + "_2", s3, shop.bucket, tmp_path, destination=shop.destination)
    try:
        other.table("u (i int)")
        other.sql("INSERT INTO u VALUES (1)")
        other.start()
        other.wait_for_status("u", "STREAMING")
        other.check("u")
    finally:
        other.close()


def test_large_files_go_in_parts(shop, proxy):
    shop.start()
    shop.sql("CREATE TABLE b (i int, v text)")
    shop.sql("ALTER TABLE b REPLICA IDENTITY FULL, ALTER v SET STORAGE external")
    part = proxy.fail(r"PUT .*part.*partNumber=2", times=1, reset=True)
    shop.sql("INSERT INTO b SELECT i, string_agg(md5(random()::text), '') FROM generate_series(1, 60) i, "
             "generate_series(1, 10000) GROUP BY i")  # fmt: skip
    shop.check("b")
    assert part.met == 1
    assert any(line.startswith("POST") and "uploads" in line for line in proxy.requests)


@pytest.mark.parametrize("times", [1, 3])
def test_answer_of_a_commit_is_lost(shop, proxy, times):
    """The commit is there, and its writer is told that it failed, or that it exists already."""
    shop.start()
    fill(shop, 1)
    shop.flush()
    lost = proxy.fail(r"PUT .*_delta_log/\d+\.json", times=times, lost=True)
    fill(shop, 1000)
    shop.check("t")
    assert lost.met == times
    fill(shop, 2000)
    shop.check("t")
    assert shop.status("t") == "STREAMING"


def test_answer_of_a_commit_is_an_error_after_it_was_done(shop, proxy, s3):
    """As 500 after the put has worked: object_store itself tries again and is told that it exists."""
    shop.start()
    fill(shop, 1)
    shop.flush()
    versions = len([key for key in s3.keys(shop.bucket) if key.endswith(".json")])
    proxy.fail(r"PUT .*_delta_log/\d+\.json", times=1, lost=True)
    proxy.fail(r"PUT .*_delta_log/\d+\.json", times=1, answer=(500, "InternalError", "try again"))
    fill(shop, 1000)
    shop.check("t")
    assert len([key for key in s3.keys(shop.bucket) if key.endswith(".json")]) == versions + 1


@pytest.mark.parametrize(
    "fault",
    [
        {"answer": SLOW_DOWN, "times": 12},
        {"reset": True, "times": 3, "pattern": "PUT"},
        {"delay": 2, "times": 12},
    ],
    ids=["slow_down", "reset", "slow"],
)
def test_passing_faults(shop, proxy, fault):
    shop.start()
    fill(shop, 1)
    shop.flush()
    met = proxy.fail(**fault)
    for round in range(1, 4):
        fill(shop, round * 1000)
        shop.flush("120 s")
    assert met.met > 0
    proxy.mend()
    shop.check("t")
    assert shop.status("t") == "STREAMING"


@pytest.mark.parametrize(
    ("answer", "says", "remedy"),
    [
        (FORBIDDEN, "403.*AccessDenied", "list bucket"),
        (CLOCK_IS_OFF, "403.*RequestTimeTooSkewed", "clock"),
        (NO_BUCKET, "404.*NoSuchBucket", "Create bucket"),
    ],
    ids=["forbidden", "clock", "no_bucket"],
)
def test_lasting_faults(shop, proxy, answer, says, remedy):
    """The table is FAILED and says why; it goes on by itself, and nothing is missing."""
    shop.start()
    fill(shop, 1)
    shop.flush()
    proxy.fail(answer=answer)
    fill(shop, 1000)
    row = shop.wait_for_status("t", "FAILED", 60)
    assert re.search(says, row["last_error"]), row
    assert remedy in row["last_error"], row
    fill(shop, 2000)
    proxy.mend()
    shop.wait_for_status("t", "STREAMING", 60)
    shop.check("t")


def test_store_that_does_not_answer_at_all(shop, proxy, cluster):
    shop.start()
    fill(shop, 1)
    shop.flush()
    proxy.fail(delay=120)
    fill(shop, 1000)
    row = shop.wait_for_status("t", "FAILED", 150)
    assert row["last_error"]
    proxy.mend()
    shop.wait_for_status("t", "STREAMING", 90)
    shop.check("t")


def test_restart_while_the_store_is_away(shop, proxy, cluster):
    shop.start()
    fill(shop, 1)
    shop.flush()
    proxy.fail(answer=SLOW_DOWN)
    fill(shop, 1000)
    cluster.terminate_feed_worker()
    row = shop.wait_for_status("t", "FAILED", 90)
    assert "SlowDown" in row["last_error"], row
    proxy.mend()
    shop.wait_for_status("t", "STREAMING", 60)
    shop.check("t")


def test_copy_with_a_slow_store(shop, proxy):
    """The history table takes longer to be made than a copy waits before it looks for statements in its way."""
    fill(shop, 1)
    slow = proxy.fail("lb_t_history", delay=0.7)
    shop.start()
    assert len(shop.check("t")) == 100
    assert slow.met
    assert shop.status("t") == "STREAMING"


def test_restart_with_a_slow_store(shop, proxy, cluster):
    """Each request takes a second, each table several of them one after the other."""
    tables = [f"t{n}" for n in range(12)]
    for name in tables:
        shop.table(f"{name} (i int)")
        shop.sql(f"INSERT INTO {name} VALUES (1)")
    shop.start()
    shop.flush()
    slow = proxy.fail(delay=1)
    for name in tables:
        shop.sql(f"INSERT INTO {name} VALUES (2)")
    cluster.terminate_feed_worker()
    shop.flush("170 s")
    slow.delay = 0
    for name in tables:
        assert len(shop.check(name)) == 2


def test_random_faults(shop, proxy, cluster, seed):
    """Sessions write while the store fails at random and workers end."""
    print(f"--seed {seed}")
    dice = random.Random(seed)
    shop.start()
    fill(shop, 1, 50)
    end = time.monotonic() + 30

    def write(number):
        own = random.Random(seed + number)
        with shop.session() as conn:
            while time.monotonic() < end:
                key = own.randrange(300)
                conn.execute(
                    "INSERT INTO t VALUES (%s, 'new') ON CONFLICT (i) DO UPDATE SET v = t.v || 'x'", [key]
                )
                if own.random() < 0.2:
                    conn.execute("DELETE FROM t WHERE i = %s", [own.randrange(300)])
                time.sleep(0.005)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    while time.monotonic() < end:
        kind = dice.choice(["lost", "lost commit", "reset", "error", "slow down", "delay", "terminate"])
        if kind == "lost":
            proxy.fail(r"PUT|POST", times=dice.randrange(1, 4), lost=True)
        elif kind == "lost commit":
            proxy.fail(r"PUT .*\.json", times=dice.randrange(1, 4), lost=True)
        elif kind == "reset":
            proxy.fail(times=dice.randrange(1, 6), reset=True)
        elif kind == "error":
            proxy.fail(times=dice.randrange(1, 8), answer=(500, "InternalError", "try again"))
        elif kind == "slow down":
            proxy.fail(times=dice.randrange(1, 20), answer=SLOW_DOWN)
        elif kind == "delay":
            proxy.fail(times=dice.randrange(1, 10), delay=0.5)
        elif cluster.feed_worker():
            cluster.terminate_feed_worker()
        time.sleep(dice.random() * 1.5)
    for writer in writers:
        writer.join()
    proxy.mend()
    shop.wait_for_status("t", "STREAMING", 90)
    shop.check("t")


# --- credentials


def test_changed_credentials_are_taken_up(shop, proxy):
    """The old key is taken away before the new one is set, as it should not but does happen."""
    shop.start()
    fill(shop, 1)
    shop.flush()
    proxy.keys = {"AKIANEW": "another-secret"}
    fill(shop, 1000)
    row = shop.wait_for_status("t", "FAILED", 60)
    assert "InvalidAccessKeyId" in row["last_error"] and "ALTER USER MAPPING" in row["last_error"], row
    alter_mapping(
        shop.cluster, shop.destination, aws_access_key_id="AKIANEW", aws_secret_access_key="another-secret"
    )
    fill(shop, 2000)
    shop.wait_for_status("t", "STREAMING", 60)
    shop.check("t")


def test_credentials_change_while_both_are_right(shop, proxy):
    """Nobody notices."""
    shop.start()
    proxy.keys = {KEY: SECRET, "AKIANEW": "another-secret"}
    fill(shop, 1)
    shop.flush()
    alter_mapping(
        shop.cluster, shop.destination, aws_access_key_id="AKIANEW", aws_secret_access_key="another-secret"
    )
    fill(shop, 1000)
    shop.flush()
    shop.sql("SELECT pg_sleep(2)")
    proxy.keys = {"AKIANEW": "another-secret"}
    fill(shop, 2000)
    shop.check("t")
    assert shop.status("t") == "STREAMING"


def test_credentials_change_during_a_copy(shop, proxy):
    """The copy goes on; it does not begin anew."""
    shop.sql("CREATE TABLE large (i int, v text)")
    shop.sql("ALTER TABLE large REPLICA IDENTITY FULL")
    shop.sql(
        "INSERT INTO large SELECT i, (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 2500) WHERE i = i)"
        " FROM generate_series(1, 3000) i"
    )
    proxy.keys = {KEY: SECRET, "AKIANEW": "another-secret"}
    slow = proxy.fail(r"PUT .*part", delay=3)
    since = shop.cluster.log_size()
    shop.start()
    shop.wait_for_status("large", "SNAPSHOTTING")
    alter_mapping(
        shop.cluster, shop.destination, aws_access_key_id="AKIANEW", aws_secret_access_key="another-secret"
    )
    shop.sql("SELECT pg_sleep(8)")
    assert shop.status("large") == "SNAPSHOTTING"
    proxy.keys = {"AKIANEW": "another-secret"}
    shop.wait_for_status("large", "STREAMING", 120)
    assert slow.met > 5
    slow.delay = 0
    shop.flush()
    assert '"large" failed' not in shop.cluster.log_text(since)
    assert len(shop.rows("large")) == 3000


def test_expired_token(shop, proxy):
    shop.cluster.sql(f"ALTER USER MAPPING FOR CURRENT_USER SERVER {shop.destination} OPTIONS (ADD aws_session_token 'one')")
    shop.start()
    fill(shop, 1)
    shop.flush()
    proxy.expired_tokens.add("one")
    fill(shop, 1000)
    row = shop.wait_for_status("t", "FAILED", 60)
    assert "ExpiredToken" in row["last_error"], row
    alter_mapping(shop.cluster, shop.destination, aws_session_token="two")
    shop.wait_for_status("t", "STREAMING", 60)
    shop.check("t")


def test_mapping_goes_and_comes(shop):
    shop.start()
    fill(shop, 1)
    shop.flush()
    shop.cluster.sql("DROP ROLE IF EXISTS lake_owner")
    shop.cluster.sql("CREATE ROLE lake_owner; GRANT USAGE ON FOREIGN DATA WRAPPER wal2delta TO lake_owner")
    shop.cluster.sql(f"ALTER SERVER {shop.destination} OWNER TO lake_owner")
    try:
        shop.cluster.sql(f"DROP USER MAPPING FOR CURRENT_USER SERVER {shop.destination}")
        fill(shop, 1000)
        shop.sql("SELECT pg_sleep(2)")
        fill(shop, 1500)
        row = shop.wait_for_status("t", "FAILED", 60)
        assert "CREATE USER MAPPING" in row["last_error"], row
        create_mapping(shop.cluster, shop.destination)
        shop.wait_for_status("t", "STREAMING", 60)
        shop.check("t")
    finally:
        shop.cluster.sql(f"ALTER SERVER {shop.destination} OWNER TO postgres")
        shop.cluster.sql("DROP OWNED BY lake_owner; DROP ROLE lake_owner")


def test_secret_is_shown_nowhere(make_cluster, s3, tmp_path):
    """In no log at any level, no view, no Delta log, no process title: but for the statement that sets it."""
    cluster = make_cluster({"log_min_messages": "debug5", "log_statement": "none"})
    proxy = FaultProxy(s3.port, keys={KEY: SECRET})
    bucket = s3.bucket()
    create_server(cluster, "lake", proxy.url, bucket)
    with cluster.connect(log_min_messages="error", log_min_error_statement="panic") as conn:
        conn.execute(
            f"CREATE USER MAPPING FOR CURRENT_USER SERVER lake OPTIONS (aws_access_key_id '{KEY}', aws_secret_access_key '{SECRET}')"
        )
    feed = StoredFeed(cluster, "shop", s3, bucket, tmp_path, destination="lake")
    feed.table("t (i int PRIMARY KEY, v text)")
    feed.start()
    fill(feed, 1)
    feed.flush()
    titles = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
    proxy.keys = {KEY: "other"}
    fill(feed, 1000)
    failed = feed.wait_for_status("t", "FAILED", 60)
    assert "SignatureDoesNotMatch" in failed["last_error"]
    cluster.sql("SELECT * FROM wal2delta.check()")
    shown = cluster.sql("SELECT to_jsonb(t)::text FROM wal2delta.tables t") + cluster.sql(
        "SELECT to_jsonb(t)::text FROM wal2delta.schemas t UNION ALL SELECT to_jsonb(f)::text FROM wal2delta.feeds f"
        " UNION ALL SELECT what_to_do FROM wal2delta.check()"
    )
    proxy.keys = {KEY: SECRET}
    feed.wait_for_status("t", "STREAMING", 60)
    feed.check("t")
    stored = b"".join(s3.read(bucket, key) for key in s3.keys(bucket) if "_delta_log" in key or "part" not in key)
    temporary = b"".join(path.read_bytes() for path in (cluster.data / "base" / "pgsql_tmp").glob("*"))
    feed.close()
    proxy.close()
    secret = SECRET.encode()
    for where, text in {
        "log": cluster.log_text().encode(),
        "views": repr(shown).encode(),
        "Delta log": stored,
        "process titles": titles,
        "temporary files": temporary,
    }.items():
        assert secret not in text, f"the secret is in the {where}"
        assert KEY.encode() not in text or where == "log" and "CREATE USER" in text.decode(), f"the key is in the {where}"
