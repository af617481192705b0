"""The pages of nodes are followed word by word, on a real discovery and orchestrator: the owner's (lend a GPU) and the admin's (nodes).

What is not here: docker, root's systemd, GPUs, HTTPS, a run of minutes. The join that these begin is run in their place, with a sleeping program
for an engine; tests/open_pool/test_strangers.py joins a whole run over HTTPS with the real one.
"""

import contextlib
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import certifi
import pytest
from joined_machine import SLEEPER, Machine
from page_reader import Instead, PageReader

from protocol_stack import ADMIN_TOKEN, RUN, Stack, ledger
from servers import ROOT, Loopback, wait_until
from shoal.cli.node_status import ask_agent
from shoal.contracts.pools import PoolTerms
from shoal.contracts.run import AgentStatus
from stack_fixtures import new_stack

__all__ = ["new_stack"]

SHOAL = """#!{python}
import dataclasses, sys
from shoal.cli import node_join
from shoal.cli.main import main
join = node_join.join
node_join.join = lambda wishes, say: join(dataclasses.replace(wishes, bind={bind!r}, page=0), say, {commands!r})
sys.exit(main())
"""
"""`shoal` with an address of the test's own and a program that sleeps for a worker."""
TOKEN_OF_THE_DEMO = "runs/open-pool/pods/open-pool-orchestrator-0/secrets/admin_token"


class LentMachine:
    """A machine of an owner who follows the page: one node at a time, as the page's ways to join exclude each other."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.shoal = folder / "shoal"
        text = SHOAL.format(python=sys.executable, bind=address, commands={"rollouts": {"worker": SLEEPER}})
        self.shoal.write_text(text)
        self.shoal.chmod(0o755)
        self.process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        self.ends: list[int] = []

    def home(self, words: list[str]) -> Path:
        place = words[words.index("--folder") + 1] if "--folder" in words else ".local/share/shoal/node"
        return self.folder / place / RUN

    def join(self, line: str) -> str:
        """`... shoal node join ...`, begun in the background; returns when the node is a member."""
        self.stop()
        words = shlex.split(line)
        words = words[[Path(word).name for word in words].index("shoal") + 1 :]
        assert words[:2] == ["node", "join"]
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [self.shoal, *words], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )  # fmt: skip
        found = wait_until(f"{line} to make a member", lambda: self._member(self.home(words)), 120)
        return found.node

    def _member(self, home: Path) -> AgentStatus | None:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "said").read_text()
        with contextlib.suppress(OSError):
            status = ask_agent(home)
            return status if status is not None and status.state == "Healthy" else None
        return None

    def stop(self) -> None:
        """As `docker stop` and systemd do."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        if self.process is not None:
            self.ends.append(self.process.wait(60))
        self.process = None

    def install_unit(self, line: str) -> str:
        (self.folder / "system").mkdir()
        source, _ = shlex.split(line)[2:]
        return shutil.copy(self.folder / source, self.folder / "system")

    def enable(self, line: str) -> str:
        """What systemd would start."""
        unit = (self.folder / "system" / f"{shlex.split(line)[-1]}.service").read_text()
        [command] = [each.removeprefix("ExecStart=") for each in unit.splitlines() if each.startswith("ExecStart=")]
        return self.join(command)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder whose name leaves room for the page's folders and a socket in them."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def lent(tmp_path: Path, loopback: Loopback) -> Iterator[LentMachine]:
    machine = LentMachine(tmp_path, loopback.address())
    yield machine
    machine.stop()


@pytest.mark.timeout(900)
def test_an_owner_lends_a_machine_by_the_page(
    new_stack: Callable[..., Stack], lent: LentMachine, tmp_path: Path
) -> None:
    stack = new_stack(pools=[PoolTerms(name="gpus", open=True)])
    stack.announce(0)
    for name in ("examples", ".venv"):
        (tmp_path / name).symlink_to(ROOT / name if name != ".venv" else sys.prefix)
    (tmp_path / "copy").symlink_to(stack.folder / "store" / "shoal" / RUN)
    shutil.copy(certifi.where(), tmp_path / "authority.pem")
    token = tmp_path / TOKEN_OF_THE_DEMO
    token.parent.mkdir(parents=True)
    token.write_text(ADMIN_TOKEN)
    reader = PageReader(
        tmp_path,
        tmp_path,
        words={
            "https://discovery.example.org": stack.addresses.discovery,
            "http://127.64.0.2:8081": stack.addresses.discovery,
            "http://127.64.0.3:8080": stack.addresses.orchestrator,
            "1f2e...": stack.config.run_key,
            "strangers": "gpus",
            "shoal ledger show open-pool": "shoal ledger show ./copy",
        },
        instead=[
            Instead("docker run", "no docker, no GPU: the image's command joins", lent.join),
            Instead("shoal node join", "goes on until it is stopped: begun beside the reader", lent.join),
            Instead("sudo cp", "root's folder: one of the test's", lent.install_unit),
            Instead("sudo systemctl", "no systemd as the first process: what the unit starts is started", lent.enable),
            Instead(
                "shoal up", "a run of minutes: rendered", lambda line: reader.run(line.replace("shoal up", "shoal render"))
            ),
        ],
    )  # fmt: skip
    lent.environment = reader.settings()
    code = reader.run("shoal node code").splitlines()[0].rpartition(" ")[2]
    (tmp_path / "code").write_text(code)
    said = reader.follow("docs/journeys/lend-a-gpu.md")
    lent.stop()

    assert set(lent.ends) == {0}
    joined = [line for line in said if "node join" in line and "unit" not in line]
    assert len(joined) == 4
    assert len({said[line] for line in joined[:3]}) == 1, "one key for all ways to join from one folder"
    assert "Healthy" in said["shoal node status"]
    assert said["shoal node pause"].splitlines()[-1].startswith("paused:")
    assert "drained:" in said["shoal node drain"]
    assert f"left run {RUN}" in said["shoal node leave"]
    assert "the ledger is good" in said["shoal node earned ./copy"]
    assert "Healthy" in said["shoal node status --folder stranger"]
    [listed] = [said[line] for line in said if line.startswith("shoal node list")]
    assert said[joined[3]][:12] in listed


@pytest.mark.timeout(600)
def test_an_admin_looks_after_nodes_by_the_page(
    new_stack: Callable[..., Stack], loopback: Loopback, tmp_path: Path
) -> None:
    stack = new_stack()
    stack.announce(0)
    machine = Machine(tmp_path / "machine", loopback.address()).join(stack)
    try:
        wait_until("the machine to work", machine.works, 120)
        status = machine.status()
        assert status is not None
        node = status.node

        def take_token(_: str) -> str:
            (tmp_path / "token").write_text(ADMIN_TOKEN)
            return ""

        reader = PageReader(
            tmp_path,
            tmp_path,
            words={"https://orchestrator.example.org": stack.addresses.orchestrator, "9c31": node[:8], "KEY": node},
            instead=[Instead("kubectl", "no cluster: test_followed_install.py reads the token of one", take_token)],
        )
        said = reader.follow("docs/nodes.md")
    finally:
        machine.stop()
    assert node[:12] in said["shoal node list --state Healthy"]
    assert "worker begins" in said["shoal node logs 9c31"]
    kinds = {entry.kind: entry.detail for entry in ledger(stack.store)}
    assert kinds["node-banned"] == "ten keys on one machine"
    assert kinds["node-unbanned"] == "another machine"
