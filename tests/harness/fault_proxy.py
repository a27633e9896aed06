"""A proxy in front of an S3 server that is as strict as Amazon's, and fails on demand: it checks who
signed a request and for which region, and can refuse, delay or drop requests and answers."""

import base64
import hashlib
import hmac
import json
import re
import ssl
import threading
import time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLOW_DOWN = (503, "SlowDown", "Please reduce your request rate.")
FORBIDDEN = (403, "AccessDenied", "Access Denied")
CLOCK_IS_OFF = (403, "RequestTimeTooSkewed", "The difference between the request time and the server's time is too large.")
NO_BUCKET = (404, "NoSuchBucket", "The specified bucket does not exist")
EXPIRED = (400, "ExpiredToken", "The provided token has expired.")


# A signature that nobody checks.
SIGNED = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Fault:
    """Meets the next `times` requests whose "METHOD path?query" matches `pattern`. What happens is `answer`
    (status, code, message); `delay` in seconds; `reset`: the connection breaks in the midst of the upload;
    `lost`: the store does what was asked, and the answer never comes."""

    def __init__(self, pattern="", times=None, answer=None, delay=0, reset=False, lost=False):
        self.pattern, self.left = re.compile(pattern), times
        self.answer, self.delay, self.reset, self.lost = answer, delay, reset, lost
        self.met = 0


class FaultProxy:
    """`keys`: {access key id: secret} of those who may use the store; None: anybody. `accounts`: it is Google's
    store, whose XML protocol differs in conditions and in who signs: these service accounts. `certificate`: a
    file with certificate and key, to be spoken to by TLS. It is a forward proxy too."""

    def __init__(self, upstream_port, keys=None, region=None, accounts=None, certificate=None):
        self.accounts = accounts
        self.upstream_port = upstream_port
        self.keys = keys
        self.region = region
        self.expired_tokens = set()
        self.expired_met = 0
        self.proxy_users = set()
        self.ignores_conditions = False
        self.requests = []
        self.faults = []
        self.lock = threading.Lock()
        self.server = Server(("127.0.0.1", 0), handler(self))
        self.scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def fail(self, *args, **kwargs):
        fault = Fault(*args, **kwargs)
        with self.lock:
            self.faults.append(fault)
        return fault

    def mend(self):
        with self.lock:
            self.faults.clear()

    def fault_for(self, line):
        with self.lock:
            self.requests.append(line)
            for fault in self.faults:
                if fault.left != 0 and fault.pattern.search(line):
                    fault.met += 1
                    if fault.left is not None:
                        fault.left -= 1
                    return fault
        return None

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A client that has gone, as clients of a broken store do."""


def handler(proxy):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def serve(self):
            self.path = re.sub("^http://[^/]*", "", self.path)
            length = int(self.headers.get("Content-Length") or 0)
            proxy.proxy_users.add(self.headers.get("Proxy-Authorization"))
            fault = proxy.fault_for(f"{self.command} {self.path}")
            if fault and fault.delay:
                time.sleep(fault.delay)
            if fault and fault.reset:
                self.rfile.read(length // 2)
                self.drop()
                return
            body = self.rfile.read(length)
            refused = (fault and fault.answer) or self.refusal(body)
            if refused:
                self.refuse(*refused)
                return
            answer = self.forward(body)
            if fault and fault.lost:
                self.drop()
                return
            self.reply(*answer)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve

        def drop(self):
            self.close_connection = True
            self.connection.close()

        def refusal(self, body):
            """Why Amazon would refuse the request."""
            if proxy.accounts is not None:
                return None if self.google_account() in proxy.accounts else (401, "AuthenticationRequired", "Authentication required.")
            token = self.headers.get("x-amz-security-token")
            if token in proxy.expired_tokens:
                proxy.expired_met += 1
                return EXPIRED
            if proxy.keys is None and proxy.region is None:
                return None
            found = re.match(
                r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d+)/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=(\w+)",
                self.headers.get("Authorization") or "",
            )
            if not found:
                return FORBIDDEN
            key, date, region, signed, signature = found.groups()
            if proxy.region is not None and region != proxy.region:
                return 400, "AuthorizationHeaderMalformed", f"the region '{region}' is wrong; expecting '{proxy.region}'"
            if proxy.keys is None:
                return None
            if key not in proxy.keys:
                return 403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."
            if self.signature(proxy.keys[key], date, region, signed) != signature:
                return 403, "SignatureDoesNotMatch", "The request signature we calculated does not match."
            return None

        def google_account(self):
            """Who issued the bearer's token, if it is one."""
            try:
                claims = (self.headers.get("Authorization") or "").removeprefix("Bearer ").split(".")[1]
                return json.loads(base64.urlsafe_b64decode(claims + "==="))["iss"]
            except (IndexError, ValueError, KeyError):
                return None

        def signature(self, secret, date, region, signed):
            path, _, query = self.path.partition("?")
            pairs = sorted(pair if "=" in pair else pair + "=" for pair in query.split("&") if pair)
            headers = "".join(f"{name}:{' '.join(self.headers[name].split())}\n" for name in signed.split(";"))
            payload = self.headers["x-amz-content-sha256"]
            request = "\n".join([self.command, path, "&".join(pairs), headers, signed, payload])
            scope = f"{date}/{region}/s3/aws4_request"
            digest = hashlib.sha256(request.encode()).hexdigest()
            text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], scope, digest])
            key = b"AWS4" + secret.encode()
            for part in (date, region, "s3", "aws4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()

        def refuse(self, status, code, message):
            body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
            self.reply(status, [("Content-Type", "application/xml")], body.encode())

        def forward(self, body):
            upstream = HTTPConnection("127.0.0.1", proxy.upstream_port, timeout=60)
            skipped = {"connection", "transfer-encoding"}
            if proxy.ignores_conditions:
                skipped.add("if-none-match")
            headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
            if proxy.accounts is not None:
                # The store behind is asked as S3 is.
                headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
                headers["Authorization"] = SIGNED
                if self.headers.get("x-goog-if-generation-match") == "0":
                    headers["If-None-Match"] = "*"
            try:
                # Google's client writes a bucket's hyphens so.
                upstream.request(self.command, self.path.replace("%2D", "-"), body, headers)
                answer = upstream.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                upstream.close()

        def reply(self, status, headers, body):
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                    self.send_header(name, value)
            length = next((value for name, value in headers if name.lower() == "content-length"), None)
            if self.command != "HEAD" or length is None:
                length = len(body)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
