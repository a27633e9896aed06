"""An Azure Blob server of its own on the loopback: Azurite, which the environment variable AZURITE names."""

import os
import shutil
import subprocess
import uuid

from azure.storage.blob import BlobServiceClient

from .stores import answers, free_port
from .waiting import wait_for

# Azurite's own account, which its documentation names.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def azurite():
    """The program, or None."""
    return os.environ.get("AZURITE") or shutil.which("azurite-blob")


class AzureServer:
    def __init__(self, log):
        self.port = free_port()
        self.log = open(log, "wb")
        options = ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        self.process = subprocess.Popen(
            [azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), *options],
            stdout=self.log,
            stderr=self.log,
        )
        wait_for(lambda: answers(self.url), 60, "Azurite to answer")
        self.service = BlobServiceClient(self.url, credential={"account_name": ACCOUNT, "account_key": ACCOUNT_KEY})

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def bucket(self):
        name = f"container-{uuid.uuid4().hex[:12]}"
        self.service.create_container(name)
        return name

    def keys(self, bucket, prefix=""):
        return [blob.name for blob in self.service.get_container_client(bucket).list_blobs(name_starts_with=prefix)]

    def mirror(self, bucket, prefix, folder):
        container = self.service.get_container_client(bucket)
        for key in sorted(self.keys(bucket, prefix + "/"), key=lambda key: "_delta_log" in key):
            file = folder / key[len(prefix) + 1 :]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(container.download_blob(key).readall())
        return folder

    def close(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()
