"""Settings of Muon, the optimizer that orthogonalises its updates. Part of `Recipe` and `SftSettings`, and so of the CRD and of `config/run.json`."""

from pydantic import Field

from shoal.contracts.base import SpecModel


class MuonSettings(SpecModel):
    """Muon (Jordan et al. 2024) for the matrices of the decoder's layers; AdamW for embeddings, head, norms and biases.

    An update is scaled to AdamW's size (arXiv:2502.16982), so learning rate, its course and weight decay are the same ones for both.
    """

    momentum: float = Field(0.95, ge=0.0, lt=1.0, description="Decay of the momentum, which is Nesterov's.")
