"""What counts as a difference between this machine before a node and after it."""

import pytest
from e2e.nodes.host import chains_in_use, differences

BEFORE = {"links": ["eth0", "lo"], "settings": ["net/ipv4/ip_forward=0"]}


def test_equal_snapshots_have_no_difference() -> None:
    assert differences(BEFORE, {**BEFORE}) == []


def test_what_was_left_behind_and_what_was_lost_are_named() -> None:
    after = {"links": ["eth0", "lo", "shoal0"], "settings": ["net/ipv4/ip_forward=1"]}
    assert differences(BEFORE, after) == [
        "links: ['eth0', 'lo'] became ['eth0', 'lo', 'shoal0']",
        "settings: ['net/ipv4/ip_forward=0'] became ['net/ipv4/ip_forward=1']",
    ]
    assert differences(BEFORE, {**BEFORE, "links": ["lo"]}) == ["links: ['eth0', 'lo'] became ['lo']"]


def test_a_setting_that_came_with_a_kernel_module_is_no_difference() -> None:
    after = {**BEFORE, "settings": ["net/ipv4/ip_forward=0", "net/netfilter/nf_conntrack_max=262144"]}
    assert differences(BEFORE, after) == []


IDLE = [
    ":FORWARD ACCEPT [0:0]",
    ":CNI-ADMIN - [0:0]",
    ":CNI-FORWARD - [0:0]",
    '-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD',
    '-A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN',
]
"""What iptables-save prints once a build of images on a bridge has ended."""


def test_what_an_idle_container_engine_left_is_not_another_network() -> None:
    assert chains_in_use(IDLE) == []


@pytest.mark.parametrize(
    ("line", "chains"),
    [
        ("-A CNI-FORWARD -s 10.88.0.2/32 -j ACCEPT", ["CNI-ADMIN", "CNI-FORWARD"]),
        ("-A CNI-ADMIN -s 10.88.0.0/16 -j DROP", ["CNI-ADMIN", "CNI-FORWARD"]),
        (":KUBE-FORWARD - [0:0]", ["KUBE-FORWARD"]),
        (":CNI-DN-5f0c - [0:0]", ["CNI-DN-5f0c"]),
        (":SHOAL-POLICY - [0:0]", ["SHOAL-POLICY"]),
    ],
)
def test_what_works_on_this_machine_is_named(line: str, chains: list[str]) -> None:
    assert chains_in_use([*IDLE, line]) == chains
