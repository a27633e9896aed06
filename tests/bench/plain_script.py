"""The changes of one Postgres table into one Delta table, as such scripts are
commonly written: psycopg2 receives wal2json, lists of dicts become Arrow, and
every 15 s or 100,000 rows `write_deltalake` appends them. It stands here to be
compared with; it is at least once, knows no schema changes, and makes floats
of numerics and strings of times.

    python plain_script.py DSN SCHEMA.TABLE FOLDER --slot NAME [--until LSN]"""

import argparse
import json
import time

import psycopg2
import psycopg2.extras
import pyarrow as pa
from deltalake import write_deltalake

SECONDS = 15
ROWS = 100_000

ARROW_TYPES = {
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "numeric": pa.float64(),
    "boolean": pa.bool_(),
}
METADATA = [
    ("_change_type", pa.string()),
    ("_lsn", pa.string()),
    ("_xid", pa.int64()),
    ("_committed_at", pa.string()),
]


def arrow_schema(dsn, table):
    schema, name = table.split(".")
    with psycopg2.connect(dsn) as conn, conn.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, data_type FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            (schema, name),
        )
        return pa.schema([(column, ARROW_TYPES.get(kind, pa.string())) for column, kind in cursor] + METADATA)


def lsn_number(text):
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


class Consumer:
    def __init__(self, schema, folder, until):
        self.schema, self.folder, self.until = schema, folder, until
        self.rows = []
        self.transaction = {}
        self.written_at = time.monotonic()

    def __call__(self, message):
        change = json.loads(message.payload)
        action = change["action"]
        if action == "B":
            self.transaction = {
                "_lsn": change["lsn"],
                "_xid": change["xid"],
                "_committed_at": change["timestamp"],
            }
        elif action == "I":
            self.add("insert", change["columns"])
        elif action == "U":
            self.add("update_preimage", change["identity"])
            self.add("update_postimage", change["columns"])
        elif action == "D":
            self.add("delete", change["identity"])
        elif action == "C":
            done = self.until is not None and lsn_number(change["lsn"]) >= self.until
            if done or len(self.rows) >= ROWS or time.monotonic() - self.written_at >= SECONDS:
                self.write()
                message.cursor.send_feedback(flush_lsn=message.data_start)
            if done:
                raise psycopg2.extras.StopReplication

    def add(self, change_type, columns):
        row = {column["name"]: column["value"] for column in columns}
        row["_change_type"] = change_type
        row.update(self.transaction)
        self.rows.append(row)

    def write(self):
        if self.rows:
            write_deltalake(self.folder, pa.Table.from_pylist(self.rows, schema=self.schema), mode="append")
            self.rows = []
        self.written_at = time.monotonic()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("dsn")
    parser.add_argument("table")
    parser.add_argument("folder")
    parser.add_argument("--slot", required=True)
    parser.add_argument("--until", help="end after the first transaction that commits at or past this LSN")
    options = parser.parse_args()
    schema = arrow_schema(options.dsn, options.table)
    until = lsn_number(options.until) if options.until else None
    conn = psycopg2.connect(options.dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    cursor = conn.cursor()
    cursor.start_replication(
        slot_name=options.slot,
        decode=True,
        options={
            "format-version": "2",
            "include-lsn": "1",
            "include-xids": "1",
            "include-timestamp": "1",
            "add-tables": options.table,
        },
    )
    try:
        cursor.consume_stream(Consumer(schema, options.folder, until))
    except psycopg2.extras.StopReplication:
        pass


if __name__ == "__main__":
    main()
