"""nginx for the origin and the relays: renders its configuration under `SHOAL_HOME`, then becomes nginx.

`python -m shoal.broadcast.nginx origin|relay`. It serves `www/versions/` and nothing else, GET and HEAD only, to holders of a token that the
pod's Python process checks (`auth_request`), with a limit of connections a node. `render` is pure. nginx runs unprivileged on a high port; all
its files lie under `SHOAL_HOME`.
"""

import os
import pwd
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal import telemetry
from shoal.broadcast.gate import NODE_HEADER
from shoal.contracts.run import bind_address, home

NginxRole = Literal["origin", "relay"]

NGINX_PORT = 8090
ORIGIN_PORT = 9101  # health and token checks of the publisher
RELAY_PORT = 9102  # health and token checks of the sync agent
GATE_PORTS: dict[NginxRole, int] = {"origin": ORIGIN_PORT, "relay": RELAY_PORT}

CONNECTIONS_PER_NODE: dict[NginxRole, int] = {"origin": 512, "relay": 64}
"""A client keeps a handful of shards in flight. All relays share one key, hence the room at the origin."""
MAX_WORKERS = 4  # sendfile leaves the work to the kernel; more processes do not send more bytes

TEMPLATE = """\
# Rendered at start by shoal.broadcast.nginx; changes are lost.
daemon off;
pid "{temporary}/nginx.pid";
error_log stderr warn;
worker_processes {workers};
{user}
events {{
    worker_connections 1024;
}}

http {{
    types {{
        application/json json;
    }}
    default_type application/octet-stream;
    server_tokens off;

    client_body_temp_path "{temporary}/body";
    proxy_temp_path "{temporary}/proxy";
    fastcgi_temp_path "{temporary}/fastcgi";
    uwsgi_temp_path "{temporary}/uwsgi";
    scgi_temp_path "{temporary}/scgi";

    sendfile on;
    sendfile_max_chunk 2m;
    tcp_nopush on;
    keepalive_timeout 30s;
    client_header_timeout 10s;
    client_body_timeout 10s;
    client_max_body_size 1k;
    send_timeout 30s;
    reset_timedout_connection on;
    max_ranges 1;
    log_not_found off;

    # One file an hour: the reader deletes old ones, and nobody has to tell nginx to reopen anything.
    map $time_iso8601 $log_hour {{
        default unknown;
        "~^(?<hour>\\d{{4}}-\\d{{2}}-\\d{{2}}T\\d{{2}})" $hour;
    }}
    log_format served escape=json '{{"time":"$msec","node":"$shoal_node","uri":"$uri","status":$status,'
        '"bytes":$bytes_sent,"range":"$http_range","seconds":$request_time,"server":"nginx/$nginx_version"}}';
    open_log_file_cache max=4 inactive=20s valid=10s min_uses=1;
    access_log off;

    limit_conn_zone $shoal_node zone=nodes:4m;
    limit_conn_status 429;

    server {{
        listen {listen};
        server_name _;
        root "{root}";
        error_page 404 = @absent;

        if ($request_method !~ ^(GET|HEAD)$) {{
            return 405;
        }}

        location / {{
            return 404;
        }}

        location @absent {{
            access_log off;
            return 404;
        }}

        location ~ "^/versions/(index\\.json|v[0-9]{{6}}/((open|weights|[0-9]{{5}})\\.json|[0-9]{{5}}\\.bin))$" {{
            auth_request /token;
            auth_request_set $shoal_node $upstream_http_{node_variable};
            # Limits are applied before access is checked, when the node is not known yet. The jump applies them once more.
            try_files /none @serve;
        }}

        location @serve {{
            limit_conn nodes {connections};
            access_log {log};
            add_header Cache-Control no-store;
        }}

        location = /token {{
            internal;
            proxy_pass http://{gate}/auth;
            proxy_pass_request_body off;
            proxy_set_header Content-Length "";
            proxy_connect_timeout 2s;
            proxy_read_timeout 5s;
        }}
    }}
}}
"""


@dataclass(frozen=True)
class Places:
    """Where one nginx listens, whom it asks about tokens, and the folders it uses."""

    listen: str
    gate: str
    connections_per_node: int
    root: Path
    logs: Path | None
    temporary: Path
    workers: int
    user: str | None


