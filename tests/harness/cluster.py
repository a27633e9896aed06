"""A throw-away PostgreSQL cluster: own folder, own unix socket, no network.

`initdb` runs once per test run, into a template that each cluster copies. A
server refuses to run as root, so as root everything of the server's runs as
`postgres` or, where there is none, as `nobody`."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg

from .waiting import TimedOut, wait_for

# Durability against a power cut is not what these clusters test; the server's
# own fsync would only make them slow.
SETTINGS = {
    "shared_preload_libraries": "wal2delta",
    "wal_level": "logical",
    "listen_addresses": "",
    "fsync": "off",
    "shared_buffers": "64MB",
    "max_connections": "40",
    "max_prepared_transactions": "10",
    "track_commit_timestamp": "on",
    "log_line_prefix": "%m [%p] %b %d ",
    "log_lock_waits": "on",
    "wal2delta.flush_interval": "1s",
}

# The worst end of a test is a hang: no statement of a test takes longer.
STATEMENT_TIMEOUT = "180s"

STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


def pg_config(item):
    program = os.environ.get("WAL2DELTA_PG_CONFIG")
    if not program:
        raise RuntimeError(
            "WAL2DELTA_PG_CONFIG is not set: it must name the pg_config of a PostgreSQL 17 that has wal2delta installed"
        )
    return subprocess.run([program, f"--{item}"], check=True, capture_output=True, text=True).stdout.strip()


def server_user():
    """The account the server runs as; None means: as we are."""
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("running as root, and there is neither a user postgres nor nobody")


def as_server_user():
    """Arguments for subprocess that make a program run as the server's user."""
    user = server_user()
    if user is None:
        return {}
    return {
        "user": user.pw_uid,
        "group": user.pw_gid,
        "extra_groups": os.getgrouplist(user.pw_name, user.pw_gid),
    }


def own(path):
    user = server_user()
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def children_of(pid):
    """Process ids whose parent is `pid`, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            state = process_state(int(entry.name))
            if state and state[1] == pid:
                found.append(int(entry.name))
    return found


def process_state(pid):
    """(state letter, parent) of a living process, else None."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return None
    state, parent = stat.rpartition(")")[2].split()[:2]
    # While a thread waits for the disk, one that has ended still holds its memory.
    gone = state in "ZX" and threads <= 1
    return None if gone else (state, int(parent))


def process_words(pid):
    try:
        title = Path(f"/proc/{pid}/cmdline").read_text().strip("\0").replace("\0", " ")
        return f"{pid} {process_state(pid)[0]} {Path(f'/proc/{pid}/wchan').read_text()}: {title}"
    except (OSError, TypeError):
        return f"{pid}: ended"


