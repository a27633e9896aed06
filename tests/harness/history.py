"""The replay checker: a history is right if replaying it gives the table, and
if each of its rows obeys the rules of DESIGN.md ("The history table")."""

from collections import Counter
from typing import NamedTuple

from .deltalog import DeltaLog, log_problems

SYSTEM_COLUMNS = ["_pg_change_type", "_pg_lsn", "_pg_xid", "_timestamp", "_sort_by"]
GIVES = ("insert", "update_postimage")
TAKES = ("delete", "update_preimage")
MOST_SHOWN = 10


class Row(NamedTuple):
    change: str
    values: tuple
    lsn: int
    xid: int
    time: object
    sort_by: int


class Broken(AssertionError):
    def __init__(self, what, problems):
        shown = [f"  {problem}"[:2000] for problem in problems[:MOST_SHOWN]]
        if len(problems) > MOST_SHOWN:
            shown.append(f"  … and {len(problems) - MOST_SHOWN} more")
        super().__init__(f"{what}: {len(problems)} problems\n" + "\n".join(shown))


def order_problems(rows, starts_anew=False, shared=False):
    """Rules of each row and of neighbours. `rows` in the order of `_sort_by`;
    `starts_anew`: an earlier content was replaced, so that the first row's
    `_sort_by` goes on from one that is not seen here; `shared`: several workers
    may have copied the table, so that `_sort_by` leaves gaps within a copy."""
    problems = []
    previous = None
    for row in rows:
        if row.change not in GIVES + TAKES:
            problems.append(f"unknown change type: {row}")
        if previous is None:
            if row.sort_by < row.lsn if starts_anew else row.sort_by != row.lsn:
                problems.append(f"the first _sort_by is not its LSN: {row}")
        else:
            problems += _neighbour_problems(previous, row, shared)
        previous = row
    if previous is not None and previous.change == "update_preimage":
        problems.append(f"a preimage without its postimage: {previous}")
    return problems


def _neighbour_problems(previous, row, shared):
    problems = []
    in_a_copy = shared and previous.lsn == row.lsn and (previous.change, row.change) == ("insert", "insert")
    if row.sort_by <= previous.sort_by:
        problems.append(f"_sort_by is not strictly increasing: {previous} then {row}")
    elif row.sort_by != max(previous.sort_by + 1, row.lsn) and not in_a_copy:
        problems.append(f"_sort_by is not max(previous + 1, _pg_lsn): {previous} then {row}")
    if row.lsn < previous.lsn:
        problems.append(f"_pg_lsn goes down: {previous} then {row}")
    paired = (previous.change == "update_preimage", row.change == "update_postimage")
    if paired == (True, False):
        problems.append(f"a preimage without its postimage: {previous}")
    elif paired == (False, True):
        problems.append(f"a postimage without its preimage: {row}")
    elif paired == (True, True) and (previous.lsn, previous.xid) != (row.lsn, row.xid):
        problems.append(f"preimage and postimage of different transactions: {previous}, {row}")
    return problems


def replay(rows, live=None):
    """(the rows that live at the end, problems). `live`: those that live before."""
    live = Counter(live)
    problems = []
    for row in rows:
        if row.change in GIVES:
            live[row.values] += 1
        elif live[row.values] > 0:
            live[row.values] -= 1
        else:
            problems.append(f"{row.change} of a row that is not live: {row}")
    return +live, problems


def history_problems(rows, table_rows, starts_anew=False, shared=False):
    rows = sorted(rows, key=lambda row: row.sort_by)
    problems = order_problems(rows, starts_anew, shared)
    live, replay_problems = replay(rows)
    return problems + replay_problems + table_problems(live, table_rows)


def table_problems(live, table_rows):
    """In words, how what lives after a replay differs from the table."""
    table = Counter(table_rows)
    problems = [f"in the table, not in the replay ({n}×): {row}" for row, n in (table - live).items()]
    return problems + [f"in the replay, not in the table ({n}×): {row}" for row, n in (live - table).items()]


def check(path, rows, table_rows, shared=False):
    """Fails unless the history table at `path`, read as `rows`, is right."""
    log = DeltaLog(path)
    problems = log_problems(log)
    problems += history_problems(rows, table_rows, bool(log.replacements()), shared)
    if problems:
        raise Broken(f"history {path}", problems)
