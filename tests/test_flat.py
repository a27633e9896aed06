"""A table of many commits: the last ones cost what the first ones did, and so does reading it.

What is kept for a day is kept for seconds here, so that the table gets to where it would be after years: as
much goes as comes. `--flat-commits 20000` makes as many commits as three and a half days have, one every 15 s."""

import os
import statistics
import threading
import time

from deltalake import DeltaTable
from harness.processes import cpu_seconds, resident_bytes
from harness.waiting import wait_for

# Everything is counted so often.
SAMPLES = 100
RETENTION = 10
# Seconds until as much goes as comes: removed files stay in checkpoints for a minute longer.
SETTLED = RETENTION + 60 + 10
# Seconds between two rows: shorter than commits follow each other.
PACE = 0.004

# By how much the medians of the last half of the samples may be above those of the first.
COMPARED = {"log": 1.5, "on disk": 1.5, "memory": 1.3, "cpu of a commit, ms": 1.5}
# Data files of the table: they go from a few to some two hundred and back with each merge, about as fast as samples
# follow each other, so that two halves of them may see other parts of that. Unmerged, each commit leaves one.
MOST_FILES = 500

SETTINGS = {
    "wal2delta.flush_interval": "10ms",
    "wal2delta.log_retention": f"{RETENTION}s",
}


class Writer:
    """One session that inserts row by row."""

    def __init__(self, feed):
        self.rows = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write, args=[feed.session()], daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(60)

    def _write(self, session):
        while not self._stop.is_set():
            session.execute("INSERT INTO t SELECT %s, md5(random()::text)", [self.rows])
            self.rows += 1
            time.sleep(PACE)


def newest(log):
    return max(int(name[:20]) for name in os.listdir(log) if name.endswith(".json") and name[0] != ".")


def sample(feed, worker, log):
    begun = time.monotonic()
    table = DeltaTable(str(feed.path("t")))
    opened = time.monotonic() - begun
    return {
        "opened, ms": 1000 * opened,
        "version": table.version(),
        "log": len(os.listdir(log)),
        "files": len(table.file_uris()),
        "on disk": len(os.listdir(feed.path("t"))),
        "memory": resident_bytes(worker),
        "cpu": cpu_seconds(worker),
        "seconds": time.monotonic(),
    }


def test_commits_cost_the_same_after_many(make_cluster, make_feed, request):
    commits = request.config.getoption("--flat-commits")
    cluster = make_cluster(SETTINGS)
    feed = make_feed("shop", cluster=cluster)
    feed.table("t (id bigint PRIMARY KEY, v text)")
    feed.start()
    feed.sql("INSERT INTO t VALUES (-1, 'first')")
    feed.flush()
    worker = cluster.wait_for_feed_worker()
    log = feed.path("t") / "_delta_log"
    samples = [sample(feed, worker, log)]
    with Writer(feed) as writer:
        while samples[-1]["version"] < commits:
            until = samples[-1]["version"] + commits // SAMPLES
            wait_for(lambda until=until: newest(log) >= until, 180, f"version {until}", pause=0.5)
            samples.append(sample(feed, worker, log))
    feed.flush()
    assert DeltaTable(str(feed.path("t"))).to_pyarrow_table().num_rows == writer.rows + 1
    for earlier, later in zip(samples, samples[1:], strict=False):
        stretch = later["version"] - earlier["version"]
        later["cpu of a commit, ms"] = 1000 * (later["cpu"] - earlier["cpu"]) / stretch
        print({name: round(value, 1) for name, value in later.items()})
    samples = [it for it in samples if it["seconds"] > samples[0]["seconds"] + SETTLED]
    assert len(samples) >= 10, "too few commits to compare"
    half = len(samples) // 2
    for what, factor in COMPARED.items():
        first, last = (statistics.median(it[what] for it in part) for part in (samples[:half], samples[half:]))
        assert last <= factor * first, f"{what}: {first} before, {last} later"
    assert max(it["files"] for it in samples) < MOST_FILES
