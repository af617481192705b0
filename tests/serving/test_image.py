"""A model as an OCI image: the same bytes everywhere, a layout that other programs read, and a push that goes on after a break."""

import base64
import hashlib
import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from real_registry import real_registry
from registry_stand_in import PASSWORD, USER, Registry
from served_runs import Promote, Served, files_of

from servers import Loopback
from shoal.contracts.serving import Promotion
from shoal.errors import InputWrong, RunFailed
from shoal.serving import registry as pushing
from shoal.serving.image import ModelImage, model_image, write_layout
from shoal.serving.registry import Reference, push_image, stored_login

PROMOTION = Promotion(
    run="demo", tag="serving", number=0, version=7, sha256="ab" * 32, how="hand", by="ann", reason="why", unix=1.0
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    for name, data in files_of(7).items():
        (made / name).write_bytes(data)
    return made


@pytest.fixture
def image(folder: Path) -> ModelImage:
    return model_image(folder, PROMOTION)


def quiet(line: str) -> None:
    return


def blobs_of(layout: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (layout / "blobs" / "sha256").iterdir()}


def unpacked(layout: Path, name: str, to: Path) -> dict[str, bytes]:
    """The files of one image of a layout, as an image volume has them."""
    index = json.loads((layout / "index.json").read_bytes())
    blobs = blobs_of(layout)
    [found] = [each for each in index["manifests"] if each["annotations"]["org.opencontainers.image.ref.name"] == name]
    manifest = json.loads(blobs[found["digest"].removeprefix("sha256:")])
    for layer in manifest["layers"]:
        path = layout / "blobs" / "sha256" / layer["digest"].removeprefix("sha256:")
        with tarfile.open(path, "r:") as archive:
            archive.extractall(to, filter="data")
    return {path.name: path.read_bytes() for path in (to / "models").iterdir()}


def test_the_same_files_give_the_same_digests_whatever_machine_and_day(folder: Path, image: ModelImage) -> None:
    other = folder.with_name("elsewhere")
    shutil.copytree(folder, other)
    assert model_image(other, PROMOTION).manifest.digest == image.manifest.digest


def test_a_layout_has_every_blob_under_its_digest_and_unpacks_to_the_files(tmp_path: Path, image: ModelImage) -> None:
    layout = tmp_path / "layout"
    write_layout(image, layout, "serving", quiet)
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    for name, data in blobs_of(layout).items():
        assert hashlib.sha256(data).hexdigest() == name
    assert unpacked(layout, "serving", tmp_path / "out") == files_of(7)


def test_the_image_says_which_version_of_which_run_it_is(image: ModelImage) -> None:
    manifest = json.loads(b"".join(image.manifest.chunks()))
    assert manifest["annotations"]["io.shoal.run"] == "demo"
    assert manifest["annotations"]["io.shoal.version"] == "7"
    assert manifest["annotations"]["io.shoal.version.sha256"] == "ab" * 32


def test_a_second_version_adds_only_what_changed(tmp_path: Path, folder: Path, image: ModelImage) -> None:
    layout = tmp_path / "layout"
    write_layout(image, layout, "v7", quiet)
    before = set(blobs_of(layout))
    (folder / "model.safetensors").write_bytes(b"\x08" * 3000)
    said: list[str] = []
    write_layout(model_image(folder, PROMOTION.model_copy(update={"version": 8})), layout, "v8", said.append)
    assert len(set(blobs_of(layout)) - before) == 3, "weights, configuration and manifest"
    assert "writing 3 of 5 blobs" in said[0]
    assert unpacked(layout, "v7", tmp_path / "out7") == files_of(7)
    assert unpacked(layout, "v8", tmp_path / "out8")["model.safetensors"] == b"\x08" * 3000


def test_a_name_that_is_there_is_replaced(tmp_path: Path, folder: Path, image: ModelImage) -> None:
    layout = tmp_path / "layout"
    write_layout(image, layout, "serving", quiet)
    (folder / "config.json").write_bytes(b'{"a": 1}')
    write_layout(model_image(folder, PROMOTION), layout, "serving", quiet)
    assert len(json.loads((layout / "index.json").read_bytes())["manifests"]) == 1
    assert unpacked(layout, "serving", tmp_path / "out")["config.json"] == b'{"a": 1}'


def test_a_folder_of_something_else_is_refused(tmp_path: Path, image: ModelImage) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputWrong, match="is neither empty nor an OCI image layout"):
        write_layout(image, tmp_path, "serving", quiet)
    assert not (tmp_path / "blobs").exists()


