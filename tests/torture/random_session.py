"""The sessions of the randomised test, over two fed schemas, with prepared
transactions that outlive the session, and the server, that prepared them."""

import random

import psycopg
from test_random import TABLES, Session, create_tables

from . import audit
from .writer import Writer

# Prepared transactions hold their locks: a few are enough to be in the way.
MOST_PREPARED = 4
# Rows of a table from which on it is made smaller.
LARGE = 2000

# Another session was faster.
TAKEN = (psycopg.errors.UndefinedObject, psycopg.errors.ObjectNotInPrerequisiteState)


def make_tables(feed):
    create_tables(feed)
    for table in TABLES:
        feed.sql(f"ALTER TABLE {table} ALTER big SET STORAGE EXTERNAL")
        for trigger in audit.witness(table):
            feed.sql(trigger)


class RandomSession(Writer, Session):
    def __init__(self, feeds, seed, number):
        Writer.__init__(self, feeds[0], random.Random(f"{seed}/session {number}"))
        self.schemas = [feed.schema for feed in feeds]
        self.number = number
        self.made = 0

    def transaction(self):
        dice = self.dice
        # The machine is to be busy with the feed, not with its load.
        self.gate.rest(dice.expovariate(20))
        if dice.random() < 0.1:
            self.end_prepared()
            return
        for _ in range(dice.choice((1, 1, 2, 3, 8))):
            self.step(depth=0)
        end = dice.random()
        if end < 0.15:
            self.rollback()
        elif end < 0.3 and len(self.prepared()) < MOST_PREPARED:
            self.prepare()
        else:
            self.commit()

    def step(self, depth):
        self.sql(f"SET LOCAL search_path = {self.dice.choice(self.schemas)}")
        if self.dice.random() < 0.02:
            self.make_smaller(self.dice.choice(list(TABLES)))
        else:
            super().step(depth)

    def make_smaller(self, table):
        [(rows,)] = self.sql(f"SELECT count(*) FROM {table}")
        if rows > LARGE:
            self.sql(f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id LIMIT %s)", [rows // 2])

    def big(self):
        """Now and then long enough to be stored out of line."""
        length = self.dice.choices((0, 10, 500, 5000, 60000), (50, 30, 16, 3, 1))[0]
        return None if length == 0 else self.dice.randbytes(length // 2).hex()

    # --- prepared transactions

    def prepared(self):
        return [gid for (gid,) in self.sql("SELECT gid FROM pg_prepared_xacts ORDER BY gid")]

    def prepare(self):
        self.sql(f"PREPARE TRANSACTION 'p{self.number}_{self.made}_{self.dice.randrange(10**9)}'")
        self.conn.commit()
        self.ends["prepared"] += 1

    def end_prepared(self):
        """Ends one, whoever prepared it."""
        waiting = self.prepared()
        self.conn.rollback()
        if not waiting:
            return
        verb = "COMMIT" if self.dice.random() < 0.7 else "ROLLBACK"
        self.conn.autocommit = True
        try:
            self.sql(f"{verb} PREPARED '{self.dice.choice(waiting)}'")
            self.ends[f"{verb.lower()} prepared"] += 1
        except TAKEN:
            self.ends["collided"] += 1
        self.conn.autocommit = False


def end_all_prepared(cluster, dice):
    for (gid,) in cluster.sql("SELECT gid FROM pg_prepared_xacts ORDER BY gid"):
        cluster.sql(f"{dice.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{gid}'")
