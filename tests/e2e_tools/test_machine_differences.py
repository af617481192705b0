"""What counts as a difference between this machine before a node and after it."""

from e2e.nodes.host import differences

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