def test_a_file_that_changes_while_it_is_copied_is_said_and_leaves_no_blob(
    tmp_path: Path, folder: Path, image: ModelImage
) -> None:
    (folder / "model.safetensors").write_bytes(b"\x09" * 3000)
    layout = tmp_path / "layout"
    with pytest.raises(RunFailed, match="changed while it was copied"):
        write_layout(image, layout, "serving", quiet)
    assert not (layout / "index.json").exists()
    assert [path.name for path in (layout / "blobs" / "sha256").iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def registry(loopback: Loopback) -> Iterator[Registry]:
    made = Registry(loopback.address())
    yield made
    made.close()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No proxy and no login of this machine's user."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    monkeypatch.setattr(pushing, "TRIES_SECONDS", 5.0)


def send(image: ModelImage, registry: Registry, login: tuple[str, str] | None = None) -> str:
    said: list[str] = []
    push_image(
        image, Reference.parse(f"{registry.host}/team/demo:serving", ""), said.append, plain_http=True, login=login
    )
    return "".join(said)


def test_a_registry_gets_every_blob_and_the_manifest_under_its_tag(registry: Registry, image: ModelImage) -> None:
    assert "sending 4 of 4 blobs" in send(image, registry)
    assert set(registry.blobs) == {blob.digest for blob in image.blobs}
    assert registry.tags == {"team/demo:serving": b"".join(image.manifest.chunks())}
    assert "sending 0 of 4 blobs" in send(image, registry)


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_the_login_is_sent_as_the_registry_asks(registry: Registry, image: ModelImage, scheme: str) -> None:
    registry.scheme = scheme
    send(image, registry, (USER, PASSWORD))
    assert registry.tags
    with pytest.raises(InputWrong, match=r"does not let you write to team/demo \(401\): log in with `docker login"):
        send(image, registry, (USER, "wrong"))


def test_a_push_that_broke_sends_only_the_rest(registry: Registry, image: ModelImage) -> None:
    registry.fail_after = 2
    with pytest.raises(RunFailed, match=r"did not take the image for .*503"):
        send(image, registry)
    assert registry.tags == {}
    registry.fail_after = None
    assert "sending 2 of 4 blobs" in send(image, registry)
    assert registry.tags


def test_a_login_never_goes_to_another_host(registry: Registry, image: ModelImage, loopback: Loopback) -> None:
    elsewhere = Registry(loopback.address())
    try:
        registry.scheme, registry.uploads_at = "Basic", elsewhere.url
        elsewhere.accepts_any_upload = True
        send(image, registry, (USER, PASSWORD))
    finally:
        elsewhere.close()
    assert elsewhere.authorizations == {""}


def test_another_host_that_asks_for_a_login_gets_none(
    registry: Registry, image: ModelImage, loopback: Loopback
) -> None:
    elsewhere = Registry(loopback.address())
    try:
        registry.scheme, registry.uploads_at, elsewhere.scheme = "Basic", elsewhere.url, "Bearer"
        with pytest.raises(InputWrong, match="401"):
            send(image, registry, (USER, PASSWORD))
    finally:
        elsewhere.close()
    assert elsewhere.authorizations == {""}


def test_a_registry_that_is_away_is_said(image: ModelImage, loopback: Loopback) -> None:
    host = f"{loopback.address()}:9"
    with pytest.raises(RunFailed, match="did not take the image for"):
        push_image(image, Reference.parse(f"{host}/demo", "x"), quiet, plain_http=True)


@pytest.mark.parametrize(
    "text", ["demo", "team/demo:x", "https://registry.example.org/demo", "registry.example.org/Demo"]
)
def test_a_reference_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputWrong, match="write HOST/NAME:TAG"):
        Reference.parse(text, "serving")


def test_logins_are_those_that_docker_login_left(tmp_path: Path) -> None:
    place = tmp_path / "config.json"
    environment = {"DOCKER_CONFIG": str(tmp_path), "HOME": "/nowhere"}
    assert stored_login("registry.example.org", environment) is None
    auth = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    place.write_text(json.dumps({"auths": {"registry.example.org": {"auth": auth}}}))
    assert stored_login("registry.example.org", environment) == (USER, PASSWORD)
    assert stored_login("other.example.org", environment) is None
    place.write_text(json.dumps({"auths": {"registry.example.org": {}}, "credsStore": "desktop"}))
    with pytest.raises(InputWrong, match=r"keeps the login of registry\.example\.org in desktop, which is not asked"):
        stored_login("registry.example.org", environment)
    place.write_text("[")
    with pytest.raises(InputWrong, match="is not a file of logins"):
        stored_login("registry.example.org", environment)


def test_the_program_makes_the_image_of_what_a_tag_names(served: Served, promote: Promote, registry: Registry) -> None:
    promote(1)
    layout = served.folder.with_name("layout")
    to = f"{registry.host}/team/demo"
    said = served.said("image", "--folder", str(served.folder), "--layout", str(layout), "--push", to, "--plain-http")
    [(name, manifest)] = registry.tags.items()
    assert name == "team/demo:serving"
    assert f"version 1 of run demo: sha256:{hashlib.sha256(manifest).hexdigest()} as {to}@sha256:" in said
    there = unpacked(layout, "serving", served.folder.with_name("out"))
    assert {name: there[name] for name in files_of(1)} == files_of(1)
    assert served.refused("image").endswith("give --layout DIR or --push HOST/NAME:TAG: where the image goes")


@pytest.mark.soak
def test_a_real_registry_takes_it_and_skopeo_reads_it(tmp_path: Path, image: ModelImage, loopback: Loopback) -> None:
    with real_registry(loopback, tmp_path) as host:
        to = Reference.parse(f"{host}/team/demo:serving", "")
        push_image(image, to, quiet, plain_http=True)
        out = tmp_path / "back"
        copy = ["skopeo", "copy", "--preserve-digests", "--dest-oci-accept-uncompressed-layers"]
        copy += ["--src-tls-verify=false", f"docker://{to}", f"oci:{out}:serving"]
        subprocess.run(copy, check=True, timeout=120)
        assert unpacked(out, "serving", tmp_path / "out") == files_of(7)
        [found] = json.loads((out / "index.json").read_bytes())["manifests"]
        assert found["digest"] == image.manifest.digest
