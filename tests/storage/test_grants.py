"""Upload grants: exactly one key, a bounded size, some minutes. The folder's policy is ours; the S3 half is judged by a real MinIO."""

import base64
import json
import time

import httpx
import pytest
import rfc8785
from places import S3

from samples import LEASE, NODE, NOW, RUN, run_config
from servers import PLAIN
from shoal.contracts import keys
from shoal.contracts.protocol import UploadGrant
from shoal.storage import open_store
from shoal.storage.grants import BadGrant, check_folder_grant, make_grant

SECRET = b"s" * 32
KEY = keys.staging(NODE, LEASE)


def folder_grant(**changes: object) -> UploadGrant:
    options = {"max_bytes": 1000, "expires_unix": NOW + 60.0, "run_secret": SECRET} | changes
    return make_grant(run_config(), KEY, **options)


def check(fields: dict[str, str], now_unix: float = NOW, run_secret: bytes = SECRET) -> tuple[str, int]:
    return check_folder_grant(fields, now_unix=now_unix, run_secret=run_secret)


def test_a_folder_grant_allows_its_key_and_size_at_the_orchestrator_until_it_expires() -> None:
    grant = folder_grant()
    assert grant.url == "http://127.0.0.1:8080/v1/staging"
    assert grant.expires_unix == NOW + 60
    assert check(grant.fields) == (KEY, 1000)
    assert check(grant.fields, now_unix=NOW + 60) == (KEY, 1000)
    with pytest.raises(BadGrant, match="grant has expired: ask for another one"):
        check(grant.fields, now_unix=NOW + 61)


def test_a_folder_grant_is_of_one_run_secret() -> None:
    with pytest.raises(BadGrant, match="policy is not signed by this orchestrator"):
        check(folder_grant().fields, run_secret=b"t" * 32)


def test_a_folder_grant_for_another_key_is_refused() -> None:
    fields = folder_grant().fields | {"key": keys.staging(NODE, "cd" * 16)}
    with pytest.raises(BadGrant, match="key is not the one that the policy allows"):
        check(fields)


@pytest.mark.parametrize("change", [{"key": "uploads/x"}, {"max_bytes": 1 << 40}, {"expires_unix": NOW * 2}])
def test_a_folder_policy_that_was_changed_is_refused(change: dict[str, object]) -> None:
    fields = dict(folder_grant().fields)
    policy = json.loads(base64.b64decode(fields["policy"])) | change
    fields["policy"] = base64.b64encode(rfc8785.dumps(policy)).decode()
    with pytest.raises(BadGrant, match="policy is not signed by this orchestrator"):
        check(fields)


@pytest.mark.parametrize("name", ["key", "policy", "signature"])
def test_a_folder_form_that_lacks_a_field_names_it(name: str) -> None:
    fields = {field: value for field, value in folder_grant().fields.items() if field != name}
    with pytest.raises(BadGrant, match=f"form lacks {name}: post the fields of the upload grant before the file"):
        check(fields)


@pytest.mark.parametrize("policy", ["", "e30=", "not base64!", "\u00e9", "AAAA"])
@pytest.mark.parametrize("signature", ["", "0" * 64, "\u00e9", "\ud800"])
def test_a_folder_form_of_hostile_text_is_refused_and_never_a_crash(policy: str, signature: str) -> None:
    with pytest.raises(BadGrant):
        check({"key": KEY, "policy": policy, "signature": signature})


def test_the_signature_of_a_grant_does_not_show_the_run_secret() -> None:
    text = folder_grant().model_dump_json()
    assert SECRET.decode() not in text
    assert SECRET.hex() not in text


def s3_grant(s3: S3, **changes: object) -> UploadGrant:
    options = {"max_bytes": 1000, "expires_unix": time.time() + 60, "run_secret": SECRET} | changes
    return make_grant(s3.config(), KEY, **options)


