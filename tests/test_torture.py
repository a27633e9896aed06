"""Torture: random transactions of all kinds while workers, servers, the store
and the disk fail at random moments. At each calm, and at the end, every history
must replay to its table, have exactly the events that triggers noted, and a
sound Delta log.

    pytest tests/test_torture.py --torture-seconds 3600 --seed 12345

The seed decides what each session does and which faults come in which order;
how they meet is a matter of timing."""

import random
import re
import sys
import threading
import time
from collections import Counter
from contextlib import closing

import psycopg
import pytest
from harness import fail_points
from harness.feed import Feed
from harness.history import Row
from harness.waiting import wait_for
from torture import audit
from torture.faults import STOP_LIMIT
from torture.histories import Histories
from torture.journal import Journal
from torture.lake import Lake
from torture.large_writers import BulkWriter, WideWriter
from torture.load import Gate, Load
from torture.random_session import RandomSession, end_all_prepared, make_tables
from torture.scale import scale_of
from torture.storm import Storm
from torture.table_maker import OUTSIDE, TableMaker
from torture.writer import is_lost

SETTINGS = {
    "wal2delta.flush_interval": "400ms",
    # Less than a large transaction: files are written before its commit.
    "wal2delta.max_memory": "48MB",
    "deadlock_timeout": "200ms",
    # Sessions collide all the time; the log is for what matters.
    "log_lock_waits": "off",
    "log_min_error_statement": "panic",
}

SCHEMAS = ("east", "west")
SESSIONS = 4

# Seconds in which everything must be in Delta once nothing fails any more.
FLUSH_LIMIT = 120

# Faults that a run has at least, for each second.
LEAST_FAULTS = 0.1


@pytest.fixture
def with_fail_points(request):
    """Whether the library with fail points is used."""
    if request.config.getoption("--without-fail-points"):
        return False
    if not fail_points.library().exists():
        pytest.fail(f"{fail_points.library()} is missing: build it (make torture), or say --without-fail-points")
    return True


@pytest.fixture
def victim(with_fail_points, make_cluster):
    return make_cluster(SETTINGS | (fail_points.SETTINGS if with_fail_points else {}))


@pytest.fixture
def lake(victim, request, clusters):
    lake = Lake(victim.folder_for("lake"))
    yield lake
    keep = request.config.getoption("--keep") and getattr(request.node, "failed", False)
    victim.end()
    lake.allow()
    lake.unmount(keep_as=victim.folder / "lake.kept" if keep else None)
    if keep:
        clusters.kept.append(victim.folder)
        print(f"kept: {victim.folder}", file=sys.stderr)


@pytest.fixture
def feeds(victim, lake):
    """Two feeds with tables of the same names, in one destination."""
    feeds = [Feed(victim, schema, destination=lake.folder) for schema in SCHEMAS]
    victim.sql(audit.SETUP)
    victim.sql(f"CREATE SCHEMA {OUTSIDE}")
    for feed in feeds:
        feed.conn.execute("SELECT wal2delta.set_replica_identity_full(%s)", [feed.schema])
        make_tables(feed)
    BulkWriter.make_table(feeds[0])
    WideWriter.make_table(feeds[1])
    return feeds


@pytest.mark.expects_crashes("fail_point")
def test_torture(victim, lake, feeds, with_fail_points, request, seed, capsys):
    seconds = request.config.getoption("--torture-seconds")
    again = f"pytest tests/test_torture.py --torture-seconds {seconds:g} --seed {seed}"
    with capsys.disabled():
        print(f"\ntorture: {again}", flush=True)
    torture = Torture(victim, lake, feeds, with_fail_points, seed, scale_of(seconds))
    try:
        torture.run(seconds)
    except BaseException as error:
        request.node.failed = True
        error.add_note(f"again, as far as timing allows: {again}\n{torture.journal.story()}")
        raise
    with capsys.disabled():
        print(torture.report(), flush=True)
        print(f"torture: seed {seed}: {torture.totals()}", flush=True)


