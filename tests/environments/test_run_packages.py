"""Packages that a run brings, from the manifest to scores: fetched once, the same bytes everywhere, and run in a sandbox only."""

import errno
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from index_server import Index, serving_index
from samples import PUBLIC, run_config
from shoal.contracts import keys
from shoal.contracts.model_source import ModelSource
from shoal.contracts.packages import EnvironmentPackage, PinnedPackage
from shoal.contracts.recipe import Recipe
from shoal.contracts.run import Prepared, PublicRun, RunConfig
from shoal.contracts.task_source import TaskSource
from shoal.contracts.task_table import read_tasks
from shoal.environments import base as environments_base
from shoal.environments import load, packages, wheels
from shoal.environments.apart import Apart
from shoal.environments.package_index import INDEX_VARIABLE
from shoal.environments.places import RUN_VARIABLE
from shoal.environments.prepare import prepare
from shoal.environments.preview import CannotPreview, preview
from shoal.environments.results import EnvironmentBroke, Score
from shoal.environments.run_checks import CannotPrepare
from shoal.environments.wheels import BadPackages
from shoal.inference.assignments import WrongEnvironmentError, have_packages, work_on
from shoal.storage import Store
from shoal.storage.store import open_folder
from shoal.telemetry import Liveness
from shoal.validation.setup import WrongSetupError, read_facts
from wheels_made import ECHOES, POINT, echo_words, echoes, entry, wheel

ENVIRONMENT, WORDS = "shoal-environment-echoes", "echo-words"
PINNED = PinnedPackage(package=WORDS, version="1.0", sha256="ab" * 32, size_bytes=len(echo_words()))


pytestmark = pytest.mark.usefixtures("no_packages")


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serving_index() as found:
        monkeypatch.setenv(INDEX_VARIABLE, found.url)
        found.add(ENVIRONMENT, "shoal_environment_echoes-1.0-py3-none-any.whl", echoes())
        found.add(WORDS, "echo_words-1.0-py3-none-any.whl", echo_words())
        yield found


def files(folder: Path, environment: bytes | None = None, words: bytes | None = None) -> list[EnvironmentPackage]:
    """Wheels as files, and their lines of a manifest."""
    given = {ENVIRONMENT: environment or echoes(), WORDS: words or echo_words()}
    for name, data in given.items():
        (folder / f"{name}.whl").write_bytes(data)
    return [entry(name, data, path=str(folder / f"{name}.whl")) for name, data in given.items()]


def of(base_model: ModelSource, brought: list[EnvironmentPackage]) -> RunConfig:
    return run_config(
        model=base_model,
        tasks=TaskSource(environment="echoes", count=24, packages=brought),
        recipe=Recipe(max_sequence_length=96),
        length_reward=None,
    )


def refusal(config: RunConfig, store: Store, tmp_path: Path) -> str:
    with pytest.raises(CannotPrepare) as error:
        prepare(config, store, tmp_path / "scratch")
    assert not store.exists(keys.PREPARED)
    return str(error.value)


def member(done: Prepared) -> PublicRun:
    """What a node is told of the run."""
    told = {"environment": done.environment, "environment_digest": done.environment_digest, "packages": done.packages}
    return PUBLIC.model_copy(update={**told, "tasks_digest": done.tasks_digest, "task_count": done.task_count})


def test_prepare_worker_and_validator_have_the_same_environment_from_the_same_bytes(
    store: Store, base: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(base.path or "") / "config.json").write_text('{"hidden_size": 128, "vocab_size": 1000, "eos_token_id": 0}')
    config = of(base, files(tmp_path))
    done = prepare(config, store, tmp_path / "scratch")
    assert [(each.package, each.version) for each in done.packages] == [(ENVIRONMENT, "1.0"), (WORDS, "1.0")]
    for each in files(tmp_path):
        Path(each.path or "").unlink()  # from here on the run's store is where they are
    monkeypatch.setenv(RUN_VARIABLE, "")
    load.cache_clear()
    assert "echoes" not in packages_here()

    tasks = read_tasks(store.get(keys.task_table(done.tasks_digest)))
    have_packages(member(done), lambda digest: store.get(keys.package(digest)), tmp_path / "worker" / "packages")
    work = work_on(member(done), lambda digest: tasks)
    assert isinstance(work.environment, Apart)
    gold = work.environment.gold(tasks[0])
    assert work.environment.score(tasks[0], gold) == Score(1.0, "compared")

    monkeypatch.setenv(RUN_VARIABLE, "")
    load.cache_clear()
    facts = read_facts(config, store, tmp_path / "validator", Liveness(60.0))
    assert isinstance(facts.environment, Apart)
    assert facts.environment.score(tasks[0], gold) == Score(1.0, "compared")
    assert facts.environment.score(tasks[0], gold + "x") == Score(0.0, "compared")
    assert not {"echoes_env", "echo_words"} & set(sys.modules), "code of a package is run in its sandbox only"


