"""The command `python -m tools.release` where it refuses, what it builds of Python, and its pipeline file."""

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from tools.release import plan as planned
from tools.release import programs, steps
from tools.release.plan import CannotRelease
from tools.release.programs import checkout, environment_for, python_packages, run
from tools.release.steps import ReleaseFolder

from servers import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
CLOSED = "127.0.0.1:9"
"""The discard port: nobody serves a registry there."""


def release(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name != "COSIGN_PASSWORD"}
    command = [sys.executable, "-m", "tools.release", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_dry_run_says_what_would_be_made_and_everything_that_is_wrong(tmp_path: Path) -> None:
    done = release(VERSION, "--registry", CLOSED, "--folder", str(tmp_path / "r"), "--without-scan", "x", "--dry-run")
    assert done.returncode == 1
    assert f"image  {CLOSED}/shoal/operator:{VERSION} for amd64, arm64" in done.stdout
    assert f"chart  oci://{CLOSED}/charts/shoal:{VERSION}" in done.stdout
    assert "release: no key was given to sign with" in done.stderr
    assert "release: COSIGN_PASSWORD is not set" in done.stderr
    assert f"release: the registry {CLOSED} does not answer" in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_version_that_the_checkout_does_not_state_is_refused(tmp_path: Path) -> None:
    done = release("9.9.9", "--registry", CLOSED, "--folder", str(tmp_path), "--without-scan", "x")
    assert done.returncode == 1
    assert "release: pyproject.toml says" in done.stderr
    assert "CHANGELOG.md has no section [9.9.9]" in done.stderr


def test_a_former_key_that_is_no_file_is_refused(tmp_path: Path) -> None:
    done = release(VERSION, "--registry", CLOSED, "--folder", str(tmp_path), "--former-key", str(tmp_path / "old.pub"))
    assert done.returncode == 1
    assert f"release: there is no former key {tmp_path}/old.pub" in done.stderr


def test_wheel_and_sdist_of_one_commit_are_the_same_bytes_wherever_they_are_built(tmp_path: Path) -> None:
    made = []
    for name in ("one", "another"):
        checkout(tmp_path / name)
        made.append(python_packages(tmp_path / name, tmp_path / f"{name}-packages", "1700000000"))
    assert made[0] == made[1]
    assert {name.partition("-")[2] for name in made[0]} == {f"{VERSION}-py3-none-any.whl", f"{VERSION}.tar.gz"}


def test_a_stopped_release_goes_on_where_it_was_and_another_one_is_refused(tmp_path: Path) -> None:
    first = ReleaseFolder(tmp_path / "r")
    first.begin(commit="a")
    assert first.once("step", lambda: 1) == 1
    with pytest.raises(ZeroDivisionError):
        first.once("broken", lambda: 1 // 0)
    again = ReleaseFolder(tmp_path / "r")
    again.begin(commit="a")
    assert again.once("step", lambda: 2) == 1
    assert again.once("broken", lambda: 3) == 3
    with pytest.raises(CannotRelease, match="commit 'a', now 'b'; remove the folder"):
        ReleaseFolder(tmp_path / "r").begin(commit="b")


ENVIRONMENT = {
    "PATH": "/bin", "HTTPS_PROXY": "http://proxy", "COSIGN_PASSWORD": "p", "COSIGN_PRIVATE_KEY": "k", "GH_TOKEN": "t",
    "SYFT_REGISTRY_AUTH_PASSWORD": "p", "AWS_SECRET_ACCESS_KEY": "s", "REGISTRY_AUTH_FILE": "/a",
    "HELM_REGISTRY_CONFIG": "/a", "DOCKER_CONFIG": "/d",
}  # fmt: skip


def test_only_the_signer_gets_the_key_and_only_clients_of_the_registry_its_credentials() -> None:
    nobody = environment_for("nothing", ENVIRONMENT)
    assert nobody.keys() == {"PATH", "HTTPS_PROXY"}
    client = environment_for("registry", ENVIRONMENT)
    assert ENVIRONMENT.keys() - client.keys() == {"COSIGN_PASSWORD", "COSIGN_PRIVATE_KEY"}
    assert environment_for("key", ENVIRONMENT) == ENVIRONMENT


def test_a_build_sees_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COSIGN_PASSWORD", "GH_TOKEN", "REGISTRY_AUTH_FILE"):
        monkeypatch.setenv(name, "opens-it")
    assert "opens-it" not in run(["env"])
    assert "COSIGN_PASSWORD=opens-it" in run(["env"], access="key")


class Registry:
    """What a registry would have: tags by repository. It stands in where the programs that ask one are not."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions
        self.chart = ""

    def tags(self, repository: str) -> list[str]:
        return [*self.versions, "sha256-0.sig"]

    def digest(self, reference: str) -> str:
        return f"sha256:{reference.rpartition(':')[2]}"

    def pull_chart(self, version: str, folder: Path) -> Path:
        path = folder / f"shoal-{version}.tgz"
        content = json.dumps({"digests": {f"shoal/operator:{version}": f"sha256:{'a' * 64}"}}).encode()
        with tarfile.open(path, "w:gz") as archive:
            member = tarfile.TarInfo(f"shoal/{steps.LOCK}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        return path


class Keys:
    """Says of which key a chart's signature is: `ours`, a former one's path, or none."""

    def __init__(self, **signed: str) -> None:
        self.signed = {f"sha256:{version.replace('_', '.')[1:]}": key for version, key in signed.items()}

    def verify(self, reference: str, keys: Sequence[Path] = ()) -> None:
        if self.signed.get(reference.rpartition("@")[2]) not in ("ours", *map(str, keys)):
            raise CannotRelease("no matching signatures")


PLAN = planned.make_plan("1.3.0", "registry.example.org", ["operator"])


def lock_before(registry: Registry, keys: Keys, former: Sequence[Path] = ()) -> tuple[list[str], list[str]]:
    """Images of the lock that a release takes over, and what it says on the way."""
    said: list[str] = []
    found = steps.lock_before(PLAN, registry, keys, former, said.append)
    return sorted(found.get("digests", {})), said


def test_the_lock_before_is_of_the_newest_chart_that_is_signed_and_those_skipped_are_named() -> None:
    registry = Registry("1.1.0", "1.2.0", "1.3.0", "2.0.0")
    assert lock_before(registry, Keys(v1_1_0="ours", v1_2_0="ours")) == (["shoal/operator:1.2.0"], [])
    images, [said] = lock_before(registry, Keys(v1_1_0="ours"))
    assert images == ["shoal/operator:1.1.0"]
    assert "chart 1.2.0 is passed over" in said
    assert "no matching signatures" in said
    assert lock_before(Registry(), Keys()) == ([], [])


def test_a_former_key_may_have_signed_the_chart_before() -> None:
    keys = Keys(v1_2_0="/keys/old.pub")
    assert lock_before(Registry("1.2.0"), keys, [Path("/keys/old.pub")]) == (["shoal/operator:1.2.0"], [])
    with pytest.raises(CannotRelease, match=r"no earlier chart .* `--former-key"):
        lock_before(Registry("1.2.0"), keys)


def test_nothing_has_its_name_before_it_is_signed_and_nothing_is_built_for_a_lock_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of what reaches a registry, with stand-ins for the programs that reach it."""
    done: list[str] = []

    class Client(Registry):
        def __init__(self, plan: planned.ReleasePlan) -> None:
            super().__init__()

        def bytes_of(self, reference: str) -> int:
            return 1

        def push_index(self, reference: str, digests: list[str]) -> str:
            done.append("index pushed")
            return f"sha256:{'1' * 64}"

        def push_chart(self, archive: Path) -> str:
            done.append("chart pushed")
            return f"sha256:{'2' * 64}"

        def name(self, reference: str, digest: str) -> None:
            done.append(f"{digest[7]} named {reference}")

    class Signer(Keys):
        def __init__(self, plan: planned.ReleasePlan, key: str, folder: Path) -> None:
            super().__init__()
            done.append("key read")

        def sign(self, reference: str) -> None:
            done.append(f"{reference.rpartition(':')[2][0]} signed")
            if fails in done[-1]:
                raise CannotRelease("the signer is away")

        def sign_file(self, path: Path, bundle: Path) -> None:
            bundle.touch()

    def build(*_: object) -> str:
        done.append("built")
        return "sha256:0"

    fails = "2 signed"
    packages = {"shoal_rl-1.3.0-py3-none-any.whl": "0"}
    monkeypatch.setattr(programs, "RegistryClient", Client)
    monkeypatch.setattr(programs, "Signer", Signer)
    monkeypatch.setattr(programs, "tool", str)
    monkeypatch.setattr(programs, "checkout", lambda folder: folder.mkdir(parents=True))
    monkeypatch.setattr(programs, "build_image", build)
    monkeypatch.setattr(programs, "bill_of_image", lambda *_: None)
    monkeypatch.setattr(programs, "bill_of_wheel", lambda *_: None)
    monkeypatch.setattr(steps, "_packages", lambda *_: packages)
    monkeypatch.setattr(steps, "verify", lambda *_: done.append("verified"))

    def pack(plan: object, digests: dict[str, str], before: object, work: ReleaseFolder) -> None:
        (work.files / "images.lock.json").write_text(json.dumps({"digests": digests}))

    monkeypatch.setattr(steps, "pack_chart", pack)
    work = ReleaseFolder(tmp_path / "r")
    plan = planned.make_plan("1.3.0", "registry.example.org", ["operator"], [], ["amd64"])
    steps.build(plan, "offline", work, lambda _: None)
    assert done == ["built"]
    with pytest.raises(CannotRelease, match="the signer is away"):
        steps.make(plan, "cosign.key", "offline", work, lambda _: None)
    operator, chart = plan.at(plan.images[0]), f"{plan.chart}:1.3.0"
    first = ["key read", "index pushed", "1 signed", f"1 named {operator}", "chart pushed", "2 signed"]
    assert done == ["built", *first], "what was built before is not built again, and an unsigned chart has no name"
    done.clear()
    fails = "no signature"
    steps.make(plan, "cosign.key", "offline", work, lambda _: None)
    assert done == ["key read", "2 signed", f"2 named {chart}", "verified"]
    done.clear()
    monkeypatch.setattr(planned, "MOST_DIGESTS", 0)
    with pytest.raises(CannotRelease, match="the operator takes 0 at most"):
        steps.make(plan, "cosign.key", "offline", ReleaseFolder(tmp_path / "s"), lambda _: None)
    assert done == ["key read"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"BUILDER": "docker", "REPOSITORY": "registry.example.org/shoal"}, "docker does not say the digest"),
        ({"BUILDER": "buildah", "REPOSITORY": ""}, "PUSH needs a registry in REPOSITORY"),
    ],
)
def test_images_are_not_pushed_where_their_digest_or_place_is_unknown(settings: dict[str, str], said: str) -> None:
    environment = os.environ | settings | {"PUSH": "/nonexistent"}
    command = [ROOT / "tools" / "images.sh", "operator"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr


def test_the_pipeline_runs_the_same_command_and_no_action_of_others() -> None:
    [job] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"].values()
    assert [step for step in job["steps"] if "uses" in step] == []
    assert any("make release VERSION=" in step["run"] for step in job["steps"])
    for step in job["steps"]:
        if "make " in step["run"] or "apt-get" in step["run"]:
            assert "secrets." not in str(step), "what builds sees no secret"
            assert "token" not in str(step), "what builds sees no token"
    # The runner's distribution has a newer Python than the packages are locked for.
    wanted = re.search(r"sys.version_info\[:2\] != \((\d+), (\d+)\)", (ROOT / "tools" / "setup.sh").read_text())
    assert wanted is not None
    assert any(f"/Python/{wanted[1]}.{wanted[2]}." in step["run"] for step in job["steps"])
    [signing] = [step for step in job["steps"] if "secrets." in str(step)]
    assert "tools.release" in signing["run"]
    assert [
        target for target in (ROOT / "Makefile").read_text().splitlines() if target.startswith("release: setup ## ")
    ]
