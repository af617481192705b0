"""A container of Azure asked as a workload: tokens exchanged, renewed, refused in the service's own words, never shown; grants for strangers."""

import time
from collections.abc import Callable

import pytest
from entra import EXCHANGE
from places import Azure, Azuring

from samples import LEASE, NODE, RUN
from shoal.contracts import keys
from shoal.storage import StoreUnavailable, open_store
from shoal.storage.entra import entra_identity, entra_of
from shoal.storage.grants import check_folder_grant, make_grant
from shoal.storage.identity import TokenServiceAway
from shoal.storage.store import open_container

pytestmark = pytest.mark.soak  # Azurite wants Node.js, and has 360 MB

SECRET = b"s" * 32


def test_tokens_are_asked_for_once_and_anew_when_two_thirds_of_their_life_are_over(
    azure: Azure, azuring: Azuring
) -> None:
    now = time.time()
    identity = entra_identity(azuring.workload(), azure.token_file, lambda: now)
    first, before = identity.keys(), azuring.entra.exchanges
    assert first.expires_unix == now + 3600
    now += 2300
    assert identity.keys() is first
    now += 200
    assert identity.keys() is not first
    assert azuring.entra.exchanges == before + 1


def test_a_store_that_asks_with_a_renewed_token_goes_on(azure: Azure, azuring: Azuring) -> None:
    now = time.time()
    identity = entra_identity(azuring.workload(), azure.token_file, lambda: now)
    store = open_container(azure.spec, azure.prefix, identity)
    store.put("first", b"1")
    azuring.issuer.write(azure.token_file, audience=EXCHANGE)
    now += 3000
    assert store.get("first") == b"1"
    assert azuring.entra.exchanges >= 2


REFUSALS: dict[str, tuple[Callable[[Azuring, Azure], object], dict[str, str], str]] = {
    "no token": (lambda _, azure: azure.token_file.unlink(), {}, r"no service account token at .* storage.azure.workloadIdentity"),
    "not a token": (lambda _, azure: azure.token_file.write_text("garbage"), {}, "AADSTS50027"),
    "another audience": (lambda a, azure: a.issuer.write(azure.token_file, audience="other"), {}, "AADSTS700213"),
    "another account": (
        lambda a, azure: a.issuer.write(azure.token_file, audience=EXCHANGE, subject="system:serviceaccount:b:store"), {},
        "refuses client .* to service account store: invalid_client: AADSTS700213",
    ),
    "another client": (lambda *_: None, {"client_id": "0" * 8 + "-0000-0000-0000-" + "0" * 12}, "AADSTS700016"),
    "another tenant": (lambda *_: None, {"tenant_id": "example.org"}, "AADSTS90002"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_missing_or_refused_is_said_at_once_and_without_the_token(
    case: str, azure: Azure, azuring: Azuring
) -> None:
    prepare, changes, message = REFUSALS[case]
    prepare(azuring, azure)
    token = azure.token_file.read_text() if azure.token_file.exists() else "never"
    spec = azuring.spec(**changes)
    store = open_container(spec, azure.prefix, entra_of(spec, azure.home), deadline_seconds=600)
    with pytest.raises(StoreUnavailable, match=message) as caught:
        store.create("a", b"x")
    assert token not in str(caught.value)


def test_a_token_that_a_kubelet_renews_soon_is_asked_again(azure: Azure, azuring: Azuring) -> None:
    azuring.issuer.write(azure.token_file, audience=EXCHANGE, seconds=-60)
    with pytest.raises(TokenServiceAway, match="AADSTS700024"):
        entra_identity(azuring.workload(), azure.token_file).keys()


def test_the_store_refuses_a_token_of_another_audience(azure: Azure, azuring: Azuring) -> None:
    """Azurite holds a token to its issuer, audience and time: here one for another service."""

    class Other:
        def keys(self) -> object:
            held = entra_identity(azuring.workload(), azure.token_file).keys()
            claims = {"iss": "https://sts.windows.net/x/", "aud": "https://vault.azure.net", "nbf": 0}
            return type(held)(azuring.issuer.signed(claims | {"exp": int(time.time()) + 60}), held.expires_unix)

    store = open_container(azure.spec, azure.prefix, Other(), deadline_seconds=1)
    with pytest.raises(StoreUnavailable, match="refuses our credentials"):
        store.get("a")


def test_a_container_that_does_not_exist_is_not_a_missing_object(azure: Azure) -> None:
    spec = azure.spec.model_copy(update={"container": "no-such-container"})
    store = open_container(spec, azure.prefix, entra_of(spec, azure.home), deadline_seconds=0.5)
    with pytest.raises(StoreUnavailable, match=r"ContainerNotFound|container"):
        store.get("a")


def test_strangers_post_to_the_orchestrator_and_see_neither_container_nor_token(azure: Azure) -> None:
    config, key = azure.config(), keys.staging(NODE, LEASE)
    grant = make_grant(config, key, max_bytes=100, expires_unix=time.time() + 60, run_secret=SECRET)
    assert grant.url == f"{config.addresses.orchestrator}/v1/staging"
    assert check_folder_grant(grant.fields, now_unix=time.time(), run_secret=SECRET) == (key, 100)
    text = grant.model_dump_json()
    assert not any(each in text for each in (azure.server.address, azure.spec.container, azure.token_file.read_text()))


def test_the_store_of_a_configuration_is_the_container(azure: Azure) -> None:
    open_store(azure.config()).put("a", b"x")
    assert azure.open().get("a") == b"x"
    assert azure.open().kind == "azure"
    with pytest.raises(TypeError, match="the azure store has no local paths"):
        azure.open().local_path(f"{RUN}/a")
