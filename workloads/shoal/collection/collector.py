"""The collector's life: version 0 handed over, slices read in order as they are sealed, kept rows written, the finished data set announced.

In: the store, the orchestrator and the outbox. Out: `outbox/v000000/`, `datasets/<name>/`, `POST /v1/progress`, `POST /v1/datasets`. Whatever was
done before a stop is not done again: see `dataset`. Called by `__main__`.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from prometheus_client import Gauge
from pydantic import ValidationError

from shoal import telemetry
from shoal.collection.base_version import hand_over
from shoal.collection.dataset import DatasetWriter
from shoal.collection.keeping import Completed, Sieve, count
from shoal.collection.slices import BadSlice, Judged, read_slice
from shoal.contracts import keys
from shoal.contracts.protocol import DatasetAnnouncement, DatasetProgress, TrainerProgress
from shoal.contracts.rollouts import Rollout
from shoal.contracts.roster import Role
from shoal.contracts.run import Prepared, RunConfig
from shoal.contracts.signed import Signer
from shoal.contracts.steps import StepBatch
from shoal.environments.tokens import Tokenizer, completion_text
from shoal.sampling.draw import own_tasks, slice_count
from shoal.storage import Store, find
from shoal.storage.versions import read_sealed_manifest
from shoal.transport import Refused, SignedClient, Unavailable

SLICE_DEADLINE_SECONDS = 7 * 24 * 3600.0
"""A pool may be scaled to nothing over a weekend; the run's own deadline is `spec.activeDeadlineSeconds`."""
ANNOUNCE_DEADLINE_SECONDS = 3600.0
TELL_DEADLINE_SECONDS = 2.0
TELL_AGAIN_SECONDS = 5.0
POLL_SECONDS = 0.5

Value = TypeVar("Value")

ROWS = Gauge("shoal_dataset_rows", "Completions of the data set so far.", ["outcome"])
SLICES = Gauge("shoal_dataset_slices", "Collected slices of the task table.")


