"""Copies of a cluster and of a database, made as operators make them: base
backup, standby, the folder of a stopped server, pg_dump.

A copy of a cluster has its system identifier and its feeds, and with them the
same destinations."""

import subprocess
from pathlib import Path

from .cluster import Cluster, as_server_user, own, pg_config
from .waiting import wait_for


class Copies:
    """Copies of clusters; they are discarded at the end of the `with`.
    `volumes`: each is made in a fresh file system of its own, which takes root."""

    def __init__(self, clusters, volumes=False):
        self.clusters = clusters
        self.volumes = volumes
        self._made = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for cluster in self._made:
            self.clusters.discard(cluster)
            if self.volumes:
                subprocess.run(["umount", cluster.folder], check=True)
                cluster.folder.rmdir()

    def base_backup(self, original):
        """By pg_basebackup; not started. Slots are not part of it."""
        copy = self._beside(original)
        connection = ["--host", original.folder, "--username=postgres"]
        how = ["--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        _run([_program("pg_basebackup"), *connection, "--pgdata", copy.data, *how])
        copy.configure()
        return copy

    def standby(self, original):
        """A base backup that follows the original; not started."""
        copy = self.base_backup(original)
        signal = copy.data / "standby.signal"
        signal.touch()
        own(signal)
        copy.configure(primary_conninfo=_connection(original))
        return copy

    def of_stopped(self, original):
        """The original's folder once more, with its slots; not started."""
        assert original.server is None, "the folder of a running server is no copy of its cluster"
        copy = self._beside(original)
        _run(["cp", "-a", original.data, copy.data])
        copy.configure()
        return copy

    def roll_back(self, cluster, snapshot):
        """Puts the content of a copy into the stopped original's own folder. The folder and the
        file with the version stay, as they do when a volume goes back to a snapshot."""
        assert cluster.server is None
        keep = "PG_VERSION"
        for path in cluster.data.iterdir():
            if path.name != keep:
                _run(["rm", "-rf", path])
        for path in snapshot.data.iterdir():
            if path.name != keep:
                _run(["cp", "-a", path, cluster.data])
        cluster.configure()

    def _beside(self, original):
        number = len(self._made) + 1
        copy = Cluster(self.clusters.root / f"{original.folder.name}-copy{number}", original.settings)
        copy.folder.mkdir()
        if self.volumes:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512m,mode=755", "tmpfs", copy.folder], check=True)
        own(copy.folder)
        copy.log.touch()
        self.clusters.live.append(copy)
        self._made.append(copy)
        return copy


def can_mount():
    """Whether `Copies` can have volumes."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


def follow(standby, original):
    """Has a running standby follow another server from now on."""
    standby.configure(primary_conninfo=_connection(original))
    standby.reload()


def catch_up(standby, original):
    """Waits until the standby has all that the original has now."""
    end = original.value("SELECT pg_current_wal_flush_lsn()")
    replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
    wait_for(lambda: standby.value(replayed, [end]), 20, "the standby to catch up")


def promote(standby):
    """Ends recovery: from here on the standby is a server of its own."""
    assert standby.value("SELECT pg_promote()")


def dump(cluster, dbname="postgres"):
    """The database as pg_dump writes it."""
    return _run([_program("pg_dump"), "--dbname", cluster.dsn(dbname)], stdout=subprocess.PIPE, text=True).stdout


def restore(cluster, text, dbname="postgres"):
    """Runs what `dump` returned; an error ends it."""
    psql = [_program("psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname", cluster.dsn(dbname)]
    _run(psql, input=text, stdout=subprocess.DEVNULL, text=True)


def _connection(cluster):
    return f"host={cluster.folder} port=5432 user=postgres"


def _program(name):
    return Path(pg_config("bindir")) / name


def _run(command, **kwargs):
    return subprocess.run(command, check=True, cwd="/", **as_server_user(), **kwargs)
