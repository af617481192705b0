"""NetworkPolicies of a one-node cluster as firewall rules. Pure: policies, pods and namespaces in, text for `iptables-restore --noflush` out.

A packet of a new connection passes `SHOAL-POLICY`: first what its source pod may send to (chain `SHOAL-E-...`), then what its target pod may
receive (`SHOAL-I-...`); a chain that ends without a permission drops. Pods that no policy selects have no chain. Packets of connections that stand,
replies too, pass. What the node itself sends to a pod (probes) never comes here, as Kubernetes asks for. Addresses of Services are pods' by then
(kube-proxy). IPv4 only, like the node.
"""

import hashlib
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

ENTRY = "SHOAL-POLICY"
PREFIXES = ("SHOAL-E-", "SHOAL-I-")
EVERYWHERE = "0.0.0.0/0"


@dataclass(frozen=True)
class World:
    """What policies speak of. Pods without an address, on the host's network or ended have no traffic of their own."""

    policies: list[Object]
    pods: list[Object]
    namespaces: dict[str, dict[str, str]]
    """Labels of each namespace."""

    @classmethod
    def of(cls, policies: list[Object], pods: list[Object], namespaces: list[Object]) -> "World":
        return cls(
            sorted(policies, key=_name),
            sorted((pod for pod in pods if _has_traffic(pod)), key=_name),
            {each["metadata"]["name"]: each["metadata"].get("labels") or {} for each in namespaces},
        )


def compile_rules(world: World) -> dict[str, list[str]]:
    """Chains and their rules, `SHOAL-POLICY` among them. Rules are arguments of iptables after `-A CHAIN`."""
    entry = ["-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]
    chains: dict[str, list[str]] = {}
    jumps: dict[str, list[str]] = {"Egress": [], "Ingress": []}
    for pod in world.pods:
        for direction, prefix, side in (("Egress", PREFIXES[0], "-s"), ("Ingress", PREFIXES[1], "-d")):
            selecting = [each for each in world.policies if _selects(each, pod, direction)]
            if not selecting:
                continue
            chain = prefix + hashlib.sha256(pod["metadata"]["uid"].encode()).hexdigest()[:16]
            rules = dict.fromkeys(rule for policy in selecting for rule in _permissions(policy, pod, direction, world))
            chains[chain] = [*rules, "-j DROP"]
            jumps[direction].append(f"{side} {pod['status']['podIP']}/32 -j {chain}")
    # RETURN in a pod's chain comes back here, so that both sides are asked.
    return {ENTRY: entry + jumps["Egress"] + jumps["Ingress"], **chains}


def restore_text(chains: dict[str, list[str]], present: Iterable[str]) -> str:
    """Text for `iptables-restore --noflush` that makes exactly these chains, at once; `present` are those that are there now."""
    unused = sorted(name for name in set(present) - set(chains) if name.startswith(PREFIXES))
    lines = ["*filter"]
    lines += [f":{name} - [0:0]" for name in [*chains, *unused]]
    lines += [f"-A {name} {rule}" for name, rules in chains.items() for rule in rules]
    lines += [f"-X {name}" for name in unused]
    return "\n".join([*lines, "COMMIT", ""])


def matches(selector: Object | None, labels: dict[str, str]) -> bool:
    """Whether a label selector selects; an empty one selects everything. Raises ValueError for an unknown operator."""
    selector = selector or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_expression(each, labels) for each in selector.get("matchExpressions") or [])


def _expression(expression: Object, labels: dict[str, str]) -> bool:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    if operator == "In":
        return labels.get(key) in values
    if operator == "NotIn":
        return labels.get(key) not in values
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    raise ValueError(f"a selector with operator {operator!r}")


def _selects(policy: Object, pod: Object, direction: str) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or (["Ingress", "Egress"] if spec.get("egress") else ["Ingress"])
    return (
        direction in types
        and policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and matches(spec.get("podSelector"), _labels(pod))
    )


