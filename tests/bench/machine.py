"""The machine and the versions that figures were measured with."""

import os
import platform
import re
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from harness.cluster import pg_config

SYNCS = 100


def describe():
    """{what: words} for the page of results."""
    return {
        "processor": cpu_model(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / (1 << 30):.0f} GB",
        "disk": disk(tempfile.gettempdir()),
        "kernel": f"{platform.system()} {platform.release()}",
        "PostgreSQL": pg_config("version").removeprefix("PostgreSQL "),
        "wal2delta": extension_version(),
        "Python": platform.python_version(),
        **{name: version(name) for name in ("deltalake", "pyarrow", "psycopg2-binary")},
    }


def cpu_model():
    told = Path("/proc/cpuinfo").read_text()
    found = re.search(r"^(?:model name|Model)\s*: (.+)$", told, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def disk(folder):
    """File system and device that hold a folder."""
    mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines()]
    folder = os.path.realpath(folder)
    holds = [mount for mount in mounts if os.path.commonpath([folder, mount[1]]) == mount[1]]
    device, _, kind = max(holds, key=lambda mount: len(mount[1]))
    return f"{kind} on {device}"


def sync_seconds(folder=None):
    """Median seconds of writing 8 kB and having it on the disk."""
    taken = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(SYNCS):
            begun = time.monotonic()
            os.pwrite(file.fileno(), bytes(8192), 0)
            os.fdatasync(file.fileno())
            taken.append(time.monotonic() - begun)
    return sorted(taken)[SYNCS // 2]


def extension_version():
    """The version of the control file, and the commit of a checkout."""
    control = Path(pg_config("sharedir")) / "extension" / "wal2delta.control"
    told = re.search(r"default_version = '(.+)'", control.read_text())[1]
    here = Path(__file__).resolve().parent
    command = ["git", "-C", here, "describe", "--always", "--dirty"]
    git = subprocess.run(command, check=False, capture_output=True, text=True)
    return f"{told} ({git.stdout.strip()})" if git.returncode == 0 else told
