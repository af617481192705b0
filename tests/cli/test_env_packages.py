"""`shoal env add`, `check`, `bench` and `publish` with wheels: locked, tried as a run would bring them, put where prepare finds them."""

import hashlib
import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from index_server import Index, serving_index
from servers import ROOT
from shoal.cli import preflight
from shoal.cli.main import app
from shoal.contracts.task_source import TaskSource
from shoal.environments import wheels
from shoal.environments.package_index import INDEX_VARIABLE
from shoal.environments.places import RUN_VARIABLE
from shoal.errors import InputWrong, RunFailed
from shoal_operator.api import TrainingRun
from wheels_made import echo_words, echoes, wheel

ENVIRONMENT = "shoal_environment_echoes-1.0-py3-none-any.whl"
WORDS = "echo_words-1.0-py3-none-any.whl"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["env", *map(str, arguments)])


def refused(kind: type[Exception], *arguments: str | Path) -> str:
    """What `main` makes lines of, with the exit code of the kind."""
    done = run(*arguments)
    assert isinstance(done.exception, kind), done.output
    return str(done.exception)


def packages_of(output: str) -> TaskSource:
    """The lines as a manifest takes them."""
    return TaskSource.model_validate({"environment": "echoes", **yaml.safe_load(output)})


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """The only index that is asked: names of tests may be somebody's on another one."""
    monkeypatch.setenv(RUN_VARIABLE, "")
    with serving_index() as found:
        monkeypatch.setenv(INDEX_VARIABLE, found.url)
        found.add("shoal-environment-echoes", ENVIRONMENT, echoes())
        found.add("echo-words", WORDS, echo_words())
        yield found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "packages"
    place.mkdir()
    (place / ENVIRONMENT).write_bytes(echoes())
    (place / WORDS).write_bytes(echo_words())
    return place


@pytest.mark.parametrize("verb", ["add", "bench", "publish", "check"])
def test_help_shows_an_example_with_packages(verb: str) -> None:
    shown = " ".join(run(verb, "--help").output.split())
    assert f"Example: shoal env {verb}" in shown
    assert "Exit codes: 0" in shown


def test_add_locks_an_environment_with_all_that_it_needs(tmp_path: Path) -> None:
    done = run("add", "shoal-environment-echoes==1.0", "--dir", tmp_path / "packages")
    assert done.exit_code == 0, done.output
    assert "# echo-words 1.0, which package shoal-environment-echoes 1.0 needs" in done.output
    found = packages_of(done.output).packages
    assert {each.package: each.sha256 for each in found} == {
        "shoal-environment-echoes": hashlib.sha256(echoes()).hexdigest(),
        "echo-words": hashlib.sha256(echo_words()).hexdigest(),
    }
    assert {each.path for each in found} == {None}
    assert {path.name for path in (tmp_path / "packages").iterdir()} == {ENVIRONMENT, WORDS}


def test_add_takes_the_newest_version_that_fits(tmp_path: Path, index: Index) -> None:
    for version in ("1.9", "1.10", "2.0rc1"):
        files = {"echo_words.py": f"VERSION = {version!r}\n"}
        index.add("echo-words", f"echo_words-{version}-py3-none-any.whl", wheel("echo-words", files, version=version))
    done = run("add", "echo-words<2", "--dir", tmp_path / "packages")
    assert packages_of(done.output).packages[0].version == "1.10"


def test_add_takes_a_version_before_a_release_where_it_is_named(tmp_path: Path, index: Index) -> None:
    files = {"echo_words.py": ""}
    index.add("echo-words", "echo_words-2.0rc1-py3-none-any.whl", wheel("echo-words", files, version="2.0rc1"))
    done = run("add", "echo-words==2.0rc1", "--dir", tmp_path / "packages")
    assert packages_of(done.output).packages[0].version == "2.0rc1"


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_add_passes_over_a_yanked_version(tmp_path: Path, index: Index, html: bool) -> None:
    index.html = html
    name = "echo_words-1.5-py3-none-any.whl"
    index.add("echo-words", name, wheel("echo-words", {"echo_words.py": ""}, version="1.5"))
    index.yanked.add(name)
    done = run("add", "echo-words", "--dir", tmp_path / "packages")
    assert packages_of(done.output).packages[0].version == "1.0"


