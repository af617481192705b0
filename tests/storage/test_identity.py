"""Keys for a service account's token, from MinIO's own token service: exchanged, renewed, bounded, refused in its own words, never shown."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from places import READER, S3, S3_KINDS, Trusting
from structlog.testing import capture_logs

from oidc import role_arn
from proxies import Proxy
from samples import LEASE, NODE, RUN
from servers import PLAIN, ROOT, Loopback, wait_until
from shoal.contracts import keys
from shoal.contracts.storage import S3Storage
from shoal.storage import StoreUnavailable, open_store
from shoal.storage import identity as identities
from shoal.storage.grants import make_grant
from shoal.storage.identity import TOKEN_FILE, IdentityRefused, TokenServiceAway, WebIdentity, identity_of
from shoal.storage.store import open_bucket

KEY = keys.staging(NODE, LEASE)
SECRET = b"s" * 32


@pytest.fixture
def s3(trusting: Trusting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> S3:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    return S3(trusting.server, tmp_path, f"t{abs(hash(request.node.nodeid)) % 10**12}", trusting)


@pytest.fixture
def token_file(s3: S3) -> Path:
    return s3.home / "secrets" / "store" / TOKEN_FILE


class Watch:
    """A clock that only a test moves: it stands still however slow the machine is."""

    def __init__(self) -> None:
        self.began = time.time()
        self.ahead = 0.0

    def __call__(self) -> float:
        return self.began + self.ahead


@pytest.fixture
def asked(trusting: Trusting, loopback: Loopback) -> Iterator[Proxy]:
    """A way to the token service that counts what it is asked."""
    made = Proxy((loopback.address(), 0), (trusting.server.address, trusting.server.port))
    yield made
    made.close()


def test_keys_end_with_the_token_or_when_the_manifest_says(trusting: Trusting, token_file: Path) -> None:
    before = time.time()
    trusting.issuer.write(token_file, seconds=120)
    written = time.time()
    ends = WebIdentity(trusting.identity(), token_file, "a").keys().expires_unix
    assert ends is not None
    assert before + 115 < ends < written + 125
    before = time.time()
    ends = WebIdentity(trusting.identity(duration_seconds=900), token_file, "a").keys().expires_unix
    assert ends is not None
    assert before + 895 < ends < time.time() + 905


def test_keys_are_asked_for_once_and_anew_when_two_thirds_of_their_life_are_over(
    trusting: Trusting, token_file: Path
) -> None:
    clock = Watch()
    identity = WebIdentity(trusting.identity(duration_seconds=900), token_file, "a", clock)
    first = identity.keys()
    clock.ahead = 590.0
    assert identity.keys() is first
    clock.ahead = 700.0
    second = identity.keys()
    assert second.access_key != first.access_key
    assert identity.keys() is second


def test_grants_beyond_the_life_of_keys_ask_for_none(s3: S3, trusting: Trusting, asked: Proxy) -> None:
    """The size of a stranger's file decides how long a grant is to hold: no size drives the token service."""
    spec = s3.spec.model_copy(
        update={"workload_identity": trusting.identity(sts_endpoint=asked.url, duration_seconds=900)}
    )
    config = s3.config()
    config = config.model_copy(update={"storage": config.storage.model_copy(update={"s3": spec})})
    expires_unix = time.time() + 86_400
    grants = [make_grant(config, KEY, max_bytes=10, expires_unix=expires_unix, run_secret=SECRET) for _ in range(10)]
    assert asked.connections == 1
    assert {each.expires_unix for each in grants} == {identity_of(spec, s3.home).keys().expires_unix}


