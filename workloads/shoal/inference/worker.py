"""The rollout worker: newest weights, open step, leases, generate, score, file, agent; all of it at the same time.

In: the agent's socket, `weights/`. Out: one Parquet file a lease in `tmp/`, handed to the agent. Started by `__main__`. The process's first thread
decodes (`generation`); others fetch and plan leases, answer tools, score files, and write and upload them. Every wait ends when the process is
asked to stop. What is being generated then is finished if it can be within the grace period, and so is what is scored or handed in; of other leases
whole groups are handed in, and the rest goes back at once. Where another process follows in its place, a journal leaves it the rows instead
(ADR 0140), as it does when the process is killed. A lease whose step was sealed meanwhile goes back too. A restart of the agent, a closed
step, a refused file or a failed scoring cost one file and no more.
"""

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.contracts.pools import EngineSettings
from shoal.contracts.protocol import LEAVE_SECONDS, HandedPart, HeldByPod, Lease, LocalSubmission, StepInfo, rest_of
from shoal.contracts.rollouts import Rollout, RolloutMetadata, digest_of_weights, versions_of, write_rollouts
from shoal.contracts.run import AgentState, PublicRun
from shoal.contracts.signed import Signer
from shoal.contracts.tasks import Task
from shoal.contracts.trust import TrustedKeys
from shoal.contracts.work import EvaluationSlice, TableSlice, TrainingStep, Work
from shoal.environments.episodes import scored_text, tools_of
from shoal.environments.prompts import pinned_tokenizer, prompt_tokens
from shoal.environments.scored_once import ScoredOnce
from shoal.inference import metrics
from shoal.inference.agent import AgentClient
from shoal.inference.assignments import WorkContext, benchmarks_here, have_packages, require_rule, work_on
from shoal.inference.batch import PlannedLease, Row, RunningLease
from shoal.inference.beside import Beside, RowTools
from shoal.inference.checkpoint import read_checkpoint
from shoal.inference.completions import Completion, EngineTerms
from shoal.inference.engine import Engine
from shoal.inference.generation import Generation, Wish
from shoal.inference.hosts import SETTLE_SECONDS, Followers
from shoal.inference.journal import lease_of
from shoal.inference.journal_files import Journal, LeftJournal, why_not
from shoal.inference.lease_desk import MOST_LEASES, LeaseDesk
from shoal.inference.rollouts import answer_of, assemble, plan_submission
from shoal.inference.weights import VersionOnDisk, newest_policy, versions_in
from shoal.installed import installed
from shoal.storage.checkpoint_files import VersionGone
from shoal.telemetry import STOP, Liveness, Stopped, busy, every_line, get_logger, wait_for
from shoal.telemetry.waiting import SAY_AFTER_SECONDS
from shoal.transport.client import Refused, Unavailable

WAIT_SECONDS = 7 * 24 * 3600.0
"""A worker has nothing better to do than to wait for its run; the wait says so in the log and in a metric all the
while.
"""
POLL_SECONDS = 0.5
KEYS_SECONDS = 5.0  # between questions whether the trainer's key was changed
AGENT_HEARS_SECONDS = 0.5
"""For which a worker that is asked to end decodes on before it asks whether its pod ends too."""
TOOL_PAUSE_SECONDS = 10.0
"""After a tool that failed: the same lease comes again, and with it the same calls."""
IDLE_SECONDS = 0.1
"""Between looks while nothing is decoded: what may end the wait also wakes it, except for a sealed step and a signal."""
STUCK_SECONDS = 900.0
"""Longest time without progress of a scoring, an upload, a tool, a return or a turn of the desk: three times what an upload may take. Then the
process is started again."""
MOST_VERSIONS = 8
"""Newest versions whose digests are remembered: more than a step accepts."""
MOST_FAILURES = 3
"""Leases that fail in a row without the fault of an agent, a step or a tool: what ails this process may be gone after a restart."""


