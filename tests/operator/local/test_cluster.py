"""Pods as processes: what a StatefulSet, a Deployment and a Job do on this machine, with real processes."""

import base64
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from local_bench import Bench
from small_workloads import READY, SERVER, container, job, stateful_set, template

from shoal_operator.local.addresses import AddressBook, NoAddress, lock_subnet
from shoal_operator.local.expand import UnsupportedField
from shoal_operator.local.processes import ProcessTable, start_ticks


def condition(bench: Bench, name: str, kind: str) -> bool:
    found = bench.cluster.get("Job", name)
    conditions = (found or {}).get("status", {}).get("conditions", [])
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)


def test_pods_of_a_set_serve_on_addresses_of_their_own_and_become_ready(bench: Bench) -> None:
    bench.cluster.apply(stateful_set("web", template(container(SERVER, readinessProbe=READY)), replicas=2))
    bench.until("both ready", lambda: bench.cluster.get("StatefulSet", "web")["status"].get("readyReplicas") == 2)
    addresses = [bench.pod(name).address for name in ("web-0", "web-1")]
    assert len(set(addresses)) == 2
    for name, address in zip(("web-0", "web-1"), addresses, strict=True):
        assert urllib.request.urlopen(f"http://{address}:8080/").read().decode() == name


def test_a_killed_container_is_started_again_at_once_with_a_restart_counted(bench: Bench) -> None:
    bench.cluster.apply(stateful_set("web", template(container(SERVER, readinessProbe=READY))))
    bench.until("ready", lambda: bench.pod("web-0") and bench.pod("web-0").ready)
    first = bench.cluster.pid_of("web-0", "main")
    os.kill(first, signal.SIGKILL)
    bench.until("ready again", lambda: bench.pod("web-0").restarts == 1 and bench.pod("web-0").ready)
    assert bench.cluster.pid_of("web-0", "main") != first
    assert bench.pod("web-0").containers[0].last_exit == -signal.SIGKILL


def test_children_of_a_killed_process_do_not_outlive_it(bench: Bench) -> None:
    program = (
        "import subprocess, sys, time; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
    )
    program += "print('child', p.pid, flush=True); time.sleep(600)"
    bench.cluster.apply(stateful_set("tree", template(container(program))))
    log = bench.folder / "logs" / "tree-0" / "main.log"
    bench.until("child started", lambda: log.is_file() and "child" in log.read_text())
    child = int(log.read_text().split()[1])
    os.kill(bench.cluster.pid_of("tree-0", "main"), signal.SIGKILL)
    bench.until("started again", lambda: log.read_text().count("child") == 2)
    assert start_ticks(child) is None


def test_a_failing_liveness_probe_restarts_the_container(bench: Bench) -> None:
    probe = {**READY, "failureThreshold": 2}
    bench.cluster.apply(stateful_set("web", template(container(SERVER, readinessProbe=READY, livenessProbe=probe))))
    bench.until("ready", lambda: bench.pod("web-0") and bench.pod("web-0").ready)
    sick = bench.folder / "pods" / "web-0" / "tmp" / "sick"
    sick.touch()
    bench.until("restarted", lambda: bench.pod("web-0").restarts >= 1)
    sick.unlink()
    bench.until("ready again", lambda: bench.pod("web-0").ready)


def test_scaling_down_stops_the_last_pod_and_keeps_its_claim(bench: Bench) -> None:
    program = "import os, time; open(os.environ['SHOAL_HOME'] + '/key/mark', 'a').write('x'); time.sleep(600)"
    pod = template(container(program, volumeMounts=[{"name": "key", "mountPath": "/shoal/key"}]))
    bench.cluster.apply(stateful_set("keep", pod, replicas=2, claims=("key",)))
    mark = bench.folder / "volumes" / "key-keep-1" / "mark"
    bench.until("mark written", mark.is_file)
    bench.cluster.apply(stateful_set("keep", pod, replicas=1, claims=("key",)))
    bench.until("second pod gone", lambda: bench.pod("keep-1") is None)
    assert mark.read_text() == "x"
    bench.cluster.apply(stateful_set("keep", pod, replicas=2, claims=("key",)))
    bench.until("second pod back with its claim", lambda: mark.read_text() == "xx")


def test_a_changed_template_replaces_the_pod(bench: Bench) -> None:
    bench.cluster.apply(
        stateful_set("web", template(container("import time; print('one', flush=True); time.sleep(600)")))
    )
    log = bench.folder / "logs" / "web-0" / "main.log"
    bench.until("first", lambda: log.is_file() and "one" in log.read_text())
    bench.cluster.apply(
        stateful_set("web", template(container("import time; print('two', flush=True); time.sleep(600)")))
    )
    bench.until("second", lambda: "two" in log.read_text())
    assert bench.pod("web-0").restarts == 0


