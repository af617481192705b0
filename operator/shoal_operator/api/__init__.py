"""The four kinds of shoal.dev/v1alpha1: the one source of CRDs, defaults, checks and reference pages.

Manifests are YAML in camelCase; in Python the same models are used in snake_case. What a `TrainingRun`'s processes read
as well is `shoal.contracts.settings.RunSettings`, so that the CRD and `config/run.json` cannot drift apart.
"""

from shoal_operator.api.base import API_VERSION, GROUP, VERSION, Condition, ObjectMeta, Resources
from shoal_operator.api.inference_pool import InferencePool, InferencePoolSpec
from shoal_operator.api.relay_server import RelayServer, RelayServerSpec
from shoal_operator.api.training_run import TrainingRun, TrainingRunSpec
from shoal_operator.api.validator import Validator, ValidatorSpec

CustomObject = TrainingRun | InferencePool | RelayServer | Validator

KINDS: dict[str, type[TrainingRun] | type[InferencePool] | type[RelayServer] | type[Validator]] = {
    "TrainingRun": TrainingRun,
    "InferencePool": InferencePool,
    "RelayServer": RelayServer,
    "Validator": Validator,
}

__all__ = [
    "API_VERSION",
    "GROUP",
    "KINDS",
    "VERSION",
    "Condition",
    "CustomObject",
    "InferencePool",
    "InferencePoolSpec",
    "ObjectMeta",
    "RelayServer",
    "RelayServerSpec",
    "Resources",
    "TrainingRun",
    "TrainingRunSpec",
    "Validator",
    "ValidatorSpec",
]
