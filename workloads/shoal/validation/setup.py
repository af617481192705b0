"""Everything a validator must know before its first file, from trusted places: configuration, store, base checkpoint.

In: `RunConfig` and the store. Out: `Facts`. Called once by `service`. Waits, with words, for prepare to have finished.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from shoal import environments
from shoal.contracts import keys
from shoal.contracts.curriculum import pools_of_steps
from shoal.contracts.evaluation import BenchmarkTerms
from shoal.contracts.mixture import rows_of_sources
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.steps import StepBatch
from shoal.contracts.task_table import read_tasks
from shoal.contracts.tasks import Task, tasks_digest
from shoal.environments import BadEnvironment, Environment, packages
from shoal.environments.mixture import environment_of
from shoal.environments.prompts import WrongTokenizer, pinned_tokenizer
from shoal.environments.tokens import eos_token_ids
from shoal.storage.store import Store, find
from shoal.telemetry import Liveness, wait_for
from shoal.validation.facts import Facts

PREPARE_SECONDS = 3600.0
"""A validator is made after prepare has succeeded, so that an hour without `prepared.json` is a mistake somewhere
else.
"""


class WrongSetupError(RuntimeError):
    """The run's prepared files and this installation do not fit each other."""


def read_facts(config: RunConfig, store: Store, scratch: Path, liveness: Liveness) -> Facts:
    """Read the run's facts; `scratch` is a folder for the tokenizer's files."""
    prepared = wait_for(
        "prepared.json in the store",
        lambda: find(store, keys.PREPARED, Prepared.from_json),
        deadline_seconds=PREPARE_SECONDS,
        interval_seconds=1.0,
        liveness=liveness,
    )
    wanted = [(each.package, each.version, each.sha256) for each in config.tasks.packages]
    if [(each.package, each.version, each.sha256) for each in prepared.packages] != wanted:
        raise WrongSetupError(
            "prepared.json pins other packages than the run's tasks.packages: one of them was changed"
        )
    try:
        packages.install(prepared.packages, lambda digest: packages.read_package(store, digest), scratch / "packages")
    except packages.BadPackages as error:
        raise WrongSetupError(str(error)) from None
    environment, tasks = _pinned(store, prepared)
    base = _small_files(store, scratch / "base")
    model = json.loads((base / "config.json").read_bytes())
    pinned = prepared.benchmarks if config.evaluation is not None else []
    try:
        tokenizer = pinned_tokenizer(base, prepared.prompt, *(each.prompt for each in pinned))
    except WrongTokenizer as error:
        raise WrongSetupError(str(error)) from None
    facts = Facts(
        run=config.run,
        model_id=prepared.model_id,
        environment=environment,
        environment_digest=prepared.environment_digest,
        tasks=tasks,
        tokenizer=tokenizer,
        eos_token_ids=eos_token_ids(base),
        vocabulary=model["vocab_size"],
        hidden_size=model["hidden_size"],
        group_size=config.recipe.group_size,
        max_sequence_length=config.recipe.max_sequence_length,
        sampling=config.sampling,
        length_reward=config.length_reward,
        turn_credit=config.recipe.credit == "Turn",
        validation=config.validation,
        mode=config.mode,
        async_level=config.async_level,
        vine=config.recipe.vine,
        prompt=prepared.prompt,
        sources=rows_of_sources(prepared.mixture, config.length_reward),
        several_versions=config.several_versions,
        curriculum=pools_of_steps(
            config.tasks.curriculum,
            len(tasks),
            config.async_level,
            lambda step: StepBatch.from_json(store.get(keys.step_batch(step))),
        ),
        quantization=config.quantization,
        routes=prepared.routes,
        rewards_claimed=prepared.rewards_claimed,
    )
    return with_benchmarks(facts, {each.name: (each, *_pinned(store, each)) for each in pinned})


def with_benchmarks(facts: Facts, found: Mapping[str, tuple[BenchmarkTerms, Environment, Sequence[Task]]]) -> Facts:
    """The same run with benchmarks, by name: each one's terms, environment and tasks."""
    benchmarks: dict[str, Facts] = {}
    for name, (terms, environment, tasks) in found.items():
        benchmarks[name] = replace(
            facts,
            environment=environment,
            environment_digest=terms.environment_digest,
            tasks=tasks,
            group_size=terms.samples,
            sampling=terms.sampling,
            length_reward=terms.length_reward,
            benchmark=terms,
            vine=None,
            turn_credit=False,
            several_versions=False,
            routes=None,
            prompt=terms.prompt,
            benchmarks=benchmarks,  # each knows all of them, which its slices' numbers depend on
        )
    return replace(facts, benchmarks=benchmarks)


def _pinned(store: Store, pinned: Prepared | BenchmarkTerms) -> tuple[Environment, list[Task]]:
    """Environment and tasks as prepare pinned them, of the run or of a benchmark."""
    try:
        environment = environment_of(pinned.environment, pinned.mixture if isinstance(pinned, Prepared) else [])
        found = environments.digest(environment)
    except BadEnvironment as error:
        raise WrongSetupError(
            f"{error}; a validator needs every environment of the run, benchmarks' included"
        ) from None
    if found != pinned.environment_digest:
        raise WrongSetupError(
            f"environment {pinned.environment} has digest {found[:12]}... here, but prepare pinned "
            f"{pinned.environment_digest[:12]}...: run validators and prepare from the same image"
        )
    tasks = read_tasks(store.get(keys.task_table(pinned.tasks_digest)))
    if tasks_digest(tasks) != pinned.tasks_digest:
        raise WrongSetupError(f"the task table in the store does not have the digest {pinned.tasks_digest[:12]}...")
    return environment, tasks


def _small_files(store: Store, folder: Path) -> Path:
    """The base checkpoint without its tensors: configuration and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for info in store.list(keys.BASE_MODEL):
        name = info.key.removeprefix(keys.BASE_MODEL)
        if not name.endswith((".safetensors", ".bin")) and "/" not in name:
            store.get_to_file(info.key, folder / name)
    return folder