class Collector:
    """Makes the data set of one run."""

    def __init__(
        self,
        config: RunConfig,
        prepared: Prepared,
        store: Store,
        tokenizer: Tokenizer,
        eos_token_ids: frozenset[int],
        orchestrator: SignedClient,
        liveness: telemetry.Liveness,
        believed: Callable[[Role], Signer],
    ) -> None:
        """`believed`: the keys of a role."""
        self._config, self._prepared, self._store = config, prepared, store
        self._tokenizer, self._ends = tokenizer, eos_token_ids
        self._orchestrator, self._liveness = orchestrator, liveness
        self._validator_key, self._trainer_key = believed("validator"), believed("trainer")
        self._groups = config.sampling.groups_per_submission
        self._steps = slice_count(prepared.task_count, self._groups)
        self._writer = DatasetWriter(config, prepared, store)
        self._told = 0.0
        self._phase = "start"

    def run(self, outbox: Path) -> None:
        """From wherever it stands to the announced data set. Raises `Stopped` when asked to stop."""
        digest = self._writer.card_digest
        if digest is None:
            hand_over(self._store, outbox, self._liveness)
            self._collect()
            self._enter("write")
            digest = self._writer.seal(read_sealed_manifest(self._store, 0, self._trainer_key).sha256)
        self._announce(digest)

    def _collect(self) -> None:
        sieve = Sieve(self._config.generate)
        sieve.remember(self._writer.written())
        while (step := self._writer.state.next_step) < self._steps:
            self._enter("wait")
            batch = self._wait("a sampled slice of the task table", lambda: self._batch(step), SLICE_DEADLINE_SECONDS)
            with telemetry.busy("collect"):
                self._take(step, batch, sieve)
        self._tell()

    def _batch(self, step: int) -> StepBatch | None:
        try:
            batch = find(self._store, keys.step_batch(step), StepBatch.from_json)
        except ValidationError as error:
            raise BadSlice(f"{keys.step_batch(step)}: {error}") from error
        if batch is not None and (batch.run, batch.step) != (self._config.run, step):
            raise BadSlice(f"{keys.step_batch(step)} is of run {batch.run!r} step {batch.step}")
        return batch

    def _take(self, step: int, batch: StepBatch, sieve: Sieve) -> None:
        try:
            judged = read_slice(
                self._store, batch, self._validator_key, own_tasks(step, self._prepared.task_count, self._groups)
            )
        except BadSlice as error:
            if self._config.failure_policy.bad_data == "Stop":
                raise
            telemetry.get_logger().error("left out a slice", step=step, problem=str(error))
            judged = []
        traces, counts, left_out = [], [], Counter[str]()
        for problem in self._problems(judged):
            kept, others = sieve.keep(problem)
            traces += kept
            left_out += others
            counts.append(count(problem))
        self._writer.add(step, len(judged), traces, counts, left_out)
        state = self._writer.state
        SLICES.set(state.next_step)
        ROWS.labels("kept").set(state.rows)
        ROWS.labels("left_out").set(state.rows_seen - state.rows)
        self._liveness.progress()

    def _problems(self, judged: Sequence[Judged]) -> list[list[Completed]]:
        """Completions by problem, as text."""
        return [[self._completed(*row) for row in rows] for _, rows in groupby(judged, lambda row: row[0].prompt_index)]

    def _completed(self, rollout: Rollout, task_reward: float | None) -> Completed:
        prompt = completion_text(self._tokenizer, rollout.prompt_tokens, frozenset())
        again = self._tokenizer.encode(prompt, add_special_tokens=False)
        return Completed(
            problem_id=rollout.problem_id,
            task_type=rollout.task_type,
            prompt=prompt,
            completion=completion_text(self._tokenizer, rollout.completion_tokens, self._ends),
            tokens=len(rollout.completion_tokens),
            task_reward=task_reward,
            whole=rollout.finish_reason == "stop",
            tool_output=not all(rollout.completion_mask),
            other_prompt=again != list(rollout.prompt_tokens),
        )

    def _announce(self, digest: str) -> None:
        name = self._config.generate.dataset
        announcement = DatasetAnnouncement(run=self._config.run, name=name, card_digest=digest)

        def ask() -> bool | None:
            try:
                self._orchestrator.call("POST", "/v1/datasets", announcement, deadline_seconds=TELL_DEADLINE_SECONDS)
            except Unavailable as error:
                telemetry.get_logger().warning("the data set is not announced yet", reason=str(error)[:300])
                return None
            return True

        self._enter("announce")
        self._wait("the orchestrator to record the data set", ask, ANNOUNCE_DEADLINE_SECONDS)
        telemetry.get_logger().info("data set announced", name=name, digest=digest, rows=self._writer.state.rows)

    def _wait(self, what: str, ask: Callable[[], Value | None], deadline_seconds: float) -> Value:
        def poll() -> Value | None:
            if time.monotonic() - self._told > TELL_AGAIN_SECONDS:
                self._tell()
            return ask()

        return telemetry.wait_for(
            what, poll, deadline_seconds=deadline_seconds, interval_seconds=POLL_SECONDS, liveness=self._liveness
        )

    def _enter(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._tell()

    def _tell(self) -> None:
        """Say how far it is; an orchestrator that is away is told again in a while."""
        self._told = time.monotonic()
        state = self._writer.state
        said = TrainerProgress(
            run=self._config.run,
            step=state.next_step,
            phase=self._phase,
            dataset=DatasetProgress(
                name=self._config.generate.dataset,
                steps=self._steps,
                steps_collected=state.next_step,
                rows_seen=state.rows_seen,
                rows_kept=state.rows,
                problems=state.problems,
                problems_solved=state.problems_solved,
            ),
        )
        try:
            self._orchestrator.call("POST", "/v1/progress", said, deadline_seconds=TELL_DEADLINE_SECONDS)
        except (Refused, Unavailable) as error:
            telemetry.get_logger().warning("could not report progress", phase=self._phase, reason=str(error)[:300])
