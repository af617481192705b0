"""A stand-in for Google Cloud Storage and for Google's Security Token Service, made after their documentation.

The store has the part of the XML API (cloud.google.com/storage/docs/xml-api) that obstore's client for it uses: objects with conditions on their
generation, ranges, copies, lists by pages, uploads by parts. It holds every request to an access token of the token service, by signature, audience
and time. What is real here is that client. Google's own limits and consistency are not tried.
"""

import base64
import hashlib
import itertools
import json
import re
import threading
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidSignature

from json_server import JsonServer
from oidc import Issuer

PROVIDER = (
    "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/clusters/providers/research"
)
SUBJECT = "system:serviceaccount:research:store"
STORAGE = "https://storage.googleapis.com/"
PAGE = 7
"""Objects of one answer to a list. Google's has 1000; a short page is one that tests turn."""
RANGE = re.compile(r"bytes=(\d+)-(\d*)")


def claims_of(issuer: Issuer, token: str) -> dict[str, Any]:
    """Claims of a token that this issuer signed; raises ValueError for any other."""
    try:
        issuer.verify(token)
        text = token.split(".")[1]
        return dict(json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
    except (InvalidSignature, ValueError, IndexError) as error:
        raise ValueError("no token of this issuer") from error


class TokenService(JsonServer):
    """Serves until `close`. Its pool has one provider, which trusts one issuer."""

    def __init__(self, address: str, trusted: Issuer) -> None:
        self.trusted = trusted
        self.exchanges = 0
        self.life_seconds = 3600
        super().__init__(address)

    def answer(self, path: str, asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.exchanges += 1
        wanted = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "scope": "https://www.googleapis.com/auth/devstorage.read_write",
        }
        if path != "/v1/token" or not wanted.items() <= asked.items():
            return 400, {"error": "invalid_request", "error_description": "Invalid request."}
        if asked["audience"] != PROVIDER:
            return 400, {"error": "invalid_target", "error_description": "The target service is invalid."}
        try:
            claims = claims_of(self.trusted, asked["subject_token"])
        except ValueError:
            return 400, {"error": "invalid_request", "error_description": "Unable to parse the ID Token."}
        if claims["aud"] != f"https:{PROVIDER}":
            said = f"The audience in ID Token [{claims['aud']}] does not match the expected audience."
            return 400, {"error": "invalid_grant", "error_description": said}
        if claims["exp"] < time.time():
            said = f"ID Token issued at {claims['iat']} is stale to sign-in."
            return 400, {"error": "invalid_grant", "error_description": said}
        if claims["sub"] != SUBJECT:
            said = "The given credential is rejected by the attribute condition."
            return 403, {"error": "unauthorized_client", "error_description": said}
        now = int(time.time())
        token = self.trusted.signed({"aud": STORAGE, "iat": now, "nbf": now - 5, "exp": now + self.life_seconds})
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": self.life_seconds}


@dataclass(frozen=True)
class Held:
    """One object."""

    data: bytes
    generation: int
    changed_unix: float

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


@dataclass
class Upload:
    """An upload by parts that is not finished."""

    key: str
    parts: dict[int, bytes] = field(default_factory=dict)


class NoAnswer(Exception):
    """The store is away."""


class Refused(Exception):
    """An answer that says why not."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


class Gcs:
    """One bucket, served until `close`. While `away`, every connection ends without an answer."""

    bucket = "rollouts"

    def __init__(self, address: str, trusted: Issuer) -> None:
        self.away = False
        self.trusted = trusted
        self._objects: dict[str, Held] = {}
        self._uploads: dict[str, Upload] = {}
        self._numbers = itertools.count(1_700_000_000_000_001)
        self._lock = threading.Lock()
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"] or 0))
                try:
                    status, headers, body = store.answer(self.command, self.path, self.headers, data)
                except NoAnswer:
                    self.close_connection = True
                    return
                except Refused as refused:
                    status, headers = refused.status, {"Content-Type": "application/xml"}
                    body = f"<Error><Code>{refused.code}</Code></Error>".encode()
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def do_GET(self) -> None:
                self._serve()

            def do_HEAD(self) -> None:
                self._serve()

            def do_PUT(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def do_DELETE(self) -> None:
                self._serve()

            def log_message(self, format: str, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, headers: Any, data: bytes) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; raises NoAnswer and Refused."""
        if self.away:
            raise NoAnswer
        self._require_token(headers.get("Authorization", ""))
        place = urlsplit(path)
        bucket, _, key = unquote(place.path.removeprefix("/")).partition("/")
        asked = {name: values[0] for name, values in parse_qs(place.query, keep_blank_values=True).items()}
        if bucket != self.bucket:
            raise Refused(404, "NoSuchBucket")
        with self._lock:
            if not key:
                return self._list(asked)
            if "uploads" in asked or "uploadId" in asked:
                return self._by_parts(method, key, asked, data)
            if method == "PUT":
                return self._put(key, headers, data)
            held = self._held(key)
            if method == "DELETE":
                del self._objects[key]
                return 204, {}, b""
            return self._read(held, headers.get("Range"))

    def _require_token(self, authorization: str) -> None:
        try:
            claims = claims_of(self.trusted, authorization.removeprefix("Bearer "))
        except ValueError:
            raise Refused(401, "AuthenticationRequired") from None
        if claims["aud"] != STORAGE or claims["exp"] < time.time():
            raise Refused(401, "AuthenticationRequired")

    def _held(self, key: str) -> Held:
        if (held := self._objects.get(key)) is None:
            raise Refused(404, "NoSuchKey")
        return held

    def _keep(self, key: str, data: bytes) -> dict[str, str]:
        held = self._objects[key] = Held(data, next(self._numbers), time.time())
        return {"ETag": held.etag, "x-goog-generation": str(held.generation)}

    def _put(self, key: str, headers: Any, data: bytes) -> tuple[int, dict[str, str], bytes]:
        source = headers.get("x-goog-copy-source")
        if source is not None:
            data = self._held(unquote(source).removeprefix("/").partition("/")[2]).data
        condition = headers.get("x-goog-if-generation-match")
        held = self._objects.get(key)
        if condition is not None and int(condition) != (held.generation if held else 0):
            raise Refused(412, "PreconditionFailed")
        kept = self._keep(key, data)
        body = f"<CopyObjectResult><ETag>{kept['ETag']}</ETag></CopyObjectResult>" if source is not None else ""
        return 200, kept, body.encode()

    def _read(self, held: Held, asked: str | None) -> tuple[int, dict[str, str], bytes]:
        headers = {
            "ETag": held.etag,
            "Last-Modified": formatdate(held.changed_unix, usegmt=True),
            "x-goog-generation": str(held.generation),
        }
        if asked is None or (found := RANGE.fullmatch(asked)) is None:
            return 200, headers | {"Content-Length": str(len(held.data))}, held.data
        start, last = int(found[1]), int(found[2] or len(held.data) - 1)
        if start >= len(held.data):
            raise Refused(416, "InvalidRange")
        data = held.data[start : last + 1]
        headers["Content-Range"] = f"bytes {start}-{start + len(data) - 1}/{len(held.data)}"
        return 206, headers | {"Content-Length": str(len(data))}, data

    def _list(self, asked: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        after = asked.get("continuation-token", "")
        found = [key for key in sorted(self._objects) if key.startswith(asked.get("prefix", "")) and key > after]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Generation>{held.generation}</Generation><Size>{len(held.data)}</Size>"
            f"<LastModified>{_time(held.changed_unix)}</LastModified><ETag>{held.etag}</ETag></Contents>"
            for key, held in ((key, self._objects[key]) for key in found[:PAGE])
        )
        more = len(found) > PAGE
        turn = f"<NextContinuationToken>{escape(found[PAGE - 1])}</NextContinuationToken>" if more else ""
        body = f"<ListBucketResult><Name>{self.bucket}</Name><IsTruncated>{str(more).lower()}</IsTruncated>{turn}{entries}</ListBucketResult>"
        return 200, {"Content-Type": "application/xml"}, body.encode()

    def _by_parts(self, method: str, key: str, asked: dict[str, str], data: bytes) -> tuple[int, dict[str, str], bytes]:
        if "uploads" in asked:
            name = f"upload-{next(self._numbers)}"
            self._uploads[name] = Upload(key)
            body = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
            return 200, {}, body.encode()
        if (upload := self._uploads.get(asked["uploadId"])) is None or upload.key != key:
            raise Refused(404, "NoSuchUpload")
        if method == "PUT":
            upload.parts[int(asked["partNumber"])] = data
            return 200, {"ETag": f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'}, b""
        del self._uploads[asked["uploadId"]]
        if method == "DELETE":
            return 204, {}, b""
        named = [int(number) for number in re.findall(r"<PartNumber>(\d+)</PartNumber>", data.decode())]
        if named != sorted(upload.parts):
            raise Refused(400, "InvalidPart")
        kept = self._keep(key, b"".join(upload.parts[number] for number in named))
        body = f"<CompleteMultipartUploadResult><ETag>{kept['ETag']}</ETag></CompleteMultipartUploadResult>"
        return 200, kept, body.encode()


def _time(unix: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix)) + f".{int(unix % 1 * 1000):03d}Z"
