"""Prepare a run: the base model and the task table into the store, then `prepared.json`, which says that both are there.

Entry point of the Job `<run>-prepare`: `python -m shoal.environments.prepare`. In: `config/run.json`. Out: `models/base/`,
`tasks/<digest>.parquet`, for a run of mode SFT `sft/`, and `prepared.json`. Does nothing when `prepared.json` is there; a stop before that leaves
only objects that the next try writes again. Ends with code 2 where another try would find the same mistake in the manifest. Workers, validators and
trainer start from what this leaves in the store, and from nothing else.
"""

import contextlib
import json
import os
import sys
from collections import Counter
from itertools import zip_longest
from pathlib import Path

from shoal import accelerators, environments, telemetry
from shoal.contracts import keys
from shoal.contracts.completions import LengthReward
from shoal.contracts.datasets import DatasetSource, filter_run
from shoal.contracts.evaluation import Benchmark, BenchmarkTerms, Truncation, sampling_of
from shoal.contracts.file_size import MAX_FILE_BYTES, largest_bytes
from shoal.contracts.hub import HubCommit
from shoal.contracts.mixture import SourceTerms
from shoal.contracts.prompts import PromptSettings, PromptTerms
from shoal.contracts.proof_profile import PROFILE_FILE, ProofProfile, WrongProfile
from shoal.contracts.routes import NoRoutes, RouteShape, route_shape
from shoal.contracts.run import Prepared, RunConfig, home, load_run_config
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import Task, TaskReport, tasks_digest
from shoal.environments import hub, packages, proof_calibration
from shoal.environments.base_checkpoint import bring, look_at_model, upload
from shoal.environments.episodes import tools_of
from shoal.environments.offline_filter import CannotFilter, filter_sources
from shoal.environments.prompt_check import askable, decided, example, template_end
from shoal.environments.prompts import BadPrompt, load_tokenizer
from shoal.environments.revisions import Revisions
from shoal.environments.run_checks import (
    CannotPrepare,
    check_count,
    check_credit,
    check_machine,
    check_same_model,
    check_several_versions,
    check_slices,
    check_vine,
    rewards_claimed,
)
from shoal.environments.task_source import (
    BadTaskSource,
    RunSource,
    benchmark_tasks,
    environment_name,
    find_tasks,
    judged_by,
    prompt_of,
)
from shoal.environments.tokens import eos_token_ids
from shoal.errors import EXIT_INPUT_WRONG
from shoal.proofs import CannotCalibrate
from shoal.storage import NotFound, Store, open_store, open_store_of
from shoal.transport.authorities import trust_also

EXAMPLES, EXAMPLE_CHARACTERS = 3, 2000
"""Prompts that are shown in the log, and how much of each."""


def prepare(config: RunConfig, store: Store, scratch: Path) -> Prepared:
    """Put base model and tasks into the store unless they are there; `scratch` is a folder that is emptied."""
    log = telemetry.get_logger()
    if store.exists(keys.PREPARED):
        prepared = Prepared.from_json(store.get(keys.PREPARED))
        check_same_model(config, prepared)
        log.info("already prepared; nothing to do")
        return prepared
    config, commits = _pinned(config)
    try:
        brought = packages.prepared(config, store, scratch / "packages")
    except packages.BadPackages as error:
        raise CannotPrepare(str(error), passing=error.passing) from error
    sources = RunSource.of_run(config.tasks)
    environment = judged_by(sources)
    for source in sources:
        check_machine(source)
    check_vine(config, environment)
    check_several_versions(config, environment)
    check_credit(config, environment)
    rewards_claimed(config, [(source.environment, []) for source in sources])  # before all data sets are read
    look_at_model(config, scratch / "looked-at")
    found = _tasks(config, sources, store, scratch)
    scored = _benchmark_tasks(config, store, scratch)
    judged = [(source.environment, tasks) for source, tasks in zip(sources, found, strict=True)]
    claimed = rewards_claimed(config, [*judged, *((judge, tasks) for _, judge, tasks in scored)])
    folder, rate = bring(config, sources, scratch / "base")
    routes = _routes(config, folder)
    asked = PromptMaker(config, folder)
    terms, asked_of = asked.sources(sources, found)
    tasks = [task for each in asked_of for task in each]
    check_count(config, sources, asked_of)
    pinned = [asked.benchmark(*each) for each in scored]
    benchmarks = [each for each, _ in pinned]
    check_slices(benchmarks)
    in_turn = [task for turn in zip_longest(*asked_of) for task in turn if task is not None]
    profile = _proof_profile(config, environment, in_turn, folder, terms)
    digest = tasks_digest(tasks)
    for pins, table in [(digest, tasks), *((each.tasks_digest, table) for each, table in pinned)]:
        store.put(keys.task_table(pins), write_tasks(table))
        log.info("task table written", tasks=len(table), digest=pins)
    upload(store, folder)
    if profile is not None:  # beside the model's own files, so that every version carries it
        store.put(keys.BASE_MODEL + PROFILE_FILE, profile.to_json())
    if config.mode == "SFT":
        _import_rows(config, store, folder, environment, scratch, terms)
    prepared = Prepared(
        run=config.run,
        model_id=config.model_id,
        environment=environment.name,
        environment_digest=environments.digest(environment),
        tasks_digest=digest,
        task_count=len(tasks),
        base_pass_rate=rate,
        proof_profile=profile,
        benchmarks=benchmarks,
        prompt=terms,
        example_prompt=asked.examples[0],
        tasks_digest_found=_digest_found(found, tasks),
        mixture=_pinned_sources(sources, asked_of),
        commits=commits or None,
        routes=routes,
        rewards_claimed=claimed,
        packages=brought,
    )
    store.put(keys.PREPARED, prepared.to_json())
    log.info("prepared", model=config.model_id, base_pass_rate=rate)
    return prepared


