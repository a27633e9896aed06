"""The loads: each has its own tables, one first row in each (so that the feed
streams before the load), and transactions. All scale with `rows`, the number
of inserts of the shape `orders`."""

from dataclasses import dataclass, field

ORDERS_COLUMNS = """id bigint PRIMARY KEY, customer_id int NOT NULL, status text NOT NULL, amount numeric(12,2),
    qty int, price double precision, created_at timestamptz NOT NULL, updated_at timestamp, paid boolean,
    note text, attrs jsonb"""

# g is the row's number.
ORDERS_VALUES = """g, g % 10000, (array['new', 'paid', 'shipped', 'cancelled'])[1 + g % 4], (g % 100000) / 100.0,
    g % 10, g * 0.37, '2026-01-01'::timestamptz + g * interval '1 second',
    '2026-01-01'::timestamp + g * interval '1 second', g % 2 = 0, 'note for order ' || g || ' ' || md5(g::text),
    jsonb_build_object('k', g % 100, 'v', md5((g + 1)::text))"""


@dataclass
class Shape:
    """`tables` is {name: columns}; `before` runs once they are there, `load` is
    one transaction a statement. `script`, a pgbench script, then runs
    `transactions` times. The counts are those of `load` and `script`."""

    name: str
    about: str
    tables: dict
    before: list
    load: list = field(default_factory=list)
    script: str = ""
    transactions: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0

    @property
    def changes(self):
        return self.inserts + self.updates + self.deletes

    @property
    def history_rows(self):
        """An update is two rows of the history."""
        return self.changes + self.updates


def insert(table, values, first, last):
    return f"INSERT INTO {table} SELECT {values} FROM generate_series({first}, {last}) g"


def blocks(table, values, rows, block):
    """Inserts of `rows` rows numbered from 1, `block` in a transaction."""
    return [insert(table, values, first, min(first + block - 1, rows)) for first in range(1, rows + 1, block)]


def plain(name, about, columns, values, rows, block):
    """A shape of one table with inserts alone."""
    # A table gives its name to a type, and some shapes are named after types.
    table = f"{name}_rows"
    return Shape(
        name,
        f"{about}; {rows:,} inserts, {min(block, rows):,} a transaction",
        {table: columns},
        [insert(table, values, 0, 0)],
        blocks(table, values, rows, block),
        inserts=rows,
    )


