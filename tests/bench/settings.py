"""What the benchmarks' servers are set to. Durable as in production, unlike the
tests' clusters."""

import subprocess
from pathlib import Path

from harness import cluster
from harness.cluster import pg_config

# In place of the harness's. None takes out a setting of the harness, so that PostgreSQL's default counts.
SETTINGS = {
    "fsync": "on",
    "jit": "off",
    "shared_buffers": "1GB",
    # No checkpoint and no vacuum by itself falls into a measurement.
    "max_wal_size": "64GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
    "max_connections": "100",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "max_locks_per_transaction": "1024",
    "max_prepared_transactions": None,
    "track_commit_timestamp": None,
    "log_lock_waits": None,
    "wal2delta.flush_interval": "15s",
}

PLUGINS = "pgoutput, test_decoding, wal2json, decoderbufs, wal2delta"


def settings(**changed):
    """All settings of a cluster; `__` in a name stands for a dot."""
    made = {**cluster.SETTINGS, **SETTINGS, **{name.replace("__", "."): value for name, value in changed.items()}}
    if knows("output_plugin_libraries"):
        made["output_plugin_libraries"] = PLUGINS
    return made


def knows(setting):
    """Whether this minor version of the server has the setting."""
    server = Path(pg_config("bindir")) / "postgres"
    told = subprocess.run([server, "--describe-config"], check=True, capture_output=True, text=True, cwd="/")
    return any(line.split("\t")[0] == setting for line in told.stdout.splitlines())


def has_plugin(name):
    return (Path(pg_config("pkglibdir")) / f"{name}.so").exists()
