"""Tables that come and go while everything runs: created in a fed schema, or
filled elsewhere and moved into it, so that they are copied."""

from . import audit
from .writer import Writer

# Where tables are that will be moved.
OUTSIDE = "outside"

# Created in a fed schema: every change is an event.
PASSING = "passing"
# Moved into it with rows: copied first.
MOVED = "moved"

# Living at the same time, in each schema.
MOST = 4


class TableMaker(Writer):
    def __init__(self, feed, dice):
        super().__init__(feed, dice)
        self.made = 0

    def transaction(self):
        dice = self.dice
        self.gate.rest(dice.expovariate(3))
        living = self.living()
        if len(living) < 2 or (len(living) < MOST and dice.random() < 0.1):
            dice.choice((self.create, self.move_in))()
        elif len(living) >= MOST and dice.random() < 0.2:
            self.sql(f"DROP TABLE {dice.choice(living)}")
        else:
            self.write(dice.choice(living))
        if dice.random() < 0.1:
            self.rollback()
        else:
            self.commit()

    def living(self):
        """Those that it made, by name."""
        return self.tables(self.feed.schema, PASSING) + self.tables(self.feed.schema, MOVED)

    def tables(self, schema, kind):
        rows = self.sql(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r'"
            " AND starts_with(relname, %s) ORDER BY relname",
            [schema, f"{kind}_{self.feed.schema}_"],
        )
        return [name for (name,) in rows]

    def create(self):
        name = self.make_table(PASSING, self.feed.schema)
        self.insert(name, 1, self.dice.randint(1, 200))

    def move_in(self):
        # One is there already if the move of an earlier one was rolled back.
        waiting = self.tables(OUTSIDE, MOVED)
        name = waiting[0] if waiting else self.prepare_move()
        self.sql(f"ALTER TABLE {OUTSIDE}.{name} SET SCHEMA {self.feed.schema}")

    def prepare_move(self):
        """A table outside, with rows; committed, as changes after the move have
        to be told from those before."""
        name = self.make_table(MOVED, OUTSIDE)
        self.sql(f"ALTER TABLE {OUTSIDE}.{name} REPLICA IDENTITY FULL")
        self.insert(f"{OUTSIDE}.{name}", 1, self.dice.choice((300, 5000, 40000)))
        self.commit()
        return name

    def make_table(self, kind, schema):
        self.made += 1
        name = f"{kind}_{self.feed.schema}_{self.made}"
        self.sql(f"CREATE TABLE {schema}.{name} (id bigint PRIMARY KEY, grp int, note text)")
        for trigger in audit.witness(f"{schema}.{name}"):
            self.sql(trigger)
        return name

    def insert(self, table, first, count):
        self.sql(
            f"INSERT INTO {table} SELECT i, i %% 10, repeat(md5(i::text), 3) FROM generate_series(%s::bigint, %s) i",
            [first, first + count - 1],
        )

    def write(self, table):
        dice = self.dice
        for _ in range(dice.randint(1, 3)):
            what = dice.random()
            if what < 0.4:
                [(last,)] = self.sql(f"SELECT coalesce(max(id), 0) FROM {table}")
                self.insert(table, last + 1, dice.randint(1, 50))
            elif what < 0.8:
                self.sql(f"UPDATE {table} SET grp = grp + 1 WHERE id %% 97 = %s", [dice.randrange(97)])
            else:
                self.sql(f"DELETE FROM {table} WHERE id %% 53 = %s", [dice.randrange(53)])
