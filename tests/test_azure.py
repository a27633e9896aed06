"""A feed to Azure Blob Storage."""

import psycopg
import pytest
from harness.azure import ACCOUNT, ACCOUNT_KEY, AzureServer, azurite
from harness.stores import StoredFeed, check_upkeep

pytestmark = pytest.mark.skipif(azurite() is None, reason="no Azurite: set AZURITE to its azurite-blob")


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    server = AzureServer(tmp_path_factory.mktemp("azure") / "log")
    yield server
    server.close()


@pytest.fixture
def shop(cluster, azure, tmp_path):
    container = azure.bucket()
    cluster.sql(
        "CREATE SERVER lake FOREIGN DATA WRAPPER wal2delta"
        f" OPTIONS (url 'az://{container}/bronze', account_name '{ACCOUNT}', endpoint '{azure.url}')"
    )
    cluster.sql(f"CREATE USER MAPPING FOR CURRENT_USER SERVER lake OPTIONS (azure_account_key '{ACCOUNT_KEY}')")
    feed = StoredFeed(cluster, "shop", azure, container, tmp_path, destination="lake")
    feed.table("t (i int PRIMARY KEY, v text)")
    yield feed
    feed.close()
    cluster.sql("DROP SERVER lake CASCADE")


def test_snapshot_and_changes(shop, azure):
    shop.sql("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
    shop.start()
    shop.wait_for_status("t", "STREAMING")
    for _ in range(12):
        shop.sql("UPDATE t SET v = v || 'y' WHERE i <= 10")
        shop.flush()
    shop.sql("DELETE FROM t WHERE i > 90")
    shop.check("t")
    assert any("checkpoint.parquet" in key for key in azure.keys(shop.bucket))
    # Goes on after its worker has ended.
    shop.cluster.terminate_feed_worker()
    shop.sql("INSERT INTO t SELECT i, 'x' FROM generate_series(1000, 1010) i")
    check_upkeep(shop, shop.cluster)


@pytest.mark.parametrize(
    ("change", "says", "state"),
    [
        ("USER MAPPING FOR CURRENT_USER SERVER lake OPTIONS (SET azure_account_key 'bm90IGl0')", "403", "42501"),
        ("USER MAPPING FOR CURRENT_USER SERVER lake OPTIONS (DROP azure_account_key)", "no credentials", "22023"),
        ("SERVER lake OPTIONS (SET url 'az://no-such-container/bronze')", "404.*ContainerNotFound", "42704"),
        ("SERVER lake OPTIONS (DROP account_name)", "which account", "22023"),
        ("SERVER lake OPTIONS (ADD region 'x')", "no meaning", "22023"),
    ],
)
def test_bad_input(shop, change, says, state):
    shop.cluster.sql(f"ALTER {change}")
    with pytest.raises(psycopg.Error, match=says) as caught:
        shop.start()
    assert caught.value.sqlstate == state
    assert caught.value.diag.message_hint