def packages_here() -> set[str]:
    return set(environments_base.installed())


@pytest.mark.parametrize("html", [False, True], ids=["json", "html"])
def test_a_package_comes_from_an_index_by_its_digest(
    store: Store, base: ModelSource, tmp_path: Path, index: Index, html: bool
) -> None:
    index.html = html
    index.yanked.add("echo_words-1.0-py3-none-any.whl")  # an exact pin may have it (PEP 592)
    wanted = [entry(ENVIRONMENT, echoes()), entry(WORDS, echo_words())]
    done = prepare(of(base, wanted), store, tmp_path / "scratch")
    assert [each.sha256 for each in done.packages] == [each.sha256 for each in wanted]
    asked = len(index.served)
    assert prepare(of(base, wanted), store, tmp_path / "scratch") == done
    assert len(index.served) == asked, "what is prepared is not fetched again"


def test_a_package_comes_from_an_address_or_from_the_store(
    store: Store, base: ModelSource, tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{index.url.removesuffix('/simple')}/files/shoal_environment_echoes-1.0-py3-none-any.whl"
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    (tmp_path / "store" / "shoal" / "packages").mkdir(parents=True)
    (tmp_path / "store" / "shoal" / "packages" / "words.whl").write_bytes(echo_words())
    wanted = [entry(ENVIRONMENT, echoes(), url=url), entry(WORDS, echo_words(), object="packages/words.whl")]
    assert len(prepare(of(base, wanted), store, tmp_path / "scratch").packages) == 2


def test_an_index_without_that_digest_is_told_with_what_it_has(
    store: Store, base: ModelSource, tmp_path: Path, index: Index
) -> None:
    wanted = [entry(ENVIRONMENT, echoes()).model_copy(update={"sha256": "ab" * 32}), entry(WORDS, echo_words())]
    said = refusal(of(base, wanted), store, tmp_path)
    assert said.startswith(f"spec.tasks.packages[0]: package {ENVIRONMENT} 1.0: {index.url} has no wheel of it ")
    assert (
        f"with SHA-256 abababababab...: shoal_environment_echoes-1.0-py3-none-any.whl has {entry('x', echoes()).sha256[:12]}"
        in said
    )


def test_an_index_that_is_away_is_tried_again(
    store: Store, base: ModelSource, tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.status = 503
    with pytest.raises(CannotPrepare, match="answers with status 503") as error:
        prepare(of(base, [entry(ENVIRONMENT, echoes())]), store, tmp_path / "scratch")
    assert error.value.passing
    monkeypatch.setenv(INDEX_VARIABLE, "http://127.0.0.1:9/simple")
    with pytest.raises(CannotPrepare, match=r"on a cluster allow its port in prepare\.egressPorts"):
        prepare(of(base, [entry(ENVIRONMENT, echoes())]), store, tmp_path / "scratch")
    monkeypatch.setenv(INDEX_VARIABLE, index.url)
    index.status = 404
    with pytest.raises(
        CannotPrepare, match=r"there is nothing at http://127.0.0.1.*: check the name, or the address"
    ) as error:
        prepare(of(base, [entry(ENVIRONMENT, echoes())]), store, tmp_path / "scratch")
    assert not error.value.passing


def test_a_wheel_that_was_changed_after_it_was_pinned_is_refused_with_both_digests(
    store: Store, base: ModelSource, tmp_path: Path
) -> None:
    wanted = files(tmp_path)
    changed = echo_words("print()")
    Path(wanted[1].path or "").write_bytes(changed)
    found = entry("x", changed).sha256
    assert refusal(of(base, wanted), store, tmp_path) == (
        f"spec.tasks.packages[1]: package {WORDS} 1.0: its wheel has SHA-256 {found}, and {wanted[1].sha256} is pinned:"
        " it was changed, or is another one"
    )


def test_a_wheel_that_is_another_one_is_refused(store: Store, base: ModelSource, tmp_path: Path) -> None:
    wanted = files(tmp_path)
    wanted[1] = wanted[1].model_copy(update={"version": "2.0"})
    assert "package echo-words 2.0: the wheel with this SHA-256 is echo-words 1.0" in refusal(
        of(base, wanted), store, tmp_path
    )


@pytest.mark.parametrize("call", ["mkdir", "fchmod", "rename"])
def test_a_machine_that_cannot_write_is_tried_again_and_no_fault_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os if call == "fchmod" else Path, call, full)
    with pytest.raises(BadPackages, match=f"cannot be laid out in {tmp_path}/p: No space left on device") as error:
        packages._lay_out([PINNED], [wheels.read_wheel(echo_words(), "x")], tmp_path / "p")
    assert error.value.passing
    assert not list(tmp_path.glob("p/*"))


def test_what_a_killed_process_left_half_unpacked_goes(tmp_path: Path) -> None:
    for name, age_seconds in (("new-old", 7200), ("new-of-a-sibling", 60)):
        (tmp_path / name).mkdir()
        at = time.time() - age_seconds
        os.utime(tmp_path / name, (at, at))
    packages._lay_out([PINNED], [wheels.read_wheel(echo_words(), "x")], tmp_path)
    assert {path.name for path in tmp_path.glob("new-*")} == {"new-of-a-sibling"}


def test_wheels_that_do_not_fit_each_other_end_prepare(store: Store, base: ModelSource, tmp_path: Path) -> None:
    said = refusal(of(base, files(tmp_path)[:1]), store, tmp_path)
    assert said.startswith(
        f"spec.tasks.packages: package {ENVIRONMENT} 1.0: needs echo-words>=1, which is neither in packages"
    )
    missing = entry(WORDS, echo_words(), path=str(tmp_path / "nowhere.whl"))
    assert f"{tmp_path}/nowhere.whl: No such file or directory" in refusal(of(base, [missing]), store, tmp_path)


def test_a_node_takes_no_other_bytes_than_those_that_prepare_pinned(
    store: Store, base: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = prepare(of(base, files(tmp_path)), store, tmp_path / "scratch")
    with pytest.raises(WrongEnvironmentError, match=r"package shoal-environment-echoes 1.0: its wheel has SHA-256"):
        have_packages(member(done), lambda digest: echoes("        evil"), tmp_path / "worker")
    assert not os.environ.get(RUN_VARIABLE)

    def facts_refused(brought: list[EnvironmentPackage]) -> str:
        with pytest.raises(WrongSetupError) as error:
            read_facts(of(base, brought), store, tmp_path / "validator", Liveness(60.0))
        return str(error.value)

    wanted = files(tmp_path)
    assert "prepared.json pins other packages than the run's tasks.packages" in facts_refused(wanted[:1])
    key = keys.package(done.packages[0].sha256)
    for other in (b"other", echoes("        evil")):
        store.put(key, other)
        assert "package shoal-environment-echoes 1.0: its wheel has SHA-256" in facts_refused(wanted)
    monkeypatch.setattr(packages, "MOST_WHEEL_BYTES", 100)
    assert f"the run's store has {key} with " in facts_refused(wanted)
    store.delete(key)
    assert f"the run's store has {key} with no bytes" in facts_refused(wanted)


def test_the_digest_that_files_and_terms_record_covers_what_a_package_needs(tmp_path: Path) -> None:
    digests = set()
    for words in (echo_words(), echo_words("1")):
        with packages.laid_out([wheels.read_wheel(each, "x") for each in (echoes(), words)]):
            digests.add(environments_base.digest(load("echoes")))
            assert environments_base.digest(load("arithmetic")) == ARITHMETIC
    assert len(digests) == 2


ARITHMETIC = environments_base.digest(load("arithmetic"))


def test_a_name_that_the_owner_trusts_gives_a_package_of_a_run_no_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environments_base.TRUSTED_VARIABLE, "echoes")
    with packages.laid_out([wheels.read_wheel(each, "x") for each in (echoes(), echo_words())]):
        assert isinstance(load("echoes"), Apart)
    assert "echoes_env" not in sys.modules


def test_a_module_of_the_machine_does_not_take_the_place_of_a_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "echo_words.py").write_text("def shouted(word):\n    return 'machine'\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    monkeypatch.setenv("SHOAL_ENVIRONMENTS", str(tmp_path / "site-packages"))
    with packages.laid_out([wheels.read_wheel(each, "x") for each in (echoes(), echo_words())]):
        task = load("echoes").tasks(1, 0)[0]
        assert load("echoes").gold(task) == task.problem_id.upper()


REACHES = {
    "connect": ("__import__('socket').create_connection(('127.0.0.1', 9))", ENVIRONMENT, "echoes_env/__init__.py"),
    "look up": (
        "__import__('urllib.request').request.urlopen('http://example.invalid')",
        ENVIRONMENT,
        "echoes_env/__init__.py",
    ),
    "write": ("open('/left-by-echoes', 'w')", ENVIRONMENT, "echoes_env/__init__.py"),
    "write over itself": ("open(__file__, 'w')", ENVIRONMENT, "echoes_env/__init__.py"),
    "start a program": ("__import__('subprocess').run(['true'])", ENVIRONMENT, "echoes_env/__init__.py"),
    "through another": ("shouted('reach')", WORDS, "echo_words.py"),
}


@pytest.mark.parametrize("trick", REACHES)
def test_a_package_that_reaches_out_of_its_room_is_stopped_and_named(trick: str) -> None:
    code, package, file = REACHES[trick]
    words = echo_words("open('/left', 'w') if word == 'reach' else 0")
    with packages.laid_out([wheels.read_wheel(each, "x") for each in (echoes(f"        {code}"), words)]):
        environment = load("echoes")
        task = environment.tasks(1, 0)[0]
        for _ in range(2):  # and again: nothing of the first is left
            broken = environment.score(task, "A")
            assert isinstance(broken, EnvironmentBroke)
            assert f"; package {package} 1.0 reached out of its room ({file})" in broken.reason
        assert environment.gold(task) == task.problem_id.upper()
    assert not Path("/left-by-echoes").exists()


def test_a_package_that_reaches_out_while_it_is_imported_is_named(
    store: Store, base: ModelSource, tmp_path: Path
) -> None:
    source = "__import__('socket').create_connection(('127.0.0.1', 9))\n" + ECHOES.replace("@TRICK@", "        pass")
    hostile = wheel(ENVIRONMENT, {"echoes_env/__init__.py": source}, requires=[WORDS], points=POINT)
    with pytest.raises(environments_base.BadEnvironment) as error:
        prepare(of(base, files(tmp_path, hostile)), store, tmp_path / "scratch")
    assert f"PermissionError: [Errno 1] Operation not permitted; package {ENVIRONMENT} 1.0 reached out" in str(
        error.value
    )


def test_a_preview_reads_files_and_indexes_and_says_what_it_does_not_read(base: ModelSource, tmp_path: Path) -> None:
    shown = preview(of(base, files(tmp_path)))
    assert shown.sources[0].tasks == 24
    assert shown.sources[0].shown[0].right is not None
    assert shown.sources[0].shown[0].right.task_reward == 1.0
    stored = [entry(ENVIRONMENT, echoes(), object="packages/echoes.whl")]
    with pytest.raises(
        CannotPreview, match=r"packages\[0\]: object: packages/echoes.whl lies in the store of runs: give --store DIR"
    ):
        preview(of(base, stored))
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "echoes.whl").write_bytes(echoes())
    stored += [entry(WORDS, echo_words(), object="packages/words.whl")]
    objects = open_folder(tmp_path, "")
    with pytest.raises(CannotPreview, match=r"there is no object packages/words.whl below storage.prefix: publish it"):
        preview(of(base, stored), objects=objects)
    (tmp_path / "packages" / "words.whl").write_bytes(echo_words())
    assert preview(of(base, stored), objects=objects) == shown
    assert not os.environ.get(RUN_VARIABLE)
