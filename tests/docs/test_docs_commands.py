"""Every command of the documentation is one that its program takes: verbs and options of `shoal`, targets of make, values of the chart, files.

Blocks that are marked `<!-- run -->` are run, in a folder of their own; those marked `<!-- run: soak -->` by `make soak`, beside a finished demo;
cells of the demo's notebook by `make soak` too (`test_demo_notebook.py`). Why other commands of `shoal` are not run is in `NOT_RUN`.
"""

import importlib.util
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from demo_notebook import notebook_blocks
from doc_pages import Block, as_path, commands, page_names, shell_blocks, text_of
from tools.docs.cli import program

from helm import render as objects_of_chart
from helm import run_helm
from servers import ROOT

BLOCKS = shell_blocks() + notebook_blocks()
RESOURCES = {
    "trun", "ipool", "relay", "val", "trainingrun", "trainingruns", "inferencepools", "relayservers", "validators",
    "nodes", "pods", "secret", "namespace", "configmap", "crd", "storageclass", "deployment", "job", "jobs", "events", "pvc",
}  # fmt: skip
KUBECTL_VERBS = {
    "apply", "get", "describe", "create", "delete", "scale", "patch", "logs", "rollout", "label", "annotate",
    "port-forward", "exec", "cordon", "drain", "top",
}  # fmt: skip
OTHERS = {
    "kind": "of kind's own documentation; no such machine here",
    "pip": "installs a package that tests/cli/test_env.py makes",
    "docker": "images/README.md: the same build as `make images`; what `docker run` starts is checked",
    "sudo": "installs the unit that tests/cli/test_node_lending.py shows to systemd",
    "export": "the shell's",
    "cd": "the shell's",
    "cp": "the shell's",
    "source": "the shell's",
    "curl": "a look at a page",
    "base64": "takes a Secret apart",
    "openssl": "makes a certificate",
    "promtool": "Prometheus's own",
    "prometheus": "with the configuration above it, which test_docs_manifests.py checks",
}

NOT_RUN = {
    "shoal init": "asks a model hub: tests/cli/test_first_manifest.py",
    "shoal env preview": "wants a model of a hub: tests/cli/test_env_preview.py",
    "shoal up": "a run of minutes: `finished_demo` runs the first, tests/system/test_other_runs.py others",
    "shoal push": "wants a hub: tests/cli/test_push.py",
    "shoal generate": "a run of minutes: tests/system/test_generate.py",
    "shoal keys": "wants a run that goes on, and its keys: tests/system/test_key_rotation.py, tests/cli/test_keys.py",
    "shoal serving": "wants a run with an evaluated version: tests/serving/test_promotion.py, tests/serving/test_image.py",
    "shoal down": "wants a run that goes on: tests/cli/test_main.py",
    "shoal logs north": "wants a run of two islands: tests/system/test_islands_system.py makes one",
    "shoal ui": "serves until it is stopped: tests/ui/test_ui_command.py",
    "shoal trace": "wants a collector of spans: tests/report/test_submission_traces.py",
    "shoal calibrate": "wants a model of the reader: tests/cli/test_calibrate.py",
    "shoal eval ./my-model": "wants a model of the reader; a block beside a finished demo asks the demo's",
    "shoal eval runs/arithmetic/model --env carries": "wants an environment that pip has installed: tests/cli/test_env.py",
    "shoal env check carries": "wants an environment that pip has installed: tests/cli/test_env.py",
    "shoal env check word-puzzles": "wants an environment that pip has installed: tests/cli/test_env.py",
    "shoal env add": "wants a package index, and a wheel: tests/cli/test_env_packages.py",
    "shoal env bench": "wants a package, and times it: tests/cli/test_env_packages.py",
    "--packages packages": "wants wheels of the reader: tests/cli/test_env_packages.py",
    "shoal node": "wants a run that goes on and lets machines in: tests/open_pool/test_strangers.py",
    "--follow": "goes on until it is stopped: tests/cli/test_logs.py",
    "s3://": "wants an object store: tests/report/test_report_elsewhere.py, tests/cli/test_ledger_verbs.py",
    "./copy": "wants a copy of a store: tests/cli/test_ledger_verbs.py",
    "--check proof.json": "wants the key of a run: tests/cli/test_ledger_verbs.py",
    "open-pool": "wants a run of minutes: tests/open_pool/test_strangers.py",
}
"""Why a command of `shoal` is in no marked block, by a part of it."""


