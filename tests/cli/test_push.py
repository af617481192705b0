"""`shoal push` against the stand-in hub: model, tokenizer and card in one commit, gone on with after a break, and the token nowhere."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import Result
from huggingface_hub import constants
from run_documents import RunFolder, step_metrics
from typer.testing import CliRunner

from hub import Hub
from ledger_samples import fact
from samples import PREPARED_CHAT
from shoal.cli.main import app
from shoal.contracts import keys
from shoal.contracts.datasets import DatasetSource
from shoal.contracts.model_source import ModelSource
from shoal.contracts.task_source import TaskSource
from shoal.errors import InputWrong, RunFailed
from shoal.ledger.checkpoints import Checkpoints
from shoal.ledger.writer import LedgerWriter
from shoal.report.access import RunAccess
from shoal.report.model_card import CardFacts, read_facts

TOKEN = "hf_planted-token-of-nobody"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "model-00001-of-00002.safetensors": bytes(range(256)) * 12,
    "model-00002-of-00002.safetensors": bytes(range(255, -1, -1)) * 12,
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(tmp_path / "hub", token=TOKEN) as running:
        for name, value in running.environment(TOKEN).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)  # read once, when the library was imported
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield running


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "runs")
    dataset = DatasetSource(hugging_face="me/sums", revision="v1")
    changed = {
        "model": ModelSource(hugging_face="them/base", revision="v1"),
        "tasks": TaskSource(environment="math", dataset=dataset),
    }
    run.config = run.config.model_copy(update=changed)
    (run.home / "config" / "run.json").write_bytes(run.config.to_json())
    run.store.put(keys.ROSTER, run.config.roster.to_json())
    for step in range(4):
        run.add_step(step_metrics(step, task_reward=0.2 * step))
    run.add_version(1, FILES)
    return run


def push(run: RunFolder, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["push", "demo", "--runs-dir", str(run.path.parent), *arguments])


def pushed(run: RunFolder, *arguments: str) -> str:
    done = push(run, "--to", "me/demo", *arguments)
    assert done.exit_code == 0, done.output
    assert TOKEN not in done.output
    return done.output


def refused(run: RunFolder, *arguments: str) -> str:
    """What the program says of an error, which `main` prints."""
    error = push(run, *arguments).exception
    assert isinstance(error, InputWrong | RunFailed), repr(error)
    assert TOKEN not in str(error)
    return f"{type(error).__name__}: {error}"


def test_model_tokenizer_and_card_are_one_commit(hub: Hub, run: RunFolder) -> None:
    said = pushed(run, "--licence", "apache-2.0", "--private")
    there = hub.files("me/demo")
    assert {name: there[name] for name in FILES} == FILES
    assert {"README.md", "shoal-run.json", "shoal-weights.json"} <= set(there)
    repository = hub.repository("me/demo")
    assert repository is not None
    assert repository.private
    assert len(repository.commits) == 2, "that of the empty repository and ours"
    assert f"pushed: {hub.url}/me/demo/commit/" in said
    assert all(TOKEN.encode() not in data for data in there.values())


def test_the_card_says_data_recipe_rewards_and_licence(hub: Hub, run: RunFolder) -> None:
    pushed(run, "--licence", "apache-2.0")
    _, head, body = hub.files("me/demo")["README.md"].decode().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["license"] == "apache-2.0"
    assert metadata["base_model"] == "them/base"
    assert metadata["datasets"] == ["me/sums"]
    assert "mean task reward of the first steps 0.100, of the last 0.500" in body
    assert f"Public key of the run: `{run.config.run_key}`" in body
    settings = yaml.safe_load(body.partition("```yaml\n")[2].partition("```")[0])
    assert settings["recipe"]["maxSequenceLength"] == run.config.recipe.max_sequence_length
    assert "storage" not in settings


def test_the_card_says_that_nobody_scored_again_what_nobody_can(hub: Hub, run: RunFolder) -> None:
    words = "no validator scored these answers, and nobody else can"
    run.store.put(keys.PREPARED, PREPARED_CHAT.to_json())
    pushed(run)
    assert words not in hub.files("me/demo")["README.md"].decode()
    run.store.put(keys.PREPARED, PREPARED_CHAT.model_copy(update={"rewards_claimed": True}).to_json())
    pushed(run)
    assert words in hub.files("me/demo")["README.md"].decode()


def test_the_card_has_the_ledgers_head(hub: Hub, run: RunFolder) -> None:
    writer = LedgerWriter(run.store, "demo", run.role_keys["orchestrator"])
    for node in ("ab", "bc", "cd"):
        writer.append(fact("node-joined", node=node * 32, detail=node * 16))
    Checkpoints(writer, run.config.roster).write_due(0.0, complete=True)
    card = pushed(run, "--dry-run")
    assert f"At 3 entries its last entry has the digest `{writer.view.head}`" in card.replace("\n", " ")


def test_a_dry_run_prints_the_card_and_asks_nobody(hub: Hub, run: RunFolder) -> None:
    said = pushed(run, "--dry-run")
    assert said.startswith("---\nlicense: unknown\n")
    assert "# demo" in said
    assert hub.requests == []
    assert not (run.path / "model").exists()


def test_a_push_that_broke_sends_only_what_the_hub_lacks(
    hub: Hub, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    big = "model-00002-of-00002.safetensors"
    run.add_version(2, FILES | {big: b"z" * 3_000_000})
    hub.fail("POST", "/commit/main", status=400)
    assert refused(run, "--to", "me/demo").startswith("InputWrong: the hub refuses me/demo: ")
    repository = hub.repository("me/demo")
    assert repository is not None
    assert hub.files("me/demo") == {}, "half a model is never seen"
    sent = hub.uploaded_bytes
    assert sent > 3_000_000
    pushed(run)
    assert hub.uploaded_bytes == sent
    assert hub.files("me/demo")[big] == b"z" * 3_000_000


def test_a_hub_that_breaks_connections_is_asked_again(
    hub: Hub, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    hub.fail("PUT", "/lfs/", times=2)
    hub.fail("POST", "/preupload/", status=503)
    pushed(run)
    assert set(FILES) <= set(hub.files("me/demo"))


def test_a_later_version_replaces_the_earlier_one_and_its_shards(hub: Hub, run: RunFolder) -> None:
    pushed(run)
    run.add_version(2, {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"one file now" * 100})
    pushed(run)
    assert {name for name in hub.files("me/demo") if name.endswith(".safetensors")} == {"model.safetensors"}


def test_weights_of_somebody_else_in_the_repository_stay(hub: Hub, run: RunFolder) -> None:
    others = {"adapter_model.safetensors": b"a", "onnx/model.safetensors": b"b", "model.fp32.safetensors": b"c"}
    hub.add("me/demo", others | {"model.safetensors": b"old", "model.safetensors.index.json": b"{}"})
    pushed(run)
    there = hub.files("me/demo")
    assert {name for name in there if name not in FILES and "safetensors" in name} == set(others)


def test_a_public_repository_is_refused_where_a_private_one_is_wanted(hub: Hub, run: RunFolder) -> None:
    hub.add("me/demo", {"README.md": b"mine"})
    assert refused(run, "--to", "me/demo", "--private").startswith(
        "InputWrong: --private: me/demo is there already, and"
    )
    assert hub.files("me/demo") == {"README.md": b"mine"}


def test_the_card_is_of_the_version_that_is_pushed(hub: Hub, run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def later(access: RunAccess, run_key: str) -> CardFacts | None:
        facts = read_facts(access, run_key)
        run.add_version(2, FILES)
        return facts

    monkeypatch.setattr("shoal.cli.push.read_facts", later)
    assert "version 2 goes to me/demo" in pushed(run)
    assert b"Policy version 2 of the run" in hub.files("me/demo")["README.md"]


def test_a_token_from_a_file_is_used_in_place_of_the_environments(
    hub: Hub, run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of-somebody-else")
    (tmp_path / "token").write_text(TOKEN + "\n")
    pushed(run, "--token-file", str(tmp_path / "token"))
    assert {asked.token for asked in hub.requests if not asked.path.startswith("/lfs/")} == {TOKEN}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "InputWrong: give --to OWNER/NAME"),
        (("--to", "demo"), "InputWrong: --to demo: give owner/name"),
        (("--to", "me/a/b"), "InputWrong: --to me/a/b: give owner/name"),
        (("--to", "me/..x"), "InputWrong: --to me/..x: "),
        (
            ("--to", "me/demo", "--token-file", "nowhere"),
            "InputWrong: --token-file nowhere: cannot be read: No such file",
        ),
    ],
)
def test_wrong_options_are_named(hub: Hub, run: RunFolder, arguments: tuple[str, ...], said: str) -> None:
    assert refused(run, *arguments).startswith(said)


def test_a_token_without_leave_to_write_is_said_as_such(
    hub: Hub, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_that-may-only-read")
    assert refused(run, "--to", "me/demo") == (
        "InputWrong: the hub does not let you write to me/demo (403): give a token with write access by HF_TOKEN or --token-file"
    )


def test_a_hub_that_is_away_is_a_failure_to_try_again(
    hub: Hub, run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    monkeypatch.setattr(constants, "ENDPOINT", "http://me:planted-password@127.0.0.1:9")
    said = refused(run, "--to", "me/demo")
    assert said.startswith("RunFailed: the hub at http://***@127.0.0.1:9 did not take it: ")
    assert "planted-password" not in said


def test_a_run_without_a_trained_version_has_nothing_to_push(hub: Hub, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "runs")
    run.add_version(0, FILES)
    assert (
        refused(run, "--to", "me/demo")
        == "InputWrong: run demo has trained no version yet, so there is nothing to push"
    )


def test_a_run_elsewhere_is_pushed_from_a_copy_of_its_store(hub: Hub, run: RunFolder, tmp_path: Path) -> None:
    copy = run.home / "store" / "shoal" / "demo"
    (copy / "ledger").mkdir()
    arguments = ["push", str(copy), "--to", "me/demo", "--folder", str(tmp_path / "taken")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "configuration is not known here" in hub.files("me/demo")["README.md"].decode()
    assert set(FILES) <= {path.name for path in (tmp_path / "taken").iterdir()}


def test_a_version_of_a_changed_trainer_key_is_pushed_by_a_configuration_from_before(
    hub: Hub, run: RunFolder, tmp_path: Path
) -> None:
    run.store.put(keys.ROSTER, run.keys.change("trainer", 1000.0).to_json())
    run.add_version(2, FILES)
    copy = run.home / "store" / "shoal" / "demo"
    (copy / "ledger").mkdir()
    arguments = ["push", str(copy), "--to", "me/demo", "--folder", str(tmp_path / "taken")]
    done = CliRunner().invoke(app, [*arguments, "--join", str(run.home / "config" / "run.json")])
    assert done.exit_code == 0, (done.output, done.exception)
    assert b"Policy version 2 of the run" in hub.files("me/demo")["README.md"]


def test_a_folder_with_files_of_somebodys_own_is_left_alone(hub: Hub, run: RunFolder, tmp_path: Path) -> None:
    """The command's page says that `--folder` is of the model: people name one that they have."""
    copy, own = run.home / "store" / "shoal" / "demo", tmp_path / "models"
    (copy / "ledger").mkdir()
    own.mkdir()
    (own / "thesis.txt").write_text("the only copy")
    arguments = ["push", str(copy), "--to", "me/demo", "--folder", str(own)]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, InputWrong)
    assert str(error).startswith(f"{own} holds files that no run made")
    assert [path.name for path in own.iterdir()] == ["thesis.txt"]
    (own / "thesis.txt").unlink()
    for _ in range(2):  # the second finds a model of this run
        assert CliRunner().invoke(app, arguments).exit_code == 0


def test_a_folder_is_refused_for_a_run_of_this_machine(run: RunFolder, tmp_path: Path) -> None:
    assert refused(run, "--to", "me/demo", "--folder", str(tmp_path)) == (
        "InputWrong: --folder is for a run elsewhere: this one's model lies in its own folder"
    )
