"""Record a small run's store, once: `PYTHONPATH=tests:tests/orchestrator/evaluation:workloads python tests/recorded/record_store.py`.

The orchestrator's own code runs over a real Redis and a folder store. Nodes and validators are played, as in `tests/orchestrator`: two honest nodes
train three steps, and answer a benchmark on versions 0 and 2 and on the last version. A third node is found out by two validators.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

from recorded_ledger import COMMANDS, RECORDED, told
from test_evaluation_work import answer, asked, open_numbers, scored_run, train_file, train_step

from protocol_stack import RUN, verdict_on
from run_states import Orchestrator
from servers import Loopback, redis
from shoal.contracts import keys
from shoal.ledger.checkpoints import Checkpoints
from shoal.orchestrator import progress
from shoal.orchestrator.completeness import complete
from shoal.orchestrator.evaluation import evaluations


def play(run: Orchestrator) -> None:
    """The whole run, from the first node to the last version's score."""
    checkpoints = Checkpoints(run.state.ledger, run.config.roster)
    first, second, cheat = run.join(), run.join(), run.join()
    run.announce(0)
    run.hand_in(cheat)
    for name in ("validator-0", "validator-1"):
        finding = verdict_on(run.claimed(name), "reject", "computation", evidence=f"row 0, chunk 2, seen by {name}")
        run.judge(finding.model_copy(update={"validator": name}))
    train_file(run, second, 0)
    for step in range(3):
        run.clock.now += 30.0
        for node in (first, second):
            run.beat(node)
        train_step(run, first, step)
        for number in open_numbers(run):
            if asked(run, first, *range(step + 2)).step == number:
                answer(run, first, number, reward=0.5)
        evaluations.fold(run.state)
        checkpoints.write_due(run.clock(), complete=complete(run.state))
    for number in open_numbers(run):
        answer(run, second, number)
    evaluations.fold(run.state)
    checkpoints.write_due(run.clock(), complete=True)
    if not progress.run_progress(run.state).complete:
        raise RuntimeError(f"the run is not complete: {progress.run_progress(run.state).waiting_for}")


def main() -> None:
    """Play the run and keep its store, its configuration and what `shoal ledger` says."""
    if RECORDED.exists():
        raise SystemExit(f"{RECORDED} is there; what is recorded is never written again")
    loopback = Loopback()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        server = redis(loopback.address(), folder)
        server.start()
        try:
            run = scored_run(folder, server.url)
            play(run)
        finally:
            server.stop()
            loopback.close()
        RECORDED.mkdir()
        shutil.copytree(folder / "store" / "shoal" / RUN, RECORDED / "copy")
        (RECORDED / "run.json").write_bytes(run.config.to_json())
        for kind in (keys.VERDICTS, keys.OPINIONS, keys.EVALUATIONS, keys.CHECKPOINTS):
            if not list((RECORDED / "copy" / kind).rglob("*.json")):
                raise RuntimeError(f"nothing lies under {kind}")
    with contextlib.chdir(RECORDED):
        for name, arguments in COMMANDS.items():
            code, out, err = told(*arguments)
            if code:
                raise RuntimeError(err)
            Path(f"{name}.txt").write_text(out)


if __name__ == "__main__":
    main()
