"""Documents of an lm-evaluation-harness task as tasks of ours: prompts rendered, and beside each what scoring it needs.

In: a name (`harness_names`). Out: a `Task` for each document, in the data set's order. Tasks come from the installed package or from a YAML file that
the admin names; both may run code of theirs here (`!function`), in prepare or in `shoal eval`, and nowhere else: of the functions that score, only
those of the package are let into the task table, by name. What cannot be scored from one sampled answer is refused before its data set is fetched.
Called by `harness`.
"""

from __future__ import annotations

import json
import logging
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from shoal.contracts.tasks import Task
from shoal.environments.harness_names import BadHarnessTask, HarnessTask, is_commit, near
from shoal.environments.hub import is_away
from shoal.rewards.harness import HarnessJudge, NoValue
from shoal.rewards.harness.scoring import FUNCTION

FEWSHOT_SEED = 1234
"""The harness's own default, so that the same examples are shown."""
MOST_DOCUMENTS = 100_000
FILE_BUILDERS = frozenset((
    "arrow", "audiofolder", "conll", "csv", "eval", "fasta", "fastq", "genbank", "harbor", "hdf5", "iceberg",
    "imagefolder", "json", "lance", "meshfolder", "mmcif", "niftifolder", "pandas", "parquet", "pdb", "pdffolder",
    "text", "tsfile", "videofolder", "vortex", "webdataset", "xml",
))  # fmt: skip
"""Names in the data sets library of what reads files, not a hub: a revision means nothing to them (datasets 5.2, `packaged_modules`)."""
WITH_DOCUMENT = ("multi_choice_regex", "custom")
"""Filters that look at the document."""
KINDS = (
    "allowed: tasks of output_type generate_until that are scored an answer at a time; log-likelihoods and multiple choice need the model's"
    " probabilities of given texts, which sampled answers do not have"
)

Config = dict[str, Any]


def documents(wanted: HarnessTask, judge: HarnessJudge) -> list[Task]:
    """All documents of the task or group. Raises BadHarnessTask. Takes seconds to minutes: the package has 15,000 files, data sets are fetched."""
    from datasets import disable_progress_bars

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    disable_progress_bars()
    configs = _configs(wanted)
    if wanted.revision is not None and len({config.get("dataset_path") for _, config in configs}) > 1:
        raise BadHarnessTask(
            f"lm-eval:{wanted.task}: its tasks have several data sets, but one revision is given: name one task"
        )
    found: list[Task] = []
    for name, config in configs:
        made = list(_documents(name, config, wanted))
        if not made:
            raise BadHarnessTask(f"lm-eval:{name}: its data set has no documents")
        for what, answer in (("an empty answer", ""), ("the target", made[0].metadata.get("gold", ""))):
            tried = judge.value(made[0].verification_info, answer)
            if isinstance(tried, NoValue):
                raise BadHarnessTask(f"lm-eval:{name}: {what} cannot be scored: {tried.reason}")
        found += made
        if len(found) > MOST_DOCUMENTS:
            raise BadHarnessTask(f"lm-eval:{wanted.task}: it has more than {MOST_DOCUMENTS} documents")
    return found


def chosen(found: list[Task], count: int, seed: int, name: str) -> list[Task]:
    """`count` of the documents in their order; which, the seed decides. ValueError when there are not that many."""
    if not 1 <= count <= len(found):
        raise ValueError(f"{name}: {count} tasks requested; it has {len(found)} documents")
    return [found[index] for index in sorted(random.Random(seed).sample(range(len(found)), count))]


def _configs(wanted: HarnessTask) -> list[tuple[str, Config]]:
    """The task's configuration, or those of a group's or tag's tasks. What is refused is refused before a function of its own is loaded."""
    from lm_eval.tasks._yaml_loader import load_yaml

    try:
        files = _files(wanted)
        for name, path in files:
            _check(name, load_yaml(path, resolve_func=False), wanted)
        loaded = [(name, load_yaml(path, resolve_func=True)) for name, path in files]
    except BadHarnessTask:
        raise
    except Exception as error:  # YAML files and the modules that they name raise anything
        raise BadHarnessTask(f"lm-eval:{wanted.task}: it cannot be loaded: {_said(error)}") from error
    left = ("tag", "group", "task_list")
    return [(name, {key: given for key, given in config.items() if key not in left}) for name, config in loaded]


def _files(wanted: HarnessTask) -> list[tuple[str, Path]]:
    """Names and YAML files of the tasks that are wanted."""
    from lm_eval.tasks._index import TaskIndex

    if not wanted.is_file:
        return [*_leaves(wanted.task, _package_index())]
    path = Path(wanted.task)
    if not path.is_absolute() or not path.is_file():
        raise BadHarnessTask(
            f"lm-eval:{wanted.task}: there is no such file; allowed: the absolute path of a task's YAML"
        )
    entry = TaskIndex.entry_from_path(path)
    if entry is None:
        raise BadHarnessTask(f"lm-eval:{wanted.task}: it names no task; a task's YAML has `task: NAME`")
    return [*_leaves(entry.name, {entry.name: entry})]


