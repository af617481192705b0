"""Names, labels, ports and images of a run's parts (docs/architecture.md): the one place that builders, addresses and both clusters take them from."""

from importlib.metadata import version

RUN_LABEL = "shoal.dev/run"
COMPONENT_LABEL = "shoal.dev/component"
MANAGED_LABEL = "app.kubernetes.io/managed-by"
ATTEMPT_LABEL = "shoal.dev/attempt"
CONFIG_HASH_ANNOTATION = "shoal.dev/config-hash"

PORTS = {
    "redis": 6379,
    "orchestrator": 8080,
    "discovery": 8081,
    "nginx": 8090,
    "trainer": 9100,
    "publisher": 9101,
    "sync": 9102,
    "agent": 9103,
    "fetch": 9104,
    "worker": 9105,
    "validator": 9106,
}
"""Port of each container; fixed, because every pod has an address of its own."""

_VERSION = version("shoal")
IMAGES = {
    role: f"shoal/{role}:{_VERSION}" for role in ("protocol", "redis", "relay", "trainer", "validator", "worker")
}


def labels(run: str, component: str) -> dict[str, str]:
    return {**selector(run, component), MANAGED_LABEL: "shoal-operator"}


def selector(run: str, component: str) -> dict[str, str]:
    """What finds the pods of a component."""
    return {RUN_LABEL: run, COMPONENT_LABEL: component}


def config(run: str) -> str:
    """ConfigMap with `run.json`."""
    return f"{run}-config"


def join(run: str) -> str:
    """ConfigMap with the `node.json` that a stranger is given."""
    return f"{run}-join"


def node_config(pool: str) -> str:
    """ConfigMap with the `node.json` of a pool's pods; `pool` is the name of the InferencePool."""
    return f"{pool}-node"


def role_secret(run: str, role: str) -> str:
    return f"{run}-key-{role}"


def store(run: str) -> str:
    """Claim of the folder store."""
    return f"{run}-store"


def outbox(run: str) -> str:
    return f"{run}-outbox"


def www(run: str) -> str:
    return f"{run}-www"


def prepare(run: str) -> str:
    return f"{run}-prepare"


def redis(run: str) -> str:
    return f"{run}-redis"


def discovery(run: str) -> str:
    return f"{run}-discovery"


def orchestrator(run: str) -> str:
    return f"{run}-orchestrator"


def trainer(run: str) -> str:
    """Headless Service of the trainer, and the prefix of its Jobs."""
    return f"{run}-trainer"


def trainer_job(run: str, attempt: int) -> str:
    return f"{run}-trainer-{attempt}"


def relay(run: str) -> str:
    return f"{run}-relay"


def validator(run: str) -> str:
    return f"{run}-validator"


def pool(run: str, pool_name: str) -> str:
    return f"{run}-{pool_name}"