def check(words: list[str], where: str) -> None:
    """Fail unless the command is one that its program takes."""
    name = words[0].removeprefix(".venv/bin/")
    if name == "shoal":
        shoal(words[1:], where)
    elif name == "make":
        make(words[1:], where)
    elif name in ("python", "python3"):
        python(words[1:], where)
    elif name == "helm":
        helm(words[1:], where)
    elif name == "kubectl":
        kubectl(words[1:], where)
    elif name.startswith(("tools/", "./tools/")):
        assert as_path(name.removeprefix("./")).is_file(), f"{where}: {name} does not exist"
    elif name == "docker" and words[1] == "run" and "shoal" in words:
        shoal(words[words.index("shoal") + 1 :], where)
    else:
        assert name in OTHERS, f"{where}: no test knows the program {name!r} ({' '.join(words)})"


def shoal(words: list[str], where: str) -> None:
    command: Any = program()
    rest, path = list(words), "shoal"
    while getattr(command, "commands", None) and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"{where}: `{path}` has no verb {rest[0]!r}"
        path += f" {rest[0]}"
        command = command.commands[rest.pop(0)]
    if rest in (["--help"], []) and (rest or getattr(command, "commands", None)):
        return
    try:
        command.make_context(path, list(rest))
    except Exception as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        pytest.fail(f"{where}: `{' '.join(words)}`: {message}")
    for flag, value in pairwise(rest):
        if flag in ("-f", "--file") and value.startswith("examples/"):
            assert as_path(value).is_file(), f"{where}: {value} does not exist"


def make(words: list[str], where: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for word in words:
        if not re.match(r"[A-Z0-9_]+=", word):
            assert word in targets, f"{where}: make has no target {word!r}"


def python(words: list[str], where: str) -> None:
    if words[:1] != ["-m"]:
        assert as_path(words[0]).is_file(), f"{where}: {words[0]} does not exist"
        return
    found = importlib.util.find_spec(words[1])
    assert found is not None, f"{where}: there is no module {words[1]}"
    folder = Path(found.origin or ".").parent
    main = folder / "__main__.py"
    source = "".join(path.read_text() for path in (main, Path(found.origin or main)) if path.is_file())
    if "argparse" in source:
        for option in (word.partition("=")[0] for word in words[2:] if word.startswith("--")):
            assert f'"{option}"' in source, f"{where}: {words[1]} has no option {option}"


def helm(words: list[str], where: str) -> None:
    charts = [word for word in words if word.startswith("charts/")]
    for chart in charts:
        assert as_path(chart).is_dir(), f"{where}: {chart} does not exist"
    if not charts:
        return
    known = set(re.findall(r"--[a-z0-9-]+", run_helm(words[0], "--help")))
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        assert option in known, f"{where}: `helm {words[0]}` has no option {option}"
    given = [(flag, value) for flag, value in pairwise(words) if flag.startswith("--set") or flag == "--namespace"]
    assert objects_of_chart(*(word for pair in given for word in pair)), f"{where}: the chart makes nothing"


def kubectl(words: list[str], where: str) -> None:
    given = {"-n", "--namespace", "-l", "-L", "-f", "-o", "-p", "--type"}
    plain = [word for before, word in pairwise(["", *words]) if word[0] != "-" and before not in given]
    assert plain[0] in KUBECTL_VERBS, f"{where}: kubectl {plain[0]}"
    for flag, value in pairwise(words):
        if flag == "-f" and value.startswith(("examples/", "crds", "charts/")):
            assert as_path(value).exists(), f"{where}: {value} does not exist"
    if plain[0] in ("get", "describe", "delete", "scale", "patch"):
        for kind in plain[1].partition("/")[0].split(","):
            assert kind in RESOURCES, f"{where}: kubectl {plain[0]} {kind}"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_its_program_takes_every_command(block: Block) -> None:
    for words in commands(block):
        check(words, str(block))


def test_there_are_many_commands_to_check() -> None:
    assert sum(1 for block in BLOCKS for _ in commands(block)) > 60


@pytest.mark.parametrize(
    "wrong",
    [
        "shoal upp -f x.yaml",
        "shoal up --file-name x.yaml",
        "shoal up -f examples/arithmetic/nothing.yaml",
        "shoal ledger show --last many",
        "make demonstration",
        "helm install shoal charts/shoal --set operator.replica=2",
        "helm install shoal charts/shoal --set 'operator.imagePullSecrets={corp}'",
        "helm upgrade shoal charts/shoal --reuse-all-values",
        "kubectl -n a get truns",
        "kubectl apply -f examples/nothing",
        "python -m shoal_operator.instal",
        "python -m shoal_operator.install --all-namespace",
        "frobnicate",
    ],
)
def test_a_wrong_command_would_be_found(wrong: str) -> None:
    for words in commands(Block("page.md", 1, "sh", wrong + "\n")):
        with pytest.raises((AssertionError, pytest.fail.Exception, ModuleNotFoundError)):
            check(words, "page.md:1")


def run_block(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """The block's lines by bash, which stops at the first that fails; `shoal` is the one of this environment."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.run == ""], ids=str)
def test_a_block_that_says_so_runs(block: Block, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    ended = run_block(block, tmp_path)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.strip()


@pytest.fixture(scope="module")
def finished_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/arithmetic`, made by `shoal up` from the demo's manifest with fewer steps."""
    folder = tmp_path_factory.mktemp("pages")
    manifest = yaml.safe_load((ROOT / "examples" / "arithmetic" / "trainingrun.yaml").read_text())
    manifest["spec"]["steps"] = 3
    (folder / "run.yaml").write_text(yaml.safe_dump(manifest))
    up = [str(Path(sys.executable).parent / "shoal"), "up", "-f", "run.yaml", "--no-tty"]
    with (folder / "up.log").open("w") as log:
        ended = subprocess.run(up, cwd=folder, stdout=log, stderr=subprocess.STDOUT, timeout=1500)
    assert ended.returncode == 0, (folder / "up.log").read_text()[-3000:]
    return folder


@pytest.mark.soak
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.run == "soak"], ids=str)
def test_a_block_beside_a_finished_demo_runs(block: Block, finished_demo: Path) -> None:
    ended = run_block(block, finished_demo)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.strip()


