"""Steady writers in the background: small random transactions over tables
`(id bigint PRIMARY KEY, n int, pad text)`, for tests that need a load and do
not care which."""

import itertools
import random
import threading

import psycopg

from .waiting import wait_for

# Ids that no load of this process used before, in blocks.
BLOCK = 1000
FRESH = itertools.count(10_000_000, BLOCK)

# What a writer may meet while others write and servers end: it goes on.
PASSING = (psycopg.OperationalError, psycopg.errors.UniqueViolation, psycopg.InterfaceError)


class Load:
    def __init__(self, feed, *tables, sessions=2, seed=1, rows=20):
        self.feed, self.tables, self.rows = feed, tables, rows
        self.done = 0
        self.errors = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._write, args=[random.Random(seed * 1000 + n)], daemon=True)
            for n in range(sessions)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        if kind is None:
            assert not self.errors, self.errors[0]

    def wait_for_transactions(self, count, timeout=120):
        """Until `count` more have been committed."""
        target = self.done + count
        wait_for(lambda: self.errors or self.done >= target, timeout, f"{count} transactions of the load")
        assert not self.errors, self.errors[0]

    def _write(self, chance):
        conn = None
        while not self._stop.is_set():
            try:
                if conn is None or conn.broken:
                    conn = self.feed.session(autocommit=False)
                self._transaction(conn, chance)
                conn.commit()
                with self._lock:
                    self.done += 1
            except PASSING:
                self._roll_back(conn)
            except Exception as error:
                self.errors.append(error)
                return
        if conn is not None:
            conn.close()

    @staticmethod
    def _roll_back(conn):
        try:
            if conn is not None:
                conn.rollback()
        except psycopg.Error:
            pass

    def _transaction(self, conn, chance):
        for _ in range(chance.randint(1, 3)):
            table = chance.choice(self.tables)
            what = chance.random()
            if what < 0.4:
                first = next(FRESH)
                conn.execute(
                    f"INSERT INTO {table} SELECT g, %s, repeat('y', %s) FROM generate_series(%s::bigint, %s) g",
                    [chance.randint(0, 9), chance.randint(0, 200), first, first + chance.randint(0, self.rows)],
                )
            elif what < 0.8:
                conn.execute(
                    f"UPDATE {table} SET n = n + 1 WHERE id IN"
                    f" (SELECT id FROM {table} WHERE id >= %s ORDER BY id LIMIT %s)",
                    [chance.choice((chance.randint(1, 100_000), next(FRESH) - 20 * BLOCK)), self.rows],
                )
            else:
                conn.execute(
                    f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id DESC LIMIT %s)",
                    [chance.randint(1, 3)],
                )
