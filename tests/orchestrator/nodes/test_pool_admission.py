"""Who is invited to which pool: its own pods by their ticket, strangers to open pools only, and what their machines must have."""

from types import SimpleNamespace
from typing import Any, Literal

import pytest

from shoal.contracts.pools import (
    Admission,
    CodeClaim,
    PoolTerms,
    Requirements,
    claim_with_code,
    is_own_pod,
    membership_proof,
    pool_ticket,
)
from shoal.contracts.problems import Refusal
from shoal.contracts.protocol import Hardware, KnownNode, NodeState, Registration
from shoal.contracts.signed import Signed
from shoal.crypto.keys import PrivateKey
from shoal.orchestrator.nodes.invites import Places, why_not
from shoal.orchestrator.nodes.membership import is_in_order, require_pool
from shoal.orchestrator.nodes.registry import NodeRecord
from shoal.transport.addresses import address_block

NODE = "a" * 64
RUN_SECRET = b"0123456789abcdef"
POOLS = [
    PoolTerms(name="own"),
    PoolTerms(
        name="open",
        open=True,
        requirements=Requirements(
            gpus=1, gpu_types=["H200", "A100"], cpus=8, memory_gib=64, disk_gib=100, uplink_mbps=20
        ),
    ),
]
GOOD_MACHINE = Hardware(
    cpus=8,
    memory_bytes=64 << 30,
    disk_free_bytes=100 << 30,
    gpus=1,
    gpu_type="NVIDIA A100-SXM4",
    uplink_mbps=20.0,
)


def refusal(pool: str, machine: Hardware = GOOD_MACHINE, proof: str | None = None) -> str:
    registration = Registration(
        node=NODE, run="tiny", pool=pool, software_version="test", hardware=machine, proof=proof
    )
    return why_not(registration, POOLS, own_pod=is_own_pod(RUN_SECRET, pool, NODE, proof))


def test_strangers_may_join_open_pools_only() -> None:
    assert refusal("open") == ""
    assert refusal("own") == "pool 'own' is not open to strangers' machines"
    assert refusal("other") == "this run has no pool 'other'"


def test_nobody_joins_a_run_that_names_no_pools() -> None:
    registration = Registration(node=NODE, run="tiny", pool="any", software_version="test", hardware=GOOD_MACHINE)
    assert why_not(registration, [], own_pod=False) == "this run has no pool 'any'"


def test_a_pools_own_pod_proves_it_by_the_pools_ticket() -> None:
    assert refusal("own", proof=membership_proof(pool_ticket(RUN_SECRET, "own"), NODE)) == ""


@pytest.mark.parametrize(
    "proof",
    [
        membership_proof(pool_ticket(RUN_SECRET, "open"), NODE),
        membership_proof(pool_ticket(RUN_SECRET, "own"), "f" * 64),
        membership_proof(pool_ticket(b"another secret!!", "own"), NODE),
        "0" * 64,
    ],
    ids=["of another pool", "of another node", "of another run", "guessed"],
)
def test_a_wrong_proof_makes_no_own_pod(proof: str) -> None:
    assert "not open" in refusal("own", proof=proof)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"gpus": 0}, "pool 'open' requires 1 GPUs, the machine has 0"),
        ({"cpus": 4}, "pool 'open' requires 8 cores, the machine has 4"),
        ({"memory_bytes": 63 << 30}, "pool 'open' requires 64 GiB of memory, the machine has 63"),
        ({"disk_free_bytes": 1 << 30}, "pool 'open' requires 100 GiB of free disk, the machine has 1"),
        ({"uplink_mbps": 19.5}, "pool 'open' requires an uplink of 20 Mbit/s, it has 19.5"),
        ({"uplink_mbps": None}, "pool 'open' requires an uplink of 20 Mbit/s, it could not be measured"),
        ({"gpu_type": "NVIDIA L4"}, "pool 'open' requires a GPU of H200, A100, the machine has NVIDIA L4"),
    ],
)
def test_a_strangers_machine_must_have_what_the_pool_requires(change: dict[str, object], problem: str) -> None:
    assert refusal("open", GOOD_MACHINE.model_copy(update=change)) == problem


def test_no_stranger_joins_a_pool_that_was_opened_where_rewards_are_claimed() -> None:
    registration = Registration(node=NODE, run="tiny", pool="open", software_version="test", hardware=GOOD_MACHINE)
    assert why_not(registration, POOLS, own_pod=False, welcome=True) == ""
    refused = why_not(registration, POOLS, own_pod=False, welcome=True, claimed=True)
    assert "a stranger would give itself any reward; the admin closes the pool" in refused
    assert why_not(registration, POOLS, own_pod=True, claimed=True) == ""


def test_a_stranger_that_joined_while_prepare_ran_gets_no_work_where_rewards_are_claimed() -> None:
    state: Any = SimpleNamespace(rewards_claimed=True, config=SimpleNamespace(pools=POOLS))
    own = NodeRecord(node=NODE, state="Healthy", pool="open", outside=False)
    stranger, forgotten = own.model_copy(update={"outside": True}), own.model_copy(update={"pool": "", "outside": None})
    invited = own.model_copy(update={"outside": None})  # by an old invite, after Redis had forgotten whose it is
    require_pool(state, own)
    assert is_in_order(state, own)
    again = "register at discovery again"
    for record, words in ((stranger, "its own pods alone have work"), (forgotten, again), (invited, again)):
        assert not is_in_order(state, record)
        with pytest.raises(Refusal, match=words):
            require_pool(state, record)
    state.rewards_claimed = False
    for record in (own, stranger, forgotten, invited):
        require_pool(state, record)
        assert is_in_order(state, record)