def _routes(config: RunConfig, folder: Path) -> RouteShape | None:
    """What files must say of the experts of a token; None where the recipe records none. Raises CannotPrepare."""
    if config.mode != "Train" or config.recipe.router_replay is None:
        return None
    try:
        shape = route_shape(json.loads((folder / "config.json").read_bytes()))
    except NoRoutes as error:
        raise CannotPrepare(f"spec.recipe.routerReplay: {error}") from error
    rows = config.sampling.groups_per_submission * config.recipe.group_size * config.recipe.rows_each
    longest = config.sampling.max_completion_tokens
    most = largest_bytes(rows, config.recipe.max_sequence_length, longest, shape.bytes_a_token)
    if most > MAX_FILE_BYTES:
        raise CannotPrepare(
            f"spec.recipe.routerReplay: a file of {rows} rows with routes may have {most >> 20} MiB; at most {MAX_FILE_BYTES >> 20} are allowed:"
            " lower sampling.groupsPerSubmission or sampling.maxCompletionTokens"
        )
    return shape


def _pinned(config: RunConfig) -> tuple[RunConfig, list[HubCommit]]:
    """Branches and tags as the commits that they are now, or were when the run of the offline filter was prepared. Raises CannotPrepare."""
    known: list[HubCommit] = []
    if config.tasks.sampled_filter is not None:
        with contextlib.suppress(NotFound):
            sampled = open_store_of(filter_run(config.run), config).get(keys.PREPARED)
            known = Prepared.from_json(sampled).commits or []
    revisions = Revisions(known)
    try:
        config = revisions.pinned(config)
    except hub.HubRefused as error:
        raise CannotPrepare(str(error), passing=error.passing) from error
    for each in revisions.used:
        telemetry.get_logger().info(
            "revision resolved", kind=each.kind, repository=each.repository, revision=each.revision, commit=each.commit
        )
    return config, revisions.used


def _digest_found(found: list[list[Task]], tasks: list[Task]) -> str | None:
    """That of the tasks with those that were left out for their prompts; None where none were."""
    together = [task for each in found for task in each]
    return tasks_digest(together) if len(tasks) < len(together) else None


def _pinned_sources(sources: list[RunSource], tasks: list[list[Task]]) -> list[SourceTerms]:
    """The sources of a mixture as workers and validators read them; none for a run of one environment."""
    return [
        SourceTerms(
            name=source.name,
            environment=source.environment.name,
            task_count=len(own),
            weight=source.weight,
            targets=source.own_targets,
        )
        for source, own in zip(sources, tasks, strict=True)
        if source.name
    ]


