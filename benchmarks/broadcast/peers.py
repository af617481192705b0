"""The peers: the published `shardcast` package, plain nginx with curl of one file, and aria2 with several sources.

In: a `Stage` and a file. Out: seconds until every client has the whole file. Each gets the same links, one after the other. Called by `__main__`.
"""

import shutil
import subprocess
import time
from pathlib import Path

from benchmarks.broadcast.links import Stage
from benchmarks.broadcast.network import Host, wait

ROOT = Path(__file__).resolve().parents[2]
SHARDCAST_VERSION = "0.3.2"
PYCURL_VERSION = "7.45.7"
PEERS = ROOT / ".cache" / "peers"
NGINX = """\
daemon off; pid "{folder}/pid"; error_log stderr warn; worker_processes 2; user root;
events {{ worker_connections 256; }}
http {{
    access_log off; sendfile on; tcp_nopush on;
    client_body_temp_path "{folder}/a"; proxy_temp_path "{folder}/b"; fastcgi_temp_path "{folder}/c";
    uwsgi_temp_path "{folder}/d"; scgi_temp_path "{folder}/e";
    server {{ listen {address}:8080; root "{root}"; }}
}}
"""
BROADCAST = (
    "import shardcast,sys,time; shardcast.initialize(data_dir=sys.argv[1], port=8000); input_file=sys.argv[2]\n"
    + (
        "import os\nwhile not os.path.exists(sys.argv[3]): time.sleep(0.02)\n"
        "shardcast.broadcast(input_file)\nwhile True: time.sleep(1)\n"
    )
)


def nginx(host: Host, root: Path, folder: Path) -> None:
    """Serve `root` on port 8080 of the host."""
    folder.mkdir(exist_ok=True)
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, address=host.address, root=root))
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    host.start([program, "-p", folder, "-c", configuration, "-e", "stderr"], folder / "log")
    wait(f"nginx at {host.name}", lambda: _answers(host, 8080), 20)


def curl(host: Host, url: str, target: Path) -> "subprocess.Popen[bytes]":
    return host.start(["curl", "-sSf", "-o", target, url], target.with_suffix(".log"))


def single_file(stage: Stage, file: Path, limit_seconds: float) -> float:
    """Every client fetches the file from the origin's nginx with curl."""
    nginx(stage.origin, file.parent, stage.folder / "single")
    started = time.monotonic()
    targets = [stage.folder / f"single-{client.name}" for client in stage.clients]
    url = f"http://{stage.origin.address}:8080/{file.name}"
    running = [curl(client, url, target) for client, target in zip(stage.clients, targets, strict=True)]
    return _finish(stage, started + limit_seconds, started, running, targets, file)


def aria2(stage: Stage, file: Path, limit_seconds: float) -> float:
    """Relays fetch the file with curl; when all have it, clients fetch it with aria2 from all relays at once."""
    nginx(stage.origin, file.parent, stage.folder / "aria2")
    started = time.monotonic()
    url = f"http://{stage.origin.address}:8080/{file.name}"
    copies = []
    for relay in stage.relays:
        home = stage.folder / f"aria2-{relay.name}"
        home.mkdir()
        copies.append((relay, home, curl(relay, url, home / file.name)))
    for relay, home, process in copies:
        if process.wait(limit_seconds) != 0:
            raise RuntimeError(f"curl at {relay.name} ended with {process.returncode}")
        nginx(relay, home, home / "nginx")
    urls = [f"http://{relay.address}:8080/{file.name}" for relay in stage.relays]
    targets = [stage.folder / f"aria2-{client.name}" for client in stage.clients]
    options = ["-q", "-s4", "-x4", "-k1M", "--file-allocation=none", "-d", str(stage.folder)]
    running = [
        client.start(["aria2c", *options, "-o", target.name, *urls], target.with_suffix(".log"))
        for client, target in zip(stage.clients, targets, strict=True)
    ]
    return _finish(stage, started + limit_seconds, started, running, targets, file)


