"""Who is invited to which pool: its own pods by their ticket, strangers to open pools only, and what their machines must have."""

import pytest

from shoal.contracts.pools import PoolTerms, Requirements, is_own_pod, membership_proof, pool_ticket
from shoal.contracts.protocol import Hardware, Registration
from shoal.protocol.invites import why_not

NODE = "a" * 64
RUN_SECRET = b"0123456789abcdef"
POOLS = [
    PoolTerms(name="own"),
    PoolTerms(
        name="open",
        open=True,
        requirements=Requirements(gpus=1, gpu_types=["H200", "A100"], cpus=8, memory_gib=64, disk_gib=100),
    ),
]
GOOD_MACHINE = Hardware(cpus=8, memory_bytes=64 << 30, disk_free_bytes=100 << 30, gpus=1, gpu_type="NVIDIA A100-SXM4")


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
        ({"gpus": 0}, "pool 'open' wants 1 GPUs, the machine has 0"),
        ({"cpus": 4}, "pool 'open' wants 8 cores, the machine has 4"),
        ({"memory_bytes": 63 << 30}, "pool 'open' wants 64 GiB of memory, the machine has 63"),
        ({"disk_free_bytes": 1 << 30}, "pool 'open' wants 100 GiB of free disk, the machine has 1"),
        ({"gpu_type": "NVIDIA L4"}, "pool 'open' wants a GPU of H200, A100, the machine has NVIDIA L4"),
    ],
)
def test_a_strangers_machine_must_have_what_the_pool_requires(change: dict[str, object], problem: str) -> None:
    assert refusal("open", GOOD_MACHINE.model_copy(update=change)) == problem