def _tasks(config: RunConfig, sources: list[RunSource], store: Store, scratch: Path) -> list[list[Task]]:
    """The tasks of each source, filtered if it says so; what became of data sets and filters goes into the store."""
    log = telemetry.get_logger()
    tasks, reports = [], {}
    try:
        for source in sources:
            found = find_tasks(config, source, scratch, _found_before(config, store))
            for reason, count in sorted(found.skipped.items()):
                log.info("rows that are no tasks", count=count, reason=reason, of=source.field)
            if (became := found.report()) is not None:
                for each in became.refused:
                    log.warning(
                        "tasks that cannot be used",
                        count=each.count,
                        reason=each.reason,
                        first=each.first,
                        of=source.field,
                    )
                log.info("data set read", rows=became.rows, tasks=became.tasks, proven=became.proven, of=source.field)
                reports[source.name] = became
            tasks.append(found.tasks)
        if reports:
            store.put(keys.TASK_REPORT, _one_report(reports).to_json())
        filter_store = filter_run(config.run)
        found_tasks = list(zip(sources, tasks, strict=True))
        tasks, report = filter_sources(config, found_tasks, lambda: open_store_of(filter_store, config))
        if report is not None:
            store.put(keys.FILTER_REPORT, report.to_json())
            log.info("tasks filtered", kept=report.tasks_kept, of=report.tasks_before, outcomes=report.outcomes)
    except BadTaskSource as error:
        raise CannotPrepare(str(error), passing=error.passing) from error
    except CannotFilter as error:
        raise CannotPrepare(str(error)) from error
    return tasks


def _one_report(reports: dict[str, TaskReport]) -> TaskReport:
    """That of the only source, or of a mixture: sums over its sources that have a data set."""
    if "" in reports:
        return reports[""]
    skipped: Counter[str] = Counter()
    for report in reports.values():
        skipped.update(report.skipped)
    return TaskReport(
        rows=sum(report.rows for report in reports.values()),
        tasks=sum(report.tasks for report in reports.values()),
        skipped=dict(skipped),
        refused=[
            each.model_copy(update={"reason": f"{name}: {each.reason}"})
            for name, report in reports.items()
            for each in report.refused
        ],
        proven=sum(report.proven for report in reports.values()),
        by_source=reports,
    )


def _found_before(config: RunConfig, store: Store) -> list[Store]:
    """Where golds that are judged already are kept. Those of the run that sampled for the filter count: two proofs need not agree."""
    return [store] if config.tasks.sampled_filter is None else [store, open_store_of(filter_run(config.run), config)]


def _benchmark_tasks(
    config: RunConfig, store: Store, scratch: Path
) -> list[tuple[Benchmark, environments.Environment, list[Task]]]:
    """Each benchmark with its environment and tasks. Raises CannotPrepare."""
    found = []
    for each in config.evaluation.benchmarks if config.evaluation is not None else []:
        environment = environments.load(environment_name(config.tasks, each.tasks))
        try:
            chosen = benchmark_tasks(config, each, environment, scratch / each.name, [store])
        except BadTaskSource as error:
            raise CannotPrepare(str(error), passing=error.passing) from error
        telemetry.get_logger().info("benchmark", name=each.name, tasks=len(chosen.tasks), left_out=chosen.left_out)
        found.append((each, environment, chosen.tasks))
    return found


