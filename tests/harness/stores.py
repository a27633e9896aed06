"""Object stores for tests: servers of their own on the loopback."""

import socket
import subprocess
import sys
import urllib.request
import uuid

import boto3

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
        self.process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
            stdout=self.log,
            stderr=self.log,
        )
        wait_for(lambda: answers(self.url), 60, "the S3 server to answer")
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

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
