"""One validator process: signed claims and verdicts over HTTP, files and weights from a folder store."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import tiny_policy
from court import CALIBRATED, JOB, Court
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from forked_python import VALIDATOR, ForkedProcess, start_python
from servers import PLAIN, STARTED_WITH, structured_lines
from shoal.contracts import keys
from shoal.contracts.model_source import GeneratedModel, ModelSource
from shoal.contracts.protocol import ClaimRequest, ValidationJob
from shoal.contracts.recipe import Recipe
from shoal.contracts.rollouts import RolloutMetadata, write_rollouts
from shoal.contracts.roster import ROLES, Roster
from shoal.contracts.run import Addresses, Prepared, RunConfig
from shoal.contracts.signed import Signed, sign
from shoal.contracts.storage import StorageSpec
from shoal.contracts.task_source import TaskSource
from shoal.contracts.task_table import write_tasks
from shoal.contracts.tasks import tasks_digest
from shoal.contracts.validation import Validation
from shoal.contracts.verdicts import Verdict
from shoal.contracts.weights import CheckpointFile, ShardDescriptor, VersionOpen, WeightsManifest
from shoal.crypto.canonical import document_digest
from shoal.crypto.http_signatures import verify_request
from shoal.crypto.keys import PrivateKey
from shoal.storage.store import Store, open_folder

ADDRESS = "127.13.0.6"
METRICS_PORT = 9106
RUN_KEY = PrivateKey.generate()
ROLE_KEYS = {role: PrivateKey.generate() for role in ROLES}
VERSION = 3
Deadline = Callable[..., object]


class Orchestrator:
    """Gives out `jobs` one by one and keeps the verdicts; both only to a request signed by the validator's key."""

    def __init__(self) -> None:
        self.jobs: list[ValidationJob] = []
        self.verdicts: list[Verdict] = []
        self.after_claim: Callable[[], None] | None = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                return

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                signed = verify_request(
                    method="POST",
                    url=outer.url + self.path,
                    headers=dict(self.headers),
                    body=body,
                    now_unix=time.time(),
                )
                assert signed.key == ROLE_KEYS["validator"].public
                if self.path == "/v1/verdicts":
                    outer.verdicts.append(Signed[Verdict].from_json(body).verified(signed.key))
                    self._answer(204, b"")
                elif self.path.startswith("/v1/claims?wait_seconds="):
                    assert ClaimRequest.from_json(body).validator == "tiny-validator-0"
                    time.sleep(0 if outer.jobs else 0.2)
                    if not outer.jobs:
                        return self._answer(204, b"")
                    self._answer(200, outer.jobs.pop(0).to_json())
                    if outer.after_claim is not None:
                        outer.after_claim()

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer((ADDRESS, 0), Handler)
        self.url = f"http://{ADDRESS}:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def run_config(orchestrator: str) -> RunConfig:
    public = tiny_policy.PUBLIC
    unused = "http://127.13.0.6:1"
    return RunConfig(
        run="tiny",
        steps=10,
        async_level=2,
        model_id="tiny-model",
        model=ModelSource(generated=GeneratedModel()),
        tasks=TaskSource(environment="arithmetic"),
        recipe=Recipe(group_size=public.group_size, max_sequence_length=public.max_sequence_length),
        sampling=public.sampling,
        length_reward=public.length_reward,
        validation=Validation(proof_rows_share=0.5, proof_rows_floor=8, thresholds=CALIBRATED),
        storage=StorageSpec(),
        addresses=Addresses(
            discovery=unused, orchestrator=orchestrator, origin=unused, relays=[], redis="redis://127.13.0.6:1/0"
        ),
        roster=sign(Roster(run="tiny", keys={role: key.public for role, key in ROLE_KEYS.items()}), RUN_KEY),
        run_key=RUN_KEY.public,
    )


