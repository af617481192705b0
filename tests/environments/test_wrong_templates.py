"""Wrong templates and prompts: each is one clear line of prepare, and nothing is written. `wrong templates` counts them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from chat_model import cut_tokenizer
from real_tokenizers import talk
from samples import PROOF_PROFILE, run_config
from shoal.contracts import keys
from shoal.contracts.completions import Sampling
from shoal.contracts.model_source import ModelSource
from shoal.contracts.prompts import PromptSettings
from shoal.contracts.recipe import Recipe
from shoal.contracts.run import Prepared
from shoal.contracts.task_source import TaskSource
from shoal.contracts.task_table import read_tasks
from shoal.contracts.tasks import ChatMessage, Task
from shoal.environments import load
from shoal.environments.prepare import prepare
from shoal.environments.run_checks import CannotPrepare
from shoal.storage import Store

Change = Callable[[Path], object]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


def template(text: str) -> Change:
    """The checkpoint's chat template becomes this one; empty: it has none."""

    def change(folder: Path) -> None:
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config.pop("chat_template", None)
        (folder / "tokenizer_config.json").write_text(json.dumps(config | ({"chat_template": text} if text else {})))

    return change


def written(name: str, **values: Any) -> Change:
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))


def unchanged(folder: Path) -> None:
    """The checkpoint is right."""


ALTERNATING = CHATML.replace(
    "<|im_start|>{{ m.role }}",
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m.role }}",
    1,
)
PROBLEM = "What is 1+1?"
WRONG: dict[str, tuple[Change, dict[str, Any], Any, str]] = {
    # name: (what becomes of the checkpoint, settings, the prompt of every task, what prepare says)
    "no template": (template(""), {"template": "Chat"}, PROBLEM, "template: the tokenizer has no chat template; allowed: Raw"),
    "no template for a system message": (template(""), {"system": "Hi."}, PROBLEM, "system: goes with a chat template only"),
    "no template for arguments": (template(""), {"templateArguments": {"a": 1}}, PROBLEM, "templateArguments: goes with a chat template only"),
    "raises always": (template("{{ raise_exception('not for you') }}"), {}, PROBLEM, "the chat template fails: TemplateError: not for you"),
    "syntax": (template("{% for m in messages %}"), {}, PROBLEM, "the chat template fails: TemplateSyntaxError: "),
    "unknown filter": (template("{{ messages | shout }}"), {}, PROBLEM, "the chat template fails: TemplateAssertionError: No filter named 'shout'"),
    "attribute that no message has": (template("{{ messages[0].text.strip() }}"), {}, PROBLEM, "the chat template fails: UndefinedError: "),
    "forbidden by the sandbox": (template("{{ messages.append(1) }}"), {}, PROBLEM, "the chat template fails: SecurityError: "),
    "range without end": (template("{% for i in range(10**9) %}{% endfor %}"), {}, PROBLEM, "the chat template fails: OverflowError: "),
    "gives nothing": (template("{% if false %}{{ messages }}{% endif %}"), {}, PROBLEM, "the chat template gives no text"),
    "leaves out the problem": (template("<|im_start|>assistant\n"), {}, PROBLEM, "template: the chat template leaves out the user message"),
    "leaves out the system message": (template("{{ messages[-1].content }}"), {"system": "Hi."}, PROBLEM, "system: the chat template leaves out"),
    "tokens of another model": (template(CHATML.replace("im_start", "start_header")), {}, PROBLEM, "template: <|start_header|> is no token"),
    "unknown token in the prefix": (unchanged, {"assistantPrefix": "<|think|>"}, PROBLEM, "assistantPrefix: <|think|> is no token"),
    "unknown argument": (unchanged, {"templateArguments": {"enable_thinkng": False}}, PROBLEM, "templateArguments.enable_thinkng: the chat template"),
    "fewer words than tokens": (written("config.json", vocab_size=900), {}, PROBLEM, "it makes token 1002; the model's vocabulary has 0 to 899"),
    "stop token of another model": (written("generation_config.json", eos_token_id=151645), {}, PROBLEM, "stop token 151645 is none of the"),
    "no messages": (unchanged, {}, [], "the first: task p0: it has no messages"),
    "ends with an answer": (unchanged, {}, talk(("user", "1+1?"), ("assistant", "2")), "its last message is of role 'assistant'; allowed: user"),
    "system message in the middle": (unchanged, {}, talk(("user", "1?"), ("system", "Hi."), ("user", "2?")), "a system message is not the first"),
    "empty problem": (unchanged, {}, talk(("user", " \n")), "its last message is empty"),
    "roles that the template refuses": (template(ALTERNATING), {}, talk(("user", "1?"), ("user", "2?")), "TemplateError: roles must alternate"),
    "a megabyte": (unchanged, {}, "12 + 34, " * 120_000, "the prompt leaves no room for an answer: "),
}  # fmt: skip


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of Qwen3's tokenizer; nobody loads its weights here."""
    folder = cut_tokenizer(tmp_path_factory.mktemp("right"))
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "proof_profile.json").write_bytes(PROOF_PROFILE.to_json())
    return folder


