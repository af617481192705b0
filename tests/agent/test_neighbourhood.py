"""Where a run may send a stranger's machine: not into the machine's own network, whatever its invite, heartbeats and grants name."""

import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from protocol_stack import Node, Stack, node_config
from shoal.agent.hand_in import hand_in
from shoal.agent.session import Session
from shoal.contracts.protocol import HeartbeatReply, Invite, LocalSubmission
from shoal.contracts.signed import sign
from shoal.crypto.keys import PrivateKey
from shoal.transport import SignedClient, Unavailable, neighbourhood
from shoal.transport.neighbourhood import ForbiddenUrl, Neighbourhood, kind_of

NAMES = {"store.example": ["203.0.114.7"], "router.example": ["203.0.114.7", "192.168.1.1"], "away.example": []}


def looked_up(host: str) -> list[str]:
    found = NAMES.get(host, [host])
    if not found:
        raise OSError("Name or service not known")
    return found


def seen_from(discovery_at: str, discovery: str = "http://discovery.example") -> Neighbourhood:
    made = Neighbourhood(discovery, looked_up)
    made.discovery_is_at(discovery_at)
    return made


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("8.8.8.8", "public"),
        ("2606:4700::1111", "public"),
        ("127.9.9.9", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "loopback"),
        ("0.1.2.3", "loopback"),
        ("::", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("64:ff9b::7f00:1", "loopback"),
        ("2002:7f00:1::", "loopback"),
        ("169.254.169.254", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("10.0.0.1", "private"),
        ("100.64.0.1", "private"),
        ("fd00::1", "private"),
        ("::ffff:192.168.1.1", "private"),
        ("224.0.0.1", "private"),
        ("255.255.255.255", "private"),
    ],
)
def test_addresses_are_told_apart_by_what_they_are_to_this_machine(address: str, kind: str) -> None:
    assert kind_of(address) == kind


@pytest.mark.parametrize(
    ("discovery_at", "may_call"),
    [
        ("8.8.8.8", {"8.8.4.4"}),
        ("", {"8.8.4.4"}),
        ("10.0.0.9", {"8.8.4.4", "192.168.1.1"}),
        ("169.254.0.9", {"8.8.4.4", "192.168.1.1", "169.254.169.254"}),
        ("127.0.0.9", {"8.8.4.4", "192.168.1.1", "169.254.169.254", "127.0.0.1"}),
    ],
)
def test_a_run_may_name_no_nearer_network_than_that_of_its_discovery(discovery_at: str, may_call: set[str]) -> None:
    guard = seen_from(discovery_at)
    for address in ("8.8.4.4", "192.168.1.1", "169.254.169.254", "127.0.0.1"):
        url = f"http://{address}:8080/apply.cgi"
        if address in may_call:
            guard.check(url)
            continue
        with pytest.raises(ForbiddenUrl, match=f"leads to {address}, a"):
            guard.check(url)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://router.example/", "leads to 192.168.1.1"),
        ("https://away.example/", "has no address"),
        ("http://store.example/", "is not HTTPS, as discovery is"),
        ("ftp://store.example/", "not a plain http or https URL"),
        ("https://me:secret@store.example/", "not a plain http or https URL"),
        ("https:///nothing", "not a plain http or https URL"),
        ("https://store.example:port/", "is no URL"),
        ("https://[::ffff:10.0.0.1]/", "a private address"),
    ],
)
def test_a_url_that_is_odd_or_leads_anywhere_near_is_refused(url: str, problem: str) -> None:
    guard = seen_from("8.8.8.8", "https://discovery.example")
    guard.check("https://store.example/bucket")
    with pytest.raises(ForbiddenUrl, match=problem):
        guard.check(url)


@pytest.mark.parametrize("url", ["http://2130706433/", "http://0x7f.1/", "http://localhost/"])
def test_other_ways_to_write_this_machine_are_resolved_as_the_call_would(url: str) -> None:
    guard = Neighbourhood("http://discovery.example")
    with pytest.raises(ForbiddenUrl, match=r"leads to (127\.0\.0\.1|::1)"):
        guard.check(url)