def test_add_takes_no_other_bytes_than_the_index_says(tmp_path: Path, index: Index) -> None:
    index.digests[WORDS] = "ab" * 32
    words = f"echo-words: {WORDS} has SHA-256 "
    assert words in refused(InputWrong, "add", "echo-words", "--dir", tmp_path / "packages")
    index.add("echo-words", "echo_words-3.0-py3-none-any.whl", echo_words())
    words = "echo-words: echo_words-3.0-py3-none-any.whl holds echo-words 1.0"
    assert words in refused(InputWrong, "add", "echo-words", "--dir", tmp_path / "packages")


@pytest.mark.parametrize(
    "page",
    [
        b'{"files": [{"filename": "echo_words-1.0-py3-none-any.whl", "url": "u", "hashes": null}]}',
        b'{"files": ["echo_words-1.0-py3-none-any.whl"]}',
        b"[" * 100_000,
        b'{"files": [{"filename": "echo_words-' + b"9" * 5000 + b'-py3-none-any.whl", "url": "u"}]}',
        b'{"files": [{"filename": "echo_words-1.0-py3-none-any.whl", "url": "http://h:99999999/", "requires-python": ">='
        + b"9" * 5000
        + b'"}]}',
        b'{"files": [{"filename": "echo_words-1.0-py3-none-any.whl", "url": "http://h:99999999/"}]}',
    ],
    ids=["no hashes", "no object", "deep", "number", "python", "port"],
)
def test_add_says_in_one_line_that_an_index_is_none(tmp_path: Path, index: Index, page: bytes) -> None:
    index.page = page
    assert "\n" not in refused(InputWrong, "add", "echo-words", "--dir", tmp_path / "packages")


def test_add_carries_extras(tmp_path: Path, index: Index) -> None:
    words = wheel("echo-words", {"echo_words.py": ""}, version="1.1", requires=["louder-words; extra == 'loud'"])
    index.add("echo-words", "echo_words-1.1-py3-none-any.whl", words)
    index.add("louder-words", "louder_words-1.0-py3-none-any.whl", wheel("louder-words", {"louder_words.py": ""}))
    done = run("add", "echo-words", "echo-words[loud]", "--dir", tmp_path / "packages")
    assert [each.package for each in packages_of(done.output).packages] == ["echo-words", "louder-words"]


def test_add_leaves_one_version_of_a_package_in_the_folder(folder: Path, index: Index) -> None:
    newer = wheel("echo-words", {"echo_words.py": ""}, version="1.1")
    index.add("echo-words", "echo_words-1.1-py3-none-any.whl", newer)
    done = run("add", "echo-words==1.1", "--dir", folder)
    assert f"# {WORDS} removed: another wheel of echo-words" in done.output
    assert {path.name for path in folder.iterdir()} == {ENVIRONMENT, "echo_words-1.1-py3-none-any.whl"}
    (folder / WORDS).write_bytes(echo_words())
    assert f"{folder}: {WORDS} and echo_words-1.1-py3-none-any.whl are both echo-words: keep one" in refused(
        RunFailed, "check", "--packages", folder
    )


def test_add_warns_where_this_machine_does_not_tell_what_the_images_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("add", "echo-words", "--dir", tmp_path / "a").stderr == ""

    def without(name: str) -> object:
        if name in ("torch", "lm-eval"):
            raise PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(wheels, "distribution", without)
    monkeypatch.setattr(sys, "platform", "darwin")
    said = run("add", "echo-words", "--dir", tmp_path / "b").stderr
    assert said.count("\n") == 1
    assert "lm-eval, torch are not installed" in said
    assert "darwin, the images are Linux" in said


