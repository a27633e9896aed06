"""Servers of the foreign-data wrapper as destinations: their options, who may use them, and what is
said of those that are not right."""

import base64
import re
import zlib
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from harness.fault_proxy import FORBIDDEN, FaultProxy
from harness.stores import KEY, SECRET, StoredFeed, create_mapping, create_server


@pytest.fixture
def lake(cluster, s3, proxy, request):
    """(server name, bucket): a server with a mapping, and a schema `sales` with a table."""
    name = f"lake_{zlib.crc32(request.node.name.encode()):08x}"
    bucket = s3.bucket()
    create_server(cluster, name, proxy.url, bucket)
    create_mapping(cluster, name)
    cluster.sql("CREATE SCHEMA sales; CREATE TABLE sales.t (i int); ALTER TABLE sales.t REPLICA IDENTITY FULL")
    yield name, bucket
    for (schema,) in cluster.sql("SELECT source_schema FROM wal2delta.schemas"):
        cluster.sql("SELECT wal2delta.stop(%s)", [schema])
    cluster.sql(f"DROP SCHEMA sales CASCADE; DROP SERVER IF EXISTS {name} CASCADE")


def refused(cluster, query, params=None, *, says, hint, state, user="postgres"):
    with pytest.raises(psycopg.Error) as caught:
        cluster.sql(query, params, user=user)
    error = caught.value.diag
    told = (error.sqlstate, error.message_primary, error.message_hint)
    assert error.sqlstate == state, told
    assert re.search(says, error.message_primary), told
    assert error.message_hint and re.search(hint, error.message_hint), told
    assert not error.message_primary.endswith("."), told
    assert SECRET not in repr(told), told


def start(cluster, destination, **kwargs):
    refused(cluster, "SELECT wal2delta.start('sales', %s)", [destination], **kwargs)


# --- options


@pytest.mark.parametrize(
    ("statement", "says", "hint", "state"),
    [
        ("SERVER x {w} OPTIONS (url 's3://b', regoin 'x')", 'invalid option "regoin"', 'meant the option "region"', "HV00D"),
        ("SERVER x {w} OPTIONS (url 's3://b', zzz 'x')", 'invalid option "zzz"', "Valid options.*: url, endpoint", "HV00D"),
        ("SERVER x {w} OPTIONS (url 's3://b', aws_session_token 'x')", "not one of a server", "user mapping", "HV00D"),
        ("SERVER x {w} OPTIONS (region 'x')", '"url" is required', "s3://bucket", "22023"),
        ("SERVER x {w}", '"url" is required', "s3://bucket", "22023"),
        ("SERVER x {w} OPTIONS (url 's3://')", "no bucket", "s3://bucket", "22023"),
        ("SERVER x {w} OPTIONS (url '/folder')", "not the URL", "s3://bucket", "22023"),
        ("SERVER x {w} OPTIONS (url 's3://k:hunter2@b')", "credentials", "user mapping", "22023"),
        ("SERVER x {w} OPTIONS (url 's3://b', endpoint 'here')", "not an HTTP address", "https://", "22023"),
        ("SERVER x {w} OPTIONS (url 's3://b', path_style 'perhaps')", "boolean", "true or false", "22023"),
        ("USER MAPPING FOR CURRENT_USER SERVER given OPTIONS (aws_secret_key 'hunter2')", "invalid option", "aws_secret_access_key", "HV00D"),
        ("USER MAPPING FOR CURRENT_USER SERVER given OPTIONS (region 'x')", "not one of a user mapping", "a server", "HV00D"),
        ("USER MAPPING FOR CURRENT_USER SERVER given OPTIONS (gcp_service_account_key 'hunter2')", "not JSON", "key file", "22023"),
        ("FOREIGN TABLE x (i int) SERVER given", "no foreign tables", "wal2delta.start", "0A000"),
    ],
)  # fmt: skip
def test_options(cluster, statement, says, hint, state):
    cluster.sql("CREATE SERVER IF NOT EXISTS given FOREIGN DATA WRAPPER wal2delta OPTIONS (url 's3://b/given')")
    statement = "CREATE " + statement.format(w="FOREIGN DATA WRAPPER wal2delta")
    refused(cluster, statement, says=says, hint=hint, state=state)


