"""torch.compile of each layer: the same loss and gradients, recomputation or not, and not compiled anew for every pack."""

from pathlib import Path

import pytest
import torch
from test_logprobs import PACK, sample
from tiny_run import write_base
from torch._dynamo.utils import counters

from shoal.contracts.trainer import TrainerSettings
from shoal.training.batches import micro_batch
from shoal.training.model import load_policy

PACKS = [
    PACK,
    *(micro_batch([(sample(10 + 3 * n, 4, 1.0, n), 1.0), (sample(14 + n, 4, 1.0, 50 + n), 1.0)]) for n in range(5)),
]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_compiled_layers_compute_the_same_and_settle_on_one_graph(tmp_path: Path) -> None:
    """Minutes of a C++ compiler: not for every change."""
    base = write_base(tmp_path / "base")
    plain = load_policy(base)
    compiled = load_policy(base, TrainerSettings(compile=True, activation_recomputation="On"))
    graphs = []
    for packed in PACKS:
        outcomes = []
        for policy in (plain, compiled):
            policy.zero_grad()
            loss, *_ = policy(packed, lambda here, logprobs, entropy: (logprobs.exp() + 0.1 * entropy).sum())
            loss.backward()
            gradient = torch.cat([parameter.grad.flatten() for parameter in policy.parameters()])
            outcomes.append((float(loss.detach()), gradient))
        assert outcomes[1][0] == pytest.approx(outcomes[0][0], rel=1e-6)
        assert (outcomes[1][1] - outcomes[0][1]).norm() <= 1e-5 * outcomes[0][1].norm()
        graphs.append(counters["frames"]["total"])
    assert graphs[0] > 0
    assert len(set(graphs[1:])) == 1  # once for fixed lengths, once for any
