"""`python -m shoal_operator`: help with an example, clear words for wrong input, and no torch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from servers import ROOT
from shoal_operator.__main__ import options, parser
from shoal_operator.engine.connection import NoApiServer, load_configuration


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(ROOT / "operator"), str(ROOT / "workloads")))
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_shows_an_example() -> None:
    done = run("-m", "shoal_operator", "--help")
    assert done.returncode == 0
    assert "python -m shoal_operator --namespace research" in done.stdout


def test_the_operator_loads_no_torch_and_nothing_of_the_workloads_but_contracts_and_what_they_build_on() -> None:
    code = (
        "import sys, shoal_operator.__main__\n"
        "heavy = {'torch', 'transformers', 'vllm', 'numpy', 'pyarrow', 'fastapi'} & set(sys.modules)\n"
        "ours = {name.split('.')[1] for name in sys.modules if name.startswith('shoal.')}\n"
        "ours -= {'contracts', 'crypto', 'errors', 'planner', 'retries', 'sampling', 'text'}\n"
        "print(sorted(heavy), sorted(ours))"
    )
    done = run("-c", code)
    assert done.stdout.strip() == "[] []", done.stderr


def test_without_a_connection_it_says_where_it_looked(tmp_path: Path) -> None:
    done = run("-m", "shoal_operator", "--all-namespaces", HOME=str(tmp_path))
    assert done.returncode == 2
    assert "no API server is configured in the pod's service account, KUBECONFIG or ~/.kube/config" in done.stderr


@pytest.mark.parametrize("text", ["", "not: [yaml", "kind: Config\n", "{}"])
def test_an_invalid_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    with pytest.raises(NoApiServer, match=r"kubeconfig .*wrong\.yaml"):
        load_configuration(file)


def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoApiServer, match=r"absent: .*; give --kubeconfig FILE"):
        load_configuration(tmp_path / "absent")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--namespace", "Research"], "'Research' is not a namespace"),
        (["--namespace=-a"], "is not a namespace"),
        (["--namespace", "a" * 64], "at most 63"),
        (["--namespace", "a", "--lease-namespace", "A"], "'A' is not a namespace"),
        (["--namespace", "a", "--workers", "0"], "--workers must be from 1 to 64, got 0"),
        (["--namespace", "a", "--lease-seconds", "4"], "--lease-seconds must be from 5 to 600, got 4"),
        (["--namespace", "a", "--port", "70000"], "--port must be from 0 to 65535, got 70000"),
    ],
)
def test_a_wrong_option_says_what_is_allowed(arguments: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        options(parser().parse_args(arguments))


def test_each_process_has_an_identity_of_its_own() -> None:
    given = parser().parse_args(["--namespace", "b", "--namespace", "a", "--namespace", "b"])
    one, two = options(given), options(given)
    assert one.namespaces == ["a", "b"]
    assert one.identity != two.identity


def test_kopf_gets_an_identity_and_does_not_look_up_a_system_user(
    tmp_path: Path,
) -> None:
    """`getpass.getuser` raises for a uid without a name, which ended every operator in a pod at its start."""
    path = tmp_path / "kubeconfig"
    path.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
    )
    code = (
        "import kopf, os, signal, sys\n"
        "async def spawn_tasks(**given):\n"
        "    print(given['identity'])\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    raise RuntimeError('the end')\n"
        "kopf.spawn_tasks = spawn_tasks\n"
        "from shoal_operator.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    # Port 0: a wildcard on the default one is refused while any other process has it on a single address.
    done = run("-c", code, "--namespace", "research", "--kubeconfig", str(path), "--bind", "127.0.0.1", "--port", "0")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r".+_[0-9a-f]{8}\n", done.stdout)


def test_only_a_pod_has_a_home_of_which_runs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = parser().parse_args(["--all-namespaces", "--lease-namespace", "elsewhere"])
    file = tmp_path / "namespace"
    monkeypatch.setattr("shoal_operator.__main__.OWN_NAMESPACE", file)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert options(given).home == ""
    file.write_text("shoal-system\n")
    assert options(given).home == "shoal-system"
    file.write_text("{}")
    with pytest.raises(ValueError, match="is not a namespace"):
        options(given)


@pytest.mark.parametrize(
    ("named", "lease"),
    [
        (["--kubeconfig", "FILE"], "of-b"),
        (["--kubeconfig", "FILE", "--context", "other"], "other-of-b"),
        (["--kubeconfig", "FILE", "--lease-namespace", "told"], "told"),
    ],
)
def test_in_a_pod_of_another_cluster_the_namespace_is_what_was_told_or_the_context_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str], lease: str
) -> None:
    own, kubeconfig = tmp_path / "namespace", tmp_path / "kubeconfig"
    own.write_text("pods-of-a")
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
        "users: [{name: u, user: {token: t}}]\ncontexts: [{name: c, context: {cluster: c, user: u, namespace: of-b}},"
        " {name: other, context: {cluster: c, user: u, namespace: other-of-b}}]\n"
    )
    monkeypatch.setattr("shoal_operator.__main__.OWN_NAMESPACE", own)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    made = options(parser().parse_args(["--all-namespaces", *(str(kubeconfig) if n == "FILE" else n for n in named)]))
    assert (made.home, made.lease_namespace) == ("", lease)
    at_home = options(parser().parse_args(["--all-namespaces"]))
    assert (at_home.home, at_home.lease_namespace) == ("pods-of-a", "pods-of-a")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")  # then KUBECONFIG is what the operator takes
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert options(parser().parse_args(["--all-namespaces"])).home == ""