@cache
def _package_index() -> Mapping[str, Any]:
    """Entries of the package's tasks, groups and tags by name. Reads all of its files: ten seconds."""
    from lm_eval.tasks import TaskManager

    return dict(TaskManager().task_index)


def _leaves(name: str, index: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, Path]]:
    from lm_eval.tasks._factory import GROUP_FIELD_NAMES
    from lm_eval.tasks._index import Kind

    if name not in index:
        raise BadHarnessTask(f"lm-eval:{name}: lm-evaluation-harness has no such task{near(name, index)}")
    if name in above:
        raise BadHarnessTask(f"lm-eval:{name}: the group is a part of itself")
    entry = index[name]
    if entry.kind is Kind.TAG:
        for member in sorted(entry.tags):
            yield from _leaves(member, index, (*above, name))
    elif entry.kind is Kind.GROUP:
        config = entry.cfg or {}
        members = config.get("task")
        changed = config.keys() - GROUP_FIELD_NAMES - {"tag", "include"}
        if changed or not isinstance(members, list) or not all(isinstance(member, str) for member in members):
            raise BadHarnessTask(
                f"lm-eval:{name}: the group changes its tasks or defines its own; name one of its tasks"
            )
        for member in members:
            yield from _leaves(member, index, (*above, name))
    else:
        yield name, entry.yaml_path


def _check(name: str, config: Config, wanted: HarnessTask) -> None:
    """Refuse what cannot be asked or scored here, or is not pinned."""
    start = f"lm-eval:{name}: "
    kind = config.get("output_type", "generate_until")
    if kind != "generate_until":
        raise BadHarnessTask(f"{start}its output_type is {kind}; {KINDS}")
    if config.get("unsafe_code"):
        raise BadHarnessTask(
            f"{start}it runs answers as programs (unsafe_code); the environment `code` does that in a sandbox"
        )
    for field, what in (
        ("class", "is written in Python"),
        ("custom_dataset", "makes its documents by a program, which no revision pins"),
        ("use_prompt", "takes its prompts from promptsource"),
        ("doc_to_image", "asks about images"),
        ("doc_to_audio", "asks about sounds"),
    ):
        if config.get(field):
            raise BadHarnessTask(f"{start}it {what} ({field}); allowed: tasks of text that a YAML file describes")
    if config.get("repeats", 1) != 1:
        raise BadHarnessTask(
            f"{start}it scores {config['repeats']} answers together (repeats); here each is scored alone: set `samples` for avg@k and pass@k"
        )
    if not isinstance(config.get("dataset_path"), str):
        raise BadHarnessTask(f"{start}it names no data set (dataset_path)")
    if "://" in json.dumps(config.get("dataset_kwargs") or {}, default=str):
        raise BadHarnessTask(
            f"{start}its dataset_kwargs name a URL, whose files no revision pins: fetch them and name the paths in data_files"
        )
    if not _is_local(config) and (wanted.revision or _own_revision(config)) is None:
        raise BadHarnessTask(
            f"{start}its data set {config['dataset_path']} lies on a hub, where it may change: pin it as lm-eval:{wanted.task}@REVISION,"
            " 40 hex digits of a commit"
        )
    if _is_local(config) and wanted.revision is not None:
        raise BadHarnessTask(
            f"{start}its data set is files of this machine, which have no revision: leave {wanted.revision[:8]}... away"
        )


def _is_local(config: Config) -> bool:
    """Whether the data set is files of this machine, as the data sets library decides it: a hub is asked last."""
    path = config["dataset_path"]
    return path in FILE_BUILDERS or Path(path).exists()


def _own_revision(config: Config) -> str | None:
    revision = (config.get("dataset_kwargs") or {}).get("revision")
    return revision if isinstance(revision, str) and is_commit(revision) else None


def _documents(name: str, config: Config, wanted: HarnessTask) -> Iterator[Task]:
    from lm_eval.api.metrics import mean
    from lm_eval.api.task import ConfigurableTask

    try:
        terms = _terms(name, config, wanted)
    except (AttributeError, KeyError, TypeError) as error:
        raise BadHarnessTask(
            f"lm-eval:{name}: its metrics, filters or stop texts are malformed: {_said(error)}"
        ) from error
    arguments = {**(config.get("dataset_kwargs") or {})}
    if not _is_local(config):
        arguments["revision"] = wanted.revision or _own_revision(config)
    pinned = arguments.get("revision")
    with tempfile.TemporaryDirectory(prefix="lm-eval-") as cache:  # no copy of an earlier day is taken for the data set
        arguments["cache_dir"] = cache
        try:
            task = ConfigurableTask(config={**config, "task": name, "dataset_kwargs": arguments})
            task.set_fewshot_seed(FEWSHOT_SEED)
            if task.aggregation().get(terms["metric"]) is not mean:
                raise BadHarnessTask(
                    f"lm-eval:{name}: {terms['metric']} is not a mean over documents, so a single answer has no score"
                )
            for number, document in enumerate(task.eval_docs):
                yield _task(
                    f"{name}-{number}", task, document, terms, {"data_set": config["dataset_path"], "revision": pinned}
                )
        except BadHarnessTask:
            raise
        except Exception as error:  # the data sets library, templates and functions of tasks raise anything
            raise BadHarnessTask(
                f"lm-eval:{name}: its documents are not available: {_said(error)}", passing=is_away(error)
            ) from error