def test_relays_that_may_not_be_called_are_left_out_and_good_ones_are_not_looked_up_each_time() -> None:
    asked: list[str] = []

    def noted(host: str) -> list[str]:
        asked.append(host)
        return looked_up(host)

    guard = Neighbourhood("http://discovery.example", noted)
    relays = ["http://store.example:8091", "http://router.example:8091"]
    with capture_logs() as said:
        assert [guard.reachable(relays) for _ in range(3)] == [relays[:1]] * 3
    assert [line["event"] for line in said] == ["relay is not used"], "it is said once"
    assert asked.count("store.example") == 1


# A session


def joined_elsewhere(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session that takes its discovery, which is on this machine, for one in a public place."""
    monkeypatch.setattr(neighbourhood, "kind_of", lambda address: "loopback" if address == "127.0.0.1" else "public")
    return Session(node_config(stack), PrivateKey.generate(), neighbourhood=Neighbourhood(stack.addresses.discovery))


def test_an_invite_into_this_machines_own_network_is_not_followed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    session = joined_elsewhere(stack, monkeypatch)
    assert session.neighbourhood is not None

    def invite(url: str) -> None:
        made = Invite(
            run="tiny", pool="pool", node=session.key.public, orchestrator_url=url, nonce="0" * 32, expires_unix=1 << 40
        )
        session._checked(sign(made, stack.role_keys["orchestrator"]))

    session.neighbourhood.discovery_is_at("127.0.0.2")
    with pytest.raises(ForbiddenUrl, match=r"leads to 127\.0\.0\.1"):
        invite("http://127.0.0.1:8080")
    assert session.status().orchestrator == ""
    invite(stack.addresses.orchestrator)


def test_a_session_measures_by_where_discovery_answered_from(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path))
    guard = Neighbourhood(stack.addresses.discovery)
    session = Session(node_config(stack), PrivateKey.generate(), neighbourhood=guard)
    with pytest.raises(ForbiddenUrl):
        guard.check(stack.addresses.orchestrator)
    session._join(threading.Event())
    guard.check(stack.addresses.orchestrator)


def test_a_file_is_not_posted_to_where_a_grant_must_not_lead(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.announce(0)
    node = Node(stack).join()
    step = node.step()
    assert step is not None
    lease = node.lease(step.step)
    (tmp_path / "rollouts.parquet").write_bytes(b"rollouts")
    handed = LocalSubmission(lease=lease.lease, file="rollouts.parquet", groups=2)
    monkeypatch.setattr("shoal.agent.hand_in.HAND_IN_SECONDS", 0.1)
    guard = Neighbourhood(stack.addresses.discovery)  # of a run that is far away
    with pytest.raises(Unavailable, match=r"ForbiddenUrl: .* leads to 127"):
        hand_in(node.orchestrator, node.id, tmp_path, handed, guard)
    guard.discovery_is_at(stack.address)
    monkeypatch.setattr("shoal.agent.hand_in.HAND_IN_SECONDS", 60.0)
    assert hand_in(node.orchestrator, node.id, tmp_path, handed, guard).status == "queued"


def test_a_client_knows_where_its_last_answer_came_from(stack: Stack) -> None:
    client = SignedClient(stack.addresses.discovery)
    assert client.peer == ""
    client.request("GET", "/v1/join")
    assert client.peer == stack.address


@pytest.mark.parametrize("seconds", [0.0, -1.0, 61.0, 1e9, float("nan")])
def test_a_heartbeat_reply_names_a_pace_that_keeps_a_node_alive_and_hurts_nobody(seconds: float) -> None:
    with pytest.raises(ValueError, match="heartbeat_seconds"):
        HeartbeatReply(state="Healthy", heartbeat_seconds=seconds)