def test_blocks_are_marked_on_both_kinds_of_pages() -> None:
    assert {block.run for block in BLOCKS} >= {"", "soak"}
    for page in page_names():
        marked = [block for block in BLOCKS if block.page == page and block.run is not None]
        assert text_of(page).count("<!-- run") == len(marked), f"{page}: a mark without a block behind it"


def shoal_commands(marked: bool) -> dict[str, str]:
    """Every command of `shoal` in blocks that are run, or in others, with where it is."""
    found = {}
    for block in BLOCKS:
        if (block.run is not None) == marked:
            for words in commands(block):
                if words[0].removeprefix(".venv/bin/") == "shoal":
                    found[" ".join(["shoal", *words[1:]])] = str(block)
    return found


def test_a_command_of_shoal_is_run_or_there_is_a_reason_why_not() -> None:
    run = shoal_commands(marked=True)
    # docs/cli.md is generated: its examples are run where a guide has the same verb with the same kind of argument.
    verbs = {" ".join(command.split()[:3]) for command in run}
    missing = []
    for command, where in shoal_commands(marked=False).items():
        same = command in run or (where.startswith("docs/cli.md") and " ".join(command.split()[:3]) in verbs)
        if not same and not any(part in command for part in NOT_RUN):
            missing.append(f"{where}: {command}")
    assert not missing, "mark the block, or say in NOT_RUN why it is not run:\n" + "\n".join(missing)


@pytest.mark.parametrize("part", NOT_RUN)
def test_a_reason_not_to_run_is_about_a_command_of_the_pages_and_names_tests_that_exist(part: str) -> None:
    assert any(part in command for command in shoal_commands(marked=False)), "no page has it any more"
    for name in re.findall(r"tests/[\w/]+\.py", NOT_RUN[part]):
        assert as_path(name).is_file(), f"{name} does not exist"
