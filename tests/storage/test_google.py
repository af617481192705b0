"""A bucket of Google Cloud Storage asked as a workload: tokens exchanged, renewed, refused in the service's own words, never shown; grants."""

import json
import time
from collections.abc import Callable

import pytest
from gcs_stand_in import PROVIDER
from places import IDENTITY_MODES, Google, Googling

from samples import LEASE, NODE
from servers import ROOT
from shoal.contracts import keys
from shoal.storage import StoreUnavailable, open_store
from shoal.storage.bearer import Bearer
from shoal.storage.google import google_identity, google_of
from shoal.storage.grants import check_folder_grant, make_grant
from shoal.storage.identity import TokenServiceAway
from shoal.storage.store import open_gcs

SECRET = b"s" * 32
EXPECTED = f"https:{PROVIDER}"


def test_a_store_that_asks_with_a_renewed_token_goes_on(google: Google, googling: Googling) -> None:
    now, before = time.time(), googling.sts.exchanges
    identity = google_identity(googling.workload(), google.token_file, lambda: now)
    store = open_gcs(google.spec, google.prefix, identity)
    store.put("first", b"1")
    assert googling.sts.exchanges == before + 1
    googling.issuer.write(google.token_file, audience=EXPECTED)
    now += 3000
    assert store.get("first") == b"1"
    assert googling.sts.exchanges == before + 2


REFUSALS: dict[str, tuple[Callable[[Googling, Google], object], dict[str, str], str]] = {
    "no token": (lambda _, place: place.token_file.unlink(), {}, r"no service account token at .* storage.gcs.workloadIdentity"),
    "not a token": (lambda _, place: place.token_file.write_text("garbage"), {}, "Unable to parse the ID Token"),
    "another audience": (lambda g, place: g.issuer.write(place.token_file, audience="other"), {}, "does not match the expected audience"),
    "another account": (
        lambda g, place: g.issuer.write(place.token_file, audience=EXPECTED, subject="system:serviceaccount:b:store"), {},
        "refuses service account store at //iam.googleapis.com/.*: unauthorized_client: .* attribute condition",
    ),
    "another provider": (lambda *_: None, {"provider": f"{PROVIDER}-else"}, "invalid_target"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_missing_or_refused_is_said_at_once_and_without_the_token(
    case: str, google: Google, googling: Googling
) -> None:
    prepare, changes, message = REFUSALS[case]
    prepare(googling, google)
    token = google.token_file.read_text() if google.token_file.exists() else "never"
    spec = googling.spec(**changes)
    store = open_gcs(spec, google.prefix, google_of(spec, google.home), deadline_seconds=600)
    with pytest.raises(StoreUnavailable, match=message) as caught:
        store.create("a", b"x")
    assert token not in str(caught.value)


def test_a_token_that_a_kubelet_renews_soon_is_asked_again(google: Google, googling: Googling) -> None:
    googling.issuer.write(google.token_file, audience=EXPECTED, seconds=-60)
    with pytest.raises(TokenServiceAway, match="is stale"):
        google_identity(googling.workload(), google.token_file).keys()


def test_a_token_that_the_store_does_not_take_is_said_as_a_refusal(google: Google, googling: Googling) -> None:
    class Other:
        def keys(self) -> Bearer:
            claims = {"aud": "https://compute.googleapis.com/", "exp": int(time.time()) + 60}
            return Bearer(googling.issuer.signed(claims), time.time() + 60)

    store = open_gcs(google.spec, google.prefix, Other(), deadline_seconds=1)
    with pytest.raises(StoreUnavailable, match="refuses our credentials"):
        store.get("a")


def test_a_list_of_several_pages_is_whole_and_a_bucket_that_is_not_there_is_no_empty_one(
    google: Google, googling: Googling
) -> None:
    store = open_store(google.config(), deadline_seconds=1.0)
    names = [f"uploads/{number:02}" for number in range(20)]
    for name in reversed(names):
        store.put(name, b"x")
    assert [info.key for info in store.list("uploads/")] == names
    spec = google.spec.model_copy(update={"bucket": "another"})
    with pytest.raises(StoreUnavailable, match="the gcs store did not answer"):
        open_gcs(spec, google.prefix, google_of(spec, google.home), deadline_seconds=1).get("uploads/00")


def test_a_stranger_is_sent_to_the_orchestrator_and_gets_no_token(google: Google) -> None:
    config, key = google.config(), keys.staging(NODE, LEASE)
    grant = make_grant(config, key, max_bytes=100, expires_unix=time.time() + 60, run_secret=SECRET)
    assert grant.url == f"{config.addresses.orchestrator}/v1/staging"
    assert check_folder_grant(grant.fields, now_unix=time.time(), run_secret=SECRET) == (key, 100)
    text = grant.model_dump_json()
    assert not any(each in text for each in (google.server.url, google.spec.bucket, google.token_file.read_text()))


def test_the_recorded_figure_is_the_ways_in_that_these_tests_run_on() -> None:
    figures = json.loads((ROOT / "benchmarks/results/citizen.json").read_text())
    assert figures["identity_modes"] == len(IDENTITY_MODES)
