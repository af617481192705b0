"""The validator's loop: claim a file, download it, judge it, sign the verdict, post it; then again.

In: claims from the orchestrator, files from the store. Out: signed verdicts. Started by `__main__`. Stateless: a
claim whose validator died is given to another one after `claim_seconds`, while one that judges keeps its own (`claims`);
a verdict that the orchestrator refuses is dropped.
"""

import secrets
import time
from pathlib import Path

from shoal.contracts import keys
from shoal.contracts.protocol import ClaimRequest, ValidationJob
from shoal.contracts.run import RunConfig, mounted_roster
from shoal.contracts.signed import Signed, sign
from shoal.contracts.verdicts import ValidatorCard, Verdict
from shoal.crypto.keys import PrivateKey
from shoal.files import file_sha256
from shoal.storage.store import NotFound, Store, StoreUnavailable
from shoal.telemetry import STOP, Liveness, busy, get_logger
from shoal.transport.client import Refused, SignedClient, Unavailable
from shoal.transport.keys_watch import KeysWatch
from shoal.validation import metrics
from shoal.validation.claims import ClaimLostError, KeptClaim
from shoal.validation.facts import Facts, Finding
from shoal.validation.group import LeadingModels
from shoal.validation.judge import PolicySource, judge, time_of, verdict
from shoal.validation.memory import weights_bytes
from shoal.validation.models import Models, best_device
from shoal.validation.policies import Policies
from shoal.validation.setup import read_facts
from shoal.validation.stopwatch import Stopwatch

POLL_SECONDS = 3
"""How long the orchestrator may hold an empty claim open; a stop waits for it."""
CLAIM_DEADLINE_SECONDS = 30.0
VERDICT_DEADLINE_SECONDS = 120.0
"""The orchestrator may be restarting; a judgement is worth waiting for it."""
PAUSE_SECONDS = 1.0


TURN_SECONDS = 300.0
"""Longest that files of the versions in memory go before files that wait longer. A change of version takes a minute or two at 65 GB."""