def test_a_job_is_complete_when_its_program_exits_0_and_is_never_run_again(bench: Bench) -> None:
    work = job("once", template(container("print('ran', flush=True)")))
    bench.cluster.apply(work)
    bench.until("complete", lambda: condition(bench, "once", "Complete"))
    bench.cluster.apply(work)
    for _ in range(10):
        bench.cluster.tick()
        time.sleep(0.02)
    assert (bench.folder / "logs" / "once-0" / "main.log").read_text().count("ran") == 1


def test_a_job_that_dies_is_restarted_and_fails_past_its_backoff_limit(bench: Bench) -> None:
    bench.cluster.apply(job("bad", template(container("import sys; sys.exit(3)")), backoff_limit=1))
    bench.until("failed", lambda: condition(bench, "bad", "Failed"))
    message = bench.cluster.get("Job", "bad")["status"]["conditions"][0]["message"]
    assert "backoffLimit is 1" in message
    assert "exit code 3" in message


def test_a_job_whose_pods_are_made_anew_is_tried_in_place_but_not_after_an_exit_code_that_is_final(
    bench: Bench,
) -> None:
    program = "import os, sys; open(os.environ['SHOAL_HOME'] + '/tries', 'a').write('x'); sys.exit(int(sys.argv[1]))"
    policy = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2]}}]}
    for name, code in (("final", "2"), ("again", "3")):
        pod = template(container(program))
        pod["spec"]["restartPolicy"] = "Never"
        pod["spec"]["containers"][0]["command"].append(code)
        made = job(name, pod, backoff_limit=1)
        made["spec"]["podFailurePolicy"] = policy
        bench.cluster.apply(made)
        bench.until("failed", lambda name=name: condition(bench, name, "Failed"))
    tries = {name: (bench.folder / "pods" / f"{name}-0" / "tries").read_text() for name in ("final", "again")}
    assert tries == {"final": "x", "again": "xx"}
    assert "failed 1 times" in bench.cluster.get("Job", "final")["status"]["conditions"][0]["message"]


def test_a_job_is_complete_although_its_sidecar_would_run_for_ever(bench: Bench) -> None:
    sidecar = container("import time; time.sleep(600)", name="side", restartPolicy="Always")
    bench.cluster.apply(job("both", template(container("print('done')"), initContainers=[sidecar])))
    bench.until("complete", lambda: condition(bench, "both", "Complete"))
    bench.until("no process left", lambda: bench.cluster.pid_of("both-0", "side") is None)


def test_secrets_are_files_of_their_owner_only_and_a_pod_waits_for_them(bench: Bench) -> None:
    mount = {"name": "key", "mountPath": "/shoal/secrets"}
    pod = template(
        container("import time; time.sleep(600)", volumeMounts=[mount]),
        volumes=[{"name": "key", "secret": {"secretName": "role"}}],
    )
    bench.cluster.apply(stateful_set("part", pod))
    bench.until("waits", lambda: bench.pod("part-0") and "waits for Secret role" in bench.pod("part-0").message)
    bench.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "role"},
            "data": {"role.pem": base64.b64encode(b"k").decode()},
        }
    )
    bench.until("runs", lambda: bench.pod("part-0").phase == "Running")
    path = bench.folder / "pods" / "part-0" / "secrets" / "role.pem"
    assert path.read_bytes() == b"k"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((bench.folder / "objects.json").stat().st_mode) == 0o600


def test_text_in_a_secret_is_kept_as_data_like_an_api_server_does(bench: Bench) -> None:
    bench.cluster.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"accessKey": "a"}}
    )
    found = bench.cluster.get("Secret", "s")
    assert found is not None
    assert found["data"] == {"accessKey": base64.b64encode(b"a").decode()}
    assert "stringData" not in found


