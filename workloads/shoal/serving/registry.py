"""Sends an image to a registry, by the distribution specification (https://github.com/opencontainers/distribution-spec, 1.1), as oras and skopeo do.

In: a `ModelImage` and a reference. Out: blobs that the registry lacks, then the manifest under its tag: a push that broke is run again and sends only
the rest. `tools/release` pushes with skopeo and buildah, which a machine that serves models need not have.

Credentials are those of `docker login`, `podman login` or `oras login`. They go to the registry itself, and to the token service that it names by
HTTPS. Costs: each blob is read once more. Waits: a request that fails is tried again for three
minutes.
"""

import base64
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from shoal.errors import InputWrong, RunFailed
from shoal.retries import Backoff, retrying
from shoal.serving.image import Blob, ModelImage
from shoal.text import plain, size, without_secrets
from shoal.transport.bounded import UNENCODED, AnswerTooLong, body_of

REFERENCE = re.compile(
    r"(?P<host>[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?)/(?P<name>[a-z0-9]+([._/-]+[a-z0-9]+)*)(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?"
)
CHALLENGE = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
SILENCE_SECONDS = 60.0
DIGEST_SECONDS = 600.0
"""A registry is silent while it checks a layer of gigabytes that it has received."""
TRIES_SECONDS = 180.0
"""A request that fails is tried again until then."""
MAX_ANSWER_BYTES = 1 << 20
KEPT_HEADERS = ("location", "www-authenticate")


class _RegistryAway(Exception):
    """The registry did not answer, or with a fault of its own."""


@dataclass(frozen=True)
class Reference:
    """`HOST[:PORT]/NAME[:TAG]`."""

    host: str
    name: str
    tag: str

    @staticmethod
    def parse(text: str, tag: str) -> "Reference":
        """`tag` is meant where the reference has none. Raises `InputWrong`."""
        found = REFERENCE.fullmatch(text)
        if found is None or not ("." in found["host"] or ":" in found["host"] or found["host"] == "localhost"):
            raise InputWrong(
                f"--push {plain(text, 200)}: write HOST/NAME:TAG, such as registry.example.org/team/arithmetic:serving"
            )
        return Reference(found["host"], found["name"], found["tag"] or tag)

    def __str__(self) -> str:
        return f"{self.host}/{self.name}:{self.tag}"


def push_image(
    image: ModelImage, to: Reference, say: Callable[[str], None], *, plain_http: bool = False,
    login: tuple[str, str] | None = None,
) -> None:  # fmt: skip
    """Send what the registry lacks, and the manifest last. Raises `InputWrong` for a refusal, `RunFailed` for a registry that is away."""
    with httpx.Client(timeout=httpx.Timeout(SILENCE_SECONDS, read=DIGEST_SECONDS), follow_redirects=False) as http:
        registry = _Registry(http, to, plain_http=plain_http, login=login)
        lacking = [blob for blob in image.blobs if not registry.has(blob)]
        say(f"{to}: sending {len(lacking)} of {len(image.blobs)} blobs, {size(sum(blob.size for blob in lacking))}")
        for blob in lacking:
            registry.send(blob)
        registry.tag(image.manifest)


