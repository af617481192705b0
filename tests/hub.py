"""A stand-in for a Hugging Face hub: the routes that huggingface_hub 2.4 calls to download a model or data set, and to upload one.

Both directions, for every test that needs a hub: `with Hub(folder) as hub`, then `hub.add("me/model", {"config.json": b"{}"})`, and give the program
under test `hub.environment(token=...)`. What was uploaded is read back with `hub.files("me/model")`, what was asked with `hub.requests`.

A private repository answers only who has its token, a gated one nobody, and a missing one as the real hub does (401 without a token, 404 with one).
`hub.fail("PUT", "/lfs/", times=2)` breaks the next requests. A client that takes the hub for its HTTP proxy reaches it under any name.
The hub has no Xet storage: clients run with HF_HUB_DISABLE_XET=1, which `environment` says.
"""

import base64
import hashlib
import json
import re
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

TYPES = {"models": "", "datasets": "datasets/"}
"""The word of the API's routes -> what stands before a repository's name in its own URLs."""
SMALL = (".json", ".txt", ".md", ".jinja", ".jsonl")
"""What is uploaded inside a commit, as on the hub; everything else goes to the large-file store first."""
CHUNK = 1 << 20


@dataclass
class Repository:
    """One repository: its commits, oldest first, each the SHA-256 of every file by path."""

    kind: str
    name: str
    private: bool
    gated: bool = False
    commits: dict[str, dict[str, str]] = field(default_factory=dict)

    def commit(self, files: Mapping[str, str]) -> str:
        said = json.dumps([self.kind, self.name, len(self.commits), sorted(files.items())])
        sha = hashlib.sha1(said.encode(), usedforsecurity=False).hexdigest()
        self.commits[sha] = dict(files)
        return sha

    def at(self, revision: str) -> str | None:
        """The commit that a revision names; None: there is no such."""
        return list(self.commits)[-1] if revision == "main" else next((c for c in self.commits if c == revision), None)


@dataclass
class Asked:
    """One request: method, path, and the token that came with it."""

    method: str
    path: str
    token: str | None
    via_proxy: bool


@dataclass
class _Failure:
    method: str
    part: str
    status: int | None
    times: int


