"""Random transactions by several sessions while workers are terminated; then
every history replays to its table, and its events are those that triggers
wrote down, transaction by transaction.

    pytest tests/test_random.py --random-seconds 300 --seed 12345

The seed decides what each session does, not how they interleave."""

import random
import threading
import time
from collections import Counter

import psycopg
from harness.readers import READERS
from harness.waiting import wait_for

SETTINGS = {"wal2delta.flush_interval": "400ms", "deadlock_timeout": "200ms"}

SESSIONS = 4

COLUMNS = (
    "id bigint, grp int, note text, amount numeric(20,4), ratio float8, at timestamptz DEFAULT clock_timestamp(),"
    " doc jsonb, big text"
)
TABLES = {
    "keyed": f"({COLUMNS}, PRIMARY KEY (id))",
    "keyless": f"({COLUMNS})",
    "indexed": f"({COLUMNS}, PRIMARY KEY (id), UNIQUE (grp, id)) WITH (fillfactor = 60)",
    "narrow": "(id bigint PRIMARY KEY, grp int, note text, big text)",
    # By what no session changes: a row that moves would be two events.
    "divided": f"({COLUMNS}) PARTITION BY HASH (at)",
}
# One as the table, one with its columns in another order, one with dropped ones among them.
PARTITIONS = (
    "CREATE TABLE divided_0 PARTITION OF divided FOR VALUES WITH (MODULUS 3, REMAINDER 0)",
    "CREATE TABLE divided_1 (big text, doc jsonb, at timestamptz DEFAULT clock_timestamp(), ratio float8,"
    " amount numeric(20,4), note text, grp int, id bigint)",
    "ALTER TABLE divided ATTACH PARTITION divided_1 FOR VALUES WITH (MODULUS 3, REMAINDER 1)",
    f"CREATE TABLE divided_2 (gone int, {COLUMNS})",
    "ALTER TABLE divided_2 DROP gone",
    "ALTER TABLE divided ATTACH PARTITION divided_2 FOR VALUES WITH (MODULUS 3, REMAINDER 2)",
    *(f"ALTER TABLE divided_{n} REPLICA IDENTITY FULL" for n in range(3)),
)
KEYLESS = ("keyless", "divided")

# What sessions do to each other; the transaction is rolled back.
COLLISIONS = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
    psycopg.errors.LockNotAvailable,
)


