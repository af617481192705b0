"""RelayServer, Validator and InferencePools of a run: made from its templates, or made by others and named by reference. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from shoal.contracts.validation import Validation
from shoal_operator.api import API_VERSION, InferencePool, RelayServer, TrainingRun, Validator
from shoal_operator.api.pods import ImagePull, PoolImages, RelayImages, ValidatorImages
from shoal_operator.api.relay_server import RelayFields, RelayServerTemplate
from shoal_operator.api.validator import ValidatorTemplate
from shoal_operator.children import names
from shoal_operator.children.scale import Scale
from shoal_operator.engine.cluster import Object


@dataclass(frozen=True)
class References:
    """Objects that others made for the run, as they are now. `pools`: all that serve the run, whether it names them or not."""

    relay_server: RelayServer | None = None
    validator: Validator | None = None
    pools: tuple[InferencePool, ...] = ()


def relays_of(run: TrainingRun, references: References) -> RelayFields:
    """What the relays of the run are, whoever made them."""
    if references.relay_server is not None:
        return references.relay_server.spec
    return run.spec.relay_server or RelayServerTemplate()


def validation_of(run: TrainingRun, references: References) -> Validation:
    """How the run's uploads are checked: its Validator says so, whoever made that."""
    if references.validator is not None:
        return references.validator.spec.validation
    return (run.spec.validator or ValidatorTemplate()).validation


def template_replicas(run: TrainingRun) -> dict[tuple[str, str], int]:
    """Replicas by kind and name of the objects that the run makes, as its templates say. A run of mode SFT makes none: nothing is sampled."""
    name, spec = run.metadata.name, run.spec
    if spec.mode == "SFT":
        return {}
    made: dict[tuple[str, str], int] = {}
    if spec.relay_server_ref is None:
        made["RelayServer", names.relay(name)] = (spec.relay_server or RelayServerTemplate()).replicas
    if spec.validator_ref is None:
        made["Validator", names.validator(name)] = (spec.validator or ValidatorTemplate()).replicas
    return made | {("InferencePool", names.pool(name, pool.name)): pool.replicas for pool in spec.inference_pools}


def own_kinds(run: TrainingRun, scales: Mapping[str, Scale], hashes: Mapping[str, str], *, work: bool) -> list[Object]:
    """The objects that the run makes from its templates; with no replicas when there is no work."""
    name, spec = run.metadata.name, run.spec
    if spec.mode == "SFT":
        return []
    templates: list[tuple[str, str, str, Object]] = []
    if spec.relay_server_ref is None:
        relay = _dump(spec.relay_server or RelayServerTemplate()) | {"images": _images(run, RelayImages)}
        templates.append(("RelayServer", names.relay(name), "relay", relay))
    if spec.validator_ref is None:
        validator = _dump(spec.validator or ValidatorTemplate())
        validator |= {"storage": _dump(spec.storage), "images": _images(run, ValidatorImages)}
        templates.append(("Validator", names.validator(name), "validator", validator))
    for pool in spec.inference_pools:
        content = {"pool": pool.name, **_dump(pool), "images": _images(run, PoolImages)}
        for of_the_run in ("name", "minReplicas", "maxReplicas"):
            content.pop(of_the_run, None)
        templates.append(("InferencePool", names.pool(name, pool.name), "pool", content))
    made = []
    for kind, child_name, component, content in templates:
        replicas = content["replicas"]
        scale = scales.get(child_name, Scale(replicas if work else 0, replicas, replicas))
        content |= {"replicas": scale.replicas}
        if not scale.asked:
            del content["replicas"]
        metadata = {
            "name": child_name,
            "labels": names.labels(run.metadata.name, component),
            # The digest makes each of these look at its configuration again when it changes.
            "annotations": {**scale.annotations, names.CONFIG_HASH_ANNOTATION: hashes[component]},
        }
        made.append(
            {
                "apiVersion": API_VERSION,
                "kind": kind,
                "metadata": metadata,
                "spec": {"run": name, **content},
            }
        )
    return made


def _dump(model: BaseModel) -> Object:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _images(run: TrainingRun, model: type[ImagePull]) -> Object:
    """The images of one kind, of those that the run names."""
    images = run.spec.images
    return _dump(model(**{field: getattr(images, field) for field in model.model_fields}))