# --- start


def test_server_missing(cluster, lake):
    start(cluster, "no_such", says='server "no_such" does not exist', hint="absolute path", state="42704")


def test_server_of_another_wrapper(cluster, lake):
    cluster.sql("CREATE FOREIGN DATA WRAPPER other; CREATE SERVER other FOREIGN DATA WRAPPER other")
    start(cluster, "other", says="not one of the foreign-data wrapper", hint="CREATE SERVER", state="22023")
    cluster.sql("DROP SERVER other; DROP FOREIGN DATA WRAPPER other")


def test_url_without_bucket(cluster, lake):
    start(cluster, "s3:///bronze", says="no bucket", hint="s3://bucket", state="22023")


def test_wrong_key(cluster, lake, proxy):
    proxy.keys = {"other": SECRET}
    start(cluster, lake[0], says="403.*InvalidAccessKeyId", hint="ALTER USER MAPPING", state="42501")


def test_wrong_secret(cluster, lake, proxy):
    proxy.keys = {KEY: "other"}
    start(cluster, lake[0], says="403.*SignatureDoesNotMatch", hint="ALTER USER MAPPING", state="42501")


def test_half_a_key(cluster, lake):
    cluster.sql(f"ALTER USER MAPPING FOR CURRENT_USER SERVER {lake[0]} OPTIONS (DROP aws_access_key_id)")
    start(cluster, lake[0], says="but not", hint="ADD aws_access_key_id", state="22023")


def test_wrong_region(cluster, lake, proxy):
    proxy.region = "eu-central-1"
    start(cluster, lake[0], says="region", hint="SET region", state="42704")
    cluster.sql(f"ALTER SERVER {lake[0]} OPTIONS (ADD region 'eu-central-1')")
    cluster.sql("SELECT wal2delta.start('sales', %s)", [lake[0]])


def test_missing_bucket(cluster, lake):
    cluster.sql(f"ALTER SERVER {lake[0]} OPTIONS (SET url 's3://no-such-bucket/bronze')")
    start(cluster, lake[0], says="404.*NoSuchBucket", hint='Create bucket "no-such-bucket"', state="42704")


@pytest.mark.parametrize("what", ["GET .*list-type", "PUT "], ids=["list", "write"])
def test_not_permitted(cluster, lake, proxy, what):
    proxy.fail(what, answer=FORBIDDEN)
    start(cluster, lake[0], says="403.*AccessDenied", hint="list bucket.*read and write", state="42501")


def test_store_away(cluster, lake, proxy):
    cluster.sql(f"ALTER SERVER {lake[0]} OPTIONS (SET endpoint 'http://127.0.0.1:1')")
    start(cluster, lake[0], says="refused", hint="endpoint", state="58030")


def test_store_that_overwrites(cluster, lake, proxy):
    """Two writers would both win."""
    proxy.ignores_conditions = True
    start(cluster, lake[0], says="overwrites", hint="If-None-Match", state="22023")


def test_something_else_is_there(cluster, lake, s3):
    s3.client.put_object(Bucket=lake[1], Key="bronze/notes.txt", Body=b"")
    start(cluster, lake[0], says='holds "notes.txt"', hint="empty", state="22023")


def test_overlap(cluster, lake, proxy, tmp_path):
    cluster.sql("SELECT wal2delta.start('sales', %s)", [lake[0]])
    cluster.sql("CREATE SCHEMA other")
    create_server(cluster, "inner_lake", proxy.url, lake[1], "bronze/lb_t_history")
    create_mapping(cluster, "inner_lake")
    refused(
        cluster,
        "SELECT wal2delta.start('other', 'inner_lake')",
        says="overlaps",
        hint="beside",
        state="55006",
    )
    cluster.sql("DROP SERVER inner_lake CASCADE; DROP SCHEMA other")