def test_a_store_outlives_the_keys_it_began_with(s3: S3, trusting: Trusting, token_file: Path) -> None:
    """A token of a quarter of a minute, renewed as a kubelet does: the store refuses the keys that began the run, and the run goes on."""
    clock = Watch()
    trusting.issuer.write(token_file, seconds=15)
    identity = WebIdentity(trusting.identity(), token_file, "a", clock)
    store = open_bucket(s3.spec, s3.prefix, identity, deadline_seconds=30)
    store.put("first", b"1")
    first = identity.keys()
    assert first.expires_unix is not None
    trusting.issuer.write(token_file)
    clock.ahead = 12.0
    store.put("later", b"2")
    assert identity.keys().access_key != first.access_key
    wait_until("the first keys to end", lambda: time.time() > (first.expires_unix or 0.0) + 1, 60.0, interval=0.3)
    assert store.get("first") == b"1"

    class Old:
        def keys(self) -> object:
            return first

    old = open_bucket(s3.spec, s3.prefix, Old(), deadline_seconds=1)
    with pytest.raises(StoreUnavailable):
        old.get("first")


def test_many_threads_ask_the_service_once(trusting: Trusting, token_file: Path, asked: Proxy) -> None:
    identity = WebIdentity(trusting.identity(sts_endpoint=asked.url), token_file, "a")
    with ThreadPoolExecutor(8) as pool:
        found = {each.access_key for each in pool.map(lambda _: identity.keys(), range(64))}
    assert len(found) == 1
    assert asked.connections == 1


def test_a_service_that_is_away_is_borne_while_keys_hold(trusting: Trusting, token_file: Path, asked: Proxy) -> None:
    clock = Watch()
    identity = WebIdentity(trusting.identity(sts_endpoint=asked.url, duration_seconds=900), token_file, "a", clock)
    first = identity.keys()
    asked.close()
    clock.ahead = 700.0
    with capture_logs() as said:
        assert identity.keys() is first
        assert identity.keys() is first
    assert [each["event"] for each in said] == ["store keys not renewed"], "the service is given a pause"
    clock.ahead = 2000.0
    with pytest.raises(TokenServiceAway, match=f"token service {asked.url} does not answer: "):
        identity.keys()


@pytest.mark.parametrize(("status", "kind"), [(503, TokenServiceAway), (400, IdentityRefused)])
def test_a_failure_without_keys_is_repeated_during_its_pause_and_asked_again_after_it(
    status: int,
    kind: type[Exception],
    trusting: Trusting,
    token_file: Path,
    loopback: Loopback,
    strange_service: Callable[[int, bytes], str],
) -> None:
    clock = Watch()
    service = urlsplit(strange_service(status, b""))
    assert service.hostname is not None
    assert service.port is not None
    asked = Proxy((loopback.address(), 0), (service.hostname, service.port))
    identity = WebIdentity(trusting.identity(sts_endpoint=asked.url), token_file, "a", clock)

    def refusal(_: int = 0) -> str:
        with pytest.raises(kind) as caught:
            identity.keys()
        return str(caught.value)

    with contextlib.closing(asked):
        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(refusal, range(32)))) == 1
        assert asked.connections == 1
        clock.ahead += 2.0
        refusal()
        clock.ahead += 0.5
        refusal()
        assert asked.connections == 2, "the second pause is longer than half a second"


def test_a_thread_waits_a_bounded_time_for_the_one_that_asks(
    trusting: Trusting, token_file: Path, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identities, "WAIT_SECONDS", 0.1)
    with socket.create_server((loopback.address(), 0)) as silent:
        host, port = silent.getsockname()
        url = f"http://{host}:{port}"
        mine = WebIdentity(trusting.identity(sts_endpoint=url), token_file, "a")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(mine.keys)
            client, _ = silent.accept()
            with client, pytest.raises(TokenServiceAway, match=f"{url} .* another thread .* 0.1 s"):
                mine.keys()
            assert isinstance(first.exception(60), TokenServiceAway)


def test_keys_that_have_ended_already_are_none(
    trusting: Trusting, token_file: Path, strange_service: Callable[[int, bytes], str]
) -> None:
    answer = (
        b"<AccessKeyId>a</AccessKeyId><SecretAccessKey>b</SecretAccessKey><SessionToken>c</SessionToken>"
        b"<Expiration>2020-01-01T00:00:00Z</Expiration>"
    )
    mine = WebIdentity(trusting.identity(sts_endpoint=strange_service(200, answer)), token_file, "a")
    with pytest.raises(TokenServiceAway, match="gives keys that ended at 2020-01-01T00:00:00Z; compare its clock"):
        mine.keys()