def shardcast(stage: Stage, file: Path, limit_seconds: float) -> float:
    """The package's own origin, middle nodes and clients; clients try until they have the version."""
    python = python_with("shardcast", SHARDCAST_VERSION)
    begin = stage.folder / "shardcast-begin"
    served = stage.folder / "shardcast-origin"
    stage.origin.start([python, "-c", BROADCAST, served, file, begin], stage.folder / "shardcast-origin.log")
    wait("shardcast's origin", lambda: _answers(stage.origin, 8000), 30)
    (served / "data1.bin").write_bytes(bytes(1 << 20))  # what its clients measure the bandwidth with
    for relay in stage.relays:
        home = stage.folder / f"shardcast-{relay.name}"
        home.mkdir()
        (home / "data1.bin").write_bytes(bytes(1 << 20))
        upstream = f"http://{stage.origin.address}:8000"
        arguments = ["--upstream", upstream, "--data-dir", str(home), "--check-interval", "1"]
        relay.start(_with_own_tmp(home, [python.parent / "shardcast-middle", *arguments]), home.with_suffix(".log"))
    for relay in stage.relays:
        wait(f"shardcast at {relay.name}", lambda: _answers(relay, 8000), 30)  # noqa: B023 - called before the loop goes on
    started = time.monotonic()
    begin.touch()
    servers = ",".join(f"http://{relay.address}:8000" for relay in stage.relays)
    targets = [stage.folder / f"shardcast-{client.name}.bin" for client in stage.clients]
    # A client that asks before its relays list the version starts guessing shards and does not come back from that.
    lists = [stage.folder / f"shardcast-{relay.name}" / "distribution.txt" for relay in stage.relays]
    wait("shardcast's relays", lambda: all(path.exists() and "v1" in path.read_text() for path in lists), limit_seconds)
    running = []
    for client, target in zip(stage.clients, targets, strict=True):
        options = f"--servers {servers} --version v1 --output-dir {target}.d --output-file {target}"
        # It exits when a shard is missing for too long, and guesses for minutes when the list of shards was slow to come: asked again, as users do.
        loop = f"until timeout {max(30, int(limit_seconds / 3))} {python.parent}/shardcast-client {options} && test -s {target}; do sleep 0.5; done"
        own = target.with_suffix(".tmp")
        own.mkdir()
        running.append(client.start(_with_own_tmp(own, ["bash", "-c", loop]), target.with_suffix(".log")))
    return _finish(stage, started + limit_seconds, started, running, targets, file)


def _with_own_tmp(folder: Path, command: list[str | Path]) -> list[str | Path]:
    """The command with a `/tmp` of its own, as on a machine of its own: the package writes to a fixed name there."""
    return ["unshare", "-m", "bash", "-c", 'mount --bind "$0" /tmp && exec "$@"', folder, *command]


def python_with(package: str, version: str) -> Path:
    """The Python of an environment that has the package; made when it is missing, from the package index that pip is set up with."""
    environment = PEERS / f"{package}-{version}"
    python = environment / "bin" / "python"
    if not (environment / ".ready").exists():
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run(["python3", "-m", "venv", environment], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"{package}=={version}"], check=True)
        (environment / ".ready").touch()
    return python


def _finish(
    stage: Stage,
    ends: float,
    started: float,
    running: "list[subprocess.Popen[bytes]]",
    targets: list[Path],
    file: Path,
) -> float:
    try:
        for process, target in zip(running, targets, strict=True):
            if process.wait(max(1.0, ends - time.monotonic())) != 0:
                raise RuntimeError(f"{target.name}: ended with {process.returncode}; see {target.with_suffix('.log')}")
        seconds = time.monotonic() - started
        size = file.stat().st_size
        wrong = [target.name for target in targets if target.stat().st_size != size]
        if wrong:
            raise RuntimeError(f"not the whole file: {', '.join(wrong)}")
        return seconds
    finally:
        stage.network.stop_all()
        for path in stage.folder.iterdir():
            if path != file.parent and path.suffix != ".log":
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def _answers(host: Host, port: int) -> bool:
    probe = ["ip", "netns", "exec", host.namespace, "bash", "-c", f"exec 3<>/dev/tcp/{host.address}/{port}"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0
