"""The command line by itself: a wheel of this checkout with the extra `cli` in a fresh environment, in the versions that were tested.

Called by `benchmarks.release` and by a test. Needs a package index; some minute and 300 MB of disk.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from run_documents import RunFolder, step_metrics

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1 << 20


class DoesNotInstall(RuntimeError):
    """The wheel or the environment was not made; the message has pip's last lines."""


def install(scratch: Path) -> tuple[Path, int]:
    """The installed program, and the MiB that its packages take beside those that a fresh environment has. Raises DoesNotInstall."""
    environment, wheels = scratch / "cli", scratch / "wheels"
    _pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "-w", str(wheels), str(ROOT))
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = str(environment / "bin" / "python")
    empty = _bytes(environment)
    tested = re.findall(r"^[A-Za-z0-9._-]+==[^\s\\]+", (ROOT / "requirements" / "dev.lock").read_text(), re.M)
    (scratch / "tested.txt").write_text("\n".join(tested))
    [wheel] = wheels.glob("shoal_rl-*.whl")
    _pip(python, "install", "-c", str(scratch / "tested.txt"), f"{wheel}[cli]")
    return environment / "bin" / "shoal", round((_bytes(environment) - empty) / MEBIBYTE)


def verbs_that_work(program: Path, scratch: Path) -> dict[str, bool]:
    """By verb, whether the installed program does it, from a folder that is no checkout. What needs another extra must say so in one line."""
    run = RunFolder(scratch)
    for step in range(3):
        run.add_step(step_metrics(step))
    manifest, ledger = str(ROOT / "examples" / "one-node" / "trainingrun.yaml"), str(ROOT / "tests/recorded/store/copy")
    asked = {
        "render": (["render", "-f", manifest], 0, "kind: InferencePool"),
        "plan": (["plan", "-f", manifest], 0, "GPU hours"),
        "ledger verify": (["ledger", "verify", ledger], 0, "the ledger is good"),
        "ledger show": (["ledger", "show", ledger, "--totals"], 0, "tokens accepted"),
        "report": (["report", "demo", "--runs-dir", str(scratch)], 0, "report.html"),
        "init": (["init", "--model", "Qwen/Qwen3-1.7B", "--dataset", "openai/gsm8k"], 0, "kind: TrainingRun"),
        "env list": (["env", "list"], 0, "arithmetic"),
        "node code": (["node", "code"], 0, "for spec admission.codes"),
        "eval says what it lacks": (["eval", str(ROOT), "--env", "arithmetic"], 2, "install the extra `data`"),
        "up says what it lacks": (["up", "-f", manifest], 2, "`make setup`"),
    }
    return {name: _does(program, scratch, *wanted) for name, wanted in asked.items()}


def _does(program: Path, folder: Path, arguments: list[str], code: int, words: str) -> bool:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [program, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )
    said = done.stdout + done.stderr
    return done.returncode == code and words in said and (code == 0 or "Traceback" not in said)


def _pip(python: str, *arguments: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "-q", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        raise DoesNotInstall("\n".join((done.stdout + done.stderr).strip().splitlines()[-5:]))


def _bytes(folder: Path) -> int:
    """What the files of an environment take; compiled copies, which appear as programs run, are not counted."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
