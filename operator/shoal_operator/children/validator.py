"""Children of a Validator: a Deployment. Validators hold no state: a claim that one drops is given to another. Pure."""

from shoal_operator.api import Validator
from shoal_operator.children import names
from shoal_operator.children.claims import temporary
from shoal_operator.children.pods import Container, config_map, http_probes, image_of, pod_template
from shoal_operator.children.storage import role_and_store
from shoal_operator.children.trainer import OWN_CHOICE, TORCHRUN
from shoal_operator.children.workloads import deployment, disruption_budget, set_selector
from shoal_operator.engine.cluster import Object

COMPONENT = "validator"


def validator_children(validator: Validator, config_hash: str | None, secret: str | None = None) -> list[Object]:
    """The Deployment of a run's validators; `config_hash` and `secret` as for relays."""
    name, run, spec = validator.metadata.name, validator.spec.run, validator.spec
    container = Container(
        name="validator",
        image=image_of("validator", spec.images, spec.gpu),
        command=validator_command(spec.gpu.count),
        role="validator",
        mounts=(
            config_map(names.config(run)),
            *role_and_store(run, secret or names.role_secret(run, "validator"), spec.storage),
        ),
        port=names.PORTS["validator"],
        probes=http_probes(names.PORTS["validator"]),
        resources=spec.resources,
        gpu=spec.gpu,
        shared_memory=spec.gpu.count > 1,
    )
    template = pod_template(
        run,
        COMPONENT,
        [container],
        grace_seconds=20,
        placement=spec.pod_template,
        images=spec.images,
        gpu=spec.gpu,
        config_hash=config_hash,
        temporary=temporary(spec.temporary_volume),
    )
    return [
        deployment(name, run, COMPONENT, spec.replicas, template, single=False),
        disruption_budget(name, run, COMPONENT, set_selector(name, run, COMPONENT)),
    ]


def validator_command(gpus: int) -> list[str]:
    """Command line of the container: one process a GPU, which hold the model together where there are several."""
    module = ["-m", "shoal.validation"]
    if gpus <= 1:
        return ["python", *module]
    return [*TORCHRUN, "--nproc-per-node", str(gpus), *OWN_CHOICE, *module]