class Turn:
    """Whose files come first: for a while those of the versions that are held, then whichever waits longest until that changes what is held."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._ends = 0.0

    def versions(self, held: list[int], now: float) -> list[int]:
        """What to ask for, where memory holds only `held`; none means whichever file waits longest. `now` is in seconds."""
        if held != self._held:
            self._held, self._ends = held, now + TURN_SECONDS
        return held if now < self._ends else []


class ValidatorProcess:
    """One validator process."""

    def __init__(
        self,
        config: RunConfig,
        key: PrivateKey,
        store: Store,
        scratch: Path,
        pod: str,
        liveness: Liveness,
        processes: int = 1,
    ) -> None:
        """`scratch` is a folder for downloads and assembled weights; it may be empty at every start. `processes` hold each version together."""
        self._config = config
        self._key = key
        self._store = store
        self._scratch = scratch
        self._pod = pod
        self._liveness = liveness
        self._keys = config.trust
        self._own_key = PrivateKey.generate()
        card = ValidatorCard(run=config.run, validator=pod, key=self._own_key.public, unix=time.time())
        self._card = sign(card, key)
        self._orchestrator = SignedClient(config.addresses.orchestrator, key)
        self._facts: Facts | None = None
        self._models = (LeadingModels if processes > 1 else Models)(liveness.progress, processes)
        self._turn = Turn()

    @property
    def not_ready(self) -> str | None:
        """Why no file can be judged yet, or None."""
        return None if self._facts is not None else "waiting for prepared.json and the base checkpoint"

    def run(self) -> None:
        """Judge files until the process is asked to stop; the file in hand is finished first."""
        KeysWatch(self._keys, self._config.addresses.orchestrator, mounted=mounted_roster).start(wait=True)
        self._scratch.mkdir(parents=True, exist_ok=True)
        for left in self._scratch.glob("*.parquet"):  # of a process before this one, whose claims run out by themselves
            left.unlink()
        facts = self._facts = read_facts(self._config, self._store, self._scratch, self._liveness)
        policies = Policies(
            self._store,
            self._scratch / "policies",
            self._config.run,
            self._keys.of("trainer"),
            # The versions that one step accepts, and one that is scored.
            capacity=self._config.async_level + (1 if self._config.evaluation is None else 2),
            memory_bytes=weights_bytes(
                self._config.validation.weights_memory_bytes, best_device(), self._models.processes
            ),
            models=self._models,
            beat=self._liveness.progress,
            quantization=self._config.quantization,
        )
        while not STOP.is_set():
            self._liveness.progress()
            job = self._claim(self._turn.versions(policies.preferred, time.monotonic()))
            found = self._judge(job, facts, policies) if job is not None else None
            if found is not None:
                self._post(found)

    def end(self) -> None:
        """Let the other processes end."""
        self._models.end()

    def _claim(self, versions: list[int]) -> ValidationJob | None:
        try:
            return self._orchestrator.call(
                "POST",
                f"/v1/claims?wait_seconds={POLL_SECONDS}",
                ClaimRequest(validator=self._pod, versions=versions),
                ValidationJob,
                deadline_seconds=CLAIM_DEADLINE_SECONDS,
                timeout_seconds=CLAIM_DEADLINE_SECONDS,
            )
        except (Unavailable, Refused) as error:
            get_logger().warning("no claim", reason=str(error))
            STOP.wait(PAUSE_SECONDS)
            return None

    def _judge(self, job: ValidationJob, facts: Facts, policies: PolicySource) -> Verdict | None:
        """The verdict on a file; None where nobody waits for it any more."""
        programs = time_of(job, facts)
        seconds = self._config.validation.claim_seconds
        claim = KeptClaim(self._orchestrator, job, self._pod, seconds, self._liveness, programs)
        path = self._scratch / f"{job.claim}.parquet"
        started = time.monotonic()
        with claim:
            try:
                problem = self._download(job, path)
                if problem is not None:
                    return verdict(job, None, Finding("inconclusive", None, problem), [], 0, Stopwatch(), self._pod)
                return judge(path, job, facts, policies, secrets.SystemRandom(), self._pod, claim.progress, programs)
            except ClaimLostError as lost:
                get_logger().info("check given up", node=job.node[:12], step=job.step, reason=str(lost))
                return None
            finally:
                metrics.CHECK_SECONDS.observe(time.monotonic() - started, exemplar={"step": str(job.step)})
                path.unlink(missing_ok=True)

    def _download(self, job: ValidationJob, path: Path) -> str | None:
        """Fetch the file and compare its digest; gives what went wrong, which is never the node's fault."""
        try:
            with busy("download"):
                self._store.get_to_file(keys.upload(job.node, job.sha256), path)
        except (NotFound, StoreUnavailable) as error:
            return str(error)
        found = file_sha256(path)
        return None if found == job.sha256 else f"the store's bytes have SHA-256 {found}, but the job's is {job.sha256}"

    def _signed(self, found: Verdict) -> Signed[Verdict]:
        """With this validator's own key, so that its vote is no other's; in a run of 0.2.0 with the key that all validators share."""
        if not self._keys.roster.own_validator_keys:
            return sign(found, self._key)
        return sign(found.model_copy(update={"card": self._card}), self._own_key)

    def _post(self, found: Verdict) -> None:
        metrics.VERDICTS.labels(found.outcome, found.reason or "").inc()
        metrics.PROOF_ROWS.inc(found.proof_rows)
        if found.outcome == "accept":
            metrics.ROWS.inc(found.rows)
        log = get_logger().bind(
            node=found.node[:12], step=found.step, submission=found.submission, outcome=found.outcome
        )
        try:
            self._orchestrator.call(
                "POST", "/v1/verdicts", self._signed(found), deadline_seconds=VERDICT_DEADLINE_SECONDS
            )
        except (Unavailable, Refused) as error:
            log.warning("verdict not taken", reason=str(error))
            return
        log.info("verdict", reason=found.reason, evidence=found.evidence[:500], seconds=round(found.check_seconds, 3))
