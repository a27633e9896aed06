"""The kinds of faults. Each strikes once and says whether it has struck
anything; one that lasts says how it is ended."""

from collections.abc import Callable
from dataclasses import dataclass

import psycopg
from harness.fail_points import POINTS

from . import processes

# Longest time in which a server must stop, on a busy machine and in the midst of crash recovery, too. What rule 8
# promises of a server that is well is tested in test_database_first.py.
STOP_LIMIT = 60


@dataclass(frozen=True)
class Fault:
    name: str
    weight: float
    # With the storm as its argument; False: it has struck nothing.
    strike: Callable
    # Ends a fault that lasts.
    end: Callable | None = None
    # Not a fault by itself: it moves the positions at which others strike.
    harmless: bool = False


def on_process(how, part):
    def strike(storm):
        found = processes.with_title(storm.cluster, part)
        return bool(found) and how(storm.dice.choice(found))

    return strike


def stop(mode):
    def strike(storm):
        storm.cluster.stop(mode, timeout=STOP_LIMIT)
        storm.cluster.start()
        return True

    return strike


def kill_postmaster(storm):
    storm.cluster.kill()
    storm.cluster.start()
    return True


def statement(query):
    def strike(storm):
        try:
            storm.cluster.sql(query)
        except psycopg.OperationalError as error:
            storm.journal.tell(f"{query}: {str(error).splitlines()[0]}")
            return False
        return True

    return strike


def forbid(mode):
    def strike(storm):
        storm.lake.forbid(mode, storm.dice)
        return True

    return strike


def fill(storm):
    storm.lake.fill(room=storm.dice.choice((0, 4096, 50_000, 1_000_000)))
    return True


SERVER = [
    Fault("feed worker terminated", 10, on_process(processes.terminate, processes.FEED_WORKER)),
    Fault("feed worker killed", 4, on_process(processes.kill, processes.FEED_WORKER)),
    Fault("snapshot worker killed", 3, on_process(processes.kill, processes.SNAPSHOT_WORKER)),
    Fault("snapshot worker terminated", 3, on_process(processes.terminate, processes.SNAPSHOT_WORKER)),
    Fault("launcher killed", 2, on_process(processes.kill, processes.LAUNCHER)),
    Fault("backend killed", 2, on_process(processes.kill, processes.BACKEND)),
    Fault("server stopped, fast", 2, stop("fast")),
    Fault("server stopped, immediate", 2, stop("immediate")),
    Fault("postmaster killed", 2, kill_postmaster),
    Fault("checkpoint", 4, statement("CHECKPOINT"), harmless=True),
    Fault("WAL switched", 4, statement("SELECT pg_switch_wal()"), harmless=True),
]

UNWRITABLE = [
    Fault("lake unwritable", 3, forbid(0o555), lambda storm: storm.lake.allow()),
    Fault("lake unreadable", 2, forbid(0o000), lambda storm: storm.lake.allow()),
]

FULL = [Fault("lake full", 4, fill, lambda storm: storm.lake.make_room())]


def fail_point(point, action):
    return Fault(f"{point}: {action}", _weight(action), lambda storm: storm.arm(point, action))


def _weight(action):
    # A hang takes 30 s of the table's time, and one of the machine's few
    # threads; the end of a process takes everything else down with it.
    return {"hang": 0.15, "kill": 0.6}.get(action, 1.2)


FAIL_POINTS = [fail_point(point, action) for point, actions in POINTS.items() for action in actions]
