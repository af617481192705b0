"""The store answers 503 for minutes, and then slowly for minutes, in the middle of a state's upload and of a resume: the trainer waits and says so.

No step is trained twice, and the process does not end, which would be an attempt. Once with a state of 50 MB and seconds, and once with a state
of 1 GB in 123 parts and minutes.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tiny_run import RUN, Home, Orchestrator, fill_step, kill_all, recipe, write_base

from bad_minutes import BadMinutes, Passed
from proxies import AilingProxy, Slow
from servers import PLAIN, Loopback, Minio, wait_until
from shoal.contracts import keys
from shoal.contracts.storage import S3Storage, StorageSpec
from shoal.contracts.trainer import TrainerSettings
from shoal.storage.store import CHUNK_BYTES, open_s3
from shoal.training.__main__ import PORT
from shoal.training.state_files import BLOCK_BYTES, REQUEST_BLOCKS

STEPS = 3
STATE = "v00000{}/rank-00000.tensors"
NAMES_IT = ("store", "state", "waiting")


@dataclass(frozen=True)
class Story:
    """How large the model is, and how bad it gets. `first`: a line of Python before the trainer's own."""

    model: dict[str, Any]
    bad: BadMinutes
    wait_seconds: float
    first: str = ""
    undisturbed: bool = False


SHORT = Story(
    {"vocab_size": 16384, "hidden_size": 128}, BadMinutes(13.0, Slow(1.0, 64 << 10), 6.0, late_seconds=6.0), 240.0,
    "from shoal.storage import store; from shoal.telemetry import waiting as w; from shoal.training import __main__ as t;"
    " store.WORD_SECONDS = w.SAY_AFTER_SECONDS = w.SAY_EVERY_SECONDS = 3.0; t.SILENT_SECONDS = 15.0", undisturbed=True,
)  # fmt: skip
AT_SIZE = Story(
    {"vocab_size": 42_000, "hidden_size": 1024, "num_hidden_layers": 1},
    BadMinutes(180.0, Slow(5.0, 16 << 10), 60.0), 2400.0,
)  # fmt: skip


def size_of(model: dict[str, Any]) -> int:
    """Bytes of the two matrices that nearly all of a state is of: weights and two moments in float32."""
    return 12 * 2 * int(model["vocab_size"]) * int(model["hidden_size"])


class Ailing:
    """A trainer's pod whose store is a MinIO behind a proxy."""

    def __init__(self, folder: Path, minio: Minio, loopback: Loopback, story: Story) -> None:
        self.story = story
        self.proxy = AilingProxy((loopback.address(), 0), (minio.address, minio.port))
        self.orchestrator = Orchestrator(loopback.address())
        base = write_base(folder / "base", **story.model)
        spec = S3Storage(endpoint=minio.endpoint, bucket=minio.bucket, credentials_secret="store")
        through = spec.model_copy(update={"endpoint": self.proxy.url})
        own = {"recipe": recipe(kl_coefficient=0.0), "trainer": TrainerSettings(state_every=1)}
        (folder / "home").mkdir()
        self._address = loopback.address()
        self.home = Home(
            folder / "home", base, self._address, self.orchestrator.url, STEPS,
            open_s3(spec, f"bad-minutes/{RUN}", minio.access_key, minio.secret_key),
            storage=StorageSpec(s3=through, prefix="bad-minutes"), **own,
        )  # fmt: skip
        secrets = folder / "home" / "secrets" / "store"
        secrets.mkdir()
        (secrets / "accessKey").write_text(minio.access_key)
        (secrets / "secretKey").write_text(minio.secret_key)
        self.plain: Home | None = None
        if story.undisturbed:
            (folder / "plain").mkdir()
            self.plain = Home(folder / "plain", base, loopback.address(), self.orchestrator.url, STEPS, **own)
        self.process = self.home.start(first=story.first)

    def start_again(self) -> None:
        kill_all(self.process)
        self.process = self.home.start(first=self.story.first)

    def bad_minutes(self) -> Passed:
        """From the request on that `refuse_at` has named."""
        wait_until("the middle", lambda: self.proxy.refusing or self.ended(), self.story.wait_seconds)

        def look() -> None:
            assert not self.ended()
            answer = httpx.get(f"http://{self._address}:{PORT}/healthz", **PLAIN, timeout=30.0)
            assert answer.status_code == 200, answer.text

        passed = self.story.bad.pass_by(self.proxy, look)
        silence, lines = passed.longest_silence(self.log(), NAMES_IT), passed.lines_a_second(self.log(), NAMES_IT)
        print(f"refused {passed.refused}, slow {passed.slowed}, silence {silence:.1f} s, lines a second {lines:.2f}")
        assert passed.refused > 0
        assert passed.slowed > 0
        assert silence < self.story.bad.longest_silence
        assert lines < 8 / self.story.bad.word_seconds
        return passed

    def log(self) -> str:
        return self.home.log.read_text()

    def ended(self) -> bool:
        assert self.process.poll() is None, self.log()[-4000:]
        return False

    def close(self) -> None:
        kill_all(self.process)
        self.proxy.close()
        self.orchestrator.close()
        for prefix in ("models/", "trainer/"):
            for info in self.home.store.list(prefix):
                self.home.store.delete(info.key)


@pytest.fixture(
    params=[
        pytest.param(SHORT, id="short"),
        pytest.param(AT_SIZE, id="at size", marks=[pytest.mark.soak, pytest.mark.timeout(7200)]),
    ]
)
def ailing(request: pytest.FixtureRequest, tmp_path: Path, minio_server: Minio, loopback: Loopback) -> Iterator[Ailing]:
    made = Ailing(tmp_path, minio_server, loopback, request.param)
    yield made
    made.close()


def steps_trained(log: str) -> list[int]:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return [line["step"] for line in lines if line.get("event") == "step trained"]


def test_bad_minutes_in_the_middle_of_a_state_s_upload_and_of_a_resume_cost_time_alone(ailing: Ailing) -> None:
    story, home = ailing.story, ailing.home
    size = size_of(story.model)
    ailing.proxy.refuse_at(f"{STATE.format(1)}?partNumber={size // CHUNK_BYTES // 2}")
    for step in range(STEPS - 1):
        fill_step(home.store, step)
    ailing.bad_minutes()
    wait_until("state 2", lambda: not ailing.ended() and home.has_state(2), story.wait_seconds)
    assert home.has_state(1)
    assert steps_trained(ailing.log()) == [0, 1]
    made = home.weights(2)

    ailing.proxy.refuse_at(STATE.format(2), size // (BLOCK_BYTES * REQUEST_BLOCKS) // 2)
    ailing.start_again()
    ailing.bad_minutes()
    fill_step(home.store, STEPS - 1)
    ailing.orchestrator.latest_version = STEPS
    assert ailing.process.wait(timeout=story.wait_seconds) == 0, ailing.log()[-4000:]
    assert "resumed bit for bit" in ailing.log()
    assert steps_trained(ailing.log()) == list(range(STEPS))
    assert home.weights(2) == made
    states = {info.key.split("/")[2] for info in home.store.list(keys.TRAINER_STATE) if info.key.endswith("state.json")}
    assert keys.version_name(STEPS) in states
    if ailing.plain is not None:
        for step in range(STEPS):
            fill_step(ailing.plain.store, step)
        process = ailing.plain.start()
        try:
            assert process.wait(timeout=story.wait_seconds) == 0, ailing.plain.log.read_text()[-4000:]
        finally:
            kill_all(process)
        assert home.weights(STEPS) == ailing.plain.weights(STEPS)