def _terms(name: str, config: Config, wanted: HarnessTask) -> dict[str, Any]:
    """The part that is the same for all documents: metric, filter, where an answer ends."""
    from lm_eval.api.registry import DEFAULT_METRIC_REGISTRY, METRIC_REGISTRY

    metrics = config.get("metric_list") or [{"metric": each} for each in DEFAULT_METRIC_REGISTRY["generate_until"]]
    by_name = {each["metric"].__name__ if callable(each["metric"]) else str(each["metric"]): each for each in metrics}
    metric = wanted.metric or next(iter(by_name))
    if metric not in by_name:
        raise BadHarnessTask(f"lm-eval:{name}: it has no metric {metric!r}; allowed: {', '.join(by_name)}")
    if by_name[metric].get("higher_is_better") is False:
        raise BadHarnessTask(
            f"lm-eval:{name}: of {metric} less is better, so it cannot be a score; its metrics: {', '.join(by_name)}"
        )
    process = config.get("process_results")
    own = [key for key, each in by_name.items() if not callable(each["metric"])]
    if process is None and (
        hub := [key for key in own if by_name[key].get("hf_evaluate") or key not in METRIC_REGISTRY]
    ):
        raise BadHarnessTask(
            f"lm-eval:{name}: the code of its metric {hub[0]} lies on a hub; allowed: the harness's own"
        )
    filters = config.get("filter_list") or [{"name": "none", "filter": [{"function": "take_first"}]}]
    by_filter = {str(each["name"]): each["filter"] for each in filters}
    chosen_filter = wanted.filter or next(iter(by_filter))
    if chosen_filter not in by_filter:
        raise BadHarnessTask(f"lm-eval:{name}: it has no filter {chosen_filter!r}; allowed: {', '.join(by_filter)}")
    until = (config.get("generation_kwargs") or {}).get("until", [config.get("fewshot_delimiter", "\n\n")])
    terms: dict[str, Any] = {
        "metric": metric,
        "filter": chosen_filter,
        "until": [until] if isinstance(until, str) else list(until or []),
        "filters": [
            {key: FUNCTION + _named(name, given) if callable(given) else given for key, given in step.items()}
            for step in by_filter[chosen_filter]
        ],
    }
    if process is not None:
        terms["process_results"] = _named(name, process)
        return terms
    left = ("metric", "aggregation", "higher_is_better", "hf_evaluate")
    terms["metric_arguments"] = {key: given for key, given in by_name[metric].items() if key not in left}
    if callable(by_name[metric]["metric"]):
        terms["metric_function"] = _named(name, by_name[metric]["metric"])
    return terms


def _task(
    identity: str, task: Any, document: Mapping[str, Any], terms: Mapping[str, Any], metadata: dict[str, Any]
) -> Task:
    prompt = task.fewshot_context(
        document, num_fewshot=task.config.num_fewshot or 0, gen_prefix=task.doc_to_prefix(document)
    )
    if not isinstance(prompt, str) or not prompt:
        raise BadHarnessTask(f"{identity}: its prompt is not text")
    info = dict(terms)
    gold = task.doc_to_target(document)
    if task.config.doc_to_choice is not None:
        gold = task.doc_to_choice(document)[gold]
    elif task.multiple_target and not isinstance(gold, str):
        gold = list(gold)
    elif not isinstance(gold, str):
        gold = str(gold)
    if "process_results" not in terms:
        info["target"] = gold
    if "process_results" in terms or any(step["function"] in WITH_DOCUMENT for step in terms["filters"]):
        info["document"] = json.dumps(document)
    if isinstance(gold, list):
        gold = next(iter(gold), None)
    return Task(
        problem_id=identity,
        task_type="lm-eval",
        prompt=prompt,
        verification_info=info,
        metadata={**metadata, "version": str(task.VERSION), **({"gold": gold} if isinstance(gold, str) else {})},
    )


def _named(name: str, function: Callable[..., Any]) -> str:
    """`module:function` of a function of the installed package. BadHarnessTask for any other: workers and validators have that package only."""
    module, attribute = getattr(function, "__module__", ""), getattr(function, "__name__", "")
    if module.startswith("lm_eval."):
        try:
            found = getattr(import_module(module), attribute, None)
        except ImportError:
            found = None
        if getattr(found, "__code__", None) == getattr(function, "__code__", object()):
            return f"{module}:{attribute}"
    raise BadHarnessTask(
        f"lm-eval:{name}: it is scored by {attribute or function!r}, which is not a function of the installed lm_eval: workers and validators run no"
        " other; allowed: filters and metrics by name"
    )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
