"""The server's processes, found by their titles: that works while the server
starts or recovers, when no SQL does."""

import os
import signal
from pathlib import Path

from harness.cluster import children_of

FEED_WORKER = "wal2delta feed worker"
SNAPSHOT_WORKER = "wal2delta snapshot worker"
LAUNCHER = "wal2delta launcher"
BACKEND = "[local]"


def with_title(cluster, part):
    """Process ids of the server's children whose title has `part` in it."""
    return sorted(pid for pid in children_of(cluster.server.pid) if part in title(pid))


def title(pid):
    try:
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        # It ended meanwhile.
        return ""
    # A child that has no title of its own yet still shows the server's.
    return text if text.startswith("postgres: ") else ""


def send(pid, number):
    """Whether the process was still there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill(pid):
    return send(pid, signal.SIGKILL)


def terminate(pid):
    return send(pid, signal.SIGTERM)
