"""A Unity Catalog server of its own on the loopback, which the environment variable UNITY_SERVER names, and a
proxy in front of it that wants a token, which that server never asks for, and gives out credentials."""

import json
import os
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler

from .fault_proxy import Server
from .stores import answers, free_port
from .waiting import wait_for

API = "/api/2.1/unity-catalog"
TOKEN = "dapi-token-of-the-catalog-in-tests"
CATALOG, SCHEMA = "main", "bronze"


def unity_server():
    """The program, or None."""
    return os.environ.get("UNITY_SERVER") or shutil.which("uc-server")


class UnityServer:
    """What it knows lives in `folder`, so that it can be stopped and started again. Folders below `root` may be
    tables' places."""

    def __init__(self, folder, root):
        self.port = free_port()
        self.process = None
        managed = folder / "managed"
        managed.mkdir()
        self.config = folder / "config.yaml"
        self.config.write_text(
            "backend:\n"
            "  engine: sqlite\n"
            f"  path: {folder}/catalog.sqlite\n"
            "encryption:\n"
            "  active:\n"
            "    id: tests\n"
            "    key: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n"
            f"local_storage:\n  allowed-roots: ['{root}', '{managed}']\n"
            f"managed_storage_root: file://{managed}\n"
        )
        self.log = open(folder / "log", "wb")
        migrate = [unity_server(), "migrate", "--config", self.config]
        subprocess.run(migrate, check=True, stdout=self.log, stderr=self.log)
        self.start()
        self.call("POST", "/catalogs", {"name": CATALOG})
        self.call("POST", "/schemas", {"name": SCHEMA, "catalog_name": CATALOG})
        role = {"role_arn": "arn:aws:iam::123456789012:role/lake"}
        self.call("POST", "/credentials", {"name": "keys", "purpose": "STORAGE", "aws_iam_role": role})
        self.location("disk", f"file://{root}")

    def start(self):
        place = ["--config", self.config, "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(
            [unity_server(), "serve", *place, "--no-ui"], stdout=self.log, stderr=self.log
        )
        wait_for(lambda: answers(f"{self.url}/health"), 60, "the catalog to answer")

    def stop(self):
        self.process.terminate()
        self.process.wait(20)

    def close(self):
        self.stop()
        self.log.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def call(self, method, path, body=None):
        request = urllib.request.Request(
            self.url + API + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            text = answer.read()
            return json.loads(text) if text else None

    def location(self, name, url):
        """Makes it a place for external tables."""
        self.call("POST", "/external-locations", {"name": name, "url": url, "credential_name": "keys"})

    def table(self, name, schema=SCHEMA):
        """What is registered, or None."""
        try:
            return self.call("GET", f"/tables/{CATALOG}.{schema}.{name}")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


def columns(table):
    """[(name, type, nullable, comment), …] of a registered table. The server keeps comments in Delta's JSON; the
    field `comment` it fills only when a table is made."""
    found = []
    for column in sorted(table["columns"], key=lambda column: column.get("position", 0)):
        field = json.loads(column["type_json"])
        assert field["name"] == column["name"]
        found.append((column["name"], field["type"], column["nullable"], field["metadata"].get("comment")))
    return found


class CatalogProxy:
    """`token`: what it wants; None: nothing. `without`: a part of paths that the server does not know. Requests
    are in `requests`, as "METHOD path"."""

    def __init__(self, upstream_port, token=TOKEN):
        self.upstream_port = upstream_port
        self.token = token
        # (status, code, message) for all who have the token.
        self.refused = None
        # What was given out: (session token, when, end, what was asked).
        self.given = []
        self.life = None
        self.keys = None
        self.vends_none = False
        self.without = None
        self.requests = []
        self.lock = threading.Lock()
        self.server = Server(("127.0.0.1", 0), handler(self))
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def gives(self, key, secret, life):
        """From now on it gives out this key, with a session token of its own each time, for so many seconds."""
        self.keys, self.life = (key, secret), life

    def calls(self, start):
        return [line for line in self.requests if line.startswith(start)]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def handler(proxy):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def serve(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.removeprefix(API)
            with proxy.lock:
                proxy.requests.append(f"{self.command} {path}")
            if proxy.token is not None and self.headers.get("Authorization") != f"Bearer {proxy.token}":
                self.refuse(401, "UNAUTHENTICATED", f"not accepted: {self.headers.get('Authorization')}")
            elif proxy.refused:
                self.refuse(*proxy.refused)
            elif proxy.without and proxy.without in path:
                self.reply(404, [], b"")
            elif path == "/temporary-path-credentials" and proxy.vends_none:
                self.reply(200, [], json.dumps({"url": json.loads(body)["url"]}).encode())
            elif path == "/temporary-path-credentials" and proxy.keys:
                self.give(json.loads(body))
            else:
                self.forward(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = serve

        def give(self, asked):
            ends = time.time() + proxy.life
            with proxy.lock:
                session = f"session-token-number-{len(proxy.given)}"
                proxy.given.append((session, time.time(), ends, asked))
            key, secret = proxy.keys
            keys = {"access_key_id": key, "secret_access_key": secret, "session_token": session}
            answer = {"aws_temp_credentials": keys, "expiration_time": int(ends * 1000), "url": asked["url"]}
            self.reply(200, [], json.dumps(answer).encode())

        def refuse(self, status, code, message):
            self.reply(status, [], json.dumps({"error_code": code, "message": message}).encode())

        def forward(self, body):
            upstream = HTTPConnection("127.0.0.1", proxy.upstream_port, timeout=30)
            headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
            try:
                upstream.request(self.command, self.path, body, headers)
                answer = upstream.getresponse()
                self.reply(answer.status, answer.getheaders(), answer.read())
            except OSError:
                self.close_connection = True
                self.connection.close()
            finally:
                upstream.close()

        def reply(self, status, headers, body):
            self.send_response(status)
            for name, value in headers:
                if name.lower() == "content-type":
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler
