"""`shoal node join`: joins an open pool with this machine, until it is asked to stop or the run is over.

In: discovery's URL, and the owner's options. Asks discovery about the run, checks it against the run's key, and says what this machine
lacks. Then it writes `config/node.json` as a pool's pod has it, and runs the same agent as that pod (`agent/`), with processes instead of
containers.
"""

import contextlib
import fcntl
import importlib.util
import ipaddress
import os
import ssl
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from shoal import accelerators
from shoal.agent import hardware, hours, node_key, uplink
from shoal.agent.owner import Owner, request_file
from shoal.cli.node_lending import lending_file, lending_lines, lending_of, use_gpus
from shoal.cli.node_processes import COMMANDS, Processes
from shoal.cli.node_text import Teller, machine_line, read_status
from shoal.contracts.machine import Lending
from shoal.contracts.newer import from_newer_json
from shoal.contracts.node_states import EXCLUDED
from shoal.contracts.pools import Requirements, claim_with_code
from shoal.contracts.protocol import Hardware
from shoal.contracts.requirements import missing
from shoal.contracts.roster import verified_roster
from shoal.contracts.run import AgentStatus, JoinOffer, NodeConfig, OpenPool
from shoal.contracts.signed import BadSignature
from shoal.crypto.keys import PrivateKey
from shoal.errors import EXIT_DONE, EXIT_RUN_FAILED, InputWrong
from shoal.files import replace_file
from shoal.planner.disks import held_bytes
from shoal.planner.facts import WIDTH
from shoal.planner.findings import gigabytes
from shoal.planner.model_shape import parameters_in
from shoal.report.ledger_sources import checked_key
from shoal.retries import Backoff, retrying
from shoal.text import Say, plain
from shoal.transport import Refused, SignedClient, Unavailable
from shoal.transport.authorities import authorities
from shoal.transport.neighbourhood import Neighbourhood
from shoal.transport.rate_limit import Caps, caps

if TYPE_CHECKING:
    from shoal.cli.node_page import NodePage

PAUSES = Backoff(1.0, 30.0)
ASK_SECONDS = 10.0
SAY_AGAIN_SECONDS = 30.0
LOCK_TRIES, LOCK_SECONDS = 5, 0.05
"""Whoever only looks whether a node runs holds its lock for a moment (`node_status.is_running`)."""
MOST_SOCKET_BYTES = 107
FOLDERS = ("config", "key", "log", "run", "secrets", "tmp", "weights")
_EVERYTHING = Lending()


@dataclass(frozen=True)
class Wishes:
    """Options that the owner of the machine gave."""

    url: str
    folder: Path
    pool: str | None = None
    key: Path | None = None
    run_key: str | None = None
    ca_file: Path | None = None
    code: str | None = None
    bind: str = "127.0.0.1"
    upload_limit: str | None = None
    download_limit: str | None = None
    hours: str | None = None
    gpus: str | None = None
    page: int = 0


