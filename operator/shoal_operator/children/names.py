"""Names, labels, ports and images of children (docs/architecture.md): the one place that says what a part is called. Pure."""

from shoal.contracts.roster import Role, Roster
from shoal.contracts.run import Addresses

SOFTWARE_VERSION = "0.2.0"


def image(role: str, release: str) -> str:
    """Image of a role in a release."""
    return f"shoal/{role}:{release}"


IMAGES = {
    role: image(role, SOFTWARE_VERSION)
    for role in ("protocol", "redis", "relay", "tracker", "trainer", "validator", "worker")
}
ON_GPUS = "-cuda"
"""What follows the tag of a release's image for pods with GPUs: of trainer, worker and validator."""

REDIS_PORT = 6379
ORCHESTRATOR_PORT = 8080
DISCOVERY_PORT = 8081
UI_PORT = 8082
WEIGHTS_PORT = 8090

LIGHTHOUSE_PORT = 29510
RENDEZVOUS_PORT = 29500
"""torchrun's own default."""

PORTS = {
    "redis": REDIS_PORT,
    "orchestrator": ORCHESTRATOR_PORT,
    "discovery": DISCOVERY_PORT,
    "ui": UI_PORT,
    "nginx": WEIGHTS_PORT,
    "trainer": 9100,
    "publisher": 9101,
    "sync": 9102,
    "agent": 9103,
    "fetch": 9104,
    "worker": 9105,
    "validator": 9106,
    "runner": 9107,
    "tracker": 9109,
    "lighthouse": LIGHTHOUSE_PORT,
}
"""Ports by container. Fixed, because every pod has an address of its own."""

RUN_LABEL = "shoal.dev/run"
COMPONENT_LABEL = "shoal.dev/component"
SET_LABEL = "shoal.dev/set"
ATTEMPT_LABEL = "shoal.dev/attempt"
TEMPLATE_LABEL = "shoal.dev/template"
"""Of a pod of a LeaderWorkerSet: digest of the template and the group's size that it was made of."""
CONFIG_HASH_ANNOTATION = "shoal.dev/config-hash"
RELEASE_ANNOTATION = "shoal.dev/release"
"""Of a child: the release whose builders made it. Of a record: the release that its owner is to be of."""
MADE_OF_ANNOTATION = "shoal.dev/made-of"
"""Of a record: the release that wrote it last, and the digest of what its children are made of."""
COMPLETE_ANNOTATION = "shoal.dev/complete-at-version"
"""Of the configuration of a run that its orchestrator called complete: the policy version then. It outlives an orchestrator that is away."""
RESTORED_ANNOTATION = "shoal.dev/restored"
"""Of a run made of its backup: its store has what it would wait for other runs for. Without it, it waits for them again."""
RETAIN_ANNOTATION = "shoal.dev/retain"
"""Of a claim that stays when its run is deleted."""
POD_INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
"""Kubernetes' label of the pods of an Indexed Job."""
POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
ADMITTED_ANNOTATION = "shoal.dev/admitted-replicas"
"""Of a pool, relays or validators of a run in a queue: replicas that the queue admits, whatever `spec.replicas` asks for."""
OPERATOR_NAME = "shoal-operator"
"""`app.kubernetes.io/name` of the operator's own pods."""


def prepare(run: str) -> str:
    return f"{run}-prepare"


def redis(run: str) -> str:
    return f"{run}-redis"


def discovery(run: str) -> str:
    return f"{run}-discovery"


def orchestrator(run: str) -> str:
    return f"{run}-orchestrator"


def trainer(run: str) -> str:
    """The trainer's headless Service; it finds the pod of whichever attempt is current."""
    return f"{run}-trainer"


def ranks(run: str) -> str:
    """Headless Service that names every pod of a trainer with several, for their rendezvous."""
    return f"{run}-ranks"


def workload(run: str) -> str:
    """Kueue Workload of the whole run."""
    return f"{run}-workload"


def trainer_job(run: str, attempt: int) -> str:
    return f"{run}-trainer-{attempt}"


def island_names(count: int) -> list[str]:
    """Names of the islands of a run. The first is the run's trainer itself, and publishes its versions."""
    return [f"island-{number}" for number in range(count)]


def island(run: str, name: str) -> str:
    """StatefulSet of one island beside the first."""
    return f"{run}-{name}"


def island_secret(run: str, name: str) -> str:
    """Secret with the key of one island; only its own pod mounts it."""
    return f"{run}-{name}-key"


def lighthouse(run: str) -> str:
    """Where the islands of a run meet."""
    return f"{run}-lighthouse"