def test_an_epoch_has_a_key_that_a_manifest_takes_and_lines_are_yaml(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "store").mkdir()
    data = wheel("echo-words", {"echo_words.py": ""}, version="1!2.0+a")
    (tmp_path / "p" / "echo_words-1!2.0+a-py3-none-any.whl").write_bytes(data)
    done = run("publish", tmp_path / "p", "--to", tmp_path / "store")
    found = packages_of(done.output).packages[0]
    assert (found.version, found.object) == ("1!2.0+a", "packages/echo_words-1_2.0_a-py3-none-any.whl")
    odd = tmp_path / "a, b: {c}"
    added = run("add", tmp_path / "p" / "echo_words-1!2.0+a-py3-none-any.whl", "--dir", odd)
    assert packages_of(added.output).packages[0].path == str(odd / "echo_words-1!2.0+a-py3-none-any.whl")


def test_add_says_the_place_of_a_file_and_fetches_the_rest(tmp_path: Path, folder: Path) -> None:
    done = run("add", folder / ENVIRONMENT, "--dir", tmp_path / "locked")
    assert done.exit_code == 0, done.output
    places = {each.package: each.path for each in packages_of(done.output).packages}
    assert places == {"shoal-environment-echoes": str(tmp_path / "locked" / ENVIRONMENT), "echo-words": None}


def test_add_leaves_out_what_shoal_has(tmp_path: Path) -> None:
    done = run("add", "numpy", "--dir", tmp_path / "packages")
    assert "is Shoal's own: nothing to add" in done.output
    assert packages_of(done.output.replace("packages:", "packages: []")).packages == []


WRONG = {
    "no such name": (["no-such-words"], "no-such-words: there is nothing at http://127.0.0.1"),
    "no requirement": (
        ["two words"],
        "'two words' cannot be read as a requirement; write NAME, NAME==VERSION or the path of a wheel",
    ),
    "no version that fits": (["echo-words>5"], "echo-words>5: http://127.0.0.1"),
    "compiled": (
        ["fast-words"],
        "fast_words-1.0-cp311-cp311-linux_x86_64.whl is for one platform; allowed: wheels of pure",
    ),
    "against Shoal's own": (["numpy<1"], "numpy<1, and Shoal has numpy "),
    "sources alone": (["old-words"], "has no wheel of a version that fits; build a wheel where you trust it"),
    "two versions": (["echo-words<1.0", "shoal-environment-echoes"], "echo-words 0.9 was taken before: name a version"),
    "no such file": (["./nowhere-1.0-py3-none-any.whl"], "No such file or directory; give the file of a wheel"),
    "a folder": (["./"], "Is a directory; give the file of a wheel"),
}


@pytest.mark.parametrize(("wanted", "words"), WRONG.values(), ids=WRONG)
def test_add_says_in_one_line_what_cannot_be_had(tmp_path: Path, index: Index, wanted: list[str], words: str) -> None:
    index.add("fast-words", "fast_words-1.0-cp311-cp311-linux_x86_64.whl", b"")
    index.add("old-words", "old-words-1.0.tar.gz", b"")
    index.add(
        "echo-words", "echo_words-0.9-py3-none-any.whl", wheel("echo-words", {"echo_words.py": ""}, version="0.9")
    )
    assert words in refused(InputWrong, "add", *wanted, "--dir", tmp_path / "packages")
    assert not (tmp_path / "packages").exists()


def test_add_asks_no_index_that_nobody_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(INDEX_VARIABLE)
    words = "no package index is named: set PIP_INDEX_URL"
    assert words in refused(InputWrong, "add", "echo-words", "--dir", tmp_path / "packages")


def test_check_tries_packages_as_a_run_brings_them(folder: Path) -> None:
    done = run("check", "--packages", folder)
    assert (done.exit_code, done.stderr) == (0, ""), done.output
    assert done.output.startswith("echoes: usable in a run; 8 tasks, slowest score ")
    assert not os.environ.get(RUN_VARIABLE)
    assert "echoes: not installed here" in refused(InputWrong, "check", "echoes")