class PromptMaker:
    """How the run's tasks and benchmarks become prompts for its base model, whose checkpoint is in `folder`."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._config, self._folder = config, folder
        try:
            eos_token_ids(folder)
            self._tokenizer = load_tokenizer(folder)
        except Exception as error:  # the library raises plain Exception for a tokenizer that it cannot read
            raise CannotPrepare(f"spec.model: {' '.join(str(error).split())[:400]}") from error
        self.examples: list[str] = []

    def sources(self, sources: list[RunSource], found: list[list[Task]]) -> tuple[PromptTerms, list[list[Task]]]:
        """The terms of the run, and of each source the tasks that can be asked. Terms of a source that differ from the first one's are kept apart."""
        kept, terms = [], {}
        for source, tasks in zip(sources, found, strict=True):
            settings, origin = source.origin.prompt or self._config.tasks.prompt, source.origin
            lengths = source.lengths(self._config)
            terms[source.name], own = self.of(
                source.field, settings, origin.dataset, tasks, source.environment, lengths
            )
            kept.append(own)
        first = terms[sources[0].name]
        others = {name: each for name, each in terms.items() if each != first}
        return first.model_copy(update={"by_task_type": others}), kept

    def of(
        self,
        field: str,
        settings: PromptSettings | None,
        dataset: DatasetSource | None,
        tasks: list[Task],
        environment: environments.Environment,
        lengths: LengthReward | None,
    ) -> tuple[PromptTerms, list[Task]]:
        """The terms, and the tasks that can be asked by them; three prompts go into the log. Raises CannotPrepare."""
        log, targets = telemetry.get_logger(), lengths.targets if lengths is not None else []
        longest = self._config.recipe.max_sequence_length
        try:
            terms = decided(settings, self._folder, self._tokenizer)
            tools_of(
                environment, self._tokenizer, eos_token_ids(self._folder), terms
            )  # where answers of functions have a place
            if self._config.mode != "SFT":  # which asks nothing
                given = len(tasks)
                tasks, reasons = askable(tasks, environment, self._tokenizer, terms, targets, longest, self._folder)
                if dataset is not None and reasons.total() > dataset.max_refused_share * given:
                    raise CannotPrepare(
                        f"{field}: {reasons.total()} of {given} tasks cannot be asked; at most a share of {dataset.max_refused_share:g} may be:"
                        f" {'; '.join(f'{count} {reason}' for reason, count in reasons.most_common())}. Raise recipe.maxSequenceLength, leave such"
                        " rows out by dataset.where, or raise dataset.maxRefusedShare"
                    )
                for reason, count in sorted(reasons.items()):
                    log.warning("tasks that cannot be asked are left out", of=field, count=count, reason=reason)
            shown = [example(task, environment, self._tokenizer, terms, targets) for task in tasks[:EXAMPLES]]
        except BadPrompt as error:
            raise CannotPrepare(f"{field}.prompt: {error}") from error
        for text in shown:
            log.info(
                "a prompt, as the model sees it", of=field, template=terms.template, prompt=text[:EXAMPLE_CHARACTERS]
            )
        end, stop = template_end(self._folder, self._tokenizer, terms)
        if end and stop is None:
            log.warning(
                "the chat template ends answers with what is no stop token of the model: see generation_config.json",
                end=end,
            )
        self.examples += shown
        return terms, tasks

    def benchmark(
        self, each: Benchmark, environment: environments.Environment, tasks: list[Task]
    ) -> tuple[BenchmarkTerms, list[Task]]:
        """What is scored, as it is pinned, and its tasks. Raises CannotPrepare."""
        config = self._config
        lengths = LengthReward(targets=[each.target_length]) if each.target_length is not None else None
        field = f"spec.evaluation.benchmarks, {each.name}"
        settings = each.prompt or prompt_of(config.tasks, each.tasks.source)
        terms, tasks = self.of(field, settings, each.tasks.dataset, tasks, environment, lengths)
        pinned = BenchmarkTerms(
            name=each.name,
            environment=environment.name,
            environment_digest=environments.digest(environment),
            tasks_digest=tasks_digest(tasks),
            task_count=len(tasks),
            samples=each.samples,
            sampling=sampling_of(each, len(tasks), config.sampling, config.recipe.group_size),
            target_length=each.target_length,
            truncation=Truncation.of(each.min_p, each.top_k, each.top_p),
            prompt=terms,
        )
        return pinned, tasks


def _proof_profile(
    config: RunConfig, environment: environments.Environment, tasks: list[Task], folder: Path, terms: PromptTerms
) -> ProofProfile | None:
    """The thresholds for proofs of the base model; a run without rollouts has no proofs."""
    if config.mode == "SFT":
        return None
    try:
        return proof_calibration.of_run(config, environment, tasks, folder, terms)
    except (CannotCalibrate, WrongProfile) as error:
        raise CannotPrepare(f"spec.model: cannot calibrate its proofs: {error}") from error


def _import_rows(
    config: RunConfig,
    store: Store,
    base: Path,
    environment: environments.Environment,
    scratch: Path,
    terms: PromptTerms,
) -> None:
    from shoal.environments.sft_import import BadSftData, import_rows

    try:
        import_rows(config, store, base, environment, scratch, terms)
    except BadSftData as error:
        raise CannotPrepare(f"spec.sft.dataset: {error}") from error


def main() -> None:
    telemetry.start("prepare")
    # One thread, so that a seed gives the same model everywhere; two are slower where cores are shared. `require` imports torch, which reads this.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    config = load_run_config()
    telemetry.every_line(run=config.run)
    trust_also(home() / "ca" / "ca.crt", home() / "tmp" / "ca-bundle.pem")
    store = open_store(config)
    if not store.exists(keys.PREPARED):  # else nothing is computed
        accelerators.require()
    try:
        prepare(config, store, home() / "tmp" / "prepare")
    except (CannotPrepare, environments.BadEnvironment) as error:
        if isinstance(error, CannotPrepare) and error.passing:
            raise
        telemetry.get_logger().error(" ".join(str(error).split()))
        sys.exit(EXIT_INPUT_WRONG)  # its Job is not tried again


if __name__ == "__main__":
    main()
