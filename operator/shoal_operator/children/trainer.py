"""The trainer's Job, one attempt of it, with publisher and origin nginx as sidecars: the Job is complete when the trainer alone is done. Pure.

A trainer of several pods is an Indexed Job whose pods find each other at the name of pod 0. One rank that dies ends the others (their collectives
fail), the Job fails as a whole, and the next attempt resumes from the last version. Only pod 0 writes versions: the sidecars of other pods find
nothing to do, and the Service that names the origin finds pod 0 only.
"""

from shoal_operator.api import TrainingRun
from shoal_operator.api.pods import Gpus
from shoal_operator.children import names
from shoal_operator.children.claims import claimed, temporary
from shoal_operator.children.pods import (
    Container,
    claim,
    config_map,
    ephemeral,
    http_probes,
    image_of,
    pod_template,
    tcp_probes,
)
from shoal_operator.children.storage import role_and_store
from shoal_operator.children.workloads import headless_service, job
from shoal_operator.engine.cluster import Object

COMPONENT = "trainer"
COLLECTOR = ["python", "-m", "shoal.collection"]
"""In mode Generate nothing is trained: the collector stands in the trainer's place, with its key, its sidecars and its Service."""

TORCHRUN = ("python", "-m", "torch.distributed.run")
OWN_CHOICE = ("--standalone",)
"""torchrun's store at a port that it chooses."""
FIXED_PORT = ("--master-addr", "127.0.0.1", "--master-port", str(names.RENDEZVOUS_PORT))
"""torchrun's store at a port that is not among those that are open to other runs. On one machine, where pods share their ports, it chooses one
all the same (`local/expand.py`)."""


def trainer_services(run: TrainingRun) -> list[Object]:
    """The Service that names the origin, whichever attempt is current; and for several pods one that names each of them."""
    name = run.metadata.name
    ports = {part: names.PORTS[part] for part in ("nginx", "trainer", "publisher")}
    made = [headless_service(names.trainer(name), name, COMPONENT, ports, {names.POD_INDEX_LABEL: "0"})]
    if run.spec.trainer.replicas > 1:
        made.append(headless_service(names.ranks(name), name, COMPONENT, {"rendezvous": names.RENDEZVOUS_PORT}))
    return made


def trainer_job(run: TrainingRun, attempt: int, config_hash: str, secret: str | None = None) -> Object:
    """The Job of one attempt. It resumes from the newest version and state in the store. `secret` holds the role's key; None: the first."""
    name, trainer = run.metadata.name, run.spec.trainer
    config = config_map(names.config(name))
    # The run's trainer is the first of its islands.
    islands = names.island_names(0 if trainer.islands is None else 1)
    role_mounts = role_and_store(
        name,
        secret or names.role_secret(name, "trainer"),
        run.spec.storage,
        *(names.island_secret(name, island) for island in islands),
    )
    if trainer.replicas == 1:
        outbox, www = claim("outbox", names.outbox(name)), claim("www", names.www(name))
    else:
        # Pods on several nodes cannot share a volume. What is lost with the pod is made again from the store.
        scratch = claimed(trainer.scratch_volume, trainer.scratch_size)
        outbox, www = ephemeral("outbox", scratch), ephemeral("www", scratch)
    relay_image = image_of("relay", run.spec.images)
    gpu = Gpus() if run.spec.mode == "Generate" else trainer.gpu  # the collector computes nothing
    containers = [
        Container(
            name="nginx",
            image=relay_image,
            command=["python", "-m", "shoal.broadcast.nginx", "origin"],
            role="trainer",
            mounts=(config, www),
            port=names.PORTS["nginx"],
            probes=tcp_probes(names.PORTS["nginx"]),
            sidecar=True,
        ),
        Container(
            name="publisher",
            image=relay_image,
            command=["python", "-m", "shoal.broadcast.origin"],
            role="trainer",
            mounts=(config, *role_mounts, outbox, www),
            port=names.PORTS["publisher"],
            probes=http_probes(names.PORTS["publisher"]),
            sidecar=True,
        ),
        Container(
            name="trainer",
            image=image_of("trainer", run.spec.images, gpu),
            command=COLLECTOR
            if run.spec.mode == "Generate"
            else trainer_command(
                names.trainer_job(name, attempt),
                names.ranks(name),
                trainer.replicas,
                trainer.processes,
                other_runs=trainer.islands is not None and trainer.islands.group is not None,
            ),
            role="trainer",
            mounts=(config, *role_mounts, outbox),
            port=names.PORTS["trainer"],
            probes=http_probes(names.PORTS["trainer"]),
            resources=trainer.resources,
            gpu=gpu,
            shared_memory=True,
            variables=trainer.pod_template,
        ),
    ]
    single = trainer.replicas == 1
    # A step may be in flight: the grace period lets it end or be dropped cleanly.
    template = pod_template(
        name,
        COMPONENT,
        containers,
        grace_seconds=60,
        placement=trainer.pod_template,
        images=run.spec.images,
        gpu=gpu,
        restart_policy="OnFailure" if single else "Never",
        config_hash=config_hash,
        temporary=temporary(trainer.temporary_volume),
    )
    if not single:
        template["spec"]["subdomain"] = names.ranks(name)
    # The only pod of a trainer is started again in its place; of several, none may be started again without the others.
    backoff_limit = run.spec.failure_policy.max_trainer_attempts - 1 if single else 0
    made = job(
        names.trainer_job(name, attempt), name, COMPONENT, template, backoff_limit=backoff_limit, pods=trainer.replicas
    )
    made["metadata"]["labels"][names.ATTEMPT_LABEL] = str(attempt)
    return made


def trainer_command(
    job_name: str, ranks_service: str, pods: int, processes: int, *, other_runs: bool = False
) -> list[str]:
    """Command line of the trainer's container: torchrun gives each process its rank, where there are several. `other_runs`: those of a group of
    islands reach this pod at the ports that its kernel gives out."""
    module = ["-m", "shoal.training"]
    if pods == 1 and processes == 1:
        return ["python", *module]
    torchrun = [*TORCHRUN, "--nproc-per-node", str(processes)]
    if pods == 1 and other_runs:
        # torchrun's store listens at every address, asks nobody who they are, and with --standalone holds pickles. This one holds none, and its
        # port is not among those that are open to others.
        return [*torchrun, *FIXED_PORT, *module]
    if pods == 1:
        # A port of its own choice on loopback: on one machine pods share their ports.
        return [*torchrun, *OWN_CHOICE, *module]
    place = ["--master-addr", f"{job_name}-0.{ranks_service}", "--master-port", str(names.RENDEZVOUS_PORT)]
    return [*torchrun, "--nnodes", str(pods), "--node-rank", "$(JOB_COMPLETION_INDEX)", *place, *module]
