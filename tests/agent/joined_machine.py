"""A stranger's machine for tests: `shoal node join` as a process, whose worker is a script of ours in place of vLLM."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from protocol_stack import RUN, Stack
from servers import ROOT, wait_until
from shoal.contracts.run import AgentStatus

PROGRAM = """
import json, sys
from pathlib import Path
from shoal.cli import node_join
from shoal.errors import InputWrong
given = json.loads(sys.argv[1])
paths = {name: Path(given[name]) for name in ("folder", "ca_file", "key") if given.get(name)}
if given["unchecked"]:
    node_join.check_machine = lambda *_: None
try:
    code = node_join.join(node_join.Wishes(**{**given["wishes"], **paths}), lambda line: print(line, flush=True), given["commands"])
except InputWrong as wrong:
    print("\\n".join(wrong.lines), flush=True)
    code = 2
sys.exit(code)
"""
SLEEPER = [sys.executable, "-c", "import time\nprint('worker begins', flush=True)\nwhile True: time.sleep(0.1)"]


class Machine:
    """One joined machine. Its agent is ended by `stop`."""

    def __init__(self, folder: Path, address: str, worker: list[str] | None = None) -> None:
        self.folder, self.address = folder, address
        self.commands = {"rollouts": {"worker": worker or SLEEPER}}
        self.variables: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self.home = folder / RUN
        folder.mkdir(parents=True, exist_ok=True)

    def join(self, stack: Stack, *, unchecked: bool = False, **wishes: object) -> "Machine":
        """`unchecked`: its owner took out what tells them that the machine lacks something."""
        paths = {name: str(wishes.pop(name)) for name in ("ca_file", "key") if name in wishes}
        asked = {"url": stack.addresses.discovery, "bind": self.address, **wishes}
        given = {
            "wishes": asked,
            "commands": self.commands,
            "folder": str(self.folder),
            "unchecked": unchecked,
            **paths,
        }
        with (self.folder / "said").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, json.dumps(given)],
                env={
                    "PATH": "/usr/bin:/bin",
                    "PYTHONPATH": f"{ROOT / 'workloads'}:{ROOT / 'operator'}",
                    "SECRET_X": "s",
                    **self.variables,
                },
                stdout=said,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
        return self

    def said(self) -> str:
        return (self.folder / "said").read_text()

    def status(self) -> AgentStatus | None:
        path = self.home / "run" / "status.json"
        return AgentStatus.from_json(path.read_bytes()) if path.is_file() else None

    def works(self) -> bool:
        status = self.status()
        return status is not None and status.state == "Healthy" and any(p.state == "running" for p in status.parts)

    def ends(self, seconds: float = 90.0) -> int:
        process = self.process
        assert process is not None
        return wait_until(
            "the agent to end", lambda: (process.poll(),) if process.poll() is not None else None, seconds
        )[0]

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
