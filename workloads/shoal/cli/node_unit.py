"""`shoal node unit`: a systemd unit that joins a run on this machine, hardened. Pure, except for asking where this installation lies.

In: the options of `shoal node join`, as its own parser read them. Out: the text of a system unit. It runs as its owner's user and sees of /home only
this installation and the node's folder. What it leaves open, and why: devices of NVIDIA's, for the GPU; namespaces, in which programs of the policy
are shut up; memory that is written and run, because kernels are compiled.
"""

import re
import site
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.contracts.protocol import LEAVE_SECONDS
from shoal.errors import EXIT_INPUT_WRONG, InputWrong

STOP_SECONDS = int(LEAVE_SECONDS) + 25
"""The worker has 20 s, is killed after 5 more, and the agent gives back what is left."""
HOMES = ("/home", "/root", "/run/user")
"""What `ProtectHome=tmpfs` hides."""
USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}\$?", re.ASCII)
WRITTEN = ("folder", "key")
"""Options that name what the node writes: its folder, and its key where it lies elsewhere."""
SECRET = ("invite_code",)
"""Options whose value must not stand in a file that everybody can read."""

TEMPLATE = """[Unit]
Description=Shoal node: lends this machine to a run
Documentation=man:systemd.exec(5)
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=600
StartLimitBurst=10

[Service]
User={user}
ExecStart={command}
Environment=PATH={path}
# Caches of compiled kernels: the user's own home cannot be written here.
Environment=HOME=%S/shoal-node
WorkingDirectory=/
UMask=0077
Restart=on-failure
RestartSec=30
# 2: the machine lacks something, or an option is wrong. Starting again does not help.
RestartPreventExitStatus={wrong}
KillMode=mixed
TimeoutStopSec={stop}
StateDirectory=shoal-node
StateDirectoryMode=0700

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=tmpfs
{binds}PrivateTmp=yes
PrivateMounts=yes
ProtectProc=invisible
ProtectClock=yes
ProtectControlGroups=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service @mount seccomp sethostname
SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self
SystemCallErrorNumber=EPERM
DevicePolicy=closed
DeviceAllow=char-nvidia* rw

[Install]
WantedBy=multi-user.target
"""


def unit(options: Mapping[str, Any], flags: Mapping[str, str], user: str, installation: Sequence[Path]) -> str:
    """The unit. `options`: what the parser of `join` read, by parameter; `flags`: the option of each parameter, empty for the URL.

    Raises `InputWrong` for what cannot stand in a unit.
    """
    if not USER.fullmatch(user):
        raise InputWrong(f"--user {user[:40]!r} is not the name of a user")
    if given := [flags[name] for name in SECRET if options.get(name) is not None]:
        raise InputWrong(f"{given[0]} would stand in a file that everybody can read: give {given[0]}-file")
    words, reads = [str(Path(sys.executable).parent / "shoal"), "node", "join"], list(installation)
    for name, value in sorted(options.items(), key=lambda item: flags[item[0]] != ""):  # the URL first
        if value is None or name in SECRET:
            continue
        if isinstance(value, Path):
            value = value.expanduser().absolute()
            if name not in WRITTEN:
                reads.append(value)
        words += [str(value)] if not flags[name] else [flags[name], str(value)]
    writes = written(options)
    binds = [f"BindReadOnlyPaths={path_word(path)}\n" for path in _hidden(reads)]
    binds += [f"BindPaths={path_word(path)}\n" for path in _hidden(writes)]
    binds += [f"ReadWritePaths={path_word(path)}\n" for path in dict.fromkeys(writes)]
    return TEMPLATE.format(
        user=user,
        command=" ".join(map(word, words)),
        path=word(f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"),
        wrong=EXIT_INPUT_WRONG,
        stop=STOP_SECONDS,
        binds="".join(binds),
    )


def written(options: Mapping[str, Any]) -> list[Path]:
    """Folders that the node writes to. Those must be there: systemd starts no unit that binds a path which does not exist."""
    given = {name: Path(options[name]).expanduser().absolute() for name in WRITTEN if options.get(name) is not None}
    return [path.parent if name == "key" else path for name, path in given.items()]


def installation() -> list[Path]:
    """Folders that this program runs from: its environment, the interpreter's own, and the checkout of an editable installation."""
    sources = [Path(found) for found in sys.path if found and not found.startswith(tuple(site.getsitepackages()))]
    return [Path(sys.prefix), Path(sys.base_prefix), *(path for path in sources if path.is_dir())]


def word(text: str) -> str:
    """A word of a unit's command line (systemd.syntax(7)): quotes, `%` and `$` mean something there. Raises `InputWrong` for control characters."""
    if not text.isprintable():
        raise InputWrong(f"{text!r} has characters that cannot stand in a unit")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if re.search(r"[^A-Za-z0-9_./:=@%,+$-]", escaped) or not text else escaped


def path_word(path: Path) -> str:
    """A path in a setting that takes several: `:` separates there, and `-` or `+` in front means something."""
    text = str(path)
    if not text.isprintable() or re.search(r"[:\\\"'\s]", text):
        raise InputWrong(f"{text!r} cannot stand in a unit: choose a path without spaces, quotes and colons")
    return text.replace("%", "%%")


def _hidden(paths: Sequence[Path]) -> list[Path]:
    """Those that the unit would not see without a bind, without those that lie in another one."""
    under = sorted({path for path in paths if f"{path}/".startswith(tuple(f"{home}/" for home in HOMES))})
    return [path for path in under if not any(other in path.parents for other in under)]