class Torture:
    def __init__(self, cluster, lake, feeds, with_fail_points, seed, scale):
        self.cluster = cluster
        self.feeds = feeds
        self.scale = scale
        self.dice = random.Random(f"{seed}/torture")
        self.journal = Journal()
        self.histories = Histories(cluster, feeds)
        self.load = Load(writers(feeds, seed, scale))
        points = fail_points.FailPoints(cluster) if with_fail_points else None
        dice = random.Random(f"{seed}/faults")
        self.storm = Storm(cluster, lake, points, self.load, self.journal, dice, scale)
        self.calms = 0

    def run(self, seconds):
        end = time.monotonic() + seconds
        with self.load:
            self.start_feeds()
            while (left := end - time.monotonic()) > 0:
                self.storm.rage(min(left, self.scale.storm * self.dice.uniform(0.7, 1.3)))
                self.calm()
        end_all_prepared(self.cluster, self.dice)
        self.calm()
        self.histories.compare_readers()
        self.check_log()
        assert self.journal.faults >= LEAST_FAULTS * seconds, "hardly anything has failed"

    def start_feeds(self):
        """In the midst of the load."""
        self.load.wait_for_transactions(100)
        for feed in self.feeds:
            feed.start()
            feed.conn.close()
        self.load.hold()
        self.histories.begin()
        self.load.let_go()

    def calm(self):
        self.storm.cease()
        self.load.hold()
        self.flush()
        self.histories.check()
        self.load.let_go()
        self.calms += 1
        self.journal.tell(f"calm {self.calms}: all right")

    def flush(self):
        """Everything is in Delta within the limit. A process that was just told
        to end may still take the server down once."""
        begun = time.monotonic()
        wait_for(lambda: self.try_to_flush(begun + FLUSH_LIMIT), FLUSH_LIMIT, "the server to take a flush")
        self.journal.tell(f"flush took {time.monotonic() - begun:.1f} s")

    def try_to_flush(self, deadline):
        """False: the connection was refused or lost."""
        try:
            conn = self.cluster.connect()
        except psycopg.OperationalError:
            return False
        with closing(conn):
            try:
                conn.execute("SELECT wal2delta.flush(%s)", [f"{deadline - time.monotonic():.0f} s"])
            except psycopg.OperationalError as error:
                if is_lost(conn, error):
                    return False
                tables = conn.execute("SELECT * FROM wal2delta.tables WHERE status <> 'STREAMING'").fetchall()
                error.add_note(f"tables that do not stream: {tables}")
                raise
        return True

    def check_log(self):
        """Every process that was killed was killed by this test, and each ended
        when it was told to."""
        text = self.cluster.log_text()
        killed = len(re.findall("was terminated by signal 9", text))
        asked = sum(count for kind, count in self.journal.counts.items() if "kill" in kind)
        assert killed <= asked, f"{killed} processes were killed, {asked} of them by this test"
        assert "issuing SIGKILL to recalcitrant children" not in text, f"a process did not end within {STOP_LIMIT} s"

    # --- what it tells

    def report(self):
        rows = self.histories.rows_by_table()
        return "\n".join(
            [
                "faults:",
                self.journal.table(),
                "transactions:",
                *(f"{count:11}  {end}" for end, count in sorted(self.load.ends().items())),
                "rows of histories:",
                *(f"{count:11}  {name}" for name, count in rows.items()),
                f"{self.histories.rows_of_dropped:11}  of tables that were dropped",
            ]
        )

    def totals(self):
        ends = self.load.ends()
        rows = self.histories.rows_by_table()
        return (
            f"{self.journal.faults} faults, {ends['committed'] + ends['commit prepared']} transactions committed,"
            f" {sum(rows.values()) + self.histories.rows_of_dropped} rows of history, {len(rows)} tables at the end,"
            f" {self.calms} calms: every change exactly once"
        )


def writers(feeds, seed, scale):
    sessions = [RandomSession(feeds, seed, number) for number in range(SESSIONS)]
    makers = [TableMaker(feed, random.Random(f"{seed}/tables of {feed.schema}")) for feed in feeds]
    bulk = BulkWriter(feeds[0], random.Random(f"{seed}/bulk"), scale)
    wide = WideWriter(feeds[1], random.Random(f"{seed}/wide"), scale)
    return [*sessions, *makers, bulk, wide]


# --- what the test stands on can fail


def row(change, xid):
    return Row(change, (), lsn=1, xid=xid, time=None, sort_by=1)


def test_the_audit_shows_what_is_missing_and_what_is_too_much():
    noted = Counter({(7, "insert"): 1, (7, "update"): 2})
    rows = [row("insert", 7), row("update_preimage", 7), row("update_postimage", 7), row("delete", 8)]
    assert audit.differences(rows, noted) == [
        "transaction 7: 1 update events missing",
        "transaction 8: 1 delete events that never were",
    ]


def test_a_closed_gate_holds_a_writer():
    gate = Gate()
    gate.inside = 1
    passed = []
    writer = threading.Thread(target=lambda: passed.extend(iter(gate.enter, False)), daemon=True)
    gate.close()
    writer.start()
    wait_for(lambda: gate.inside == 0, 10, "the writer to be held")
    assert not passed
    gate.reopen()
    wait_for(lambda: passed, 10, "the writer to pass")
    gate.end()
    writer.join(10)
    assert not writer.is_alive() and gate.inside == 0