REFUSALS: dict[str, tuple[Callable[[Trusting, Path], dict[str, str]], str]] = {
    "no token": (lambda _, path: path.unlink() or {}, r"there is no service account token at /.*/token"),
    "not a token": (lambda _, path: {"token": "x" * path.write_text("garbage")}, "InvalidParameterValue: token contains"),
    "an old token": (lambda t, path: {"token": t.issuer.write(path, seconds=-60)}, "InvalidParameterValue: Token is expired"),
    "another audience": (lambda t, path: {"token": t.issuer.write(path, audience="other")}, "must match configured OpenID Client ID"),
    "a role that is none": (
        lambda t, path: {"role_arn": "arn:minio:iam:::role/other"},
        "refuses role arn:minio:iam:::role/other to service account store: .*arn:minio:iam:::role/other is not defined",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_missing_or_refused_is_said_at_once_and_without_the_token(
    case: str, s3: S3, trusting: Trusting, token_file: Path
) -> None:
    prepare, message = REFUSALS[case]
    changes = prepare(trusting, token_file)
    token = changes.pop("token", token_file.read_text() if token_file.exists() else "never")
    spec = S3Storage(endpoint=s3.spec.endpoint, bucket=s3.spec.bucket, workload_identity=trusting.identity(**changes))
    store = open_bucket(spec, s3.prefix, identity_of(spec, s3.home), deadline_seconds=600)
    for call in (lambda: store.get("a"), lambda: store.create("a", b"x"), lambda: store.list("a/")):
        with pytest.raises(StoreUnavailable, match=message) as caught:
            call()
        assert token not in str(caught.value)
    config = s3.config()
    config = config.model_copy(update={"storage": config.storage.model_copy(update={"s3": spec})})
    with pytest.raises(StoreUnavailable, match="cannot grant an upload: .*" + message):
        make_grant(config, KEY, max_bytes=10, expires_unix=time.time() + 60, run_secret=SECRET)


def test_a_role_that_may_only_read_is_refused_by_the_store_when_it_writes(
    s3: S3, trusting: Trusting, token_file: Path
) -> None:
    open_store(s3.config()).put("a", b"x")
    trusting.issuer.write(token_file, audience=READER)
    reader = trusting.identity(role_arn=role_arn(READER), audience=READER)
    store = open_bucket(s3.spec, f"{s3.prefix}/{RUN}", WebIdentity(reader, token_file, "a"), deadline_seconds=600)
    assert store.get("a") == b"x"
    for call in (lambda: store.put("a", b"y"), lambda: store.create("b", b"y"), lambda: store.delete("a")):
        with pytest.raises(StoreUnavailable, match=r"the store refuses our credentials \(AccessDenied\)"):
            call()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"<html>hello</html>", "answers without AccessKeyId, SecretAccessKey, SessionToken, Expiration"),
        (
            b"<AccessKeyId>a</AccessKeyId><SecretAccessKey>b</SecretAccessKey><SessionToken>c</SessionToken>"
            b"<Expiration>soon</Expiration>",
            "an Expiration that is no time",
        ),
        (b"<AccessKeyId>" + b"x" * 500_000, "answers without AccessKeyId"),
        (b"\xff\xfe\x00", "answers without AccessKeyId"),
    ],
)
def test_a_service_that_is_none_is_told(
    answer: bytes, message: str, trusting: Trusting, token_file: Path, strange_service: Callable[[int, bytes], str]
) -> None:
    identity = WebIdentity(trusting.identity(sts_endpoint=strange_service(200, answer)), token_file, "a")
    with pytest.raises(IdentityRefused, match=message):
        identity.keys()


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (503, b""),
        (429, b""),
        (400, b"<Error><Code>IDPCommunicationError</Code><Message>later</Message></Error>"),
        (400, b"<Error><Code>ExpiredTokenException</Code><Message>old</Message></Error>"),
    ],
)
def test_a_refusal_that_may_pass_is_asked_again(
    status: int,
    answer: bytes,
    s3: S3,
    trusting: Trusting,
    strange_service: Callable[[int, bytes], str],
) -> None:
    identity = trusting.identity(sts_endpoint=strange_service(status, answer))
    spec = s3.spec.model_copy(update={"workload_identity": identity})
    store = open_bucket(spec, s3.prefix, identity_of(spec, s3.home), deadline_seconds=0.3)
    with pytest.raises(
        StoreUnavailable, match=r"did not answer for .* last error: token service .* cannot give keys now"
    ):
        store.get("a")