class Session:
    """One writer, with its own dice."""

    def __init__(self, feed, seed, number):
        self.dice = random.Random(f"{seed}/{number}")
        self.conn = feed.session(autocommit=False, lock_timeout="5s")
        self.number = number
        self.made = 0
        self.committed = 0

    def run(self, until):
        while not until():
            try:
                self.transaction()
            except COLLISIONS:
                self.conn.rollback()

    def transaction(self):
        dice = self.dice
        for _ in range(dice.choice((1, 1, 2, 3, 8))):
            self.step(depth=0)
        end = dice.random()
        if end < 0.15:
            self.conn.rollback()
        elif end < 0.25:
            self.prepare()
        else:
            self.conn.commit()
            self.committed += 1

    def prepare(self):
        name = f"p{self.number}_{self.made}_{self.dice.randrange(10**9)}"
        self.conn.execute(f"PREPARE TRANSACTION '{name}'")
        self.conn.commit()
        self.conn.autocommit = True
        kept = self.dice.random() < 0.7
        self.conn.execute(f"{'COMMIT' if kept else 'ROLLBACK'} PREPARED '{name}'")
        self.conn.autocommit = False
        self.committed += kept

    def step(self, depth):
        dice = self.dice
        if depth < 3 and dice.random() < 0.2:
            self.savepoint(depth)
            return
        table = dice.choice(list(TABLES))
        action = dice.choice(
            (self.insert, self.insert, self.copy, self.upsert, self.update, self.update,
             self.update_nothing, self.change_key, self.change_big, self.delete)
        )  # fmt: skip
        action(table)

    def savepoint(self, depth):
        name = f"s{depth}"
        self.conn.execute(f"SAVEPOINT {name}")
        try:
            for _ in range(self.dice.randint(1, 4)):
                self.step(depth + 1)
        except COLLISIONS[:1]:
            self.conn.execute(f"ROLLBACK TO {name}")
        if self.dice.random() < 0.4:
            self.conn.execute(f"ROLLBACK TO {name}")
        self.conn.execute(f"RELEASE {name}")

    # --- values

    def fresh(self):
        self.made += 1
        return self.number * 10**9 + self.made

    def text(self):
        return self.dice.choice(("", "plain", "ünï ☃ 🐘", "quote ' \" \\ \n", None, "x" * self.dice.randint(1, 300)))

    def big(self):
        """Sometimes long enough to be stored out of line."""
        length = self.dice.choice((0, 10, 500, 5000, 60000))
        return None if length == 0 else self.dice.randbytes(length // 2).hex()

    def values(self, table, id):
        dice = self.dice
        given = {"id": id, "grp": dice.choice((None, dice.randint(0, 50))), "note": self.text(), "big": self.big()}
        if table == "narrow":
            return given
        return given | {
            "amount": dice.choice((None, "NaN", "0", "-1.5", "1234567890123456.7891")),
            "ratio": dice.choice((None, "NaN", "Infinity", "-0", "0.1", "1e-300")),
            "doc": dice.choice((None, '{"b": [1, null], "a": "☃"}', "[]", "1.50")),
        }  # fmt: skip

    def some_ids(self, table, most=5):
        """Ids that are likely there: its own and others'."""
        low = self.dice.randrange(SESSIONS) * 10**9 + self.dice.randint(0, max(self.made, 1))
        found = self.conn.execute(f"SELECT id FROM {table} WHERE id >= %s ORDER BY id LIMIT %s", [low, most])
        return [id for (id,) in found]

    # --- actions

    def insert(self, table):
        for _ in range(self.dice.choice((1, 1, 3, 20))):
            self.insert_one(table, self.fresh())

    def insert_one(self, table, id, suffix=""):
        given = self.values(table, id)
        names, marks = ", ".join(given), ", ".join(["%s"] * len(given))
        self.conn.execute(f"INSERT INTO {table} ({names}) VALUES ({marks}) {suffix}", list(given.values()))

    def copy(self, table):
        given = [self.values(table, self.fresh()) for _ in range(self.dice.choice((1, 10, 50)))]
        with self.conn.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(given[0])}) FROM STDIN") as copy:
            for row in given:
                copy.write_row(list(row.values()))

    def upsert(self, table):
        if table in KEYLESS:
            return self.insert(table)
        id = self.dice.choice(self.some_ids(table) or [self.fresh()])
        what = self.dice.choice(("NOTHING", "UPDATE SET note = excluded.note, grp = excluded.grp"))
        self.insert_one(table, id, f"ON CONFLICT (id) DO {what}")

    def update(self, table):
        ids = self.some_ids(table)
        self.conn.execute(f"UPDATE {table} SET note = %s WHERE id = ANY(%s)", [self.text(), ids])

    def update_nothing(self, table):
        self.conn.execute(f"UPDATE {table} SET note = note, id = id WHERE id = ANY(%s)", [self.some_ids(table)])

    def change_key(self, table):
        for id in self.some_ids(table, 2):
            self.conn.execute(f"UPDATE {table} SET id = %s WHERE id = %s", [self.fresh(), id])

    def change_big(self, table):
        self.conn.execute(f"UPDATE {table} SET big = %s WHERE id = ANY(%s)", [self.big(), self.some_ids(table, 2)])

    def delete(self, table):
        self.conn.execute(f"DELETE FROM {table} WHERE id = ANY(%s)", [self.some_ids(table, 4)])


def create_tables(feed):
    for table, ddl in TABLES.items():
        feed.table(f"{table} {ddl}")
    for statement in PARTITIONS:
        feed.sql(statement)