def prepared(
    store: Store, home: Path, folder: Path, prompts: list[Any], monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Prepared:
    environment = load("math")
    tasks = [
        Task(problem_id=f"p{number}", task_type="math", prompt=each, verification_info={"answer": "2"})
        for number, each in enumerate(prompts)
    ]
    monkeypatch.setattr(type(environment), "tasks", lambda self, count, seed: tasks)
    source = TaskSource(
        environment="math", count=len(tasks), prompt=PromptSettings.model_validate(settings) if settings else None
    )
    config = run_config(
        model=ModelSource(path=str(folder)),
        tasks=source,
        recipe=Recipe(max_sequence_length=1024),
        sampling=Sampling(groups_per_submission=1),
        length_reward=None,
    )
    return prepare(config, store, home / "scratch")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_templates(name: str, right: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change, settings, prompt, said = WRONG[name]
    folder = tmp_path / "model"
    shutil.copytree(right, folder)
    change(folder)
    with pytest.raises(CannotPrepare) as refused:
        prepared(store, tmp_path, folder, [prompt, prompt], monkeypatch, **settings)
    line = str(refused.value)
    assert line.startswith("spec.tasks.prompt: ")
    assert said in line
    assert "\n" not in line
    assert len(line) < 600
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []  # nothing is half prepared


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"template": "chat"}, "'Chat' or 'Raw'"),
        ({"templateArguments": {"tokenize": True}}, "tokenize: set by the rendering itself"),
        ({"templateArguments": {"enable-thinking": True}}, "a name is not an identifier"),
        ({"templateArguments": {"documents_text": "x" * 20_000}}, "more than 10000 characters"),
        ({"system": ""}, "at least 1 character"),
        ({"suffix": "x"}, "Extra inputs are not permitted"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_read(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        PromptSettings.model_validate(settings)
    assert said in str(refused.value)


def test_twenty_wrong_templates_or_more_are_refused() -> None:
    assert len(WRONG) >= 20


def test_tasks_that_cannot_be_asked_are_left_out_and_the_others_stay(
    right: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts: list[str | list[ChatMessage]] = [
        PROBLEM,
        talk(("assistant", "2")),
        "1, " * 100_000,
        talk(("user", "2+2?")),
    ]
    done = prepared(store, tmp_path, right, prompts, monkeypatch)
    assert [task.problem_id for task in read_tasks(store.get(keys.task_table(done.tasks_digest)))] == ["p0", "p3"]
    assert done.tasks_digest_found not in (None, done.tasks_digest)
    assert done.prompt is not None
    assert done.prompt.template == "Chat"
    assert (done.example_prompt or "").startswith("<|im_start|>user\nWhat is 1+1?\n")
    shown = capsys.readouterr().out
    assert "no prompt can be made" in shown
    assert "the prompt leaves no room for an answer" in shown
    assert "a prompt, as the model sees it" in shown


def test_a_model_without_a_template_is_prompted_raw_as_it_always_was(
    right: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(right, folder)
    template("")(folder)
    done = prepared(store, tmp_path, folder, [PROBLEM], monkeypatch)
    assert done.prompt is not None
    assert done.prompt.template == "Raw"
    assert done.example_prompt == load("math").prompt(Task(problem_id="p", task_type="math", prompt=PROBLEM), None)
