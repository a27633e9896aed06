"""Fail points: places between the WAL and the confirmed slot at which the
library built for tests (tests/faults) fails once when it is told to.

A file named after the point, in a folder of the data directory, says what
happens at the next pass; it is gone as soon as that happens."""

import os
from pathlib import Path

from .cluster import own, pg_config
from .waiting import wait_for

FOLDER = "wal2delta_fail_points"

# For a cluster that is to run that library in place of the ordinary one.
SETTINGS = {"dynamic_library_path": "$libdir/faults:$libdir"}

# Where only the process itself can fail: no call of a store is under way.
_ENDS = ("sleep 1500", "panic", "kill", "exit")
# Where the store can answer badly. `after_`: it has done what it was asked.
_ANSWERS = ("error", "exists", "precondition", "hang", "sleep 1500", "panic", "kill")

POINTS = {
    "decoded": _ENDS,
    "before_data_put": _ANSWERS,
    "after_data_put": _ANSWERS,
    "before_commit_put": _ANSWERS,
    "after_commit_put": _ANSWERS,
    "before_confirm": _ENDS,
    "after_confirm": _ENDS,
    "in_snapshot": _ENDS,
    "before_join": _ENDS,
    "before_exchange": ("error", "hang", "sleep 1500", "panic", "kill"),
    "in_checkpoint": ("error", "hang", "sleep 1500", "panic", "kill"),
}


def library():
    """The library with fail points, whether it is there or not."""
    return Path(pg_config("pkglibdir")) / "faults" / "wal2delta.so"


class FailPoints:
    def __init__(self, cluster):
        self.cluster = cluster
        self._armed = {}
        self.folder = cluster.data / FOLDER
        self.folder.mkdir()
        own(self.folder)
        # The extension's functions name the library with its folder, so that
        # the search path alone does not lead them to the other one.
        cluster.sql("UPDATE pg_proc SET probin = 'wal2delta' WHERE probin = '$libdir/wal2delta'")

    def arm(self, point, action):
        """The next pass of `point` does `action`, once."""
        assert action in POINTS[point], f"{point} cannot {action}"
        draft = self.folder / f".{point}"
        draft.write_text(action)
        self._armed[point] = (action, self.cluster.log_size())
        own(draft)
        draft.rename(self.folder / point)

    def wait_until_passed(self, point):
        """Until its action has begun; if that kills a process, until the server has started anew."""
        wait_for(lambda: point not in self.armed(), 30, f"{point} to be passed")
        action, since = self._armed[point]
        ready = "database system is ready to accept connections"
        if action == "kill":
            wait_for(lambda: ready in self.cluster.log_text(since), 60, "the server to start anew")

    def armed(self):
        """The points that were armed and have not been passed since."""
        return {name for name in os.listdir(self.folder) if name in POINTS}

    def disarm(self, point):
        """Whether the point was still armed; if not, its action has begun."""
        try:
            (self.folder / point).unlink()
        except FileNotFoundError:
            return False
        return True
