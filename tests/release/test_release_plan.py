"""What a release consists of, what keeps it from being made, its lock, checksums and notes."""

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tools.release.plan import (
    CannotRelease,
    Facts,
    PublishedImage,
    checksums,
    earlier_versions,
    lock,
    make_plan,
    notes,
    problems,
    require_room,
    section,
)
from tools.release.steps import roles, stated_versions

from shoal_operator.children.site import Site

ROLES = ["operator", "runtime", "trainer"]
DIGEST, OTHER = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
CHANGELOG = """# Changelog

## [1.2.3] - 2026-12-01

### Added

- A thing.

## [1.2.2] - 2026-11-01

- An older thing.

[1.2.2]: https://example.org/
"""
PLAN = make_plan("1.2.3", "registry.example.org/project", ROLES)
READY = Facts(
    versions={"pyproject.toml": "1.2.3"},
    changelog=CHANGELOG,
    changed="",
    head="c" * 40,
    tagged=None,
    key="/keys/cosign.key",
    key_exists=True,
    password_given=True,
    registry_problem="",
    published=False,
    scan="",
    scanner_problem="",
)


def test_a_whole_release_has_every_role_for_both_architectures_and_cuda_where_there_is_one() -> None:
    assert {(image.key, image.architectures) for image in PLAN.images} == {
        ("operator", ("amd64", "arm64")),
        ("trainer", ("amd64", "arm64")),
        ("trainer-cuda", ("amd64",)),
    }
    assert PLAN.left_out == ()
    assert [PLAN.at(image) for image in PLAN.images if image.variant == "cuda"] == [
        "registry.example.org/project/shoal/trainer:1.2.3-cuda"
    ]


def test_what_is_left_out_is_named() -> None:
    plan = make_plan("1.2.3", "127.0.0.1:5000", ROLES, ["operator"], ["amd64"])
    assert plan.images == (PublishedImage("operator", "cpu", ("amd64",)),)
    assert plan.left_out == ("operator (arm64)", "trainer (amd64)", "trainer (arm64)", "trainer-cuda (amd64)")


@pytest.mark.parametrize(
    ("registry", "plain"),
    [
        ("127.0.0.1:5000", True),
        ("localhost:5000/project", True),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org:5000", False),
        ("10.0.0.1:5000", False),
    ],
)
def test_only_a_registry_of_this_machine_is_spoken_to_without_tls(registry: str, plain: bool) -> None:
    assert make_plan("1.2.3", registry, ROLES).plain_http is plain


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3-rc.1", "01.2.3", "1.2.3\n", "1.2.3; rm -rf /"])
def test_a_version_is_three_numbers(version: str) -> None:
    with pytest.raises(CannotRelease, match="three numbers"):
        make_plan(version, "registry.example.org", ROLES)


@pytest.mark.parametrize("registry", ["", "https://registry.example.org", "--config", "Registry.example.org", "a b"])
def test_a_registry_is_a_host(registry: str) -> None:
    with pytest.raises(CannotRelease, match="REGISTRY is"):
        make_plan("1.2.3", registry, ROLES)


def test_an_image_or_an_architecture_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(CannotRelease, match="no trainr to release; there are: operator, trainer, trainer-cuda"):
        make_plan("1.2.3", "registry.example.org", ROLES, ["trainr"])
    with pytest.raises(CannotRelease, match="no riscv to release; there are: amd64, arm64"):
        make_plan("1.2.3", "registry.example.org", ROLES, [], ["riscv"])


def test_a_checkout_that_is_ready_has_no_problem() -> None:
    assert problems(PLAN, READY) == []
    assert problems(PLAN, replace(READY, tagged=READY.head)) == []  # the tag started the pipeline
    assert problems(PLAN, replace(READY, scanner_problem="no database", scan="offline")) == []
    assert problems(PLAN, replace(READY, builds_only=True, key="", key_exists=False, password_given=False)) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"versions": {"pyproject.toml": "1.2.2"}}, "pyproject.toml says 1.2.2; set it to 1.2.3"),
        ({"changelog": "# Changelog\n"}, "has no section [1.2.3]"),
        ({"changelog": CHANGELOG.replace("2026-12-01", "Unreleased")}, "says 'Unreleased' of 1.2.3; put the day there"),
        ({"changelog": "## [1.2.3] - 2026-12-01\n"}, "says nothing of 1.2.3"),
        ({"changed": " M Makefile\n?? new\n"}, "changes that no commit has (M Makefile first)"),
        ({"tagged": "d" * 40}, "the tag v1.2.3 names dddddddddddd, not this commit"),
        ({"key": ""}, "no key was given to sign with"),
        ({"key_exists": False}, "there is no key /keys/cosign.key"),
        ({"password_given": False}, "COSIGN_PASSWORD is not set"),
        ({"registry_problem": "refused"}, "registry.example.org/project does not answer: refused"),
        ({"published": True}, "has a chart 1.2.3 already; a release is never replaced"),
        ({"scanner_problem": "no database"}, "the scan for vulnerabilities cannot run: no database; `--without-scan"),
    ],
)
def test_each_thing_that_is_wrong_is_told_with_the_way_out(wrong: dict[str, object], said: str) -> None:
    [found] = problems(PLAN, replace(READY, **wrong))
    assert said in found