def test_no_stranger_joins_a_pool_that_was_opened_over_uncalibrated_proofs() -> None:
    registration = Registration(node=NODE, run="tiny", pool="open", software_version="test", hardware=GOOD_MACHINE)
    refused = why_not(registration, POOLS, own_pod=False, welcome=True, calibrated=False)
    assert "uncalibrated" in refused
    assert "spec.prepare.gpu" in refused
    assert why_not(registration, POOLS, own_pod=True, calibrated=False) == ""


# Allowlists and invite codes

CODE = "5c" * 32
CODE_KEY = PrivateKey.from_seed(bytes.fromhex(CODE)).public


def admitted(admission: Admission, node: str = NODE, code: Signed[CodeClaim] | None = None) -> str:
    registration = Registration(
        node=node, run="tiny", pool="open", software_version="test", hardware=GOOD_MACHINE, code=code
    )
    return why_not(registration, [PoolTerms(name="open", open=True, admission=admission)], own_pod=False)


def test_a_pool_with_a_list_takes_listed_machines_only() -> None:
    listed = Admission(nodes=[NODE])
    assert admitted(listed) == ""
    assert (
        admitted(listed, "b" * 64) == "pool 'open' is open to listed machines only, and bbbbbbbbbbbb... is not listed"
    )


def test_a_pool_with_codes_takes_whoever_has_one_and_whoever_is_listed() -> None:
    both = Admission(nodes=["b" * 64], codes=[CODE_KEY])
    assert admitted(both, "b" * 64) == ""
    assert admitted(both, code=claim_with_code(f" {CODE}\n", "tiny", "open", NODE)) == ""
    assert admitted(both) == "pool 'open' needs an invite code, and none was given"


@pytest.mark.parametrize(
    "claim",
    [
        claim_with_code("5d" * 32, "tiny", "open", NODE),
        claim_with_code(CODE, "tiny", "open", "b" * 64),
        claim_with_code(CODE, "tiny", "other", NODE),
        claim_with_code(CODE, "another", "open", NODE),
        claim_with_code("5d" * 32, "tiny", "open", NODE).model_copy(update={"signer": CODE_KEY}),
    ],
    ids=["another code", "overheard from another node", "of another pool", "of another run", "a forged signer"],
)
def test_a_code_that_is_not_this_nodes_own_does_not_admit(claim: Signed[CodeClaim]) -> None:
    assert admitted(Admission(codes=[CODE_KEY]), code=claim) == (
        "pool 'open' needs an invite code, and the given one is not valid"
    )


@pytest.mark.parametrize("text", ["", "zz", "5c" * 31, "5c" * 33])
def test_what_is_no_code_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="an invite code is 64 hex digits"):
        claim_with_code(text, "tiny", "open", NODE)


# Machines of one address


def at(address: str, node: str, pool: str = "open") -> KnownNode:
    registration = Registration(node=node, run="tiny", pool=pool, software_version="test", hardware=GOOD_MACHINE)
    return KnownNode(registration=registration, address=address, seen_unix=1.0)


@pytest.mark.parametrize(
    ("address", "block"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_a_household_is_one_address(address: str, block: str) -> None:
    assert address_block(address) == block


def inside(number: int, pool: str = "open", state: NodeState = "Healthy", address: str = "192.0.2.7") -> NodeRecord:
    return NodeRecord(node=f"{number:064x}", pool=pool, state=state, address=address)


def test_many_keys_from_one_address_do_not_fill_a_pool() -> None:
    places = Places([inside(1), inside(2, state="Invited"), inside(3, state="Dead"), inside(4, address="")])
    assert places.full(at("192.0.2.7", NODE), 2)
    assert not places.full(at("192.0.2.7", NODE), 3)
    assert not places.full(at("192.0.2.8", NODE), 2), "another address"
    assert not places.full(at("192.0.2.7", f"{1:064x}"), 2), "a member that comes back does not count itself"
    assert not places.full(at("192.0.2.7", NODE, "other"), 2), "another pool"
    assert not places.full(at("192.0.2.7", NODE), 0), "0 is no limit"


def test_an_invite_takes_a_place_and_leaves_the_one_before() -> None:
    places = Places([inside(1)])
    places.take(at("192.0.2.7", NODE))
    places.take(at("192.0.2.7", NODE))
    assert places.full(at("192.0.2.7", "b" * 64), 2)
    places.take(at("192.0.2.8", NODE))
    assert not places.full(at("192.0.2.7", "b" * 64), 2)
    assert places.full(at("192.0.2.8", "b" * 64), 1)


@pytest.mark.parametrize("own_pod", [True, False])
@pytest.mark.parametrize(
    ("run", "pool", "machine", "refused"),
    [
        (None, None, None, ""),
        ("fp8", "fp8", "fp8", ""),
        (None, "fp8", "fp8", "pool 'fast' has quantization fp8, but the run's rollouts.quantization is none"),
        ("fp8", None, None, "pool 'fast' has quantization none, but the run's rollouts.quantization is fp8"),
        ("fp8", "fp8", None, "samples with quantization fp8, and this machine's software said none"),
        (None, None, "fp8", "samples with quantization none, and this machine's software said fp8"),
    ],
)
def test_run_pool_and_machine_round_weights_alike(
    run: Literal["fp8"] | None,
    pool: Literal["fp8"] | None,
    machine: Literal["fp8"] | None,
    refused: str,
    own_pod: bool,
) -> None:
    registration = Registration(
        node=NODE, run="tiny", pool="fast", software_version="test", hardware=GOOD_MACHINE, quantization=machine
    )
    found = why_not(
        registration, [PoolTerms(name="fast", open=True, quantization=pool)], own_pod=own_pod, quantization=run
    )
    assert refused in found
    assert bool(found) == bool(refused)
