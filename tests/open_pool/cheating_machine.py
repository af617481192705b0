"""A dishonest stranger: `shoal node join` itself, with a worker of its own making in place of the engine. Run as a program.

The agent is the real one. The worker asks it for a lease like any other and hands in a file that another machine made, as its own. A third program,
`watch`, which the agent does not know and cannot end, goes on reading from the relays with the newest token that the machine ever had, and writes
down when each of them refused it.

    cheating_machine.py join URL FOLDER CA_FILE | work | watch
"""

import json
import os
import ssl
import sys
import time
from pathlib import Path

import httpx

from shoal.contracts.protocol import Lease, LeaseRequest, LocalSubmission, StepInfo, SubmissionReceipt
from shoal.contracts.run import AgentState, home
from shoal.transport import Refused, SignedClient, Unavailable

STOLEN = "stolen.parquet"
HANDED_IN, REPORT = "handed-in.json", "cheat.json"
POLL_SECONDS = 0.25


def work() -> None:
    """The worker's part: wait for the stolen file and hand it in."""
    agent = SignedClient("http://agent", unix_socket=home() / "run" / "agent.sock")
    stolen = home() / "tmp" / STOLEN
    while not stolen.is_file():
        time.sleep(POLL_SECONDS)
    lease = None
    while lease is None:
        try:
            step = agent.call("GET", "/v1/step", reply=StepInfo)
            if step is not None:
                state = agent.call("GET", "/v1/state", reply=AgentState)
                assert state is not None
                lease = agent.call("POST", "/v1/leases", LeaseRequest(node=state.node, step=step.step), Lease)
        except (Refused, Unavailable) as error:
            print(f"no lease yet: {error}", flush=True)
        time.sleep(POLL_SECONDS)
    groups = int((home() / "tmp" / "groups").read_text())
    handed_in = time.time()
    submission = LocalSubmission(lease=lease.lease, file=STOLEN, groups=groups)
    agent.call("POST", "/v1/submissions", submission, SubmissionReceipt, deadline_seconds=120, timeout_seconds=120)
    write(HANDED_IN, {"unix": handed_in})


def watch() -> None:
    """Read from every relay, each time with the newest token that this machine ever had, until all have refused it after the deed."""
    agent = SignedClient("http://agent", unix_socket=home() / "run" / "agent.sock")
    token, relays = None, []
    refused: dict[str, dict[str, object]] = {}
    served, deed = 0, home() / "tmp" / HANDED_IN
    authority = ssl.create_default_context(cafile=str(home() / "config" / "relay-ca.pem"))
    with httpx.Client(verify=authority, trust_env=False, timeout=10) as http:
        while not relays or len(refused) < len(relays):
            now = agent.call("GET", "/v1/state", reply=AgentState)
            if now is not None and now.relay_token is not None:
                token, relays = now.relay_token, list(now.relays)
            for relay in relays:
                if relay in refused:
                    continue
                answer = http.get(f"{relay}/versions/index.json", headers={"Authorization": f"Bearer {token}"})
                served += answer.status_code == 200
                if answer.status_code in (401, 403) and deed.is_file():
                    refused[relay] = {"status": answer.status_code, "unix": time.time()}
            time.sleep(POLL_SECONDS)
    write(REPORT, {"handed_in_unix": json.loads(deed.read_text())["unix"], "served": served, "refused": refused})


def write(name: str, document: dict[str, object]) -> None:
    """A file that appears whole."""
    partial = home() / "tmp" / f"{name}.partial"
    partial.write_text(json.dumps(document))
    partial.replace(home() / "tmp" / name)


def main() -> None:
    if sys.argv[1] in ("work", "watch"):
        work() if sys.argv[1] == "work" else watch()
        return
    from shoal.cli.node_join import Wishes, join

    _, _, url, folder, authority = sys.argv
    me = [sys.executable, os.path.abspath(__file__), "work"]
    fetch = [sys.executable, "-m", "shoal.broadcast.fetch"]
    wishes = Wishes(url, Path(folder), ca_file=Path(authority))
    sys.exit(join(wishes, lambda text: print(text, flush=True), {"rollouts": {"fetch": fetch, "worker": me}}))


if __name__ == "__main__":
    main()
