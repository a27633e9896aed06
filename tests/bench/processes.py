"""What processes use, as the kernel counts it: CPU in seconds (in steps of a
clock tick, 10 ms on most systems), memory in bytes."""

import os
import re
import subprocess
import threading
import time
from pathlib import Path

from harness.cluster import children_of
from harness.waiting import wait_for

TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.02


def cpu(pid, thread=None):
    """CPU seconds of a process, threads that have ended included, or of one of
    its threads; None if there is no such process."""
    path = f"/proc/{pid}/task/{thread}/stat" if thread else f"/proc/{pid}/stat"
    try:
        fields = Path(path).read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory(pid, line):
    """Bytes of a line of /proc/PID/status, `VmHWM` or `RssAnon`, else 0."""
    try:
        found = re.search(rf"{line}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def reset_peak(pid):
    """VmHWM begins anew from what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


class Meter:
    """CPU seconds of a process since the meter was made: of its main thread,
    and of all others; and its peak resident memory, shared buffers that it
    touched included."""

    def __init__(self, pid):
        self.pid = pid
        reset_peak(pid)
        self._main, self._all = cpu(pid, pid), cpu(pid)

    def read(self):
        main, whole = cpu(self.pid, self.pid) - self._main, cpu(self.pid) - self._all
        return {"cpu_main": main, "cpu_threads": max(whole - main, 0), "cpu": whole, "peak": memory(self.pid, "VmHWM")}


class Watch:
    """CPU seconds of processes that may end while they are watched, by samples:
    what a process used in its last 20 ms is not seen. `pids` gives the
    processes of the moment; one that was there before counts from now on, or,
    if `whole`, from its start. `private` is the highest sum of their private
    memory in bytes, `peaks` the highest resident memory of each."""

    def __init__(self, pids, whole=False):
        self._pids = pids
        self._first = {} if whole else {pid: cpu(pid) or 0 for pid in pids()}
        self._last = dict(self._first)
        self.private = 0
        self.peaks = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._end.set()
        self._thread.join()

    def _sample(self):
        while True:
            ends = self._end.is_set()
            private = 0
            for pid in self._pids():
                used = cpu(pid)
                if used is not None:
                    self._last[pid] = used
                    private += memory(pid, "RssAnon")
                    self.peaks[pid] = max(self.peaks.get(pid, 0), memory(pid, "VmHWM"))
            self.private = max(self.private, private)
            if ends:
                return
            self._end.wait(SAMPLE_SECONDS)

    def cpu_of(self, pid):
        return self._last.get(pid, 0) - self._first.get(pid, 0)

    @property
    def cpu(self):
        return sum(self.cpu_of(pid) for pid in self._last)


def workers_of(cluster):
    """The processes of wal2delta in a cluster."""
    return [pid for pid in _children(cluster.server.pid) if "wal2delta" in _title(pid)]


def _children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # a kernel built without it
        return children_of(pid)


def _title(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def run_client(command, server_process, **kwargs):
    """Runs a program that a process of the server works for. Gives wall
    seconds, the CPU seconds of both and the sum of their peak memory in bytes.
    `server_process` finds the server's process, None as long as there is none.
    A program that ended before it was found has no figures but the seconds."""
    begun = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kwargs) as client:
        pid = wait_for(lambda: client.poll() is not None or server_process(), 60, f"{command[0]} to be served")
        if client.returncode is not None:
            if client.returncode:
                raise RuntimeError(f"{command[0]} failed:\n{client.stdout.read()}")
            return {"seconds": time.monotonic() - begun}
        with Watch(lambda: [pid, client.pid], whole=True) as watch:
            text = client.stdout.read()
            _, status, used = os.wait4(client.pid, 0)
            seconds = time.monotonic() - begun
        client.returncode = os.waitstatus_to_exitcode(status)
    if client.returncode:
        raise RuntimeError(f"{command[0]} failed:\n{text}")
    # The kernel's own account of the client's peak would begin with ours, before it became the program.
    return {
        "seconds": seconds,
        "cpu_server": watch.cpu_of(pid),
        "cpu_client": used.ru_utime + used.ru_stime,
        "cpu": watch.cpu_of(pid) + used.ru_utime + used.ru_stime,
        "peak": sum(watch.peaks.values()),
    }


def settle(pid, quiet=0.5, timeout=3600):
    """Waits until a process has used no CPU for `quiet` seconds, up to a tick:
    what came before the measurement is done."""
    state = {"cpu": cpu(pid), "since": time.monotonic()}

    def quiet_now():
        used = cpu(pid)
        if used - state["cpu"] > 1.5 / TICKS:
            state.update(cpu=used, since=time.monotonic())
        return time.monotonic() - state["since"] > quiet

    wait_for(quiet_now, timeout, f"process {pid} to come to rest")