def test_everything_that_is_wrong_is_told_at_once() -> None:
    assert len(problems(PLAN, replace(READY, changed="?? x", key="", password_given=False, published=True))) == 4


def test_a_section_of_the_changelog_ends_where_the_next_begins() -> None:
    assert section(CHANGELOG, "1.2.3") == ("2026-12-01", "### Added\n\n- A thing.")
    assert section(CHANGELOG, "1.2.2") == ("2026-11-01", "- An older thing.")
    assert section(CHANGELOG.replace("[1.2.3]", "[1x2.3]"), "1.2.3") is None


def test_a_lock_keeps_what_runs_may_still_be_of() -> None:
    made = lock(PLAN, {"shoal/operator:1.2.3": DIGEST}, {"registry": "x", "digests": {"shoal/operator:1.2.2": OTHER}})
    assert made == {
        "registry": "registry.example.org/project",
        "digests": {"shoal/operator:1.2.2": OTHER, "shoal/operator:1.2.3": DIGEST},
    }


def test_operators_read_the_lock_of_many_releases_and_no_release_makes_a_larger_one() -> None:
    roles = [*ROLES, "discovery", "orchestrator", "publisher", "relay", "runner", "validator", "worker"]
    made: dict[str, Any] = {}
    plans = [make_plan(f"10.10.{number}", "registry.example.org/project", roles) for number in range(100)]
    room = 1024 // len(plans[0].images)
    for plan in plans[:room]:
        require_room(plan, made)
        made = lock(plan, {image.name(plan.version): DIGEST for image in plan.images}, made)
    one_more = plans[room]
    with pytest.raises(CannotRelease, match="the operator takes 1024 at most"):
        require_room(one_more, made)
    with pytest.raises(CannotRelease, match="the operator takes 1024 at most"):
        lock(one_more, {image.name(one_more.version): DIGEST for image in one_more.images}, made)
    site = Site.model_validate({"imageDigests": made["digests"], "imageRegistry": made["registry"]})
    argument = site.model_dump_json(by_alias=True, exclude_defaults=True)
    assert len(argument.encode()) < 120_000, "one argument of a program has less than 128 KiB"


def test_a_lock_never_changes_a_digest_and_takes_nothing_but_digests() -> None:
    with pytest.raises(CannotRelease, match="the earlier release's lock has"):
        lock(PLAN, {"shoal/operator:1.2.3": DIGEST}, {"digests": {"shoal/operator:1.2.3": OTHER}})
    with pytest.raises(CannotRelease, match="not sha256"):
        lock(PLAN, {"shoal/operator:1.2.3": "latest"}, {})


def test_the_releases_before_are_found_by_numbers_not_by_letters() -> None:
    assert earlier_versions(["1.9.0", "1.10.0", "2.0.0", "latest", "1.11.0"], "1.11.0") == ["1.10.0", "1.9.0"]
    assert earlier_versions(["1.2.3"], "1.2.3") == []


def test_checksums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    files = {"b": b"two", "a": b"one"}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "SHA256SUMS").write_text(checksums(files))
    assert checksums(files).startswith(hashlib.sha256(b"one").hexdigest() + "  a\n")
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=False, capture_output=True)
    assert done.returncode == 0


def test_the_notes_say_what_changed_what_to_pull_how_to_check_and_what_is_missing() -> None:
    plan = make_plan("1.2.3", "registry.example.org/project", ROLES, ["operator"])
    text = notes(plan, CHANGELOG, {"digests": {"shoal/operator:1.2.3": DIGEST}}, OTHER, "Nobody scanned this.")
    assert "- A thing." in text
    assert "older thing" not in text
    assert f"| `registry.example.org/project/shoal/operator:1.2.3` | amd64, arm64 | `{DIGEST}` |" in text
    assert "helm install shoal oci://registry.example.org/project/charts/shoal --version 1.2.3\n" in text
    assert "Nobody scanned this." in text
    assert "Not part of this release: trainer (amd64), trainer (arm64), trainer-cuda (amd64)." in text
    assert f"registry.example.org/project/shoal/operator@{DIGEST}" in text
    assert f"registry.example.org/project/charts/shoal@{OTHER}" in text
    assert "--plain-http" not in text


def test_every_place_of_the_checkout_states_one_version() -> None:
    assert len(set(stated_versions().values())) == 1
    assert {"operator", "runtime", "worker"} <= set(roles())