class Clusters:
    """All clusters of one test run, and the template they are copied from."""

    def __init__(self):
        self.root = Path(tempfile.mkdtemp(prefix="w2d-"))
        self.root.chmod(0o755)
        own(self.root)
        self.template = self.root / "template"
        self.live = []
        # Folders that outlive the run, for whoever looks into a failure.
        self.kept = []
        self._failed = []
        self._made = 0

    def make(self, settings=None, start=True, extension=True):
        if not self.template.exists():
            self._initdb()
        self._made += 1
        cluster = Cluster(self.root / f"c{self._made}", settings or {})
        cluster.lay(self.template)
        self.live.append(cluster)
        try:
            if start:
                cluster.start()
                if extension:
                    cluster.sql("CREATE EXTENSION wal2delta")
        except BaseException:
            # Kept a while, so that the test's report can show its log.
            self._failed.append(cluster)
            raise
        return cluster

    def discard_failed(self):
        while self._failed:
            self.discard(self._failed.pop())

    def discard(self, cluster):
        cluster.end()
        self.live.remove(cluster)
        if cluster.folder not in self.kept:
            shutil.rmtree(cluster.folder, ignore_errors=True)

    def close(self):
        for cluster in list(self.live):
            self.discard(cluster)
        if not self.kept:
            shutil.rmtree(self.root, ignore_errors=True)

    def _initdb(self):
        subprocess.run(
            [
                Path(pg_config("bindir")) / "initdb",
                "--pgdata",
                self.template,
                "--username=postgres",
                "--auth=trust",
                "--no-sync",
                "--encoding=UTF8",
                "--locale=C",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd="/",
            **as_server_user(),
        )


class Cluster:
    def __init__(self, folder, settings):
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.settings = {**SETTINGS, **settings}
        # Words before the server's command: a program that runs it.
        self.under = []
        self.server = None

    def lay(self, template):
        self.folder.mkdir()
        own(self.folder)
        subprocess.run(["cp", "-a", template, self.data], check=True, **as_server_user())
        self.log.touch()
        self.configure()

    def configure(self, **settings):
        """Writes the settings; they count from the next start or reload."""
        self.settings.update({name.replace("__", "."): value for name, value in settings.items()})
        lines = [f"unix_socket_directories = '{self.folder}'"]
        for name, value in self.settings.items():
            if value is not None:
                lines.append(f"{name} = '{value}'")
        conf = self.data / "postgresql.auto.conf"
        conf.write_text("\n".join(lines) + "\n")
        own(conf)

    def reload(self):
        os.kill(self.server.pid, signal.SIGHUP)

    def folder_for(self, name):
        """A fresh folder that the server may write to: a destination."""
        path = self.folder / "lake" / name
        for new in (path.parent, path):
            if not new.exists():
                new.mkdir()
                own(new)
        return path

    # --- life

    def start(self):
        assert self.server is None
        with open(self.log, "ab") as log:
            self.server = subprocess.Popen(
                [*self.under, Path(pg_config("bindir")) / "postgres", "-D", self.data],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                **as_server_user(),
            )
        self.wait_for_connections()

    def wait_for_connections(self):
        wait_for(self._accepts, 60, "the server to accept connections")

    def _accepts(self):
        if self.server.poll() is not None:
            code, self.server = self.server.returncode, None
            raise AssertionError(f"the server ended with {code}:\n{self.log_tail()}")
        try:
            with psycopg.connect(self.dsn(), connect_timeout=5):
                return True
        except psycopg.OperationalError:
            return False

    def stop(self, mode="fast", timeout=60):
        self.server.send_signal(STOP_SIGNALS[mode])
        self._gone(timeout, f"the server to stop ({mode})")

    def kill(self):
        """SIGKILL to the postmaster, as when the kernel runs out of memory."""
        # Stopped, it starts no child that would be overlooked.
        self.server.send_signal(signal.SIGSTOP)
        children = children_of(self.server.pid)
        self.server.kill()
        self._gone(20, "the killed postmaster to be gone")
        # A new postmaster does not start before the old one's children ended.
        wait_for(
            lambda: not any(process_state(pid) for pid in children),
            60,
            "the children of the killed postmaster to end",
        )

    def _gone(self, timeout, what):
        try:
            wait_for(lambda: self.server.poll() is not None, timeout, what)
        except TimedOut as late:
            raise TimedOut(f"{late}; it has {self.processes()}") from None
        self.server = None

    def processes(self):
        """The server's processes in words, with the kernel function that each waits in."""
        return [process_words(pid) for pid in [self.server.pid, *children_of(self.server.pid)]]

    def restart(self, mode="fast"):
        self.stop(mode)
        self.start()

    def end(self):
        """Ends the server whatever its state; for teardown only."""
        if self.server is None:
            return
        self.server.send_signal(signal.SIGQUIT)
        try:
            self.server.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        self.server = None

    # --- SQL

    def dsn(self, dbname="postgres", user="postgres"):
        return f"host={self.folder} port=5432 dbname={dbname} user={user}"

    def connect(self, dbname="postgres", user="postgres", autocommit=True, **settings):
        settings = {"statement_timeout": STATEMENT_TIMEOUT, **settings}
        options = " ".join(f"-c {name}={str(value).replace(' ', chr(92) + ' ')}" for name, value in settings.items())
        return psycopg.connect(self.dsn(dbname, user), autocommit=autocommit, options=options, connect_timeout=30)

    def sql(self, query, params=None, dbname="postgres", user="postgres"):
        """One statement on a connection of its own; its rows, if it has any."""
        with self.connect(dbname, user) as conn:
            return run(conn, query, params)

    def value(self, query, params=None, dbname="postgres"):
        return self.sql(query, params, dbname)[0][0]

    # --- wal2delta's processes, as the server's own views show them

    def slot_name(self, dbname="postgres"):
        return f"wal2delta_{self.value('SELECT oid FROM pg_database WHERE datname = %s', [dbname])}"

    def slots(self):
        return [name for (name,) in self.sql("SELECT slot_name FROM pg_replication_slots ORDER BY 1")]

    def feed_worker(self, dbname="postgres"):
        """The process that holds the database's slot, or None."""
        rows = self.sql("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [self.slot_name(dbname)])
        return rows[0][0] if rows else None

    def wait_for_feed_worker(self, dbname="postgres", timeout=60):
        return wait_for(lambda: self.feed_worker(dbname), timeout, "a feed worker to hold the slot")

    def terminate_feed_worker(self, dbname="postgres"):
        pid = self.wait_for_feed_worker(dbname)
        self.sql("SELECT pg_terminate_backend(%s)", [pid])
        wait_for(lambda: process_state(pid) is None, 30, f"feed worker {pid} to end")
        return pid

    def new_slot_waits(self):
        """Whether a slot that is being made waits for open transactions."""
        return self.value(
            "SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid)"
            " WHERE backend_type = 'wal2delta' AND locktype = 'transactionid' AND NOT granted"
        )

    def skip_wal(self, segments):
        """Moves the end of the WAL on by whole segments."""
        with self.connect() as conn:
            for _ in range(segments):
                conn.execute("SELECT pg_logical_emit_message(false, 'skip', ''), pg_switch_wal()")

    # --- log

    def log_size(self):
        return self.log.stat().st_size

    def log_text(self, since=0):
        with open(self.log, "rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def log_tail(self, since=0, lines=80):
        return "\n".join(self.log_text(since).splitlines()[-lines:])

    def crashes(self, since=0):
        """Log lines that no test may leave: a crash or a panic of any kind."""
        bad = re.compile(r"\bPANIC:|TRAP:|panicked at|was terminated by signal (?!9)")
        return [line for line in self.log_text(since).splitlines() if bad.search(line)]


def run(conn, query, params=None):
    cursor = conn.execute(query, params)
    return cursor.fetchall() if cursor.description else None