def test_inside_a_destination_of_somebody_else(cluster, lake, s3):
    """Another database's, or another server's: only the marker tells."""
    s3.client.put_object(Bucket=lake[1], Key="bronze/.wal2delta-destination", Body=b"")
    cluster.sql(f"ALTER SERVER {lake[0]} OPTIONS (SET url 's3://{lake[1]}/bronze/a/b')")
    start(cluster, lake[0], says=f'lies inside "s3://{lake[1]}/bronze"', hint="beside", state="22023")
    cluster.sql(f"ALTER SERVER {lake[0]} OPTIONS (SET url 's3://{lake[1]}/bronze')")
    cluster.sql("SELECT wal2delta.start('sales', %s)", [lake[0]])


def test_inside_a_folder_with_histories(cluster, lake):
    outer = cluster.folder_for("outer")
    (outer / "lb_t_history" / "_delta_log").mkdir(parents=True)
    start(cluster, f"{outer}/a/b", says=f'lies inside "{outer}"', hint="beside", state="22023")
    start(cluster, f"{outer}/lb_t_history/a", says="lies inside", hint="beside", state="22023")


# --- whose


@pytest.fixture
def clerk(cluster, lake):
    """A role with a schema of its own, and no other rights."""
    cluster.sql("CREATE ROLE clerk LOGIN; ALTER SCHEMA sales OWNER TO clerk")
    cluster.sql("GRANT EXECUTE ON FUNCTION wal2delta.start(name, text, jsonb) TO clerk")
    yield
    cluster.sql("ALTER SCHEMA sales OWNER TO postgres; DROP OWNED BY clerk; DROP ROLE clerk")


def test_usage_is_needed(cluster, lake, clerk):
    say = {"says": "permission denied for foreign server", "hint": "GRANT USAGE", "state": "42501", "user": "clerk"}
    start(cluster, lake[0], **say)
    cluster.sql(f"GRANT USAGE ON FOREIGN SERVER {lake[0]} TO clerk")
    create_mapping(cluster, lake[0], "clerk")
    cluster.sql("SELECT wal2delta.start('sales', %s)", [lake[0]], user="clerk")


def test_environment_is_not_for_everybody(cluster, lake, clerk):
    start(cluster, f"s3://{lake[1]}/bronze", says="permission denied", hint="pg_write_server_files", state="42501", user="clerk")  # fmt: skip
    cluster.sql("GRANT USAGE ON FOREIGN DATA WRAPPER wal2delta TO clerk")
    cluster.sql(f"CREATE SERVER clerks FOREIGN DATA WRAPPER wal2delta OPTIONS (url 's3://{lake[1]}/b')", user="clerk")
    start(cluster, "clerks", says="no user mapping", hint="CREATE USER MAPPING", state="42501", user="clerk")
    cluster.sql("DROP SERVER clerks CASCADE")


def test_mapping_for_all(cluster, lake, clerk):
    cluster.sql(f"GRANT USAGE ON FOREIGN SERVER {lake[0]} TO clerk")
    create_mapping(cluster, lake[0], "PUBLIC")
    cluster.sql("SELECT wal2delta.start('sales', %s)", [lake[0]], user="clerk")


def test_server_in_use_is_kept(cluster, lake):
    cluster.sql("SELECT wal2delta.start('sales', %s)", [lake[0]])
    refused(cluster, f"DROP SERVER {lake[0]} CASCADE", says="a feed needs it", hint="wal2delta.stop", state="2BP01")
    cluster.sql("SELECT wal2delta.stop('sales')")
    cluster.sql(f"DROP SERVER {lake[0]} CASCADE")


def test_server_points_elsewhere(cluster, lake, s3, tmp_path):
    """The histories do not begin anew somewhere else."""
    feed = StoredFeed(cluster, "sales", s3, lake[1], tmp_path, destination=lake[0], create=False)
    feed.sql("INSERT INTO t VALUES (1)")
    feed.start()
    feed.wait_for_status("t", "STREAMING")
    cluster.sql(f"ALTER SERVER {lake[0]} OPTIONS (SET url 's3://{lake[1]}/silver')")
    feed.sql("SELECT pg_sleep(2)")
    feed.sql("INSERT INTO t VALUES (2)")
    row = feed.wait_for_status("t", "FAILED")
    assert "url" in row["last_error"], row
    checks = cluster.sql("SELECT what_to_do FROM wal2delta.check() WHERE NOT ok")
    assert any("url" in what for (what,) in checks), checks
    assert not s3.keys(lake[1], "silver")
    cluster.sql(f"ALTER SERVER {lake[0]} OPTIONS (SET url 's3://{lake[1]}/bronze')")
    feed.wait_for_status("t", "STREAMING")
    feed.check("t")
    feed.conn.close()