class Hub:
    """A running hub. `token` is the only one that it knows; without one it lets everybody do everything."""

    def __init__(
        self,
        folder: Path,
        *,
        address: str = "127.0.0.1",
        token: str | None = None,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        """Args: `folder` holds the files; `certificate`: PEM of certificate and key, for HTTPS."""
        self.token = token
        self.requests: list[Asked] = []
        self.uploaded_bytes = 0
        self._blobs = folder / "blobs"
        self._blobs.mkdir(parents=True, exist_ok=True)
        self._repositories: dict[tuple[str, str], Repository] = {}
        self._failures: list[_Failure] = []
        self._lock = threading.RLock()
        self._server = ThreadingHTTPServer((address, 0), _handler(self))
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"

    @property
    def url(self) -> str:
        """What HF_ENDPOINT holds."""
        address, port = self._server.server_address[:2]
        return f"{self._scheme}://{address!s}:{port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def environment(self, token: str | None = None) -> dict[str, str]:
        """Variables with which a program finds this hub, and no proxy on the way."""
        made = {"HF_ENDPOINT": self.url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*"}
        return made if token is None else made | {"HF_TOKEN": token}

    def add(
        self,
        name: str,
        files: Mapping[str, bytes | Path],
        *,
        kind: str = "models",
        private: bool = False,
        gated: bool = False,
    ) -> str:
        """A new commit of the repository with exactly these files; returns its SHA. `kind`: models or datasets."""
        stored = {
            path: self.keep(content.read_bytes() if isinstance(content, Path) else content)
            for path, content in files.items()
        }
        with self._lock:
            found = self._repositories.setdefault((kind, name), Repository(kind, name, private))
            found.private, found.gated = private, gated
            return found.commit(stored)

    def files(self, name: str, kind: str = "models", revision: str = "main") -> dict[str, bytes]:
        """The files of a commit. KeyError: there is no such repository."""
        found = self._repositories[kind, name]
        sha = found.at(revision)
        return {} if sha is None else {path: self.blob(blob).read_bytes() for path, blob in found.commits[sha].items()}

    def repository(self, name: str, kind: str = "models") -> Repository | None:
        return self._repositories.get((kind, name))

    def fail(self, method: str, part: str, *, status: int | None = None, times: int = 1) -> None:
        """Break the next requests whose path has `part`: by an answer of this status, or (None) by closing the connection half-way."""
        self._failures.append(_Failure(method, part, status, times))

    def keep(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        partial = self.blob(f"{digest}.{threading.get_ident()}")
        partial.write_bytes(data)
        partial.replace(self.blob(digest))
        return digest

    def blob(self, digest: str) -> Path:
        return self._blobs / digest

    def create(self, kind: str, name: str, private: bool) -> bool:
        """False: it was there."""
        with self._lock:
            if (kind, name) in self._repositories:
                return False
            self._repositories[kind, name] = Repository(kind, name, private)
            self._repositories[kind, name].commit({})
            return True

    def failure(self, method: str, path: str) -> _Failure | None:
        with self._lock:
            for each in self._failures:
                if each.method == method and each.part in path and each.times > 0:
                    each.times -= 1
                    return each
        return None


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            return

        def do_HEAD(self) -> None:
            self._serve()

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def do_PUT(self) -> None:
            self._serve()

        def _serve(self) -> None:
            place = urlsplit(self.path)
            self.query = place.query
            path = unquote(place.path)
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
            hub.requests.append(Asked(self.command, path, token, bool(place.netloc)))
            self.allowed = hub.token is None or token == hub.token
            self.known = token is not None
            if (failure := hub.failure(self.command, path)) is not None:
                if failure.status is None:
                    self.rfile.read(min(CHUNK // 16, int(self.headers.get("Content-Length") or 0)))
                    self.close_connection = True
                    self.connection.close()
                    return
                self._body()
                self._error(failure.status, "Broken", "broken on purpose")
                return
            for method, pattern, answer in ROUTES:
                found = re.fullmatch(pattern, path)
                if found and self.command in method:
                    answer(self, **found.groupdict())
                    return
            self._body()
            self._error(404, "", f"no route {self.command} {path}")

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _json(self, value: object, status: int = 200) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _error(self, status: int, code: str, message: str) -> None:
            data = json.dumps({"error": message}).encode()
            self.send_response(status)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", message)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def _open(self, kind: str, name: str) -> Repository | None:
            """The repository, or None after the error was said."""
            found = hub.repository(name, kind)
            if found is None or (found.private and not self.allowed):
                if self.known:
                    self._error(404, "RepoNotFound", "Repository not found")
                else:
                    self._error(401, "RepoNotFound", "Invalid username or password.")
                return None
            if found.gated:
                self._error(
                    403, "GatedRepo", f"Access to {kind[:-1]} {name} is restricted. Visit its page to ask for access."
                )
                return None
            return found

        def _commit_of(self, kind: str, name: str, revision: str) -> tuple[Repository, str] | None:
            found = self._open(kind, name)
            if found is None:
                return None
            sha = found.at(revision)
            if sha is None:
                self._error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
                return None
            return found, sha

        def info(self, kind: str, name: str, revision: str | None = None) -> None:
            if (at := self._commit_of(kind, name, revision or "main")) is None:
                return
            found, sha = at
            listed = [{"rfilename": path} for path in sorted(found.commits[sha])]
            self._json(
                {"id": name, "sha": sha, "private": found.private, "siblings": listed, "tags": [], "downloads": 0}
            )

        def tree(self, kind: str, name: str, revision: str) -> None:
            if (at := self._commit_of(kind, name, revision)) is None:
                return
            found, sha = at
            listed = []
            for path, blob in sorted(found.commits[sha].items()):
                entry: dict[str, Any] = {
                    "type": "file",
                    "path": path,
                    "oid": blob[:40],
                    "size": hub.blob(blob).stat().st_size,
                }
                if not path.endswith(SMALL):
                    entry["lfs"] = {"oid": blob, "size": entry["size"], "pointerSize": 134}
                listed.append(entry)
            self._json(listed)

        def resolve(self, name: str, revision: str, path: str, prefix: str | None = None) -> None:
            kind = "datasets" if prefix else "models"
            if (at := self._commit_of(kind, name, revision)) is None:
                return
            found, sha = at
            blob = found.commits[sha].get(path)
            if blob is None:
                self._error(404, "EntryNotFound", f"{path} does not exist")
                return
            size = hub.blob(blob).stat().st_size
            begin = 0
            if (asked := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")) is not None:
                begin = int(asked[1])
            self.send_response(206 if begin else 200)
            self.send_header("ETag", f'"{blob}"')
            self.send_header("X-Repo-Commit", sha)
            self.send_header("Accept-Ranges", "bytes")
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
            self.send_header("Content-Length", str(size - begin))
            self.end_headers()
            if self.command == "GET":
                with hub.blob(blob).open("rb") as file:
                    file.seek(begin)
                    while chunk := file.read(CHUNK):
                        self.wfile.write(chunk)

        def _writable(self) -> bool:
            if not self.allowed:
                self._error(403 if self.known else 401, "", "Invalid username or password.")
            return self.allowed

        def create(self) -> None:
            said = json.loads(self._body())
            if not self._writable():
                return
            kind = "datasets" if said.get("type") == "dataset" else "models"
            name = f"{said.get('organization') or 'somebody'}/{said['name']}"
            new = hub.create(kind, name, said.get("private") is True or said.get("visibility") == "private")
            made = {"url": f"{hub.url}/{TYPES[kind]}{name}", "name": name, "id": name}
            self._json(made if new else made | {"error": "You already created this repo"}, 200 if new else 409)

        def validate_yaml(self) -> None:
            self._body()
            self._json({"errors": [], "warnings": []})

        def preupload(self, kind: str, name: str, revision: str) -> None:
            said = json.loads(self._body())
            if not self._writable() or (at := self._commit_of(kind, name, revision)) is None:
                return
            held = at[0].commits[at[1]]
            files = []
            for each in said["files"]:
                path = each["path"]
                small = path.endswith(SMALL) and each["size"] < 10 * CHUNK
                oid = held.get(path)
                if oid is not None and small:
                    data = hub.blob(oid).read_bytes()
                    oid = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
                mode = "regular" if small else "lfs"
                files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
            self._json({"files": files})

        def batch(self, name: str, prefix: str | None = None) -> None:
            said = json.loads(self._body())
            if not self._writable() or self._open("datasets" if prefix else "models", name) is None:
                return
            objects = []
            for each in said["objects"]:
                one = {"oid": each["oid"], "size": each["size"]}
                if not hub.blob(each["oid"]).is_file():
                    one["actions"] = {"upload": {"href": f"{hub.url}/lfs/{each['oid']}"}}
                objects.append(one)
            self._json({"transfer": "basic", "objects": objects})

        def put(self, oid: str) -> None:
            data = self._body()
            if hashlib.sha256(data).hexdigest() != oid:
                self._error(400, "", "the bytes are not those of the object")
                return
            hub.uploaded_bytes += len(data)
            hub.keep(data)
            self._json({})

        def commit(self, kind: str, name: str, revision: str) -> None:
            lines = [json.loads(line) for line in self._body().splitlines() if line]
            if not self._writable() or (at := self._commit_of(kind, name, revision)) is None:
                return
            found, sha = at
            files = dict(found.commits[sha])
            for line in lines:
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = hub.keep(base64.b64decode(value["content"]))
                elif line["key"] == "lfsFile":
                    if not hub.blob(value["oid"]).is_file():
                        self._error(400, "", f"{value['path']}: its object was not uploaded")
                        return
                    files[value["path"]] = value["oid"]
                elif line["key"] == "deletedFile":
                    files.pop(value["path"], None)
            made = found.commit(files)
            self._json(
                {"commitUrl": f"{hub.url}/{TYPES[kind]}{name}/commit/{made}", "commitOid": made, "success": True}
            )

    kinds, named, at = r"(?P<kind>models|datasets)", r"(?P<name>[^/]+/[^/]+?)", r"(?P<revision>[^/]+)"
    ROUTES = (
        ("GET", rf"/api/{kinds}/{named}(/revision/{at})?", Handler.info),
        ("GET", rf"/api/{kinds}/{named}/tree/{at}", Handler.tree),
        ("GET HEAD", rf"/(?P<prefix>datasets/)?{named}/resolve/{at}/(?P<path>.+)", Handler.resolve),
        ("POST", r"/api/repos/create", Handler.create),
        ("POST", r"/api/validate-yaml", Handler.validate_yaml),
        ("POST", rf"/api/{kinds}/{named}/preupload/{at}", Handler.preupload),
        ("POST", rf"/(?P<prefix>datasets/)?{named}\.git/info/lfs/objects/batch", Handler.batch),
        ("PUT", r"/lfs/(?P<oid>[0-9a-f]{64})", Handler.put),
        ("POST", rf"/api/{kinds}/{named}/commit/{at}", Handler.commit),
    )
    return Handler
