"""A feed to Google Cloud Storage, as far as its XML protocol is S3's: the S3 server behind a proxy that knows
Google's conditions and tokens. fake-gcs-server, the emulator that there is, cannot be used: the client speaks the
XML protocol, in which fake-gcs-server (1.56.1) lists and reads, but refuses to write (400, "invalid uploadType")."""

import json

import psycopg
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from harness.fault_proxy import FaultProxy
from harness.stores import StoredFeed, check_upkeep

ACCOUNT = "feeds@shop.example"


@pytest.fixture(scope="module")
def key_file():
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return {"type": "service_account", "client_email": ACCOUNT, "private_key": pem, "private_key_id": "1"}


@pytest.fixture
def shop(cluster, s3, tmp_path, key_file):
    proxy = FaultProxy(s3.port, accounts={ACCOUNT})
    bucket = s3.bucket()
    cluster.sql(
        "CREATE SERVER lake FOREIGN DATA WRAPPER wal2delta"
        f" OPTIONS (url 'gs://{bucket}/bronze', endpoint '{proxy.url}')"
    )
    cluster.sql(
        f"CREATE USER MAPPING FOR CURRENT_USER SERVER lake OPTIONS (gcp_service_account_key '{json.dumps(key_file)}')"
    )
    feed = StoredFeed(cluster, "shop", s3, bucket, tmp_path, destination="lake")
    feed.table("t (i int PRIMARY KEY, v text)")
    feed.proxy = proxy
    yield feed
    feed.close()
    cluster.sql("DROP SERVER lake CASCADE")
    proxy.close()


def test_snapshot_and_changes(shop, s3):
    shop.sql("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
    shop.start()
    shop.wait_for_status("t", "STREAMING")
    for _ in range(12):
        shop.sql("UPDATE t SET v = v || 'y' WHERE i <= 10")
        shop.flush()
    shop.proxy.fail(r"PUT .*json", times=2, lost=True)
    shop.sql("DELETE FROM t WHERE i > 90")
    shop.check("t")
    assert any("checkpoint.parquet" in key for key in s3.keys(shop.bucket))
    check_upkeep(shop, shop.cluster)


def test_bad_input(shop):
    shop.proxy.accounts = {"somebody else"}
    with pytest.raises(psycopg.Error, match="401") as caught:
        shop.start()
    assert caught.value.sqlstate == "42501"
    assert "ALTER USER MAPPING" in caught.value.diag.message_hint
    shop.proxy.accounts = {ACCOUNT}
    shop.proxy.ignores_conditions = True
    shop.cluster.sql("ALTER USER MAPPING FOR CURRENT_USER SERVER lake OPTIONS (SET gcp_service_account_key '{}')")
    with pytest.raises(psycopg.Error, match="could not set up access") as caught:
        shop.start()
    assert "key" in caught.value.diag.message_hint
