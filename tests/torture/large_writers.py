"""Large transactions and large values, each in a table of its own so that the
other tables are checked quickly."""

import time

from . import audit
from .writer import Writer

# Repeated in a large value: long for the WAL, short in Parquet.
BLOCK = 16_384


class BulkWriter(Writer):
    """Fills a table in one transaction, changes a part, empties it."""

    def __init__(self, feed, dice, scale):
        super().__init__(feed, dice)
        self.scale = scale
        self.due = time.monotonic()

    @staticmethod
    def make_table(feed):
        feed.table("bulk (id bigint PRIMARY KEY, grp int, note text)")
        for trigger in audit.witness("bulk"):
            feed.sql(trigger)

    def transaction(self):
        [(filled,)] = self.sql("SELECT EXISTS (SELECT FROM bulk)")
        if not filled:
            self.conn.rollback()
            self.gate.rest(self.due - time.monotonic())
            self.due = time.monotonic() + self.dice.uniform(*self.scale.bulk_rest)
            self.fill()
        elif self.dice.random() < 0.3:
            self.sql("UPDATE bulk SET grp = grp + 1 WHERE id %% 7 = %s", [self.dice.randrange(7)])
        else:
            self.sql("DELETE FROM bulk")
        self.commit()

    def fill(self):
        first = self.dice.randrange(2**40)
        half = self.scale.bulk_rows // 2
        insert = "INSERT INTO bulk SELECT %s::bigint + i, i %% 100, md5(i::text) FROM generate_series(%s::bigint, %s) i"
        self.sql(insert, [first, 1, half])
        self.sql("SAVEPOINT half")
        self.sql(insert, [first, half + 1, 2 * half])
        if self.dice.random() < 0.3:
            self.sql("ROLLBACK TO half")


class WideWriter(Writer):
    """A few rows with values of some megabytes."""

    ROWS = 3

    def __init__(self, feed, dice, scale):
        super().__init__(feed, dice)
        self.scale = scale
        self.made = 0

    @staticmethod
    def make_table(feed):
        feed.table("wide (id bigint PRIMARY KEY, note text, big text)")
        feed.sql("ALTER TABLE wide ALTER big SET STORAGE EXTERNAL")
        for trigger in audit.witness("wide"):
            feed.sql(trigger)

    def transaction(self):
        self.gate.rest(self.dice.uniform(*self.scale.wide_rest))
        ids = [id for (id,) in self.sql("SELECT id FROM wide ORDER BY id")]
        if len(ids) >= self.ROWS:
            self.sql("DELETE FROM wide WHERE id = %s", [self.dice.choice(ids)])
        elif not ids or self.dice.random() < 0.6:
            self.made += 1
            self.sql("INSERT INTO wide VALUES (%s, 'new', %s)", [self.made, self.value()])
        elif self.dice.random() < 0.5:
            # The value stays where it is, and is not in the WAL's new row.
            self.sql("UPDATE wide SET note = note || '.' WHERE id = %s", [self.dice.choice(ids)])
        else:
            self.sql("UPDATE wide SET big = %s WHERE id = %s", [self.value(), self.dice.choice(ids)])
        self.commit()

    def value(self):
        length = self.dice.randrange(1_000_000, self.scale.wide_most)
        block = self.dice.randbytes(BLOCK).hex()
        return (block * (length // len(block) + 1))[:length]