def join(wishes: Wishes, say: Say, commands: Mapping[str, Mapping[str, Sequence[str]]] = COMMANDS) -> int:
    """Join and stay; returns the exit code. Raises `InputWrong` for what the owner must change."""
    if wishes.run_key is not None:
        checked_key(wishes.run_key)
    lending = lending_of(wishes.upload_limit, wishes.download_limit, wishes.hours, wishes.gpus)
    use_gpus(lending, os.environ)
    tls = _authorities(wishes.ca_file)
    offer = ask(wishes.url, tls, say)
    check_offer(offer, wishes, wishes.folder / offer.run / "config" / "node.json")
    pool = choose_pool(offer.pools, wishes.pool)
    config = NodeConfig(
        run=offer.run,
        pool=pool.name,
        engine=pool.engine,
        quantization=pool.quantization,
        discovery=wishes.url,
        roster=offer.roster,
        run_key=offer.run_key,
    )
    say(f"run {offer.run}, pool {pool.name}, model {plain(offer.model_id, 200)}")
    if pool.quantization is not None:
        say(
            f"the pool samples with quantization {pool.quantization}: this machine rounds the weights before it uses them"
        )
    say(f"run key {offer.run_key}" + ("" if wishes.run_key else ": this machine trusts only this key from now on"))
    home = wishes.folder.resolve() / config.run
    _fits_socket(home)
    with _writable(home):
        for name in FOLDERS:
            (home / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        keep_to_oneself(home)
    with only_one(home):
        with _writable(home):
            limits = caps(lending, home / "run")
        key = _key(wishes.key or home / "key" / "node.pem")
        found = hardware.detect(home)
        client = SignedClient(wishes.url, key, tls=tls, caps=limits)
        found = found.model_copy(update={"uplink_mbps": measure(client, key, pool, say)})
        say(machine_line(found))
        check_machine(found, pool, commands)
        os.environ.pop(accelerators.COUNT, None)
        if wants_gpus(pool.requirements):  # the worker ends rather than sample without
            os.environ[accelerators.COUNT] = str(max(pool.engine.ranks, pool.requirements.gpus))
        cards = accelerators.visible(accelerators.read_machine(), os.environ)
        unused = accelerators.why_unused(os.environ, cards, engine=True)
        check_room(offer.model_id, found, weights_here(home), gpus=pool.engine.ranks if unused is None else 0)
        if unused:
            say(f"this machine's GPUs stay unused: {unused}")
        code = _code(wishes.code, config, key)
        if pool.codes and not pool.listed and code is None:
            raise InputWrong(f"pool {pool.name!r} needs an invite code: --invite-code-file FILE (its owner gives one)")
        with _writable(home):
            write_folder(home, config, wishes.ca_file, code, lending)
        for line in lending_lines(lending):
            say(line)
        return _stay(config, key, home, wishes, lending, limits, commands, say)


def ask(url: str, tls: ssl.SSLContext | None, say: Say, give_up_seconds: float = float("inf")) -> JoinOffer:
    """Fetch discovery's offer; waits while it does not answer, and says so. Raises `InputWrong` when another try cannot help."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputWrong(f"{url!r} is not the URL of a discovery service, such as https://discovery.example.org")
    client = SignedClient(url, tls=tls)
    said = float("-inf")

    def once() -> JoinOffer:
        try:
            offer = client.call("GET", "/v1/join", reply=JoinOffer, deadline_seconds=0.0, timeout_seconds=ASK_SECONDS)
        except Refused as refused:
            raise InputWrong(
                f"{url} is not the discovery service of a run that is open to strangers' machines: {plain(str(refused), 300)}"
            ) from None
        except Unavailable as away:
            if _is_certificate(away):
                raise InputWrong(
                    f"the certificate of {url} is not trusted: give the PEM of its authority with --ca-file FILE"
                ) from None
            raise
        if offer is None:
            raise InputWrong(f"{url} answered without an offer: is it the discovery service of a run?")
        return offer

    def tell(error: BaseException, so_far: float) -> None:
        nonlocal said
        if so_far - said > SAY_AGAIN_SECONDS:
            waited = "does not answer" if said < 0 else f"has not answered for {so_far:.0f} s"
            reason = plain(error.reason if isinstance(error, Unavailable) else str(error), 300)
            say(f"{url} {waited} ({reason}): tries again until Ctrl-C; is it the run's discovery service?")
            said = so_far

    return retrying((Unavailable,), PAUSES, deadline_seconds=give_up_seconds, say=tell)(once)


def check_offer(offer: JoinOffer, wishes: Wishes, kept: Path) -> None:
    """Check an offer against the run's key: the given key, else the one of the first join, else HTTPS vouches. Raises `InputWrong`.

    A server that was joined before must also offer the same run: otherwise another run's name would bypass the kept key.
    """
    expected, source = wishes.run_key, "--run-key"
    if expected is None and kept.is_file():
        expected, source = _read_config(kept).run_key, str(kept)
    # After a leak of the first key the owner gives the newest.
    later = offer.roster.document.run_keys(offer.roster.signer) if wishes.run_key is not None else []
    if expected is not None and expected != offer.run_key and expected not in later:
        raise InputWrong(
            f"{wishes.url} offers run {offer.run} with run key {offer.run_key}, but {source} says {expected}: it is a different run,"
            " or somebody intercepts the connection"
        )
    before = joined_before(wishes.folder, wishes.url)
    if wishes.run_key is None and before and (offer.run, offer.run_key) not in before:
        names = " or ".join(f"{run} with run key {key}" for run, key in before)
        raise InputWrong(
            f"{wishes.url} led to run {names} before, and now offers run {offer.run} with run key {offer.run_key}."
            " If a new run was started there, ask its owner for the run key and give it with --run-key HEX; otherwise somebody may intercept you"
        )
    if expected is None and urlsplit(wishes.url).scheme == "http" and not is_loopback(wishes.url):
        raise InputWrong(
            f"{wishes.url} is not HTTPS, so anybody on the network could send a run key of their own: give the run's key with --run-key HEX"
        )
    try:
        roster = verified_roster(offer.roster, expected or offer.run_key)
        verified_roster(offer.roster, offer.run_key)
    except BadSignature as error:
        raise InputWrong(f"{wishes.url}: the roster is not signed with the run key: {error}") from None
    if roster.run != offer.run:
        raise InputWrong(
            f"{wishes.url}: the roster belongs to run {plain(roster.run, 60)}, but the offer to {offer.run}"
        )


def joined_before(folder: Path, url: str) -> list[tuple[str, str]]:
    """Name and key of each run that was joined through `url`, from the files of `write_folder`. Unreadable files are skipped."""
    found = []
    for path in sorted(folder.glob("*/config/node.json")):
        with contextlib.suppress(InputWrong, ValueError):
            config = _read_config(path)
            if _same_place(config.discovery, url):
                found.append((config.run, config.run_key))
    return found


def choose_pool(pools: Sequence[OpenPool], wanted: str | None) -> OpenPool:
    """The pool to join; raises `InputWrong` with the list of pools."""
    names = ", ".join(pool.name for pool in pools) or "none"
    if wanted is None and len(pools) == 1:
        return pools[0]
    if wanted is None:
        raise InputWrong(f"choose a pool with --pool; open to strangers' machines: {names}")
    found = next((pool for pool in pools if pool.name == wanted), None)
    if found is None:
        raise InputWrong(f"--pool {wanted} is not open to strangers' machines; open are: {names}")
    return found


def measure(client: SignedClient, key: PrivateKey, pool: OpenPool, say: Say) -> float | None:
    """Let discovery measure this machine's uplink, 10^6 bits a second; None, and why, when it is not available."""
    wanted = pool.requirements.uplink_mbps
    say("measuring the uplink by uploading random bytes to discovery; this takes a few seconds")
    try:
        return uplink.show(client, key.public, pool.name, uplink.ASK_SECONDS if wanted else 5.0).mbps
    except (Refused, Unavailable, uplink.TooSlowError) as error:
        say(f"could not measure the uplink: {plain(str(error), 300)}")
        return None


def check_machine(
    found: Hardware, pool: OpenPool, commands: Mapping[str, Mapping[str, Sequence[str]]] = COMMANDS
) -> None:
    """Raise `InputWrong` with a line for everything that this machine lacks."""
    lacks = [f"pool {pool.name!r} requires {what}" for what in missing(found, pool.requirements)]
    if commands is COMMANDS and importlib.util.find_spec("vllm") is None:
        lacks.append(
            "the inference engine is not installed here: run `make setup` in a checkout of the run's release, and use its .venv/bin/shoal"
        )
    elif commands is COMMANDS and wants_gpus(pool.requirements):
        try:
            has, machine = accelerators.read_software(os.environ), accelerators.read_machine()
            accelerators.check_software(has, engine=True)
            wanted = accelerators.Promise(max(pool.engine.ranks, pool.requirements.gpus))
            accelerators.check_cards(wanted, accelerators.visible(machine, os.environ))
            accelerators.check_driver(has, machine)
        except accelerators.NoGpu as error:
            lacks.append(f"pool {pool.name!r} is one of GPUs: {error}")
    if lacks:
        raise InputWrong(*lacks)


def wants_gpus(wanted: Requirements) -> bool:
    """Whether a pool invites machines with GPUs only."""
    return bool(wanted.gpus or wanted.gpu_types or wanted.gpu_memory_gib)


def check_room(model_id: str, found: Hardware, held: int = 0, *, gpus: int = 1) -> None:
    """Raise `InputWrong` for a model whose name says that its weights have no room here; a name without a size says nothing.

    Two versions lie on the disk while one is fetched, of which `held` bytes are there already; one is in the memory of the `gpus` of an engine, or in
    the machine's: without any GPU, where GPUs stay unused (0), and where the driver does not tell their memory. Before anything is fetched: 65 GB of
    a model with 32 billion parameters take hours.
    """
    parameters = parameters_in(model_id.partition("@")[0])
    if parameters is None:
        return
    version, name = WIDTH * parameters, plain(model_id, 100)
    lacks = []
    if found.disk_free_bytes + held < (needed := held_bytes(version, 2)):
        lacks.append(
            f"two versions of {name} need {gigabytes(needed)} of disk, and {gigabytes(found.disk_free_bytes + held)} are free: give another --folder"
        )
    of_gpus = (found.gpu_memory_bytes or 0) * gpus if found.gpus else 0
    memory = of_gpus or found.memory_bytes
    if memory < version:
        of = ("a " if gpus == 1 else f"{gpus} x ") + f"{found.gpu_type}" if of_gpus else "this machine"
        has = "have" if of_gpus and gpus > 1 else "has"
        lacks.append(f"{name} has {gigabytes(version)} of weights, and {of} {has} {gigabytes(memory)} of memory")
    if lacks:
        raise InputWrong(*lacks)


def weights_here(home: Path) -> int:
    """Bytes of versions that an earlier join left."""
    return sum(path.stat().st_size for path in (home / "weights").rglob("*") if path.is_file())


@contextlib.contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Two agents with one key would take each other's work; raises `InputWrong` while another one runs in this folder."""
    with (home / "lock").open("ab") as lock:
        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if not tries_left:
                    raise InputWrong(
                        f"another `shoal node join` runs in {home}: `shoal node status` shows its state"
                    ) from None
                time.sleep(LOCK_SECONDS)
        yield


@contextlib.contextmanager
def _writable(home: Path) -> Iterator[None]:
    """Raises `InputWrong` where the node's files cannot be made: a full disk, say, or somebody else's folder."""
    try:
        yield
    except OSError as error:
        raise InputWrong(
            f"{error.filename or home}: {error.strerror}; free some room, or give another --folder"
        ) from None


def _fits_socket(home: Path) -> None:
    """Raises `InputWrong` for a folder whose name is too long for the agent's socket in it: Linux takes 107 bytes (unix(7))."""
    longest = MOST_SOCKET_BYTES - len("/run/agent.sock")
    if (length := len(os.fsencode(home))) > longest:
        raise InputWrong(
            f"{home} is {length} bytes long; allowed: {longest}, for a socket in it: give a shorter --folder"
        )


def keep_to_oneself(home: Path) -> None:
    """Close the node's folder to other users, who could else ask its agent for things; raises `InputWrong` for somebody else's folder."""
    if home.stat().st_uid != os.geteuid():
        raise InputWrong(f"{home} belongs to another user: give another --folder, or run this as that user")
    for path in (home, *(home / name for name in FOLDERS)):
        path.chmod(0o700)


def write_folder(
    home: Path, config: NodeConfig, ca_file: Path | None, code: str | None, lending: Lending = _EVERYTHING
) -> None:
    """Write the files that a pool's pod finds in its volumes, and what is lent. Optional files of an earlier join that were not given again are
    deleted."""
    authority = ca_file.read_bytes() if ca_file is not None else None
    _replace(home / "config" / "ca.pem", authority)
    _replace(home / "config" / "relay-ca.pem", authority)
    _replace(home / "secrets" / "invite_code", code.encode() if code is not None else None)
    replace_file(lending_file(home), lending.to_json())
    _replace(home / "config" / "node.json", config.to_json())


def _stay(
    config: NodeConfig,
    key: PrivateKey,
    home: Path,
    wishes: Wishes,
    lending: Lending,
    limits: Caps,
    commands: Mapping[str, Mapping[str, Sequence[str]]],
    say: Say,
) -> int:
    from shoal import telemetry
    from shoal.agent.agent import run_agent

    pod, bind = f"node-{key.public[:12]}", wishes.bind
    owner = Owner(home, hours.parse(lending.hours) if lending.hours else ())
    if owner.request() == "pause":
        say("this node is paused: it takes no work until `shoal node resume`")
    os.environ.update({"SHOAL_HOME": str(home), "SHOAL_BIND": bind, "SHOAL_POD": pod, "SHOAL_ROLE": "agent"})
    say(f"node {key.public}")
    say(f"all files are in {home}; Ctrl-C leaves the run cleanly")
    with _log(home / "log" / "agent.log") as log:
        telemetry.start("agent", log)
        work = Processes(home, bind, pod, commands)
        teller = Teller(home / "run" / "status.json", say)
        (home / "run" / "status.json").unlink(missing_ok=True)
        stop = threading.Event()
        telling = threading.Thread(target=teller.run, args=(stop,), name="telling", daemon=True)
        telling.start()
        page = _page(home, lending, wishes, say) if wishes.page else None
        try:
            session = run_agent(config, key, work, Neighbourhood(config.discovery), owner=owner, caps=limits)
        except OSError as error:
            raise InputWrong(
                f"cannot listen on {bind}: {error.strerror or error}; if another node runs on this machine, give each its own --bind 127.0.0.N"
            ) from None
        finally:
            work.end()
            stop.set()
            telling.join(timeout=2.0)
            if page is not None:
                page.close()
    (home / "run" / "agent.sock").unlink(missing_ok=True)
    status: AgentStatus = session.status()
    if owner.request() == "drain":  # done: the next join works
        request_file(home).unlink(missing_ok=True)
    if over := session.run_is_over():
        say(f"{over}; this machine has nothing left to do")
    say(f"left run {config.run}: {status.files_accepted} files accepted, {status.files_rejected} rejected")
    return EXIT_RUN_FAILED if status.state in EXCLUDED else EXIT_DONE


@contextlib.contextmanager
def _log(path: Path) -> Iterator[TextIO]:
    """A log to add to. Lines that a full disk does not take are lost, and change nothing in how the node ends."""
    log = path.open("a")
    try:
        yield log
    finally:
        with contextlib.suppress(OSError):
            log.close()


def _page(home: Path, lending: Lending, wishes: Wishes, say: Say) -> "NodePage | None":
    """The page of this machine; a port that is taken costs the page and nothing else."""
    from shoal.cli.node_page import NodePage

    try:
        page = NodePage(lambda: read_status(home / "run" / "status.json"), lending, wishes.bind, wishes.page)
    except OSError as error:
        say(f"no page: port {wishes.page}: {error.strerror}; choose another with --page")
        return None
    say(f"page of this machine: {page.url}")
    return page


def _authorities(path: Path | None) -> ssl.SSLContext | None:
    if path is None:
        return None
    if not path.is_file():
        raise InputWrong(f"--ca-file {path}: no such file")
    try:
        return authorities(path)
    except ValueError as error:
        raise InputWrong(f"--ca-file: {error}") from None


def _read_config(path: Path) -> NodeConfig:
    try:
        config = from_newer_json(NodeConfig, path.read_bytes())
        config.trust  # noqa: B018 - checked when it is made
    except OSError as error:
        raise InputWrong(f"{path}: {error.strerror}") from None
    except (ValidationError, BadSignature) as error:
        raise InputWrong(f"{path} is not the node.json of a run: {' '.join(str(error).split())[:300]}") from None
    return config


def _key(path: Path) -> PrivateKey:
    try:
        return node_key.load_or_create(path)
    except (ValueError, OSError) as error:
        raise InputWrong(str(error)) from None


def _code(code: str | None, config: NodeConfig, key: PrivateKey) -> str | None:
    if code is None:
        return None
    try:
        claim_with_code(code, config.run, config.pool, key.public)
    except ValueError as error:
        raise InputWrong(f"{error}: ask the pool's owner for it") from None
    return code.strip()


def _replace(path: Path, data: bytes | None) -> None:
    """Write a file that only its owner can read, whole or not at all; None removes it."""
    if data is None:
        path.unlink(missing_ok=True)
        return
    replace_file(path, data)


def is_loopback(url: str) -> bool:
    """Whether only this machine can answer: a loopback address, or `localhost`. A name that only starts like one may be anybody's."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _same_place(one: str, other: str) -> bool:
    """Whether two URLs name one server: letter case of the host, a usual port and a last slash make no difference."""
    places = []
    for url in (one, other):
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        places.append((parts.scheme, parts.hostname, port, parts.path.rstrip("/")))
    return places[0] == places[1]


def _is_certificate(away: Unavailable) -> bool:
    """Whether a server cannot be reached because its certificate is not trusted, which no waiting repairs."""
    if "CERTIFICATE_VERIFY_FAILED" in str(away):
        return True
    cause = away.__cause__ or away.__context__
    return isinstance(cause, httpx.ConnectError) and "CERTIFICATE_VERIFY_FAILED" in str(cause)