def post(grant: UploadGrant, data: bytes, **changes: str) -> httpx.Response:
    with httpx.Client(**PLAIN) as client:
        return client.post(grant.url, data=dict(grant.fields) | changes, files={"file": ("rollouts.parquet", data)})


def test_an_s3_grant_writes_exactly_its_key(s3: S3) -> None:
    store = open_store(s3.config())
    assert post(s3_grant(s3), b"x" * 1000).status_code == 204
    assert store.get(KEY) == b"x" * 1000
    assert [info.key for info in store.list("staging/")] == [KEY]


def test_an_s3_grant_holds_no_secret_and_names_the_public_endpoint(s3: S3) -> None:
    config = s3.config()
    spec = config.storage.s3.model_copy(update={"public_endpoint": "https://store.example.org"})
    public = config.model_copy(update={"storage": config.storage.model_copy(update={"s3": spec})})
    grant = make_grant(public, KEY, max_bytes=10, expires_unix=NOW, run_secret=SECRET)
    assert grant.url == f"https://store.example.org/{s3.spec.bucket}"
    assert s3.server.secret_key not in grant.model_dump_json()


@pytest.mark.parametrize(
    ("size", "code"), [(1001, "EntityTooLarge"), (100_000, "EntityTooLarge"), (0, "EntityTooSmall")]
)
def test_an_s3_grant_refuses_a_file_of_the_wrong_size(s3: S3, size: int, code: str) -> None:
    answer = post(s3_grant(s3), b"x" * size)
    assert answer.status_code == 400
    assert code in answer.text
    assert not open_store(s3.config()).exists(KEY)


@pytest.mark.parametrize("other", ["staging/other", "uploads/x.parquet", "prepared.json"])
def test_an_s3_grant_refuses_another_key(s3: S3, other: str) -> None:
    answer = post(s3_grant(s3), b"x", key=f"{s3.prefix}/{RUN}/{other}")
    assert answer.status_code == 403
    assert not open_store(s3.config()).exists(other)


def test_an_s3_grant_that_has_expired_is_refused(s3: S3) -> None:
    answer = post(s3_grant(s3, expires_unix=1_700_000_000.0), b"x")
    assert answer.status_code == 403
    assert not open_store(s3.config()).exists(KEY)


def test_an_s3_policy_that_was_changed_is_refused(s3: S3) -> None:
    grant = s3_grant(s3)
    policy = json.loads(base64.b64decode(grant.fields["policy"]))
    policy["conditions"] = [c for c in policy["conditions"] if c[0] != "content-length-range"]
    answer = post(grant, b"x" * 5000, policy=base64.b64encode(json.dumps(policy).encode()).decode())
    assert answer.status_code == 403
    assert "SignatureDoesNotMatch" in answer.text


def test_a_second_upload_with_the_same_grant_does_not_change_what_was_promoted(s3: S3) -> None:
    store, grant = open_store(s3.config()), s3_grant(s3)
    target = keys.upload(NODE, "0" * 64)
    post(grant, b"first")
    assert store.copy_if_absent(KEY, target) is True
    assert post(grant, b"second").status_code == 204, "a lost answer may be posted again while the grant lives"
    assert store.copy_if_absent(KEY, target) is False
    assert store.get(target) == b"first"


def test_nobody_writes_or_reads_without_a_grant(s3: S3) -> None:
    open_store(s3.config()).put("prepared.json", b"{}")
    base = f"{s3.server.endpoint}/{s3.spec.bucket}"
    with httpx.Client(**PLAIN) as client:
        assert client.put(f"{base}/{s3.prefix}/{RUN}/a", content=b"x").status_code == 403
        assert client.get(f"{base}/{s3.prefix}/{RUN}/prepared.json").status_code == 403
        assert client.post(base, data={"key": f"{s3.prefix}/{RUN}/a"}, files={"file": b"x"}).status_code in (400, 403)
    assert not open_store(s3.config()).exists("a")
