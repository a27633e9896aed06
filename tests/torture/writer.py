"""A session that goes on after its connection has broken."""

from collections import Counter

import psycopg
from harness.cluster import run
from harness.waiting import wait_for
from test_random import COLLISIONS

# What a session reads when the server ends it; the connection may look whole
# for a moment longer.
ENDED = (psycopg.errors.AdminShutdown, psycopg.errors.CrashShutdown, psycopg.errors.CannotConnectNow)


def is_lost(conn, error):
    """Whether the error came with the end of the connection."""
    return conn.closed or isinstance(error, ENDED)


class Writer:
    """One session with its own dice, in one of the load's threads. A subclass
    says what a transaction is."""

    def __init__(self, feed, dice):
        self.feed = feed
        self.dice = dice
        self.gate = None
        self.conn = self.connect()
        # What became of its transactions.
        self.ends = Counter()

    def connect(self):
        return self.feed.session(autocommit=False, lock_timeout="1s")

    def sql(self, query, params=None):
        return run(self.conn, query, params)

    # --- life

    def run(self, gate):
        self.gate = gate
        while gate.enter():
            try:
                self.attempt()
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                if not is_lost(self.conn, error):
                    raise
                self.ends["cut off"] += 1
                self.reconnect()
        self.conn.close()

    def attempt(self):
        try:
            self.transaction()
        except COLLISIONS:
            self.conn.rollback()
            self.ends["collided"] += 1

    def reconnect(self):
        self.conn.close()
        wait_for(lambda: self.gate.over or self.connects(), 180, "the server to take connections")

    def connects(self):
        try:
            self.conn = self.connect()
        except psycopg.OperationalError:
            return False
        return True

    # --- ends of a transaction

    def commit(self):
        try:
            self.conn.commit()
        except psycopg.OperationalError:
            # It may have been committed. The audit knows: it was part of it.
            self.ends["of unknown outcome"] += 1
            raise
        self.ends["committed"] += 1

    def rollback(self):
        self.conn.rollback()
        self.ends["rolled back"] += 1

    def transaction(self):
        raise NotImplementedError