class Worker:
    """One engine and the loop that feeds it."""

    def __init__(
        self,
        home: Path,
        liveness: Liveness,
        settings: EngineSettings,
        trust: TrustedKeys | None = None,
        followers: Followers | None = None,
    ) -> None:
        """`trust`: the keys of the run, which follow those of the agent; None: the agent's first word on the trainer's key holds. `followers`: the
        other hosts of the engine, where it spans several pods.
        """
        self._trust = trust
        self._followers = followers
        self._asked_for_keys = 0.0
        self._weights = home / "weights"
        self._tmp = home / "tmp"
        self._agent = AgentClient(home / "run" / "agent.sock")
        self._liveness = liveness
        self._settings = settings
        self._engine: Engine | None = None
        self._digests: dict[int, str] = {}  # of the weights that were loaded lately
        self._policy_is_new = False  # no token has come of it yet
        self._open: set[RunningLease] = set()  # generated, and not handed in yet
        self._returning: set[str] = set()  # being given back
        self._failures = 0  # of leases, since a file was taken
        self._broken: Exception | None = None
        self._leaves_by: float | None = None
        self._tokens_since, self._since = 0, time.monotonic()  # the last generated file
        self._idle_since, self._next_word = time.monotonic(), SAY_AFTER_SECONDS
        self._woken = threading.Event()
        self._journal = Journal(self._tmp)
        self._resumed: list[tuple[PlannedLease, Mapping[int, Completion], Path]] = []
        self._leaving = False  # those that follow were asked for
        self._beside = self._scoring, self._uploading, self._at_tools, self._at_returns = [
            Beside(name, self._woken.set) for name in ("scoring", "uploading", "tools", "returns")
        ]
        self._desk = LeaseDesk(
            step=self._step,
            lease=self._lease_of,
            newest=self._newest,
            plan=self._plan,
            failed=self._failed,
            wake=self._woken.set,
        )
        self._at_desk = threading.Thread(target=self._serve_desk, name="lease-desk", daemon=True)

    @property
    def not_ready(self) -> str | None:
        """Why this worker generates nothing yet, or None."""
        return None if self._digests else "no weights are loaded yet"

    def run(self) -> None:
        """Work until the process is asked to stop."""
        try:
            self._prepare()
            self._generate()
            self._end()
        except Stopped as stopped:
            get_logger().info("stopped", reason=str(stopped))
        except Exception:
            if self._followers is not None:
                time.sleep(
                    SETTLE_SECONDS
                )  # the cause may be a host that is gone: then the link ends this process, and says so
            raise
        finally:
            if self._followers is not None:
                self._followers.close()
            if self._engine is not None:
                self._engine.close()

    def _prepare(self) -> None:
        """Wait for the run's description, its task table and the first weights; start the engine on them."""
        self._tmp.mkdir(exist_ok=True)
        for pattern in ("*.parquet", "*.partial"):  # of a process before this one
            for left in self._tmp.glob(pattern):
                left.unlink()
        self._state = wait_for("the agent to be admitted to a run", self._admitted, **self._waiting)
        every_line(node=self._state.node)
        taken_up = self._take_up()
        public = self._state.public
        assert public is not None
        self._public: PublicRun = public
        self._codec = public.codec
        require_rule(public.sampler)
        have_packages(public, self._package, self._tmp / "packages")
        self._training = work_on(public, self._task_table)
        self._benchmarks = benchmarks_here(public, lambda digest: self._task_table(digest, benchmark=True))
        if self._followers is not None:
            wait_for("the other hosts of the engine", self._followers.are_here, **self._waiting)
        again = [(lease, each, found) for lease, each in taken_up if (found := self._version_of(each)) is not None]
        newest = max((found for *_, found in again), key=lambda found: found.version, default=None)
        policy = newest or wait_for("the first weights", lambda: self._newest(0, 999_999), **self._waiting)
        works = [self._training, *self._benchmarks.values()]
        self._tokenizer = pinned_tokenizer(policy.folder, *(work.public.prompt for work in works))
        with busy("start"):
            checkpoint = read_checkpoint(policy.folder)
            self._eos = checkpoint.eos_token_ids
            # Made once: what it finds out about a vocabulary is kept.
            self._tools = [
                (work, tools_of(work.environment, self._tokenizer, self._eos, work.public.prompt)) for work in works
            ]
            if (reason := why_not(public, self._tools[0][1] is not None)) is not None:
                self._journal.on = False
                get_logger().info("rows are not kept for the process that comes next", reason=reason)
            batch = public.sampling.groups_per_submission * public.group_size * public.rows_each
            terms = EngineTerms(public.max_sequence_length, batch, public.quantization, public.routes)
            span = self._followers.start(terms, policy) if self._followers is not None else None
            self._engine = Engine(
                checkpoint,
                max_sequence_length=terms.max_sequence_length,
                batch=terms.batch,
                settings=self._settings,
                cuts=public.several_versions or self._journal.on,
                quantization=terms.quantization,
                routes=terms.routes,
                span=span,
            )
            self._liveness.progress()
            policy = self._checked(policy)
        self._desk.several = public.several_versions
        self._first = policy
        self._loaded(policy)
        planned = [self._planned_again(*each, policy) for each in again]
        self._resumed = [each for each in planned if each is not None]
        names = {given.lease.lease for given, *_ in self._resumed}
        for lease, journal in taken_up:
            if lease.lease not in names:
                journal.path.unlink(missing_ok=True)
                self._agent.give_back(lease.lease)

    def _checked(self, first: VersionOnDisk) -> VersionOnDisk:
        """The version in the engine, held to its manifest: the first, or a newer one where that was removed while the engine started. Starting takes
        minutes, and a small model's versions seconds: an engine that started again for it would never start."""
        policy, swapped = first, False
        while True:
            try:
                if swapped:
                    self._engine_there.swap(read_checkpoint(policy.folder), policy.manifest, self._liveness.progress)
                else:
                    self._engine_there.check(policy.folder, policy.manifest, self._liveness.progress)
                return policy
            except (VersionGone, FileNotFoundError) as gone:
                get_logger().info("newer weights came while the engine started", gone=policy.version, reason=str(gone))
            policy, swapped = wait_for("weights that stay", lambda: self._newest(0, 999_999), **self._waiting), True

    def _take_up(self) -> list[tuple[Lease, LeftJournal]]:
        """Leases that this pod holds and of which a process before this one left rows. All others go back."""
        left = self._journal.left()
        held = wait_for("files of the process before", self._settled, **self._waiting).leases if left else []
        found = [(lease, each) for each in left if (lease := lease_of(each.said.heading, held)) is not None]
        for each in left:
            if each not in [taken for _, taken in found]:
                each.path.unlink(missing_ok=True)
        if not found:
            self._agent.give_back(None)
        else:
            for lease in held:
                if lease not in [taken for taken, _ in found]:
                    self._agent.give_back(lease.lease)
        return found

    def _settled(self) -> HeldByPod | None:
        """What this pod holds, once no file is on its way that the process before had begun to hand in."""
        held = self._agent.held() or HeldByPod(leases=[], handing_in=[], stays=False)
        return None if held.handing_in else held

    def _version_of(self, left: LeftJournal) -> VersionOnDisk | None:
        """The version that these rows are of, if it is still the same and their step accepts it."""
        heading = left.said.heading
        oldest, last = self._codec.decode(heading.step.step).window
        found = self._newest(heading.version, heading.version) if oldest <= heading.version <= last else None
        return found if found is not None and found.manifest.sha256 == heading.weights_digest else None

    def _planned_again(
        self, lease: Lease, left: LeftJournal, version: VersionOnDisk, loaded: VersionOnDisk
    ) -> tuple[PlannedLease, Mapping[int, Completion], Path] | None:
        """The lease with the rows that it has, by index; None where they cannot go on. Rows of an older version than the engine's must be whole."""
        try:
            given = self._plan(left.said.heading.step, lease, version)
        except Exception as error:
            get_logger().warning("cannot go on with a lease", step=lease.step, reason=str(error))
            return None
        kept = {}
        for index, row in enumerate(given.planned):
            made = left.said.rows.get(row.request.seed)
            if made is not None and len(made.tokens) + (made.finish_reason == "cut") <= row.request.max_tokens:
                kept[index] = made
        whole = len(kept) == len(given.planned) and all(made.finish_reason != "cut" for made in kept.values())
        if not kept or not (whole or version.is_same(loaded)):
            return None
        tokens = sum(len(made.tokens) for made in kept.values())
        metrics.RESUMED.inc(tokens)
        log = get_logger().bind(step=lease.step, submission=lease.submission, version=version.version)
        log.info("goes on with the rows of the process before", rows=len(kept), tokens=tokens)
        return given, kept, left.path

    @property
    def _engine_there(self) -> Engine:
        assert self._engine is not None
        return self._engine

    def _task_table(self, digest: str, *, benchmark: bool = False) -> list[Task]:
        return wait_for("a task table", lambda: self._agent.tasks(digest, benchmark), **self._waiting)

    def _package(self, digest: str) -> bytes:
        return wait_for("a package", lambda: self._agent.package(digest), **self._waiting)

    def _context_of(self, work: Work) -> WorkContext:
        """The run's own tasks, or, for a slice of an evaluation, its benchmark."""
        match work:
            case TrainingStep() | TableSlice():
                return self._training
            case EvaluationSlice(benchmark=benchmark):
                return self._benchmarks[benchmark.name]

    def _generate(self) -> None:
        """Serve leases until the process is asked to stop and those are done, or given back, that it had then."""
        generation = Generation(
            self._engine_there,
            self._desk,
            RowTools(self._at_tools),
            self._first,
            swap=self._swap,
            finished=self._hand_in,
            given_up=self._given_up,
            handing_in=self._handing_in,
            clock=time.monotonic,
            several=self._public.several_versions,
            made=self._made,
            keeper=self._journal,
        )
        for given, kept, path in self._resumed:
            self._journal.begin(generation.batch.begin(given, kept), path)
        self._at_desk.start()
        while not (STOP.is_set() and not generation.batch.leases):
            if STOP.is_set():
                self._leave(generation)
            stepped = generation.turn()
            metrics.OPEN_LEASES.set(len(generation.batch.leases) + len(self._open))
            if self._policy_is_new and generation.batch.running:
                get_logger().info("first token of a version", version=generation.loaded.version)
                self._policy_is_new = False
            if max(self._desk.stuck_seconds, *(each.stuck_seconds for each in self._beside)) < STUCK_SECONDS:
                self._liveness.progress()
            if self._broken is not None:
                raise self._broken
            self._say_idle(stepped)
            if not stepped:
                self._woken.wait(IDLE_SECONDS)
                self._woken.clear()

    def _leave(self, generation: Generation) -> None:
        """Leave the rows to the process that follows, where one does; else finish what can be. The agent learns of the end of its pod when we do."""
        waited = LEAVE_SECONDS - (self._leave_by() - time.monotonic())
        if self._journal.on and generation.batch.leases and not self._leaving:
            if waited < AGENT_HEARS_SECONDS:
                return
            self._leaving = True
            held, leases = self._agent.held(), len(generation.batch.leases)
            if held is not None and held.stays and generation.put_down():
                get_logger().info("rows are left to the process that comes next", leases=leases)
        generation.leave()

    def _handing_in(self) -> list[str]:
        """Leases of which files are on their way, or that go back. That for the rest of a part is there before its name has come."""
        parts = [lease.holder.given.lease.lease for lease in self._open.copy()]
        kept = [rest_of(lease.holder.given.lease.lease) for lease in self._open.copy() if lease.keeps_rest]
        return [*parts, *kept, *self._returning.copy()]

    def _say_idle(self, stepped: bool) -> None:
        """Tell why nothing is decoded, at longer and longer times."""
        now = time.monotonic()
        if stepped:
            self._idle_since, self._next_word = now, SAY_AFTER_SECONDS
        elif now - self._idle_since >= self._next_word:
            idle = round(now - self._idle_since)
            get_logger().info(
                "waiting",
                for_what="upload" if self._open else self._desk.shortage,
                handed_in=len(self._open),
                waited_seconds=idle,
            )
            self._next_word *= 2

    def _serve_desk(self) -> None:
        """The desk's thread; what ends it ends the process, which would get no lease any more."""
        try:
            self._desk.serve()
        except Exception as error:
            self._broken = error
            self._woken.set()

    def _leave_by(self) -> float:
        """When the time to leave is over, on the monotonic clock: it began when the process was first seen to be asked to stop."""
        if self._leaves_by is None:
            self._leaves_by = time.monotonic() + LEAVE_SECONDS
        return self._leaves_by

    def _end(self) -> None:
        """Wait for files that are scored or handed in, within the time to leave; give back what has not begun."""
        self._desk.close()
        ends = self._leave_by()
        self._at_desk.join(max(0.0, ends - time.monotonic()))  # a lease that it just got is given back below
        if self._open or self._returning:
            seconds = round(max(0.0, ends - time.monotonic()), 1)
            get_logger().info("waiting", for_what="files to be handed in", files=len(self._open), most_seconds=seconds)
        while (self._open or self._returning) and time.monotonic() < ends:
            self._woken.wait(IDLE_SECONDS)
            self._woken.clear()
        left = self._desk.take()
        if left is not None:
            self._give_back(left.lease, "leaving")
        self._journal.settle(ends - time.monotonic())

    def _give_back(self, lease: Lease, reason: str) -> None:
        metrics.RETURNED.labels(reason).inc()
        self._agent.give_back(lease.lease)

    def _given_up(self, lease: RunningLease, reason: str, error: Exception | None) -> None:
        """The decoding loop has dropped this lease. It is given back beside decoding and uploads, and counts until it is."""
        parting = lease.parting  # before its name, which changes first
        given = lease.given.lease
        self._journal.end(lease)
        log = get_logger().bind(step=given.step, submission=given.submission, reason=reason)
        if error is None:
            log.info("lease given back", unfinished=len(lease.planned) - len(lease.made))
        else:
            log.warning("gave the lease back: a tool failed", detail=str(error))
            self._desk.pause(TOOL_PAUSE_SECONDS)
        self._returning.add(given.lease)
        if (
            parting
        ):  # a part comes under its name still: what is left goes back behind that, under the name that it has then
            self._scoring.put(lambda: self._uploading.put(lambda: self._return_rest(lease, given.lease, reason)))
        else:
            self._at_returns.put(lambda: self._return(given, reason))

    def _return(self, lease: Lease, reason: str) -> None:
        self._give_back(lease, reason)
        self._returning.discard(lease.lease)

    def _return_rest(self, lease: RunningLease, name: str, reason: str) -> None:
        """A lease that was given up while a part of it was handed in; `name`: its own at that time. What was spoiled is back already."""
        if not lease.spoiled:
            self._give_back(lease.given.lease, reason)
        self._returning.discard(name)

    def _failed(self, lease: Lease, error: Exception, tokens: int = 0) -> None:
        """A lease failed that others need not fail with. Some in a row are this process's fault, and end it."""
        self._failures += 1
        get_logger().error("lease failed", step=lease.step, submission=lease.submission, exc_info=error)
        metrics.LOST.labels("failed").inc(tokens)
        self._give_back(lease, "failed")
        if self._failures >= MOST_FAILURES:
            self._broken = error
            self._woken.set()

    def _swap(self, policy: VersionOnDisk) -> None:
        started = time.monotonic()
        with busy("swap"):
            self._engine_there.swap(read_checkpoint(policy.folder), policy.manifest, self._liveness.progress)
        metrics.SWAP_SECONDS.observe(time.monotonic() - started, exemplar={"version": str(policy.version)})
        self._loaded(policy)

    def _loaded(self, policy: VersionOnDisk) -> None:
        self._policy_is_new = True
        self._digests[policy.version] = policy.manifest.sha256
        for old in [version for version in self._digests if version < policy.version - MOST_VERSIONS]:
            del self._digests[old]
        metrics.POLICY_VERSION.set(policy.version)
        get_logger().info("weights loaded", version=policy.version, digest=policy.manifest.sha256[:12])

    def _lease_of(self, step: int, held: Collection[str] | None) -> Lease | None:
        info = self._desk.info
        return self._agent.lease(
            self._state.node, step, held, parts=info is not None and info.hand_in_every_seconds is not None
        )

    def _plan(self, step: StepInfo, lease: Lease, policy: VersionOnDisk) -> PlannedLease:
        work = self._codec.decode(step.step)
        context = self._context_of(work)
        if isinstance(work, TrainingStep):
            metrics.POLICY_LAG.set(work.number - policy.version)

        def render(task: Task, target_length: int | None) -> Sequence[int]:
            return prompt_tokens(self._tokenizer, context.environment, task, target_length, context.public.prompt)

        now = time.monotonic()
        return PlannedLease(
            lease=lease,
            work=work,
            public=context.public,
            policy=policy,
            planned=plan_submission(work, step, lease, context.public, context.tasks, render),
            tools=next(tools for work, tools in self._tools if work is context),
            given=now,
            ends=now + lease.expires_unix - time.time(),
            life=work.shape.lease_seconds,
            part_seconds=step.hand_in_every_seconds,
            scored=ScoredOnce(context.environment),
            shown=step,
        )

    def _made(self, row: Row, completion: Completion) -> None:
        """A row is whole."""
        self._journal.whole(row, completion)
        self._score_ahead(row, completion)

    def _score_ahead(self, row: Row, completion: Completion) -> None:
        """Score a row as soon as it is whole: its group waits for one answer then, not for all. What fails is tried again with the file."""
        given, planned = row.of.given, row.episode.row

        def score() -> None:
            if given.scored is None or row.of.dropped or STOP.is_set():
                return
            with suppress(Exception), busy("score"):
                text = scored_text(given.tools, self._tokenizer, *answer_of(planned, completion), self._eos)
                given.scored.ahead(planned.task, text)

        self._scoring.put(score)

    def _hand_in(self, lease: RunningLease) -> None:
        """Score, write and upload beside decoding."""
        metrics.ROLLOUTS.inc(lease.drawn)
        metrics.CONTINUATIONS.inc(len(lease.planned) - lease.drawn)
        for completion in lease.completions[: lease.drawn]:
            metrics.COMPLETION_TOKENS.observe(completion.sampled, exemplar={"step": str(lease.given.lease.step)})
        self._tokens_since += lease.tokens
        now = time.monotonic()
        metrics.GENERATED_PER_SECOND.set(self._tokens_since / max(1e-3, now - self._since))
        self._tokens_since, self._since = 0, now
        self._open.add(lease)
        self._scoring.put(lambda: self._score(lease))

    def _score(self, lease: RunningLease) -> None:
        given = lease.given
        scored = given.scored or ScoredOnce(self._context_of(given.work).environment)
        scored.next_file()

        def score(task: Task, tokens: Sequence[int], mask: Sequence[bool]) -> float | None:
            reward = scored.reward(task, scored_text(given.tools, self._tokenizer, tokens, mask, self._eos))
            self._scoring.progress()
            return reward

        try:
            with busy("score"):
                version = given.policy.version
                rows = assemble(lease.planned, lease.completions, given.lease, given.public, version, score)
        except Exception as error:
            failure = error
            self._uploading.put(lambda: self._not_scored(lease, failure))
            return
        self._uploading.put(lambda: self._submit(lease, rows))

    def _not_scored(self, lease: RunningLease, error: Exception) -> None:
        """Behind the parts before it, after which its lease has the name to give back."""
        self._file_failed(lease, error)
        self._open.discard(lease)

    def _file_failed(self, lease: RunningLease, error: Exception) -> None:
        """No file comes for this lease, and of a part none for what is left."""
        if lease.holder.spoiled:
            metrics.LOST.labels("refused").inc(lease.tokens)
            return
        if lease.rest is not None:
            lease.rest.spoiled = True
        self._journal.end(lease.holder)
        self._failed(lease.holder.given.lease, error, lease.tokens)

    def _submit(self, lease: RunningLease, rows: Sequence[Rollout]) -> None:
        """Write the file and hand it over; a file that nobody takes is given up."""
        given, policy, public = lease.holder.given.lease, lease.given.policy, lease.given.public
        if lease.holder.spoiled:  # a part before this one was not taken
            self._open.discard(lease)
            self._not_taken(lease, given, gives_back=False)
            return
        rows = [replace(row, submission=given.submission) for row in rows]  # the number that it has by now
        path = self._tmp / f"{given.lease}.parquet"
        version, versions = rows[0].policy_version, versions_of(rows)
        log = get_logger().bind(step=given.step, submission=given.submission, version=version)
        digests = [self._digests[each] for each in versions] if public.several_versions else [policy.manifest.sha256]
        metadata = RolloutMetadata(
            model=public.model_id,
            weights_digest=digest_of_weights(digests),
            environment_digest=public.environment_digest,
            software_version=installed().version,
            quantization=public.quantization,
        )
        try:
            with busy("submit"):
                partial = path.with_suffix(".partial")
                partial.write_bytes(write_rollouts(rows, metadata))
                partial.replace(path)
                handed = LocalSubmission(
                    lease=given.lease,
                    file=path.name,
                    groups=len(lease.places),
                    policy_version=version,
                    part=HandedPart(groups=lease.places, keep=lease.keeps_rest) if lease.rest is not None else None,
                )
                receipt = self._agent.submit(handed)
                self._go_on_with(lease, receipt.rest)
            metrics.SUBMISSIONS.labels(receipt.status).inc()
            self._failures = 0
            self._agent.report(metrics.heartbeat_metrics())
            log.info("file done", rows=len(rows), tokens=lease.tokens)
        except (Refused, Unavailable) as error:
            log.warning("file not taken", reason=str(error))
            self._not_taken(lease, given, gives_back=isinstance(error, Refused))
        except Exception as error:  # a full disk, for one
            self._file_failed(lease, error)
        finally:
            for each in (path, path.with_suffix(".partial")):
                each.unlink(missing_ok=True)
            self._open.discard(lease)

    def _go_on_with(self, part: RunningLease, rest: Lease | None) -> None:
        """What is left of a lease of which a part was taken is under a lease of its own from now on."""
        left = part.rest
        if left is None or not part.keeps_rest:
            self._journal.end(part.holder)
            return
        if rest is None:
            left.spoiled = True  # its time was over
            self._journal.end(left)
            return
        left.given = replace(left.given, lease=rest)
        self._journal.go_on(left, rest)
        left.parting = False

    def _not_taken(self, lease: RunningLease, given: Lease, *, gives_back: bool = True) -> None:
        """A file is lost, and of a part also what is left. An open lease would be given once more, with the rows that were refused."""
        metrics.SUBMISSIONS.labels("refused").inc()
        metrics.LOST.labels("refused").inc(lease.tokens)
        self._journal.end(lease.holder)
        if lease.rest is not None:
            lease.rest.spoiled = True
        if gives_back:
            self._give_back(given, "refused")

    def _admitted(self) -> AgentState | None:
        state = self._agent.state()
        return state if state is not None and state.public is not None else None

    def _newest(self, lowest: int, highest: int) -> VersionOnDisk | None:
        signer: Signer = self._state.trainer_key
        if self._trust is not None:
            self._follow_keys(self._trust)
            signer = self._trust.of("trainer")
        usable = self._followers.all_hold if self._followers is not None else lambda policy: True
        return newest_policy(self._weights, signer, self._public.run, lowest, highest, usable)

    def _follow_keys(self, trust: TrustedKeys) -> None:
        """Take over what the agent has learned of changed keys, now and then."""
        if time.monotonic() - self._asked_for_keys < KEYS_SECONDS:
            return
        self._asked_for_keys = time.monotonic()
        state = self._agent.state()
        if state is not None and state.notice is not None:
            trust.take(state.notice)

    def _step(self, wish: Wish | None) -> StepInfo | None:
        """The open step. Where benchmarks can be served the versions are named that a slice may be of: all that are here for an empty engine, else
        the loaded one. Many nodes may be shown one slice, and none should empty its engine for it."""
        holds: Sequence[int] = ()
        if self._benchmarks and wish is not None:
            holds = self._usable_versions()[-16:] if wish.empty else [wish.loaded.version]
        return self._agent.step(holds, MOST_LEASES, parts=True)

    def _usable_versions(self) -> list[int]:
        """Versions that are here, on all hosts of the engine."""
        found = versions_in(self._weights)
        return found if self._followers is None else [version for version in found if self._newest(version, version)]

    @property
    def _waiting(self) -> dict[str, Any]:
        return {"deadline_seconds": WAIT_SECONDS, "interval_seconds": POLL_SECONDS, "liveness": self._liveness}