def orders(rows):
    block = max(rows // 200, 1)
    updated, deleted = rows // 4 // block, rows // 20 // block
    load = blocks("orders", ORDERS_VALUES, rows, block)
    part = [f"id > {n * block} AND id <= {(n + 1) * block}" for n in range(updated)]
    load += [f"UPDATE orders SET status = 'updated', updated_at = now() WHERE {one}" for one in part]
    load += [f"DELETE FROM orders WHERE {one}" for one in part[:deleted]]
    return Shape(
        "orders",
        f"11 columns; {rows:,} inserts, {updated * block:,} updates, {deleted * block:,} deletes, "
        f"{block:,} a transaction",
        {"orders": ORDERS_COLUMNS},
        [insert("orders", ORDERS_VALUES, 0, 0)],
        load,
        inserts=rows,
        updates=updated * block,
        deletes=deleted * block,
    )


def narrow(rows):
    return plain("narrow", "2 columns", "id bigint PRIMARY KEY, n int", "g, g % 1000", rows, max(rows // 200, 1))


def wide(rows):
    kinds = [("int", "g % 1000"), ("text", "'v' || g % 5000"), ("float8", "g * 0.5"), ("timestamptz", "now()")]
    columns = ", ".join(f"c{n} {kinds[n % 4][0]}" for n in range(1, 100))
    values = ", ".join(kinds[n % 4][1] for n in range(1, 100))
    return plain("wide", "100 columns", f"id bigint PRIMARY KEY, {columns}", f"g, {values}", max(rows // 10, 1), 1000)


def text(rows):
    # 63 hashes of 32 characters and a number: about 2 kB, stored in the row and hard to compress.
    body = "(SELECT string_agg(md5((g * 64 + i)::text), '') FROM generate_series(1, 63) i)"
    return plain("text", "text of 2 kB", "id bigint PRIMARY KEY, body text", f"g, {body}", max(rows // 10, 1), 1000)


def numeric(rows):
    sizes = [(12, 2), (18, 6), (38, 10), (9, 0)]
    columns = ", ".join(f"n{n} numeric({sizes[n % 4][0]},{sizes[n % 4][1]})" for n in range(16))
    values = ", ".join(f"(g::numeric * {7919 + n} % 100000000) / {10 ** sizes[n % 4][1]}" for n in range(16))
    return plain(
        "numeric", "16 numeric columns", f"id bigint PRIMARY KEY, {columns}", f"g, {values}", max(rows // 4, 1), 5000
    )


def single(rows):
    """Transactions of one row, from 4 sessions."""
    count = max(rows // 10 // 4, 1) * 4
    return Shape(
        "single",
        f"11 columns; {count:,} transactions of one insert, from 4 sessions",
        {"single": ORDERS_COLUMNS},
        ["CREATE SEQUENCE numbers CACHE 1000", insert("single", ORDERS_VALUES, 0, 0)],
        [],
        "INSERT INTO single SELECT " + ORDERS_VALUES.replace("\n", " ") + " FROM nextval('numbers') g;\n",
        count,
        inserts=count,
    )


MIDDLE_COLUMNS = "id bigint, a int, b text, c timestamptz"
MIDDLE_VALUES = "g, g % 1000, md5(g::text), now()"


def huge(rows):
    return plain("huge", "4 columns, one transaction", MIDDLE_COLUMNS, MIDDLE_VALUES, rows * 5, rows * 5)


def middle(rows, block=10_000):
    return plain("middle", "4 columns", MIDDLE_COLUMNS, MIDDLE_VALUES, rows, block)


def many(rows, tables=100, block=1000):
    """Each transaction writes about `block` rows, the same number to each table."""
    each = max(block // tables, 1)
    transactions = max(rows // (each * tables), 1)
    names = [f"t{n}" for n in range(tables)]
    inserts = "; ".join(insert(name, MIDDLE_VALUES, "first", f"first + {each - 1}") for name in names)
    fill = f"CREATE FUNCTION fill(first bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN {inserts}; END $$"
    return Shape(
        f"{tables} tables",
        f"4 columns; {transactions * each * tables:,} inserts, {each} to each of {tables:,} tables in a transaction",
        {name: MIDDLE_COLUMNS for name in names},
        [insert(name, MIDDLE_VALUES, 0, 0) for name in names] + [fill],
        [f"SELECT fill({1 + n * each})" for n in range(transactions)],
        inserts=transactions * each * tables,
    )


def toast(rows):
    """Updates of one small column of rows with 8 kB stored out of line."""
    count, block = max(rows // 40, 1), 1000
    body = "(SELECT string_agg(md5((g * 256 + i)::text), '') FROM generate_series(1, 256) i)"
    parts = range(0, count, block)
    return Shape(
        "toast",
        f"8 kB of text out of line; {count:,} updates of another column, {min(block, count):,} a transaction",
        {"toast": "id bigint PRIMARY KEY, n int, body text STORAGE EXTERNAL"},
        blocks("toast", f"g, 0, {body}", count, block),
        [f"UPDATE toast SET n = n + 1 WHERE id > {n} AND id <= {min(n + block, count)}" for n in parts],
        updates=count,
    )


# By the names that --shapes takes.
SHAPES = {
    "orders": orders,
    "narrow": narrow,
    "wide": wide,
    "text": text,
    "numeric": numeric,
    "single": single,
    "huge": huge,
    "many": lambda rows: many(rows // 2),
    "toast": toast,
}