def render(places: Places) -> str:
    """The text of nginx.conf. `user` is given only to a root process: nginx then runs its workers as that user."""
    for path in (places.root, places.logs or places.root, places.temporary):
        if not path.is_absolute() or any(mark in str(path) for mark in '\n"$\\'):
            raise ValueError(
                f"nginx needs an absolute path without quotes, '$', backslash or line break, got {str(path)!r}"
            )
    return TEMPLATE.format(
        temporary=places.temporary,
        workers=places.workers,
        user=f"user {places.user};" if places.user else "",
        listen=places.listen,
        root=places.root,
        log=f'"{places.logs}/access-$log_hour.log" served' if places.logs is not None else "off",
        gate=places.gate,
        node_variable=NODE_HEADER.lower().replace("-", "_"),
        connections=places.connections_per_node,
    )


def places_of(role: NginxRole, folder: Path, address: str, cpus: int, user: str | None) -> Places:
    """The places of a pod whose `SHOAL_HOME` is `folder` and whose `SHOAL_BIND` is `address`."""
    bracketed = f"[{address}]" if ":" in address else address
    # A wildcard is an address to listen on, not one to connect to.
    neighbour = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, bracketed)  # noqa: S104
    return Places(
        listen=f"{bracketed}:{NGINX_PORT}",
        gate=f"{neighbour}:{GATE_PORTS[role]}",
        connections_per_node=CONNECTIONS_PER_NODE[role],
        root=folder / "www",
        logs=log_folder(folder) if role == "relay" else None,  # at the origin nobody counts, nor deletes
        temporary=folder / "tmp" / "nginx",
        workers=max(1, min(cpus, MAX_WORKERS)),
        user=user,
    )


def log_folder(folder: Path) -> Path:
    """Where nginx writes and the sync agent counts: in `www/`, the volume that both containers have; only `www/versions/` is served."""
    return folder / "www" / "logs"


def stray_workers(old_master: int) -> list[int]:
    """Processes that a killed nginx master left behind; they hold its port. On a cluster the container's end takes them along.

    They are in the old master's process group, their parent is gone (so they are not a live master's), and they are nginx.
    """
    if old_master <= 1 or Path(f"/proc/{old_master}").exists():
        return []
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it ended while we looked
            continue
        fields = rest.split()
        if name == "nginx" and int(fields[2]) == old_master and os.geteuid() in (0, path.stat().st_uid):
            found.append(int(path.parent.name))
    return found


def main() -> None:
    role = sys.argv[1] if len(sys.argv) == 2 else ""
    if role not in ("origin", "relay"):
        raise SystemExit("usage: python -m shoal.broadcast.nginx origin|relay")
    log = telemetry.start("nginx")
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise SystemExit("nginx is not installed: install the package nginx-light")
    folder = home().resolve()
    www = folder / "www"
    www.mkdir(parents=True, exist_ok=True)
    # As root, workers are given to whoever owns the files that they serve and the log that they write.
    user = pwd.getpwuid(www.stat().st_uid).pw_name if os.geteuid() == 0 else None
    places = places_of("origin" if role == "origin" else "relay", folder, bind_address(), os.cpu_count() or 1, user)
    places.temporary.mkdir(parents=True, exist_ok=True)
    if places.logs is not None:
        places.logs.mkdir(parents=True, exist_ok=True)
        if user is not None:
            shutil.chown(places.logs, user)
    pid_file = places.temporary / "nginx.pid"
    if pid_file.is_file() and pid_file.read_text().strip().isdigit():
        for stray in stray_workers(int(pid_file.read_text())):
            log.warning("ending a worker that a killed nginx left behind", pid=stray)
            os.kill(stray, signal.SIGKILL)
    configuration = places.temporary / "nginx.conf"
    configuration.write_text(render(places))
    log.info("starting nginx", listen=places.listen, role=role)
    os.execv(program, [program, "-p", str(places.temporary), "-c", str(configuration), "-e", "stderr"])  # noqa: S606


if __name__ == "__main__":
    main()
