import random
import re
import signal
import zlib

import pytest
from harness.cluster import Clusters
from harness.fault_proxy import FaultProxy
from harness.feed import Feed
from harness.stores import KEY, SECRET, S3Server


def pytest_addoption(parser):
    parser.addoption("--random-seconds", type=float, default=20, help="how long the randomised test writes")
    parser.addoption("--flat-commits", type=int, default=10_000, help="commits of one table that are made and compared")
    parser.addoption("--torture-seconds", type=float, default=100, help="how long the torture test has faults")
    parser.addoption("--without-fail-points", action="store_true", help="the torture test uses the ordinary library")
    parser.addoption("--keep", action="store_true", help="the torture test leaves its cluster's folder if it fails")
    parser.addoption("--seed", type=int, help="seed of the random tests, as an earlier run printed it")


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "expects_crashes(pattern): log lines of a crash that match are what the test asked for"
    )
    # Ended from outside, a run still ends its servers.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def clusters():
    clusters = Clusters()
    yield clusters
    clusters.close()


@pytest.fixture(scope="module")
def module_settings(request):
    """Settings of the module's cluster: its `SETTINGS`, if it has any."""
    return getattr(request.module, "SETTINGS", {})


@pytest.fixture(scope="module")
def cluster(clusters, module_settings):
    cluster = clusters.make(module_settings)
    yield cluster
    clusters.discard(cluster)


@pytest.fixture
def make_cluster(clusters):
    """For tests that need a cluster of their own."""
    made = []

    def make(settings=None, **kwargs):
        made.append(clusters.make(settings, **kwargs))
        return made[-1]

    yield make
    for cluster in made:
        clusters.discard(cluster)


@pytest.fixture
def make_feed(request):
    """Feeds in the module's cluster, unless another is given; their schemas are
    named after the test, unless another name is given."""
    made = []

    def make(name=None, **kwargs):
        if "cluster" not in kwargs:
            kwargs["cluster"] = request.getfixturevalue("cluster")
        made.append(Feed(schema=name or schema_name(request), **kwargs))
        return made[-1]

    yield make
    for feed in reversed(made):
        feed.close()


@pytest.fixture
def feed(make_feed):
    """One schema, not started."""
    return make_feed()


def schema_name(request):
    """Readable, unlike any other test's, and short enough for Postgres."""
    name = request.node.name
    readable = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)[:50].lower()
    return f"{readable}_{zlib.crc32(name.encode()):08x}"


@pytest.fixture(scope="session")
def seed(request):
    given = request.config.getoption("--seed")
    return random.randrange(2**31) if given is None else given


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """An S3 server of the module's own."""
    server = S3Server(tmp_path_factory.mktemp("s3") / "log")
    yield server
    server.close()


@pytest.fixture
def proxy(s3):
    """What stands before it, where faults are wanted; it knows one key."""
    proxy = FaultProxy(s3.port, keys={KEY: SECRET})
    yield proxy
    proxy.close()


# A failing test shows what the servers logged while it ran; a crash in the log
# fails the test that was running.


@pytest.fixture(autouse=True)
def server_logs(request, clusters):
    marks = {cluster.folder: cluster.log_size() for cluster in clusters.live}
    request.node.server_logs = (clusters, marks)
    yield
    expected = request.node.get_closest_marker("expects_crashes")
    crashes = {
        cluster.folder.name: [
            line
            for line in cluster.crashes(marks.get(cluster.folder, 0))
            if expected is None or not re.search(expected.args[0], line)
        ]
        for cluster in clusters.live
    }
    clusters.discard_failed()
    assert not any(crashes.values()), f"crashes in the server logs: {crashes}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and hasattr(item, "server_logs"):
        clusters, marks = item.server_logs
        for cluster in clusters.live:
            tail = cluster.log_tail(marks.get(cluster.folder, 0))
            if tail:
                report.sections.append((f"server log of {cluster.folder.name}", tail))
    return report
