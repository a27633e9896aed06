"""Object stores for tests: servers of their own on the loopback."""

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
import uuid

import boto3
import duckdb
import duckdb_extension_httpfs

from .feed import Feed
from .readers import DELTA_RS, read_history
from .waiting import wait_for

KEY, SECRET = "AKIATESTWAL2DELTA", "secret/of+the=test/QUITE-long"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(url):
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


class S3Server:
    """An S3 server in a process of its own. It takes any credentials: see FaultProxy."""

    def __init__(self, log):
        self.port = free_port()
        self.log = open(log, "wb")
        self.process = self.begin()
        wait_for(lambda: answers(self.url), 60, "the S3 server to answer")
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def begin(self):
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        return subprocess.Popen(command, stdout=self.log, stderr=self.log)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def bucket(self):
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name

    def keys(self, bucket, prefix=""):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def read(self, bucket, key):
        return self.client.get_object(Bucket=bucket, Key=key)["Body"].read()

    def mirror(self, bucket, prefix, folder):
        """What is below a prefix, as files: for checks that read a disk. Commits of the log come last,
        so that no commit names a file that was not there yet, and what names a checkpoint before it."""

        def copy(key):
            file = folder / key[len(prefix) + 1 :]
            if not file.exists() or "_last_checkpoint" in key:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(self.read(bucket, key))

        names = [key for key in self.keys(bucket, prefix + "/") if "_last_checkpoint" in key]
        for key in names:
            copy(key)
        for key in sorted(self.keys(bucket, prefix + "/"), key=lambda key: "_delta_log" in key):
            if "_last_checkpoint" not in key:
                copy(key)
        return folder

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


def minio():
    """The program, or None."""
    return os.environ.get("MINIO") or shutil.which("minio")


class MinIO(S3Server):
    """One that people have. It keeps its objects in a folder, and takes one key alone."""

    def __init__(self, folder):
        self.folder = folder
        super().__init__(folder.with_suffix(".log"))

    def begin(self):
        command = [minio(), "server", self.folder, "--quiet", "--address", f"127.0.0.1:{self.port}"]
        settings = {
            "MINIO_ROOT_USER": KEY,
            "MINIO_ROOT_PASSWORD": SECRET,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        # It keeps its certificates and the like in the home folder.
        settings["HOME"] = str(self.folder)
        return subprocess.Popen(command, stdout=self.log, stderr=self.log, env={**os.environ, **settings})


class StoredFeed(Feed):
    """A feed to a bucket. `destination` is what `start` is given; `url` where that is."""

    def __init__(self, cluster, schema, store, bucket, folder, prefix="bronze", **kwargs):
        super().__init__(cluster, schema, **kwargs)
        self.store, self.bucket, self.prefix, self.mirrors = store, bucket, prefix, folder

    def path(self, table):
        name = f"lb_{table}_history"
        return self.store.mirror(self.bucket, f"{self.prefix}/{name}", self.mirrors / self.bucket / name)

    def stored_rows(self, table, reader=DELTA_RS, **kwargs):
        return read_history(reader, self.path(table), **kwargs)


def delta_rs_options(store):
    """How delta-rs and Polars get there."""
    return {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
    }


def duckdb_secret(connection, store):
    folder = duckdb_extension_httpfs.__path__[0]
    connection.execute(f"LOAD '{folder}/extensions/v{duckdb.__version__}/httpfs.duckdb_extension'")
    connection.execute(
        f"CREATE OR REPLACE SECRET (TYPE s3, KEY_ID '{KEY}', SECRET '{SECRET}', REGION 'us-east-1',"
        f" ENDPOINT '127.0.0.1:{store.port}', USE_SSL false, URL_STYLE 'path')"
    )


def create_server(cluster, name, endpoint, bucket, prefix="bronze", dbname="postgres", **options):
    options = {"url": f"s3://{bucket}/{prefix}", "endpoint": endpoint, **options}
    listed = ", ".join(f"{key} '{value}'" for key, value in options.items())
    cluster.sql(f"CREATE SERVER {name} FOREIGN DATA WRAPPER wal2delta OPTIONS ({listed})", dbname=dbname)


def create_mapping(cluster, name, role="CURRENT_USER", key=KEY, secret=SECRET, dbname="postgres", **options):
    options = {"aws_access_key_id": key, "aws_secret_access_key": secret, **options}
    listed = ", ".join(f"{key} '{value}'" for key, value in options.items())
    cluster.sql(f"CREATE USER MAPPING FOR {role} SERVER {name} OPTIONS ({listed})", dbname=dbname)


def alter_mapping(cluster, name, role="CURRENT_USER", **options):
    listed = ", ".join(f"SET {key} '{value}'" for key, value in options.items())
    cluster.sql(f"ALTER USER MAPPING FOR {role} SERVER {name} OPTIONS ({listed})")


def check_upkeep(feed, cluster):
    """Small files of the table `t` become one, and what nobody needs goes from the store."""
    rows = feed.check("t")
    optimize = "SELECT wal2delta.optimize(%s::regclass)"
    cluster.sql("ALTER SYSTEM SET wal2delta.log_retention = 0")
    cluster.sql("SELECT pg_reload_conf()")
    try:
        wait_for(lambda: feed.value("SHOW wal2delta.log_retention") == "0", 20, "the setting")
        # What the first call has merged is old when the second one comes.
        for _ in range(2):
            feed.conn.execute(optimize, [f"{feed.schema}.t"])
    finally:
        cluster.sql("ALTER SYSTEM RESET wal2delta.log_retention")
        cluster.sql("SELECT pg_reload_conf()")
    keys = feed.store.keys(feed.bucket, f"{feed.prefix}/lb_t_history/")
    names = [key.removeprefix(f"{feed.prefix}/lb_t_history/") for key in keys]
    assert sum(name.endswith(".parquet") and "_delta_log" not in name for name in names) == 1, names
    assert sum(name.endswith(".json") for name in names) <= 2, names
    feed.mirrors = feed.mirrors / "after"
    assert feed.stored_rows("t") == rows