def test_a_container_sees_nothing_of_the_callers_environment(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    bench.cluster.apply(job("env", template(container("import os; print(sorted(os.environ))"))))
    bench.until("complete", lambda: condition(bench, "env", "Complete"))
    text = (bench.folder / "logs" / "env-0" / "main.log").read_text()
    assert "AWS_SECRET_ACCESS_KEY" not in text
    assert "SHOAL_BIND" in text


def test_deleting_an_owner_removes_what_it_owns_once_the_pods_are_gone(bench: Bench) -> None:
    owner = bench.cluster.apply(
        {"apiVersion": "shoal.dev/v1alpha1", "kind": "Validator", "metadata": {"name": "v"}, "spec": {}}
    )
    owned = stateful_set("web", template(container("import time; time.sleep(600)")))
    owned["metadata"]["ownerReferences"] = [{"uid": owner["metadata"]["uid"]}]
    bench.cluster.apply(owned)
    bench.until("runs", lambda: bench.pod("web-0") and bench.pod("web-0").phase == "Running")
    bench.cluster.delete("Validator", "v")
    assert bench.cluster.get("Validator", "v")["metadata"]["deletionTimestamp"]
    bench.until("owner gone", lambda: bench.cluster.get("Validator", "v") is None)
    assert bench.cluster.get("StatefulSet", "web") is None
    assert bench.pod("web-0") is None


def test_stop_ends_every_process_and_kills_what_ignores_the_request(bench: Bench) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    pod = template(container(stubborn), terminationGracePeriodSeconds=1)
    bench.cluster.apply(stateful_set("hard", pod))
    log = bench.folder / "logs" / "hard-0" / "main.log"
    bench.until("up", lambda: log.is_file() and "up" in log.read_text())
    pid = bench.cluster.pid_of("hard-0", "main")
    bench.cluster.stop()
    assert start_ticks(pid) is None
    assert bench.table.records() == []


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        (template(container("pass"), hostPID=True), "pod field hostPID"),
        (template(container("pass", lifecycle={})), "field lifecycle"),
        (template(container("pass"), initContainers=[container("pass", name="first")]), "only sidecars"),
    ],
)
def test_what_one_machine_does_not_have_is_refused_by_name(bench: Bench, pod: dict, text: str) -> None:
    with pytest.raises(UnsupportedField, match=text):
        bench.cluster.apply(stateful_set("odd", pod))


def test_an_unknown_kind_is_refused_by_name(bench: Bench) -> None:
    with pytest.raises(UnsupportedField, match="kind DaemonSet is not available"):
        bench.cluster.apply({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {}})


def test_two_runs_never_get_the_same_subnet_and_a_closed_one_is_free_again() -> None:
    first, second = lock_subnet(), lock_subnet()
    try:
        assert first.prefix != second.prefix
    finally:
        first.close()
        second.close()


def test_an_address_stays_with_its_key_over_a_restart(tmp_path: Path) -> None:
    subnet = lock_subnet()
    book = AddressBook(subnet, tmp_path / "addresses.json")
    first = [book.address("a/0"), book.address("b/0")]
    assert [AddressBook(subnet, tmp_path / "addresses.json").address(key) for key in ("a/0", "b/0")] == first
    subnet.close()


def test_a_recorded_pid_that_now_belongs_to_another_process_is_left_alone(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path)
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        (tmp_path / f"{other.pid}.json").write_text(f'{{"pid": {other.pid}, "start_ticks": 1, "name": "old"}}')
        assert table.stop_all(0) == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_cannot_be_recorded_does_not_go_on_without(tmp_path: Path) -> None:
    table = ProcessTable(tmp_path / "records")
    (tmp_path / "records").rmdir()  # a write fails as on a full disk
    said = tmp_path / "pid"
    program = f"import os, time; open({str(said)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    environment = {"PATH": "/usr/bin:/bin"}
    with pytest.raises(FileNotFoundError):
        table.spawn(
            "sleeper", [sys.executable, "-c", program], environment=environment, cwd=tmp_path, log=tmp_path / "log"
        )
    time.sleep(1.0)
    pid = said.read_text() if said.exists() else ""  # empty: it was killed between opening the file and writing to it
    assert not pid or start_ticks(int(pid)) is None


def test_nothing_survives_kill_9_of_the_process_that_runs_the_cluster(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from shoal_operator.local.addresses import lock_subnet
from shoal_operator.local.cluster import LocalCluster
from shoal_operator.local.guardian import Guardian
from shoal_operator.local.processes import ProcessTable
from small_workloads import container, stateful_set, template
folder = Path(sys.argv[1])
table = ProcessTable(folder / "processes")
guardian = Guardian(folder / "processes", 1.0)
cluster = LocalCluster(folder, lock_subnet(), table)
cluster.apply(stateful_set("part", template(container("import time; time.sleep(600)"))))
while True:
    cluster.tick()
    pid = cluster.pid_of("part-0", "main")
    if pid: print(pid, flush=True); time.sleep(600)
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    )
    assert driver.stdout is not None
    pid = int(driver.stdout.readline())
    assert start_ticks(pid) is not None
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 20
    while start_ticks(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert start_ticks(pid) is None


def test_a_pod_has_a_short_path_for_unix_sockets_however_deep_its_run_lies(tmp_path: Path) -> None:
    deep = Bench(tmp_path / ("deep-" * 20) / ("er-" * 30) / "run")
    program = "import os, socket; s = socket.socket(socket.AF_UNIX); s.bind(os.environ['SHOAL_HOME'] + '/run/agent.sock'); print('bound')"
    try:
        deep.cluster.apply(job("socket", template(container(program))))
        deep.until("bound", lambda: condition(deep, "socket", "Complete"))
    finally:
        deep.cluster.kill()
        deep.subnet.close()


def test_a_folder_that_another_user_could_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "shoal").mkdir(mode=0o755)
    with pytest.raises(NoAddress, match="mode 0700"):
        lock_subnet()