def stored_login(host: str, environment: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """User and password of a registry as `docker login` or `oras login` left them; None: there are none.

    Raises `InputWrong` for logins that lie in a credential helper, a program that this one does not call.
    """
    folder = environment.get("DOCKER_CONFIG")
    home = Path(environment.get("HOME", "/"))
    named = environment.get("REGISTRY_AUTH_FILE")
    places = [*([Path(named)] if named else []), Path(folder) if folder else home / ".docker"]
    for place in places:
        path = place / "config.json" if place.is_dir() else place
        if not path.is_file():
            continue
        try:
            document = json.loads(path.read_bytes())
            auths = document.get("auths") or {}
            found = next((auths[key] for key in (host, f"https://{host}", f"https://{host}/v1/") if key in auths), None)
            if found is None:
                continue
            if not found.get("auth"):
                helper = document.get("credHelpers", {}).get(host) or document.get("credsStore") or "a helper"
                raise InputWrong(
                    f"{plain(path, 200)} keeps the login of {host} in {plain(helper, 40)}, which is not asked: log in with"
                    " an own file, such as `DOCKER_CONFIG=$(mktemp -d) docker login`"
                )
            user, colon, password = base64.b64decode(found["auth"], validate=True).decode().partition(":")
            if not colon:
                raise ValueError("auth is not user:password")
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise InputWrong(
                f"{plain(path, 200)} is not a file of logins: {type(error).__name__}; log in again"
            ) from None
        return user, password
    return None


class _Registry:
    """The requests of one push."""

    def __init__(self, http: httpx.Client, to: Reference, *, plain_http: bool, login: tuple[str, str] | None) -> None:
        self._http = http
        self._to = to
        self._base = f"{'http' if plain_http else 'https'}://{to.host}"
        self._login = login
        self._authorization = ""

    def has(self, blob: Blob) -> bool:
        """Whether the registry has these bytes."""
        return self._ask("HEAD", f"/v2/{self._to.name}/blobs/{blob.digest}", allowed=(200, 404)).status_code == 200

    def send(self, blob: Blob) -> None:
        """One upload in one request; each try begins a new one."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}

        def once() -> httpx.Response:
            begun = self._once("POST", f"/v2/{self._to.name}/blobs/uploads/", {"Content-Length": "0"}, (202,))
            place = httpx.URL(self._base).join(begun.headers.get("location", "."))
            place = place.copy_merge_params({"digest": blob.digest})
            return self._once("PUT", str(place), headers, (201, 204), blob.chunks)

        self._again(once)

    def tag(self, manifest: Blob) -> None:
        """Give the image its name; this is the moment at which others see it."""
        self._ask(
            "PUT",
            f"/v2/{self._to.name}/manifests/{self._to.tag}",
            {"Content-Type": manifest.media_type, "Content-Length": str(manifest.size)},
            (201,),
            manifest.chunks,
        )

    def _ask(
        self, method: str, place: str, headers: Mapping[str, str] | None = None, allowed: tuple[int, ...] = (200,),
        body: Callable[[], Iterator[bytes]] | None = None,
    ) -> httpx.Response:  # fmt: skip
        return self._again(lambda: self._once(method, place, headers or {}, allowed, body))

    def _again(self, once: Callable[[], httpx.Response]) -> httpx.Response:
        return retrying(
            (_RegistryAway,),
            Backoff(0.5, 10.0),
            deadline_seconds=TRIES_SECONDS,
            give_up=lambda error, waited: RunFailed(
                f"the registry {self._to.host} did not take the image for {waited:.0f} s: {error}; run the command again,"
                " what it has is not sent again"
            ),
            say=lambda error, waited: None,
        )(once)

    def _once(
        self, method: str, place: str, headers: Mapping[str, str], allowed: tuple[int, ...],
        body: Callable[[], Iterator[bytes]] | None = None,
    ) -> httpx.Response:  # fmt: skip
        url = place if "://" in place else self._base + place
        answer = self._send(method, url, headers, body)
        if answer.status_code == 401 and self._is_registry(url) and self._log_in(answer):
            answer = self._send(method, url, headers, body)
        if answer.status_code in allowed:
            return answer
        said = plain(without_secrets(answer.text[:300], self._secrets()), 300) or "no reason given"
        if answer.status_code >= 500 or answer.status_code in (408, 429):
            raise _RegistryAway(f"{answer.status_code}: {said}")
        if answer.status_code in (401, 403):
            raise InputWrong(
                f"the registry {self._to.host} does not let you write to {self._to.name} ({answer.status_code}):"
                f" log in with `docker login {self._to.host}`"
            )
        raise InputWrong(f"the registry {self._to.host} refuses {self._to} ({answer.status_code}): {said}")

    def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: Callable[[], Iterator[bytes]] | None
    ) -> httpx.Response:
        own = self._is_registry(url)
        sent = dict(headers) | ({"Authorization": self._authorization} if own and self._authorization else {})
        return self._exchange(method, url, sent, body)

    def _is_registry(self, url: str) -> bool:
        """A registry may keep uploads elsewhere: whoever has them gets no login of ours, nor says where it goes."""
        return urlsplit(url).netloc == self._to.host and urlsplit(url).scheme == urlsplit(self._base).scheme

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: Callable[[], Iterator[bytes]] | None
    ) -> httpx.Response:
        try:
            sent = {**headers, **UNENCODED}
            with self._http.stream(method, url, headers=sent, content=body() if body else None) as answer:
                data = body_of(answer, MAX_ANSWER_BYTES)
                kept = {key: value for key, value in answer.headers.items() if key.lower() in KEPT_HEADERS}
                return httpx.Response(answer.status_code, headers=kept, content=data)
        except AnswerTooLong:
            raise InputWrong(
                f"{plain(urlsplit(url).netloc)} answers with more than {size(MAX_ANSWER_BYTES)}: is it a registry?"
            ) from None
        except httpx.InvalidURL as error:
            raise InputWrong(f"the registry {self._to.host} names an address that is none: {plain(error)}") from None
        except httpx.HTTPError as error:
            reason = without_secrets(str(error) or type(error).__name__, self._secrets())
            raise _RegistryAway(plain(reason, 200)) from None

    def _secrets(self) -> list[str]:
        return [each for each in (*(self._login or ())[1:], self._authorization.partition(" ")[2]) if each]

    def _log_in(self, answer: httpx.Response) -> bool:
        """Do as the registry asks (RFC 7235); whether there is something to try."""
        scheme, _, rest = answer.headers.get("www-authenticate", "").partition(" ")
        basic = "Basic " + base64.b64encode(":".join(self._login).encode()).decode() if self._login else ""
        if scheme.lower() == "basic":
            self._authorization = basic
            return bool(basic)
        said = dict(CHALLENGE.findall(rest))
        realm = said.get("realm", "")
        if scheme.lower() != "bearer" or urlsplit(realm).scheme not in ("https", urlsplit(self._base).scheme):
            return False
        parameters = {key: said[key] for key in ("service", "scope") if key in said}
        url = str(httpx.URL(realm).copy_merge_params(parameters))
        given = self._exchange("GET", url, {"Authorization": basic} if basic else {}, None)
        if given.status_code >= 500:
            raise _RegistryAway(f"its token service answers {given.status_code}")
        try:
            document = given.json()
            token = document.get("token") or document.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if given.status_code != 200 or not isinstance(token, str) or not token.isprintable():
            return False
        self._authorization = f"Bearer {token}"
        return True
