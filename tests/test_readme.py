"""The first feed of README.md, as it stands there."""

import re
from pathlib import Path

from harness.readers import DuckDB

README = Path(__file__).parents[1] / "README.md"
LAKE = "/var/lib/postgresql/lake"


def test_a_first_feed(cluster):
    text = README.read_text()
    section = text.partition("## A first feed\n")[2].partition("\n## ")[0]
    feed, history, total = re.findall(r"^```sql\n(.*?)^```$", section, flags=re.M | re.S)
    lake = str(cluster.folder_for("readme"))
    # Each statement is a transaction of its own, as in psql.
    for statement in re.sub("--.*", "", feed).split(";"):
        if "CREATE EXTENSION" not in statement and statement.strip():
            cluster.sql(statement.replace(LAKE, lake))
    assert cluster.sql("SELECT source_table, status FROM wal2delta.tables") == [("orders", "STREAMING")]
    rows = DuckDB().connection.execute(history.replace(LAKE, lake)).fetchall()
    told = [line.strip("|").split("|") for line in re.findall(r"^\| \d.*$", section, flags=re.M)]
    assert [tuple(str(value) for value in row) for row in rows] == [
        tuple(cell.strip() for cell in cells) for cells in told
    ]
    assert DuckDB().connection.execute(total.replace(LAKE, lake)).fetchall() == [("tea", 0)]
    cluster.sql("SELECT wal2delta.stop('shop'); DROP SCHEMA shop CASCADE")
