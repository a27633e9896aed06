"""All history tables of the fed schemas, checked at each calm: replay gives the
table, the events are those of the audit, and the Delta log is sound.

Each row is checked once; of what was checked, a history keeps what lives and a
digest by which the other readers' view of the same rows is compared later."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from harness.deltalog import DeltaLog, log_problems
from harness.history import Broken, order_problems, replay, table_problems
from harness.readers import DELTA_RS, READERS, read_history
from harness.source import table_rows

from . import audit
from .table_maker import PASSING

# Characters that another reader is asked for at once.
MOST_AT_ONCE = 200_000_000

TABLES = """
    SELECT c.oid, n.nspname::text, c.relname::text, t.status, t.reason, t.last_error
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN wal2delta.tables t ON t.table_oid = c.oid
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname = ANY(%s) ORDER BY 2, 3
"""


@dataclass(frozen=True)
class Window:
    """Rows that were checked together: those with `_sort_by` up to `last` and
    behind the window before."""

    last: int
    rows: int
    size: int
    digest: int


def digest(rows):
    # By `==`, as rows are compared everywhere: engines differ in what prints.
    return hash(tuple(rows))


@dataclass
class History:
    """One history table and how far it has been checked."""

    name: str
    # Every change of the table is an event: nothing was copied.
    whole: bool
    path: Path | None = None
    version: int = 0
    live: Counter = field(default_factory=Counter)
    tail: list = field(default_factory=list)
    windows: list = field(default_factory=list)

    def check(self, noted, rows_of_table):
        """`rows_of_table` is None once the table was dropped."""
        if self.path is None:
            # It is made with the first rows; of a copied table that was dropped, perhaps never.
            assert not rows_of_table and not (self.whole and noted), f"{self.name} has rows, and no history"
            return
        log = DeltaLog(self.path)
        rows = read_history(DELTA_RS, self.path, where=self._newer())
        problems = self._log_problems(log) + self._order_problems(log, rows) + self._audit_problems(rows, noted)
        self.live, replay_problems = replay(rows, self.live)
        problems += replay_problems
        if rows_of_table is not None:
            problems += table_problems(self.live, rows_of_table)
        if problems:
            raise Broken(f"history {self.path} of {self.name}, versions {self.version} to {log.version}", problems)
        self._note(log, rows)

    def _newer(self):
        return f"_sort_by > {self.windows[-1].last}" if self.windows else "TRUE"

    def _log_problems(self, log):
        problems = log_problems(log, self.version)
        replaced = [version for version in log.replacements() if version >= self.version]
        if self.windows and replaced:
            problems.append(f"its rows were replaced by versions {replaced}: events are gone")
        return problems

    def _order_problems(self, log, rows):
        anew = bool(self.tail or log.replacements())
        return order_problems(self.tail + rows, starts_anew=anew, shared=True)

    def _audit_problems(self, rows, noted):
        if not self.windows and not self.whole:
            # The copied rows come first, at one LSN; some of what was noted is in them.
            rows = [row for row in rows if row.lsn > rows[0].lsn]
            came = {row.xid for row in rows}
            noted = Counter({event: n for event, n in noted.items() if event[0] in came})
        return audit.differences(rows, noted)

    def _note(self, log, rows):
        self.version = log.version + 1
        if rows:
            size = sum(len(value) for row in rows for value in row.values if isinstance(value, str))
            self.tail = rows[-1:]
            self.windows.append(Window(rows[-1].sort_by, len(rows), size + 100 * len(rows), digest(rows)))

    @property
    def rows(self):
        return sum(window.rows for window in self.windows)

    def compare(self, reader):
        """Fails unless the reader shows exactly the rows that were checked."""
        before = None
        for chunk in self._chunks():
            where = f"_sort_by <= {chunk[-1].last}" + ("" if before is None else f" AND _sort_by > {before}")
            rows = read_history(reader, self.path, where=where)
            for window in chunk:
                ours, rows = rows[: window.rows], rows[window.rows :]
                assert len(ours) == window.rows, f"{reader.name}: {self.name} lacks rows up to {window.last}"
                assert digest(ours) == window.digest, f"{reader.name}: {self.name} has other rows up to {window.last}"
            assert not rows, f"{reader.name}: {self.name} has {len(rows)} rows too many up to {chunk[-1].last}"
            before = chunk[-1].last

    def _chunks(self):
        chunk, size = [], 0
        for window in self.windows:
            if chunk and size + window.size > MOST_AT_ONCE:
                yield chunk
                chunk, size = [], 0
            chunk.append(window)
            size += window.size
        if chunk:
            yield chunk


class Histories:
    def __init__(self, cluster, feeds):
        self.cluster = cluster
        self.schemas = [feed.schema for feed in feeds]
        self.destination = feeds[0].destination
        self.living = {}
        # Tables that were there when the feeds started.
        self.older = set()
        self.rows_of_dropped = 0

    def begin(self):
        """Of tables that were there before, changes may be in the copies only;
        of those that have gone already, nowhere."""
        with self.cluster.connect() as conn:
            self.older = {oid for oid, *_ in conn.execute(TABLES, [self.schemas])}
            conn.execute("DELETE FROM audit.log WHERE relation NOT IN (SELECT oid FROM pg_class)")

    def check(self):
        """Nobody may be writing, and everything must be flushed."""
        with self.cluster.connect() as conn:
            noted = audit.take(conn)
            tables = conn.execute(TABLES, [self.schemas]).fetchall()
        paths = self._paths()
        for oid, schema, name, *state in tables:
            self._check_state(f"{schema}.{name}", *state)
            history = self._history(oid, f"{schema}.{name}", name)
            history.path = paths.get(oid)
            history.check(noted.pop(oid, audit.NOTHING).events, table_rows(self.cluster, history.name))
        self._check_dropped(noted, paths, {oid for oid, *_ in tables})

    def _history(self, oid, shown, name):
        whole = name.startswith(PASSING) and oid not in self.older
        return self.living.setdefault(oid, History(shown, whole))

    def _paths(self):
        """{oid of a table: its history}, as the Delta logs say. A folder whose
        log has not begun is none."""
        paths = {}
        for first in sorted(self.destination.glob(f"*/_delta_log/{0:020}.json")):
            path = first.parent.parent
            source = DeltaLog(path, last=0).metadata()["configuration"]["wal2delta.source"]
            oid = int(source.rpartition("/")[2])
            assert oid not in paths, f"two histories of one table: {paths[oid]} and {path}"
            paths[oid] = path
        return paths

    @staticmethod
    def _check_state(name, status, reason, error):
        empty = status == "SKIPPED" and reason == "empty"
        assert status == "STREAMING" or empty, f"{name} is {status} ({reason or error})"

    def _check_dropped(self, noted, paths, there):
        """Tables that were dropped since the last check: what was committed
        before is in their histories."""
        for oid, (name, _) in noted.items():
            # Created and dropped in between; of a moved one nothing need be there.
            if name.startswith(PASSING):
                self._history(oid, name, name)
        for oid in set(self.living) - there:
            history = self.living.pop(oid)
            history.path = paths.get(oid)
            history.check(noted.get(oid, audit.NOTHING).events, None)
            self.rows_of_dropped += history.rows

    def compare_readers(self):
        for reader in READERS:
            for history in self.living.values():
                history.compare(reader)

    def rows_by_table(self):
        return {history.name: history.rows for history in self.living.values()}