def _permissions(policy: Object, pod: Object, direction: str, world: World) -> Iterable[str]:
    """Rules that let through what the policy permits for this pod."""
    peers_key, side = ("to", "-d") if direction == "Egress" else ("from", "-s")
    for rule in policy["spec"].get(direction.lower()) or []:
        for network, peer in _peers(rule.get(peers_key) or [], policy["metadata"]["namespace"], world):
            # A named port is the target's: the peer's on the way out, this pod's on the way in.
            targets = [pod] if direction == "Ingress" else ([peer] if peer else _pods_in(network, world))
            for ports, address in _ports(rule.get("ports") or [], targets):
                reach = f"{address}/32" if address and direction == "Egress" else network
                yield " ".join(part for part in (f"{side} {reach}", ports, "-j RETURN") if part)


def _peers(peers: list[Object], namespace: str, world: World) -> Iterable[tuple[str, Object | None]]:
    """Networks that the peers stand for, each with its pod where it is one. No peers: everywhere."""
    if not peers:
        yield EVERYWHERE, None
    for peer in peers:
        if "ipBlock" in peer:
            for network in _block(peer["ipBlock"]):
                yield network, None
            continue
        for pod in world.pods:
            of = pod["metadata"]["namespace"]
            if "namespaceSelector" in peer:
                if of not in world.namespaces or not matches(peer["namespaceSelector"], world.namespaces[of]):
                    continue
            elif of != namespace:
                continue
            if matches(peer.get("podSelector"), _labels(pod)):
                yield f"{pod['status']['podIP']}/32", pod


def _block(block: Object) -> list[str]:
    """The networks of an ipBlock without its exceptions. IPv6 has no traffic here."""
    if ":" in block["cidr"]:
        return []
    kept = [ipaddress.IPv4Network(block["cidr"], strict=False)]
    for each in block.get("except") or []:
        hole = ipaddress.IPv4Network(each, strict=False)
        rest: list[ipaddress.IPv4Network] = []
        for network in kept:
            if not network.overlaps(hole):
                rest.append(network)
            elif hole.subnet_of(network) and hole != network:
                rest += network.address_exclude(hole)
        kept = rest
    return [str(each) for each in sorted(kept)]


def _ports(ports: list[Object], targets: list[Object]) -> Iterable[tuple[str, str]]:
    """Matches of protocol and port; with a named port also the address of the pod whose port it is. No ports: everything, of any protocol."""
    if not ports:
        yield "", ""
    for port in ports:
        protocol = port.get("protocol", "TCP").lower()
        number = port.get("port")
        if number is None:
            yield f"-p {protocol}", ""
        elif isinstance(number, int):
            span = f"{number}:{port['endPort']}" if "endPort" in port else str(number)
            yield f"-p {protocol} -m {protocol} --dport {span}", ""
        else:
            for target in targets:
                for found in _named(target, number, protocol):
                    yield f"-p {protocol} -m {protocol} --dport {found}", target["status"]["podIP"]


def _named(pod: Object, name: str, protocol: str) -> list[int]:
    spec = pod["spec"]
    return [
        port["containerPort"]
        for container in [*spec["containers"], *(spec.get("initContainers") or [])]
        for port in container.get("ports") or []
        if port.get("name") == name and port.get("protocol", "TCP").lower() == protocol
    ]


def _pods_in(network: str, world: World) -> list[Object]:
    inside = ipaddress.ip_network(network)
    return [pod for pod in world.pods if ipaddress.ip_address(pod["status"]["podIP"]) in inside]


def _has_traffic(pod: Object) -> bool:
    status = pod.get("status") or {}
    return (
        bool(status.get("podIP"))
        and not pod["spec"].get("hostNetwork")
        and status.get("phase") not in ("Succeeded", "Failed")
    )


def _labels(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("labels") or {}


def _name(found: Object) -> tuple[str, str]:
    return found["metadata"]["namespace"], found["metadata"]["name"]
