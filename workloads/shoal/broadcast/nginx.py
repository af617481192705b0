"""nginx for the origin and the relays: renders its configuration under `SHOAL_HOME`, then becomes nginx.

`python -m shoal.broadcast.nginx origin|relay`. It serves `www/versions/` and nothing else, GET and HEAD only. It serves holders of a token that the
pod's Python process checks (`auth_request`), with limits of connections, requests and bytes a node. `render` is pure. nginx runs unprivileged on a
high port; all its files lie under `SHOAL_HOME`. A relay with a certificate, or behind load balancers, has a second listener for outside.
"""

import os
import pwd
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shoal import telemetry
from shoal.broadcast.gate import NODE_HEADER
from shoal.broadcast.nginx_status import status_socket
from shoal.broadcast.reload import AWAITED
from shoal.contracts.relays import OUTSIDE_PORT, RateLimits, RelayConfig, load_relay_config
from shoal.contracts.run import bind_address, home, load_run_config

NginxRole = Literal["origin", "relay"]

NGINX_PORT = 8090
ORIGIN_PORT = 9101  # health and token checks of the publisher
RELAY_PORT = 9102  # health and token checks of the sync agent
GATE_PORTS: dict[NginxRole, int] = {"origin": ORIGIN_PORT, "relay": RELAY_PORT}

ANSWERS_SECONDS = 2
"""How long nginx remembers that a token is good."""
ORIGIN_LIMITS = RateLimits(
    connections=512, requests_per_second=10_000, address_connections=4096, address_requests_per_second=10_000
)
"""All relays share one key, hence the room. A relay's own limits are in its `config/relay.json`."""
MAX_FILES = 16384  # some thousand clients at once; a node is held to far fewer connections
MAX_WORKERS = 4  # sendfile leaves the work to the kernel; more processes do not send more bytes

TEMPLATE = """\
# Rendered at start by shoal.broadcast.nginx; changes are lost.
daemon off;
pid "{temporary}/nginx.pid";
error_log stderr warn;
worker_processes {workers};
worker_rlimit_nofile {files};
worker_shutdown_timeout {eviction_seconds}s;  # what outlasts it after a new start is ended: how evicted nodes are
{user}
events {{
    worker_connections {connections_in_all};
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
    log_format served escape=json '{{"time":"$msec","node":"$shoal_node","uri":"$uri","status":$status,"address":"$remote_addr",'
        '"bytes":$bytes_sent,"range":"$http_range","seconds":$request_time,"server":"nginx/$nginx_version"}}';
    open_log_file_cache max=4 inactive=20s valid=10s min_uses=1;
    access_log off;

    limit_conn_zone $shoal_node zone=nodes:4m;
    limit_conn_zone $binary_remote_addr zone=addresses:4m;
    limit_conn_status 429;
    limit_req_zone $shoal_node zone=requests:4m rate={requests}r/s;
    limit_req_zone $binary_remote_addr zone=address_requests:4m rate={address_requests}r/s;
    limit_req_status 429;
    proxy_cache_path "{temporary}/answers" keys_zone=answers:4m max_size=64m inactive=30s use_temp_path=off;
    {servers}
    {status}
}}
"""

SERVER_TEMPLATE = """\

    server {{
        listen {listen};
        {transport}
        server_name _;
        root "{root}";
        error_page 404 = @absent;
        error_page 429 = @busy;

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

        location @busy {{
            access_log off;
            add_header Retry-After 1 always;
            return 429;
        }}

        location ~ "^/versions/(index\\.json|v[0-9]{{6}}/((open|weights|beside|(beside-)?[0-9]{{5}})\\.json|(beside-)?[0-9]{{5}}\\.bin))$" {{
            auth_request /token;
            auth_request_set $shoal_node $upstream_http_{node_variable};
            # Limits are applied before access is checked, when the node is not known yet. The jump applies them once more.
            try_files /none @serve;
        }}

        location @serve {{
            limit_conn nodes {connections};
            limit_conn addresses {address_connections};
            limit_req zone=requests burst={requests} nodelay;
            limit_req zone=address_requests burst={address_requests} nodelay;
            {pace}
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
            # A good token is asked about once in a while, not once a request.
            proxy_cache answers;
            proxy_cache_key $http_authorization;
            proxy_cache_valid 204 {answers_seconds}s;
        }}
    }}
"""