def publish(store: Store, folder: Path, version: int) -> str:
    """Publish a checkpoint folder as a version of two shards, as the trainer's publisher does; returns its digest."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    stream = b"".join(path.read_bytes() for path in files)
    size = len(stream) // 2 + 1
    trainer = ROLE_KEYS["trainer"]
    record = VersionOpen(
        run="tiny",
        version=version,
        files=[CheckpointFile(name=path.name, size=path.stat().st_size) for path in files],
        shard_size=size,
        shard_count=2,
    )
    digests = []
    for index in range(2):
        shard = stream[index * size : (index + 1) * size]
        digests.append(hashlib.sha256(shard).hexdigest())
        descriptor = ShardDescriptor(run="tiny", version=version, index=index, size=len(shard), sha256=digests[-1])
        store.put(keys.version_descriptor(version, index), sign(descriptor, trainer).to_json())
        store.put(keys.version_shard(version, index), shard)
    manifest = WeightsManifest(
        run="tiny",
        version=version,
        model="tiny-model",
        sha256=hashlib.sha256(stream).hexdigest(),
        open_digest=document_digest(record),
        shards=digests,
    )
    store.put(keys.version_open(version), sign(record, trainer).to_json())
    store.put(keys.version_weights(version), sign(manifest, trainer).to_json())
    return manifest.sha256


class Validating:
    """The process, its orchestrator and its store."""

    def __init__(
        self, home: Path, court: Court, *, torchrun: Sequence[str] = (), memory_bytes: int | None = None
    ) -> None:
        self.home = home
        self.court = court
        self.torchrun = torchrun
        self.orchestrator = Orchestrator()
        for name in ("config", "secrets", "store", "tmp"):
            (home / name).mkdir()
        config = run_config(self.orchestrator.url)
        validation = config.validation.model_copy(update={"weights_memory_bytes": memory_bytes})
        (home / "config" / "run.json").write_bytes(config.model_copy(update={"validation": validation}).to_json())
        (home / "secrets" / "role.pem").write_bytes(ROLE_KEYS["validator"].to_pem())
        self.store = open_folder(home / "store", "shoal/tiny")
        self.log = (home / "log").open("w+")
        self.process = self.started()

    def started(self) -> ForkedProcess:
        return start_python(
            [*self.torchrun, "-m", "shoal.validation"],
            VALIDATOR,
            env=STARTED_WITH | {"SHOAL_HOME": str(self.home), "SHOAL_BIND": ADDRESS, "SHOAL_POD": "tiny-validator-0"},
            stdout=self.log.fileno(),
        )

    def prepare(self) -> None:
        """What prepare and the trainer would have put into the store."""
        folder = self.court.made.folder["old"]
        for path in folder.iterdir():
            self.store.put(keys.BASE_MODEL + path.name, path.read_bytes())
        digest = tasks_digest(tiny_policy.TASKS)
        self.store.put(keys.task_table(digest), write_tasks(tiny_policy.TASKS))
        self.weights_digest = publish(self.store, folder, VERSION)
        prepared = Prepared(
            run="tiny",
            model_id="tiny-model",
            environment="arithmetic",
            environment_digest=tiny_policy.PUBLIC.environment_digest,
            tasks_digest=digest,
            task_count=len(tiny_policy.TASKS),
        )
        self.store.put(keys.PREPARED, prepared.to_json())

    def honest_bytes(self, version: int = VERSION) -> bytes:
        metadata = RolloutMetadata("tiny-model", self.weights_digest, tiny_policy.PUBLIC.environment_digest, "0.1.0")
        return write_rollouts(self.court.rows(self.court.made.old, version), metadata)

    def verdict_on(
        self, data: bytes | None, deadline: Deadline, sha256: str | None = None, job: ValidationJob = JOB
    ) -> Verdict:
        """Store a file (unless None), give out its job, wait for the verdict."""
        digest = sha256 or hashlib.sha256(data or b"lost").hexdigest()
        if data is not None:
            self.store.put(keys.upload(JOB.node, digest), data)
        before = len(self.orchestrator.verdicts)
        self.orchestrator.jobs.append(job.model_copy(update={"sha256": digest, "size": len(data or b"x")}))
        deadline("a verdict", lambda: len(self.orchestrator.verdicts) > before, seconds=240)  # torch is loaded first
        found = self.orchestrator.verdicts[-1]
        assert found.sha256 == digest
        return found


@pytest.fixture(scope="module")
def validating(court: Court, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Validating]:
    running = Validating(tmp_path_factory.mktemp("validator"), court)
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()
    running.orchestrator.close()


# The tests of this file tell one story, in order, of one process.


def test_an_honest_file_is_accepted_after_prepare_has_finished(validating: Validating, deadline: Deadline) -> None:
    validating.prepare()
    verdict = validating.verdict_on(validating.honest_bytes(), deadline)
    assert (verdict.outcome, verdict.evidence) == ("accept", "")
    assert (verdict.rows, len(verdict.rewards), verdict.proof_rows) == (24, 24, 12)
    assert verdict.validator == "tiny-validator-0"
    assert {"parse", "reward", "load", "prefill", "computation", "redraw"} <= set(verdict.seconds_by_check)
    assert sum(verdict.seconds_by_check.values()) <= verdict.check_seconds


def test_the_time_of_a_check_names_its_step(validating: Validating) -> None:
    accepts = {"Accept": "application/openmetrics-text; version=1.0.0"}
    told = httpx.get(f"http://{ADDRESS}:{METRICS_PORT}/metrics", headers=accepts, **PLAIN, timeout=30).text
    exemplars = [
        sample.exemplar.labels
        for family in text_string_to_metric_families(told)
        for sample in family.samples
        if sample.name == "shoal_validator_check_seconds_bucket" and sample.exemplar
    ]
    assert exemplars == [{"step": str(JOB.step)}]


def test_a_file_that_is_no_parquet_is_rejected_by_format(validating: Validating, deadline: Deadline) -> None:
    verdict = validating.verdict_on(b"not parquet at all", deadline)
    assert (verdict.outcome, verdict.reason) == ("reject", "format")


def test_a_file_that_the_store_lost_or_changed_is_inconclusive(validating: Validating, deadline: Deadline) -> None:
    lost = validating.verdict_on(None, deadline)
    assert (lost.outcome, lost.reason) == ("inconclusive", None)
    assert "no object 'uploads/" in lost.evidence
    changed = validating.verdict_on(b"other bytes", deadline, sha256="12" * 32)
    assert changed.outcome == "inconclusive"
    assert "the store's bytes have SHA-256" in changed.evidence


def test_a_version_that_is_not_sealed_is_inconclusive(validating: Validating, deadline: Deadline) -> None:
    verdict = validating.verdict_on(validating.honest_bytes(version=4), deadline)
    assert (verdict.outcome, verdict.reason) == ("inconclusive", None)
    assert "v000004/weights.json" in verdict.evidence


def test_after_kill_9_in_the_middle_of_a_check_the_same_file_is_judged_by_the_next_process(
    validating: Validating, deadline: Deadline
) -> None:
    data = validating.honest_bytes()
    job = JOB.model_copy(update={"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)})
    before = len(validating.orchestrator.verdicts)
    validating.orchestrator.after_claim = validating.process.kill
    validating.orchestrator.jobs.append(job)
    validating.process.wait(timeout=60)
    validating.orchestrator.after_claim = None
    assert len(validating.orchestrator.verdicts) == before
    (validating.home / "tmp" / "validation" / f"{job.claim}.parquet").write_bytes(data[:100])  # had it come so far
    validating.process = validating.started()
    verdict = validating.verdict_on(data, deadline)
    assert (verdict.outcome, verdict.evidence) == ("accept", "")


def test_nothing_is_left_on_disk_but_the_weights(validating: Validating) -> None:
    left = {path.name for path in (validating.home / "tmp" / "validation").iterdir()}
    assert left == {"base", "policies"}


def test_on_sigterm_the_file_in_hand_has_its_verdict_and_it_exits_with_0(
    validating: Validating, deadline: Deadline
) -> None:
    validating.orchestrator.after_claim = validating.process.terminate
    verdict = validating.verdict_on(validating.honest_bytes(), deadline)
    assert (verdict.outcome, verdict.evidence) == ("accept", "")
    assert validating.process.wait(timeout=60) == 0
    validating.log.seek(0)
    structured_lines(validating.log.read(), role="validator", pod="tiny-validator-0")  # torch's and transformers' too