def make_tables(feed):
    """The tables, and an audit kept by triggers in a schema that is not fed."""
    feed.sql("CREATE SCHEMA audit")
    feed.sql("CREATE TABLE audit.log (relation text, xid bigint, operation text)")
    feed.sql(
        "CREATE FUNCTION audit.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO audit.log VALUES"
        " (TG_ARGV[0], pg_current_xact_id()::text::bigint & 4294967295, lower(TG_OP)); RETURN NULL; END $$"
    )
    create_tables(feed)
    for table in TABLES:
        feed.sql(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
        feed.sql(
            f"CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION audit.note('{table}')"
        )


OPERATIONS = {"insert": "insert", "delete": "delete", "update_postimage": "update"}


def test_random_transactions(make_feed, request, seed, capsys):
    seconds = request.config.getoption("--random-seconds")
    with capsys.disabled():
        print(f"\nrandomised test: --seed {seed} --random-seconds {seconds:g}", flush=True)
    feed = make_feed("chaos")
    make_tables(feed)
    sessions = [Session(feed, seed, number) for number in range(SESSIONS)]
    with Running(sessions) as running:
        running.wait_for(lambda: all(session.committed > 3 for session in sessions), "every session to write")
        # Started in the midst of it all, and cut off at once.
        feed.start()
        feed.cluster.terminate_feed_worker()
        running.wait_for(lambda: all(feed.status(table) == "STREAMING" for table in TABLES), "all tables to stream")
        # Transactions that begin from here on are in no snapshot.
        horizon = feed.value("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
        terminations = terminate_workers(feed, running, seconds, random.Random(f"{seed}/terminations"))

    counts = []
    for table in TABLES:
        rows = feed.check(table)
        compare_with_audit(feed, table, rows, horizon)
        for reader in READERS[1:]:
            assert feed.rows(table, reader) == rows, reader.name
        counts.append(f"{table} {len(rows)} rows, {len(feed.table_rows(table))} live")
    committed = sum(session.committed for session in sessions)
    events = feed.value("SELECT count(*) FROM audit.log WHERE xid >= %s", [horizon])
    with capsys.disabled():
        print(f"seed {seed}: {committed} transactions, {events} audited events, {terminations} terminations")
        print("; ".join(counts), flush=True)
    feed.sql("DROP SCHEMA audit CASCADE")
    assert committed > 20 and terminations > 1 and events > 100


class Running:
    """The sessions, each in its thread."""

    def __init__(self, sessions):
        self.sessions = sessions
        self.failed = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._work, args=[one], daemon=True) for one in sessions]

    def _work(self, session):
        try:
            session.run(lambda: self.over.is_set() or self.failed)
        except BaseException as error:
            self.failed.append(error)

    def wait_for(self, condition, what, timeout=90):
        wait_for(lambda: self.failed or condition(), timeout, what)
        if self.failed:
            raise self.failed[0]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()
        for session in self.sessions:
            session.conn.close()
        if kind is None and self.failed:
            raise self.failed[0]


def terminate_workers(feed, running, seconds, dice):
    """Terminates the feed worker at random moments for `seconds`; how often."""
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        moment = min(end, time.monotonic() + min(dice.uniform(0.2, 4), seconds / 4))
        running.wait_for(lambda moment=moment: time.monotonic() >= moment, "the next termination")
        feed.cluster.terminate_feed_worker()
        count += 1
    return count


def compare_with_audit(feed, table, rows, horizon):
    """The multiset of (xid, operation) is that of the audit, for every
    transaction that came by the stream; and those from `horizon` on all did."""
    streamed = [row for row in rows if row.lsn > rows[0].lsn]
    came = {row.xid for row in streamed}
    found = Counter((row.xid, OPERATIONS[row.change]) for row in streamed if row.change in OPERATIONS)
    noted = feed.sql("SELECT xid, operation, count(*) FROM audit.log WHERE relation = %s GROUP BY 1, 2", [table])
    expected = Counter({(xid, what): n for xid, what, n in noted if xid >= horizon or xid in came})
    missing, extra = expected - found, found - expected
    assert not missing, f"{table}: events that the history lacks: {list(missing.items())[:10]}"
    assert not extra, f"{table}: events that never were: {list(extra.items())[:10]}"
    assert max(came) >= horizon
