"""Helpers for tests of DDL: the modes of a feed, where a table's history lies by now, checks of
every version of it, and servers whose feed worker is withheld."""

from contextlib import contextmanager

from .deltalog import DeltaLog, log_problems
from .history import Broken, Row, check, order_problems, replay, table_problems
from .readers import DELTA_RS, read_by_all, read_history

RESNAPSHOT, EVOLVE_MODE = "resnapshot", "evolve"

# Whether the tests of `on_schema_change = evolve` are collected.
EVOLVE = True
MODES = [RESNAPSHOT, EVOLVE_MODE] if EVOLVE else [RESNAPSHOT]

# What Delta can widen by metadata alone.
WIDER = {("byte", "short"), ("byte", "integer"), ("byte", "long"), ("short", "integer"), ("short", "long"),
         ("integer", "long"), ("float", "double"), ("integer", "double"), ("short", "double")}  # fmt: skip


def columns(feed, table):
    """The table's columns in their order."""
    return [name for (name,) in feed.sql(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum", [table]
    )]  # fmt: skip


def home(feed, table):
    """Where the table's history lies, as the view says: a renamed table keeps its folder."""
    # Not its times: psycopg reads those in the ISO style alone.
    row = feed.view(table, "destination")
    assert row and row["destination"], f"{table} has no history: {row}"
    folder = row["destination"].removeprefix("file://").rstrip("/").removeprefix(f"{feed.destination}/")
    assert "/" not in folder, f"{row['destination']} is not in {feed.destination}"
    return feed.destination / folder


def log_of(feed, table):
    return DeltaLog(home(feed, table))


def check_table(feed, table, mode=RESNAPSHOT, lost=()):
    """Flushes; the history, wherever it lies, is the same through all readers and replays to the table.
    `lost`: columns whose values in rows written before they were added an `evolve` history does not
    have. Returns its rows."""
    feed.flush()
    path = home(feed, table)
    rows = read_by_all(path)
    log = DeltaLog(path)
    if mode == EVOLVE_MODE and not log.replacements():
        check_evolved(feed, table, log, rows, lost)
        return rows
    names = [field.name for field in log.schema()][:-5]
    assert names == columns(feed, table), (names, columns(feed, table))
    check(path, rows, feed.table_rows(table))
    return rows


def check_evolved(feed, table, log, rows, lost=()):
    """What is left of the columns that the table has now replays to the table; columns that it has not
    any more are still there, at the end NULL."""
    here = [field.name for field in log.schema()][:-5]
    there = columns(feed, table)
    assert set(there) <= set(here), f"columns without a place in the history: {set(there) - set(here)}"
    kept = [name for name in there if name not in lost]
    places = [here.index(name) for name in kept]
    narrow = [row._replace(values=tuple(row.values[place] for place in places)) for row in rows]
    problems = log_problems(log) + order_problems(rows)
    live, replay_problems = replay(narrow)
    problems += replay_problems + table_problems(live, feed.table_rows(table, without=lost))
    problems += follow(log)
    if problems:
        raise Broken(f"evolved history {log.path}", problems)


def follow(log):
    """What a reader that streams the table, version by version, would fail on: a changed id, a remove
    that changes data, a schema change that is not additive."""
    problems = []
    known, identity = {}, None
    for version, actions in log.commits.items():
        for action in actions:
            if "remove" in action and action["remove"]["dataChange"]:
                problems.append(f"version {version} removes {action['remove']['path']}")
        if not any("metaData" in action for action in actions):
            continue
        if identity not in (None, log.metadata(version)["id"]):
            problems.append(f"version {version} has another id")
        identity = log.metadata(version)["id"]
        fields = {field.physical: field for field in log.schema(version)}
        for physical, old in known.items():
            new = fields.get(physical)
            if new is None:
                problems.append(f"version {version} has lost {old}")
            elif new.type != old.type and (old.type, new.type) not in WIDER:
                problems.append(f"version {version} makes {old} a {new.type}")
            elif old.nullable and not new.nullable:
                problems.append(f"version {version} makes {old} NOT NULL")
        problems += [
            f"version {version} adds {field}, which is not nullable"
            for physical, field in fields.items()
            if known and physical not in known and not field.nullable
        ]
        known = fields
    return problems


def check_every_version(feed, table, mode=RESNAPSHOT, shapes=None, may_be_empty=False):
    """Each version replays without a fault, has rows in the schema that it says, goes on in `_sort_by`,
    and is empty only if `may_be_empty` says so. `shapes`: the lists of columns that may appear."""
    path = home(feed, table)
    log = DeltaLog(path)
    highest, filled = 0, False
    for version in log.commits:
        if not log.active(version):
            assert may_be_empty or not filled, f"version {version} of {path} is empty"
            continue
        filled = True
        names = [field.name for field in log.schema(version)][:-5]
        assert shapes is None or names in shapes, f"version {version} has the columns {names}"
        rows = read_history(DELTA_RS, path, version=version)
        replaced = any(number <= version for number in log.replacements())
        problems = order_problems(rows, starts_anew=replaced)
        if mode == RESNAPSHOT:
            problems += replay(rows)[1]
        if problems:
            raise Broken(f"version {version} of {path}", problems)
        if rows:
            assert rows[-1].sort_by >= highest, f"version {version}: _sort_by went back"
            highest = rows[-1].sort_by
    return log


def live_at(log, version):
    """The rows that a version replays to, as a Counter."""
    return replay(read_history(DELTA_RS, log.path, version=version))[0]


@contextmanager
def without_worker(cluster):
    """A server that does not have the library: what is done meanwhile no worker sees, and no hook.
    Connections of before are gone."""
    libraries = cluster.settings["shared_preload_libraries"]
    cluster.stop()
    cluster.configure(shared_preload_libraries="")
    cluster.start()
    try:
        yield
    finally:
        cluster.stop()
        cluster.configure(shared_preload_libraries=libraries)
        cluster.start()


def pause(feed):
    feed.conn.execute("SELECT wal2delta.pause(%s)", [feed.schema])
    for (table,) in feed.conn.execute(
        "SELECT source_table::text FROM wal2delta.tables WHERE source_schema::text = %s AND status = 'STREAMING'",
        [feed.schema],
    ).fetchall():
        feed.wait_for_status(table, "PAUSED")


def resume(feed):
    feed.conn.execute("SELECT wal2delta.resume(%s)", [feed.schema])


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


def inserted(rows: list[Row]):
    return [row.values for row in rows if row.change == "insert"]