def test_check_names_the_package_that_reaches_out(folder: Path) -> None:
    (folder / WORDS).write_bytes(echo_words("open('/left', 'w')"))
    done = run("check", "--packages", folder)
    assert isinstance(done.exception, RunFailed)
    assert "package echo-words 1.0 reached out of its room (echo_words.py)" in done.output


def test_check_says_which_wheel_does_not_fit(tmp_path: Path, folder: Path) -> None:
    (folder / WORDS).unlink()
    words = "needs echo-words>=1, which is neither in packages nor something that Shoal has"
    assert words in refused(RunFailed, "check", "--packages", folder)
    assert "has no wheels; `shoal env add` puts them there" in refused(RunFailed, "check", "--packages", tmp_path)
    (folder / ENVIRONMENT).unlink()
    (folder / WORDS).write_bytes(echo_words())
    assert "list no environment: name one, such as" in refused(InputWrong, "check", "--packages", folder)


def test_bench_says_episodes_scores_and_memory(folder: Path) -> None:
    done = run("bench", "--packages", folder, "--seconds", "0.5")
    assert done.exit_code == 0, done.output
    said = done.output.replace(",", "").split()
    assert said[0] == "echoes:"
    assert said[2:7:2] == ["episodes/s", "scores/s", "tasks/s"]
    assert all(float(each) > 0 for each in said[1:6:2])
    assert said[-1] == "MiB"
    assert "nothing to time: name one, such as math" in refused(InputWrong, "bench")


def test_bench_stops_at_an_answer_that_cannot_be_scored(folder: Path) -> None:
    (folder / ENVIRONMENT).write_bytes(echoes("        raise KeyError('score')"))
    said = refused(RunFailed, "bench", "--packages", folder, "--seconds", "0.5")
    assert "echoes: environment 'echoes': score() raised KeyError: 'score'" in said


def test_publish_puts_wheels_where_prepare_finds_them_and_never_changes_one(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "store").mkdir()
    done = run("publish", folder, "--to", tmp_path / "store")
    assert done.exit_code == 0, done.output
    keys = {each.package: each.object for each in packages_of(done.output).packages}
    assert keys == {"shoal-environment-echoes": f"packages/{ENVIRONMENT}", "echo-words": f"packages/{WORDS}"}
    assert (tmp_path / "store" / keys["echo-words"]).read_bytes() == echo_words()
    assert run("publish", folder, "--to", tmp_path / "store").output == done.output
    (folder / WORDS).write_bytes(echo_words("1"))
    again = refused(InputWrong, "publish", folder, "--to", tmp_path / "store")
    assert f"packages/{WORDS}: is there already with other bytes" in again
    assert "neither s3://BUCKET/PREFIX nor a folder" in refused(InputWrong, "publish", folder, "--to", tmp_path / "no")


def test_up_leaves_a_name_that_is_not_installed_to_the_packages(tmp_path: Path, folder: Path) -> None:
    document = yaml.safe_load((ROOT / "examples" / "arithmetic" / "trainingrun.yaml").read_text())
    document["spec"]["tasks"]["environment"] = "echoes"
    assert preflight.lacking(TrainingRun.model_validate(document).spec)[0].startswith(
        "spec.tasks.environment: environment 'echoes' is not installed here"
    )
    line = {"package": "echo-words", "version": "1.0", "sha256": "ab" * 32, "path": str(folder / WORDS)}
    document["spec"]["tasks"]["packages"] = [line]
    assert preflight.lacking(TrainingRun.model_validate(document).spec) == []
    line["path"] = str(folder / "no.whl")
    assert preflight.lacking(TrainingRun.model_validate(document).spec) == [
        f"spec.tasks.packages[0].path: there is no file {folder / 'no.whl'} on this machine; give the file of a wheel"
    ]
