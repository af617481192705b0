"""The bucket that the chart's store gets: made once, waited for, refused with the store's own words."""

from pathlib import Path

import pytest

from servers import Loopback, Minio
from shoal.storage.bucket import NoBucket, main, make_bucket


@pytest.fixture
def credentials(minio_server: Minio, tmp_path: Path) -> Path:
    (tmp_path / "accessKey").write_text(minio_server.access_key)
    (tmp_path / "secretKey").write_text(minio_server.secret_key + "\n")
    return tmp_path


def test_a_bucket_is_made_once_and_then_was_there(
    minio_server: Minio, credentials: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--endpoint", minio_server.endpoint, "--credentials", str(credentials), "made-by-the-chart"]
    assert main(arguments) == 0
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "bucket made-by-the-chart is made",
        "bucket made-by-the-chart was there",
    ]


def test_wrong_credentials_are_not_tried_again(minio_server: Minio) -> None:
    with pytest.raises(NoBucket, match="bucket rollouts: SignatureDoesNotMatch"):
        make_bucket(minio_server.endpoint, minio_server.access_key, "wrong-key", "rollouts", 60.0)


def test_a_store_that_never_comes_is_given_up_with_its_address(loopback: Loopback) -> None:
    address = loopback.address()
    nowhere = f"http://{address}:{loopback.port(address)}"
    with pytest.raises(NoBucket, match=f"{nowhere} did not create it within 0 s: .*refused"):
        make_bucket(nowhere, "key", "secret-key", "rollouts", 0.0)


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://minio", "http://minio/path", "http://"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(NoBucket, match="allowed: http:// or https://"):
        make_bucket(endpoint, "key", "secret-key", "rollouts", 0.0)


def test_a_bucket_name_that_s3_does_not_allow_is_refused(minio_server: Minio) -> None:
    with pytest.raises(NoBucket, match="bucket No_Bucket"):
        make_bucket(minio_server.endpoint, minio_server.access_key, minio_server.secret_key, "No_Bucket", 0.0)


def test_missing_credentials_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--credentials .*: No such file or directory: .*accessKey"):
        main(["--endpoint", "http://minio:9000", "--credentials", str(tmp_path), "rollouts"])