STATUS_TEMPLATE = """\

    server {{
        listen "unix:{socket}";
        location / {{
            stub_status;
        }}
    }}
"""


@dataclass(frozen=True)
class Outside:
    """A listener for clients outside the cluster: with a certificate (files in PEM), behind load balancers that send a PROXY header, or both."""

    listen: str
    certificate: Path | None
    key: Path | None
    proxies: tuple[str, ...]


@dataclass(frozen=True)
class NginxPaths:
    """Where one nginx listens, whom it asks about tokens, and the folders it uses."""

    listen: str
    gate: str
    limits: RateLimits
    root: Path
    logs: Path | None
    temporary: Path
    workers: int
    user: str | None
    status: Path | None
    files: int
    """Open files that a worker may have; a client's request takes three: its connection, the file, the question about its token."""
    eviction_seconds: int = RelayConfig().eviction_seconds
    outside: Outside | None = None


def render(places: NginxPaths) -> str:
    """The text of nginx.conf. `user` is given only to a root process: nginx then runs its workers as that user."""
    outside = places.outside
    certificates = (outside.certificate, outside.key) if outside is not None else ()
    for path in (places.root, places.logs, places.temporary, *certificates):
        if path is not None and (not path.is_absolute() or any(mark in str(path) for mark in '\n"$\\')):
            raise ValueError(
                f"nginx needs an absolute path without quotes, '$', backslash or line break, got {str(path)!r}"
            )
    servers = [_server(places, places.listen, "")]
    if outside is not None:
        servers.append(_server(places, _listen_outside(outside), _transport(outside)))
    return TEMPLATE.format(
        temporary=places.temporary,
        workers=places.workers,
        files=places.files,
        eviction_seconds=places.eviction_seconds,
        connections_in_all=max(64, places.files // 2),
        status=STATUS_TEMPLATE.format(socket=places.status) if places.status is not None else "",
        user=f"user {places.user};" if places.user else "",
        requests=places.limits.requests_per_second,
        address_requests=places.limits.address_requests_per_second,
        servers="".join(servers),
    )


def _server(places: NginxPaths, listen: str, transport: str) -> str:
    limits = places.limits
    return SERVER_TEMPLATE.format(
        listen=listen,
        transport=transport,
        root=places.root,
        log=f'"{places.logs}/access-$log_hour.log" served' if places.logs is not None else "off",
        gate=places.gate,
        node_variable=NODE_HEADER.lower().replace("-", "_"),
        connections=limits.connections,
        address_connections=limits.address_connections,
        requests=limits.requests_per_second,
        address_requests=limits.address_requests_per_second,
        answers_seconds=ANSWERS_SECONDS,
        pace=f"limit_rate {limits.bytes_per_second};" if limits.bytes_per_second is not None else "",
    )


def _listen_outside(outside: Outside) -> str:
    ssl = " ssl" if outside.certificate is not None else ""
    return f"{outside.listen}{ssl}{' proxy_protocol' if outside.proxies else ''}"


def _transport(outside: Outside) -> str:
    lines = []
    if outside.certificate is not None:
        lines += [
            f'ssl_certificate "{outside.certificate}";',
            f'ssl_certificate_key "{outside.key}";',
            "ssl_protocols TLSv1.2 TLSv1.3;",
            "ssl_session_cache shared:sessions:4m;",
        ]
    if outside.proxies:
        # Anybody may send a PROXY header; only these are believed what it says.
        lines += [*(f"set_real_ip_from {network};" for network in outside.proxies), "real_ip_header proxy_protocol;"]
    return "\n        ".join(lines)


def places_of(
    role: NginxRole, folder: Path, address: str, cpus: int, user: str | None, relay: RelayConfig | None = None
) -> NginxPaths:
    """The places of a pod whose `SHOAL_HOME` is `folder` and whose `SHOAL_BIND` is `address`; `relay` is its `relay.json`, None at the origin.

    There is a listener for outside when there is a certificate in `secrets/tls/`, or load balancers that send PROXY headers.
    """
    own = relay or RelayConfig(rate_limits=ORIGIN_LIMITS)
    certificate = folder / "secrets" / "tls" / "tls.crt"
    secured = role == "relay" and certificate.is_file()
    bracketed = f"[{address}]" if ":" in address else address
    # A wildcard is an address to listen on, not one to connect to.
    neighbour = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(address, bracketed)  # noqa: S104 - no bind
    return NginxPaths(
        listen=f"{bracketed}:{NGINX_PORT}",
        gate=f"{neighbour}:{GATE_PORTS[role]}",
        limits=own.rate_limits,
        eviction_seconds=own.eviction_seconds,
        outside=Outside(
            listen=f"{bracketed}:{OUTSIDE_PORT}",
            certificate=certificate if secured else None,
            key=certificate.with_name("tls.key") if secured else None,
            proxies=tuple(own.trusted_proxies),
        )
        if secured or own.trusted_proxies
        else None,
        root=folder / "www",
        logs=log_folder(folder) if role == "relay" else None,  # at the origin nobody counts, nor deletes
        temporary=folder / "tmp" / "nginx",
        workers=max(1, min(cpus, MAX_WORKERS)),
        user=user,
        status=status_socket(folder),
        files=min(MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
    )


def log_folder(folder: Path) -> Path:
    """Where nginx writes and the sync agent counts: in `www/`, the volume that both containers have; only `www/versions/` is served."""
    return folder / "www" / "logs"


def reload_mark(folder: Path) -> Path:
    """A file that the sync agent writes to have nginx start its workers again."""
    return folder / "www" / "reload"


def awaited_certificate(folder: Path) -> Path | None:
    """The certificate for which the pod has a place but which is not there, or None. A listener for it needs another configuration."""
    path = folder / "secrets" / "tls" / "tls.crt"
    return path if path.parent.is_dir() and not path.is_file() else None


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
    relay = None
    if role == "relay":
        config = load_run_config()
        telemetry.every_line(run=config.run)
        relay = load_relay_config(config)
    places = places_of(
        "origin" if role == "origin" else "relay", folder, bind_address(), os.cpu_count() or 1, user, relay
    )
    places.temporary.mkdir(parents=True, exist_ok=True)
    if places.logs is not None:
        places.logs.mkdir(parents=True, exist_ok=True)
        if user is not None:
            shutil.chown(places.logs, user)
    pid_file = places.temporary / "nginx.pid"
    if pid_file.is_file() and pid_file.read_text().strip().isdigit():
        for stray in stray_workers(int(pid_file.read_text())):
            log.warning("ending a worker that a killed nginx left running", pid=stray)
            os.kill(stray, signal.SIGKILL)
    if places.status is None:
        log.warning(
            "nginx's own metrics are missing: this pod's path is too long for a Unix socket", folder=str(folder)
        )
    else:
        places.status.unlink(missing_ok=True)  # left by an nginx that was killed; it would not bind
    configuration = places.temporary / "nginx.conf"
    configuration.write_text(render(places))
    certificate = places.outside.certificate if places.outside is not None else None
    watched = [str(path) for path in (reload_mark(folder), certificate) if path is not None]
    awaited = awaited_certificate(folder) if role == "relay" and certificate is None else None
    if awaited is not None:
        log.warning(
            "there is no certificate for outside clients yet: create the Secret of spec.exposure.tlsSecret; nginx then restarts",
            file=str(awaited),
        )
        watched.append(f"{AWAITED}{awaited}")
    watcher = Path(__file__).with_name("reload.py")
    subprocess.Popen(  # it is nginx's child from the next line on
        [sys.executable, "-I", "-S", str(watcher), str(os.getpid()), *watched], stdin=subprocess.DEVNULL
    )
    log.info("starting nginx", listen=places.listen, outside=places.outside is not None, role=role)
    os.execv(program, [program, "-p", str(places.temporary), "-c", str(configuration), "-e", "stderr"])  # noqa: S606 - nginx becomes this process


if __name__ == "__main__":
    main()
