"""What examples/serving serves: its own commands on real vLLM, over a promotion and a roll back."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import run_documents
import torch
import yaml
from served_runs import make_run
from tiny_policy import make_policy
from transformers import Qwen3ForCausalLM

from servers import PLAIN, ROOT, Loopback, wait_until
from shoal.cli.serving import fetch
from shoal.contracts import keys
from shoal.report.access import open_run
from shoal.serving import promotion
from shoal.serving.following import CURRENT
from shoal.serving.promotion import TagWish
from vllm_on_cpu import ARGUMENTS, VARIABLES

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

WISH = TagWish("serving", "ann", "a test", 1.0)
PROMPT = [1 + number for number in range(40, 60)]
[DEPLOYMENT, _] = yaml.safe_load_all((ROOT / "examples" / "serving" / "deployment.yaml").read_text())
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]


class Server:
    """The example's container `vllm` as processes of this machine: its command, and its liveness probe."""

    def __init__(self, folder: Path, address: str, port: int) -> None:
        [container] = POD["containers"]
        self.url = f"http://{address}:{port}"
        self._paths = {"/tmp/": f"{folder.parent}/tmp-", "/models": str(folder)}  # the folder may lie in /tmp itself
        self._paths |= {"0.0.0.0": address, "--port 8000": f"--port {port}", "exec python": f"exec {sys.executable}"}
        self._command = self._here(container["command"])
        self._command[2] += f" {ARGUMENTS}"
        self._probe = self._here(container["livenessProbe"]["exec"]["command"])

    def _here(self, command: list[str]) -> list[str]:
        for there, here in self._paths.items():
            command = [word.replace(there, here) for word in command]
        return command

    def alive(self) -> bool:
        """What the kubelet's liveness probe finds."""
        return subprocess.run(self._probe, check=False, timeout=30).returncode == 0

    @contextmanager
    def running(self, log: Path) -> Iterator[None]:
        environment = os.environ | VARIABLES | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
        with log.open("wb") as file:
            process = subprocess.Popen(self._command, stdout=file, stderr=file, env=environment, start_new_session=True)

        def ready() -> bool:
            assert process.poll() is None, log.read_text()[-4000:]
            try:
                return httpx.get(f"{self.url}/health", **PLAIN, timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        try:
            wait_until("vLLM to serve", ready, 500.0, 0.5)
            yield
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)

    def tokens(self) -> list[int]:
        """What it answers to the prompt, without chance."""
        asked = {"model": "arithmetic", "prompt": PROMPT, "max_tokens": 16, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"{self.url}/v1/completions", json=asked | {"return_token_ids": True}, **PLAIN, timeout=120)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])


@torch.inference_mode()
def expected(model: Qwen3ForCausalLM) -> list[int]:
    tokens = list(PROMPT)
    for _ in range(16):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


def test_vllm_serves_the_promoted_version_and_after_a_roll_back_the_other(
    tmp_path: Path, loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_documents, "SHARD_BYTES", 1 << 20)
    run = make_run(tmp_path / "runs")
    answers: dict[int, list[int]] = {}
    for version in (1, 2):
        place = tmp_path / f"policy-{version}"
        answers[version] = expected(make_policy(place, version))
        run.add_version(version, {path.name: path.read_bytes() for path in sorted(place.iterdir())})
    assert answers[1] != answers[2]
    access, folder = open_run(run.path), tmp_path / "models"
    address = loopback.address()
    server = Server(folder, address, loopback.port(address))

    def follow_once() -> None:
        fetch("demo", folder=folder, runs_dir=run.path.parent)

    for version in (1, 2):
        promotion.promote(access, version, "hand", WISH, print)
    follow_once()
    with server.running(tmp_path / "first.log"):
        assert server.tokens() == answers[2]
        assert server.alive()
        promotion.roll_back(access, None, WISH, print)
        follow_once()
        assert os.readlink(folder / CURRENT) == keys.version_name(1)
        assert server.tokens() == answers[2], "it serves the old one until it is started again"
        assert not server.alive(), "the kubelet starts it again"
    with server.running(tmp_path / "second.log"):
        assert server.tokens() == answers[1]
        assert server.alive()
