"""Finding and pinning environments: what is not installed, or is no environment, is refused by name."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from shoal.environments import BadEnvironment, base, digest, load
from shoal.environments.arithmetic import Arithmetic


class OtherVersion(Arithmetic):
    version = "2"


class NotAnEnvironment:
    name = "broken"
    version = "1"


def _installed(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name=name, value=value, group=base.ENTRY_POINT_GROUP)
    monkeypatch.setattr(base, "installed", lambda: {name: point})
    base.load.cache_clear()


@pytest.fixture(autouse=True)
def _forget() -> None:
    base.load.cache_clear()


def test_an_unknown_environment_is_refused_with_the_names_that_are_installed() -> None:
    with pytest.raises(BadEnvironment, match=r"environment 'algebra' is not installed here; installed: .*arithmetic"):
        load("algebra")


def test_an_entry_point_that_is_no_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, "broken", f"{__name__}:NotAnEnvironment")
    with pytest.raises(BadEnvironment, match="lacks one of: name, version, tasks, prompt, score, gold"):
        load("broken")


def test_an_environment_under_anothers_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, "sums", "shoal.environments.arithmetic:Arithmetic")
    with pytest.raises(BadEnvironment, match="with the name 'arithmetic'"):
        load("sums")


@pytest.mark.parametrize("name", ["shoal", "shoal-rl"])
def test_only_shoals_own_distribution_has_environments_in_this_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = tmp_path / f"{name.replace('-', '_')}-99.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99\n")
    (metadata / "entry_points.txt").write_text("[shoal.environments]\nevil = shoal.environments.base:os.abort\n")
    monkeypatch.setenv("SHOAL_ENVIRONMENTS", str(tmp_path))
    found = base.installed()
    assert not base.in_process(found["evil"])
    assert base.in_process(found["arithmetic"])


def test_another_version_and_another_source_have_another_digest() -> None:
    class SameVersionOtherModule(Arithmetic):
        pass

    digests = {digest(Arithmetic()), digest(OtherVersion()), digest(SameVersionOtherModule())}
    assert len(digests) == 3
