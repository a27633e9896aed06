"""What a server process uses, as the operating system counts it."""

import os
import re
from pathlib import Path


def cpu_seconds(pid):
    """Of all its threads, in user and in system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid):
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def open_files(pid):
    """Files, sockets and pipes."""
    return len(os.listdir(f"/proc/{pid}/fd"))