def test_a_message_that_repeats_the_token_is_shown_without_it(
    trusting: Trusting, token_file: Path, strange_service: Callable[[int, bytes], str]
) -> None:
    token = token_file.read_text()
    answer = f"<Error><Code>No</Code><Message>token {token}\n\x1b[31m is bad</Message></Error>".encode()
    identity = WebIdentity(trusting.identity(sts_endpoint=strange_service(400, answer)), token_file, "a")
    with pytest.raises(IdentityRefused, match=r"No: token \(token\) \[31m is bad$"):
        identity.keys()


def test_a_grant_ends_with_the_keys_that_signed_it(s3: S3, trusting: Trusting, token_file: Path) -> None:
    trusting.issuer.write(token_file, seconds=15)
    grant = make_grant(s3.config(), KEY, max_bytes=100, expires_unix=time.time() + 3600, run_secret=SECRET)
    held = identity_of(s3.spec, s3.home).keys()
    assert grant.expires_unix == held.expires_unix
    text = grant.model_dump_json()
    assert held.secret_key not in text
    assert token_file.read_text() not in text
    with httpx.Client(**PLAIN) as client:
        sent = client.post(grant.url, data=grant.fields, files={"file": b"x"})
        assert sent.status_code == 204
        wait_until("the keys to end", lambda: time.time() > grant.expires_unix + 1, 60.0)
        assert client.post(grant.url, data=grant.fields, files={"file": b"y"}).status_code in (400, 403)
    trusting.issuer.write(token_file)
    assert open_store(s3.config()).get(KEY) == b"x"


def test_nothing_of_a_grant_but_its_form_is_of_use_to_a_stranger(s3: S3) -> None:
    """The session token travels in the form. Without the secret key it signs nothing, and the store takes no request that only names it."""
    grant = make_grant(s3.config(), KEY, max_bytes=100, expires_unix=time.time() + 60, run_secret=SECRET)
    token = grant.fields["x-amz-security-token"]
    with httpx.Client(**PLAIN) as client:
        for request in ("GET", "PUT", "DELETE"):
            answer = client.request(
                request, f"{grant.url}/{s3.prefix}/a", headers={"X-Amz-Security-Token": token}, content=b""
            )
            assert answer.status_code == 403


def test_the_recorded_figure_is_what_these_tests_run_on() -> None:
    figures = json.loads((ROOT / "benchmarks/results/citizen.json").read_text())
    assert figures["s3_servers"] == len({server for server, _ in S3_KINDS.values()})


def test_the_text_of_keys_shows_nothing(s3: S3) -> None:
    held = identity_of(s3.spec, s3.home).keys()
    shown = repr(held)
    assert not any(secret in shown for secret in (held.access_key, held.secret_key, str(held.session_token)))


def test_a_part_with_keys_of_its_own_uses_them(s3: S3, trusting: Trusting, token_file: Path) -> None:
    token_file.unlink()
    (token_file.parent / "accessKey").write_text(trusting.server.access_key)
    (token_file.parent / "secretKey").write_text(trusting.server.secret_key)
    store = open_store(s3.config())
    store.put("a", b"x")
    assert store.get("a") == b"x"


def test_the_configuration_of_a_run_names_the_role_and_holds_no_token(s3: S3, token_file: Path) -> None:
    identity_of(s3.spec, s3.home).keys()
    text = s3.config().to_json().decode()
    assert json.loads(text)["storage"]["s3"]["workloadIdentity"]["serviceAccount"] == "store"
    assert token_file.read_text() not in text