# --- the way there


def test_proxy(cluster, lake, s3):
    name, bucket = lake
    way = FaultProxy(s3.port)
    cluster.sql(f"ALTER SERVER {name} OPTIONS (SET endpoint '{s3.url}', ADD proxy_url '{way.url}')")
    cluster.sql(
        f"ALTER USER MAPPING FOR CURRENT_USER SERVER {name} OPTIONS (ADD proxy_user 'me', ADD proxy_password 'hunter2')"
    )
    cluster.sql("SELECT wal2delta.start('sales', %s)", [name])
    assert any("bronze" in line for line in way.requests)
    assert way.proxy_users == {"Basic " + base64.b64encode(b"me:hunter2").decode()}
    cluster.sql("SELECT wal2delta.stop('sales')")
    way.fail(answer=(407, "ProxyAuthenticationRequired", "who are you"))
    start(cluster, name, says="407", hint=".", state="58030")
    way.close()


def certificate(folder):
    """A file with a certificate for the loopback, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    file = folder / "certificate.pem"
    file.write_bytes(
        made.public_bytes(pem)
        + key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return file


def test_tls(make_cluster, s3, tmp_path, monkeypatch):
    """The store's certificate has to be one that the machine trusts."""
    file = certificate(tmp_path)
    proxy = FaultProxy(s3.port, keys={KEY: SECRET}, certificate=file)
    bucket = s3.bucket()
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(file.read_bytes().split(b"-----BEGIN PRIVATE")[0])
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
    cluster = make_cluster()
    create_server(cluster, "lake", proxy.url, bucket)
    create_mapping(cluster, "lake")
    feed = StoredFeed(cluster, "shop", s3, bucket, tmp_path, destination="lake")
    feed.table("t (i int)")
    feed.sql("INSERT INTO t VALUES (1)")
    feed.start()
    feed.wait_for_status("t", "STREAMING")
    feed.check("t")
    feed.stop()
    feed.close()
    monkeypatch.delenv("SSL_CERT_FILE")
    cluster.restart()
    cluster.sql("CREATE SCHEMA sales")
    start(cluster, "lake", says="certificate", hint="reached", state="58030")
    proxy.close()


# --- the environment


def test_no_credentials_anywhere(cluster, lake):
    cluster.sql(f"DROP USER MAPPING FOR CURRENT_USER SERVER {lake[0]}")
    start(cluster, lake[0], says="no credentials", hint="CREATE USER MAPPING", state="42501")


def test_extension_goes_with_its_servers(make_cluster, s3, proxy, tmp_path):
    cluster = make_cluster()
    create_server(cluster, "lake", proxy.url, s3.bucket())
    create_mapping(cluster, "lake")
    cluster.sql("CREATE SCHEMA sales")
    cluster.sql("SELECT wal2delta.start('sales', 'lake')")
    cluster.sql("DROP EXTENSION wal2delta CASCADE")
    assert cluster.value("SELECT count(*) FROM pg_foreign_server") == 0


def test_environment(make_cluster, s3, tmp_path, monkeypatch):
    """Without a user mapping: what the environment of the server says."""
    proxy = FaultProxy(s3.port, keys={KEY: SECRET})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    cluster = make_cluster()
    bucket = s3.bucket()
    feed = StoredFeed(cluster, "shop", s3, bucket, tmp_path, destination=f"s3://{bucket}/bronze")
    feed.table("t (i int)")
    feed.sql("INSERT INTO t VALUES (1)")
    feed.start()
    feed.wait_for_status("t", "STREAMING")
    feed.check("t")
    feed.close()
    proxy.close()
