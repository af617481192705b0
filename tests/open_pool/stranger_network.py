"""Strangers' machines on this machine: a network namespace each, one link to a way in, and nothing else.

A namespace has a loopback of its own, so that nothing of the run can be reached but what the way in (an nginx, as an Ingress controller would be)
lets through over HTTPS. Addresses are of a private network that exists between these namespaces only; names are given by a hosts file that
`ip netns exec` puts in place. `close` takes everything away. Needs root.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from servers import STOP_SECONDS

SUBNET = "10.231.91"
NETNS = Path("/etc/netns")
END_SECONDS = 40.0  # a node gives its leases back before it ends


def unusable() -> str | None:
    """None, or why there can be no namespaces here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "ip is not installed (Debian package iproute2)"
    name = f"sho{os.getpid()}t"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"this kernel or container allows no network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=False)
    return None


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


@dataclass
class Machine:
    """One stranger's machine."""

    number: int
    names: Sequence[str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def namespace(self) -> str:
        return f"sho{os.getpid()}n{self.number}"

    @property
    def link(self) -> str:
        """This end of its link."""
        return f"sho{os.getpid() % 100000}l{self.number}"

    @property
    def way_in(self) -> str:
        """Address of the way in, as this machine knows it."""
        return f"{SUBNET}.{4 * self.number + 1}"

    def connect(self) -> None:
        run("ip", "netns", "add", self.namespace)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.namespace)
        run("ip", "addr", "add", f"{self.way_in}/30", "dev", self.link)
        run("ip", "link", "set", self.link, "up")
        run("ip", "-n", self.namespace, "addr", "add", f"{SUBNET}.{4 * self.number + 2}/30", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", self.namespace, "link", "set", device, "up")
        folder = NETNS / self.namespace
        folder.mkdir(parents=True)
        (folder / "hosts").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{self.way_in} {name}\n" for name in self.names)
        )

    def cut(self) -> None:
        """Take the link down: a partition."""
        run("ip", "link", "set", self.link, "down")

    def mend(self) -> None:
        run("ip", "link", "set", self.link, "up")

    def start(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a command on this machine; it dies with the test run."""
        with log.open("ab") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, "setpriv", "--pdeathsig", "KILL", "--", *command],
                env={"PATH": os.environ["PATH"], **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_SECONDS)
        subprocess.run(["ip", "netns", "del", self.namespace], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self.link], check=False, capture_output=True)
        shutil.rmtree(NETNS / self.namespace, ignore_errors=True)


def ingress_configuration(folder: Path, addresses: Sequence[str], backends: Mapping[str, str]) -> str:
    """nginx.conf of a way in: HTTPS at these addresses, by name to `backends` (host:port); unknown names are refused."""
    servers = "".join(
        f"""
    server {{
        {" ".join(f"listen {address}:443 ssl;" for address in addresses)}
        server_name {name};
        location / {{
            proxy_pass http://{backend};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Connection "";
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_read_timeout 60s;
        }}
    }}"""
        for name, backend in backends.items()
    )
    refuse = " ".join(f"listen {address}:443 ssl default_server;" for address in addresses)
    return f"""daemon off;
user root;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
    access_log {folder}/access.log;
    client_max_body_size 64m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    ssl_certificate {folder}/tls/tls.crt;
    ssl_certificate_key {folder}/tls/tls.key;
    server {{ {refuse} server_name _; return 421; }}{servers}
}}
"""