def public(service: str) -> str:
    """Service or Ingress by which clients outside the cluster come in."""
    return f"{service}-public"


def relay(run: str) -> str:
    return f"{run}-relay"


def pool(run: str, pool_name: str) -> str:
    return f"{run}-{pool_name}"


def validator(run: str) -> str:
    return f"{run}-validator"


def runner(run: str) -> str:
    return f"{run}-runner"


def tracker(run: str) -> str:
    return f"{run}-tracker"


def ui(run: str) -> str:
    return f"{run}-ui"


def ui_token(run: str) -> str:
    """Secret with the token that who looks at the page must show."""
    return f"{run}-ui-token"


def parts(run: str) -> str:
    """ConfigMap with `parts.json`, which the page mounts."""
    return f"{run}-parts"


def config(run: str) -> str:
    """ConfigMap with `run.json`."""
    return f"{run}-config"


def join(run: str) -> str:
    """ConfigMap with `node.json` for the run's own pool: what anyone needs to join."""
    return f"{run}-join"


def node_config(pool_object: str) -> str:
    """ConfigMap of one pool with its own `node.json`."""
    return f"{pool_object}-node"


def hosts_policy(pool_object: str) -> str:
    """NetworkPolicy between the pods of one pool whose engines span several."""
    return f"{pool_object}-hosts"


def relay_config(relay_object: str) -> str:
    """ConfigMap of one RelayServer with its `relay.json`."""
    return f"{relay_object}-limits"


def role_secret(run: str, role: Role, generation: int = 1) -> str:
    """Secret with the private key of one role; each pod mounts only its own. Every change of the key makes a Secret of its own."""
    return f"{run}-{role}-key{_later(generation)}"


def held_secret(run: str, roster: Roster, role: Role) -> str:
    """That with the key which the role holds by this roster."""
    return role_secret(run, role, 1 + len(roster.changes_of(role)))


def _later(generation: int) -> str:
    return f"-{generation}" if generation > 1 else ""


def ticket_secret(pool_object: str) -> str:
    """Secret by which the pods of one pool prove that they are its own; only their agents mount it."""
    return f"{pool_object}-ticket"


def run_key_secret(run: str, generation: int = 1) -> str:
    """Secret with the run key, which signs the roster. No pod mounts it. The one after it is made along, and may be kept elsewhere."""
    return f"{run}-run-key{_later(generation)}"


def roster_secret(run: str) -> str:
    """Secret with the newest roster: the one object whose writing changes a key."""
    return f"{run}-roster"


def release_record(owner: str) -> str:
    """Secret with what releases made for a run, pool, relays or validators."""
    return f"{owner}-release"


def store(run: str) -> str:
    """Claim of the folder store."""
    return f"{run}-store"


def outbox(run: str) -> str:
    """Claim of the checkpoints that wait to be published."""
    return f"{run}-outbox"


def www(run: str) -> str:
    """Claim of what the origin serves."""
    return f"{run}-www"


def labels(run: str, component: str) -> dict[str, str]:
    """Labels of a child and of its pods."""
    return {
        "app.kubernetes.io/name": "shoal",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/instance": run,
        "app.kubernetes.io/managed-by": "shoal-operator",
        RUN_LABEL: run,
        COMPONENT_LABEL: component,
    }


def selector(run: str, component: str) -> dict[str, str]:
    """The labels that find the pods of a component."""
    return {RUN_LABEL: run, COMPONENT_LABEL: component}


def cluster_addresses(
    run: str,
    namespace: str,
    relays: int,
    relay_server: str | None = None,
    runners: int = 0,
    *,
    islands: bool = False,
) -> Addresses:
    """Addresses in a cluster: names of headless Services, and of each relay pod singly. `relay_server` is the object's name, if not the run's own."""
    relay_set = relay_server or relay(run)

    def host(service: str) -> str:
        return f"{service}.{namespace}.svc"

    return Addresses(
        discovery=f"http://{host(discovery(run))}:{DISCOVERY_PORT}",
        orchestrator=f"http://{host(orchestrator(run))}:{ORCHESTRATOR_PORT}",
        origin=f"http://{host(trainer(run))}:{WEIGHTS_PORT}",
        relays=[f"http://{relay_set}-{number}.{host(relay_set)}:{WEIGHTS_PORT}" for number in range(relays)],
        redis=f"redis://{host(redis(run))}:{REDIS_PORT}/0",
        runners=[f"http://{runner(run)}-{number}.{host(runner(run))}:{PORTS['runner']}" for number in range(runners)],
        lighthouse=f"http://{host(lighthouse(run))}:{LIGHTHOUSE_PORT}" if islands else None,
    )
