"""The CEL rules of the four kinds: checks between fields, which a schema of single fields cannot say.

The expressions go into the CRDs (`x-kubernetes-validations`), where the API server evaluates them, and are evaluated here by cel-python for
manifests on one machine; both see values after defaulting. Each rule carries a good and a bad example that a test runs. A rule that speaks of
`oldSelf` applies to updates only.
"""

import functools
from typing import Any

import celpy
from celpy.adapter import json_to_cel
from celpy.evaluation import CELEvalError

from shoal_operator.api.algorithm_rules import ALGORITHM_RULES, GROUP_SIZE
from shoal_operator.api.curriculum_rules import CURRICULUM_RULES
from shoal_operator.api.evaluation_rules import EVALUATION_RULES
from shoal_operator.api.file_rules import FILE_RULES
from shoal_operator.api.island_rules import ISLAND_RULES
from shoal_operator.api.mixture_rules import MIXTURE_RULES
from shoal_operator.api.mode_rules import MODE_RULES
from shoal_operator.api.muon_rules import MUON_RULES
from shoal_operator.api.objective_rules import OBJECTIVE_RULES
from shoal_operator.api.offload_rules import OFFLOAD_RULES
from shoal_operator.api.package_rules import PACKAGE_RULES
from shoal_operator.api.pod_rules import POD_RULES
from shoal_operator.api.pool_rules import POOL_RULES
from shoal_operator.api.prime_rules import PRIME_RULES
from shoal_operator.api.prompt_rules import PROMPT_RULES
from shoal_operator.api.rule import Rule, immutable
from shoal_operator.api.sft_rules import SFT_RULES
from shoal_operator.api.ui_rules import UI_RULES
from shoal_operator.api.validator_rules import VALIDATOR_RULES
from shoal_operator.api.vine_rules import VINE_RULES
from shoal_operator.api.volume_rules import VOLUME_RULES

AZURE_EXAMPLE: dict[str, Any] = {
    "account": "research",
    "container": "rollouts",
    "workloadIdentity": {
        "serviceAccount": "store",
        "tenantId": "example.org",
        "clientId": "0" * 8 + "-0000-0000-0000-" + "0" * 12,
    },
}
GCS_EXAMPLE: dict[str, Any] = {
    "bucket": "rollouts",
    "workloadIdentity": {
        "serviceAccount": "store",
        "provider": "//iam.googleapis.com/projects/123456789012/locations/global/workloadIdentityPools/clusters/providers/research",
    },
}


def url(field: str, scheme: str) -> str:
    """An expression: the field is a URL of this scheme with a host. An IPv6 address stands in brackets; port and path may be absent."""
    host = r"([^\s/?#@:\[\]]+|\[[0-9A-Fa-f:.]+\])"
    return f"self.{field}.matches(r'^{scheme}://{host}(:[0-9]{{1,5}})?(/\\S*)?$')"


RULES: tuple[Rule, ...] = (
    *ALGORITHM_RULES,
    *OBJECTIVE_RULES,
    *OFFLOAD_RULES,
    *MUON_RULES,
    *CURRICULUM_RULES,
    Rule(
        model="Recipe",
        expression=f"(self.promptsPerStep * {GROUP_SIZE}) % self.optimizerSteps == 0",
        message="promptsPerStep x groupSize must be divisible by optimizerSteps",
        field="optimizerSteps",
        good={"promptsPerStep": 256, "groupSize": 16, "optimizerSteps": 8},
        bad={"promptsPerStep": 16, "groupSize": 16, "optimizerSteps": 3},
    ),
    Rule(
        model="Recipe",
        expression="!has(self.packLength) || self.packLength >= self.maxSequenceLength",
        message="must be at least maxSequenceLength: a sample is never cut",
        field="packLength",
        good={"packLength": 4096, "maxSequenceLength": 1024},
        bad={"packLength": 512, "maxSequenceLength": 1024},
    ),
    Rule(
        model="LengthReward",
        expression="self.targets.all(t, self.targets.exists_one(u, u == t))",
        message="must not repeat a target",
        field="targets",
        good={"targets": [1000, 2000]},
        bad={"targets": [1000, 1000]},
    ),
    Rule(
        model="ModelSource",
        expression="[has(self.huggingFace), has(self.path), has(self.generated), has(self.run)].exists_one(given, given)",
        message="must have exactly one of huggingFace, path, generated, run",
        field="",
        good={"path": "/models/base"},
        bad={"path": "/models/base", "huggingFace": "Qwen/Qwen3-0.6B"},
    ),
    Rule(
        model="ModelSource",
        expression="has(self.huggingFace) == has(self.revision)",
        message="must be given with huggingFace, and only with it: an unpinned model is another run tomorrow",
        field="revision",
        good={"huggingFace": "Qwen/Qwen3-0.6B", "revision": "main"},
        bad={"huggingFace": "Qwen/Qwen3-0.6B"},
    ),
    Rule(
        model="GeneratedModel",
        expression="self.warmStartPassRate + self.warmStartSlips <= 1.0",
        message="must be at most 1 - warmStartSlips: a model makes the slips that it is taught",
        field="warmStartPassRate",
        good={"warmStartPassRate": 0.8, "warmStartSlips": 0.1},
        bad={"warmStartPassRate": 0.8, "warmStartSlips": 0.5},
    ),
    Rule(
        model="S3Storage",
        expression=url("endpoint", "https?"),
        message="must be a URL that starts with http:// or https://",
        field="endpoint",
        good={"endpoint": "http://minio:9000", "credentialsSecret": "store"},
        bad={"endpoint": "minio:9000", "credentialsSecret": "store"},
    ),
    Rule(
        model="S3Storage",
        expression="!has(self.publicEndpoint) || " + url("publicEndpoint", "https?"),
        message="must be a URL that starts with http:// or https://",
        field="publicEndpoint",
        good={"publicEndpoint": "https://[2001:db8::1]:9000", "credentialsSecret": "store"},
        bad={"publicEndpoint": "https://[2001:db8::1:9000", "credentialsSecret": "store"},
    ),
    Rule(
        model="S3Storage",
        expression="has(self.credentialsSecret) != has(self.workloadIdentity)",
        message="must have one of credentialsSecret and workloadIdentity: who the store is asked as",
        field="",
        good={"credentialsSecret": "store"},
        bad={"endpoint": "http://minio:9000"},
    ),
    Rule(
        model="StorageSpec",
        expression="[has(self.s3), has(self.azure), has(self.gcs)].filter(named, named).size() <= 1",
        message="names one store: s3, azure or gcs",
        field="",
        good={"azure": AZURE_EXAMPLE},
        bad={
            "azure": AZURE_EXAMPLE,
            "s3": {"endpoint": "http://minio:9000", "bucket": "rollouts", "credentialsSecret": "store"},
        },
    ),
    Rule(
        model="AzureStorage",
        expression="!has(self.endpoint) || " + url("endpoint", "https"),
        message="must be a URL that starts with https://: each request has a token that opens the container",
        field="endpoint",
        good=AZURE_EXAMPLE,
        bad=AZURE_EXAMPLE | {"endpoint": "research.blob.core.windows.net"},
    ),
    Rule(
        model="AzureWorkload",
        expression=url("authority", "https"),
        message="must be a URL that starts with https://: the service account's token is sent there",
        field="authority",
        good=AZURE_EXAMPLE["workloadIdentity"] | {"authority": "https://login.microsoftonline.us"},
        bad=AZURE_EXAMPLE["workloadIdentity"] | {"authority": "login.microsoftonline.com"},
    ),
    Rule(
        model="GcsStorage",
        expression=url("endpoint", "https"),
        message="must be a URL that starts with https://: each request has a token that opens the bucket",
        field="endpoint",
        good=GCS_EXAMPLE | {"endpoint": "https://storage.googleapis.com"},
        bad=GCS_EXAMPLE | {"endpoint": "http://storage.googleapis.com"},
    ),
    Rule(
        model="GcsWorkload",
        expression=url("stsEndpoint", "https"),
        message="must be a URL that starts with https://: the service account's token is sent there",
        field="stsEndpoint",
        good=GCS_EXAMPLE["workloadIdentity"] | {"stsEndpoint": "https://sts.googleapis.com/v1/token"},
        bad=GCS_EXAMPLE["workloadIdentity"] | {"stsEndpoint": "sts.googleapis.com"},
    ),
    Rule(
        model="WorkloadIdentity",
        expression=url("stsEndpoint", "https?"),
        message="must be a URL that starts with http:// or https://",
        field="stsEndpoint",
        good={"stsEndpoint": "https://sts.eu-central-1.amazonaws.com"},
        bad={"stsEndpoint": "sts.eu-central-1.amazonaws.com"},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.sampling.maxCompletionTokens < self.recipe.maxSequenceLength",
        message="must be less than recipe.maxSequenceLength, which counts the prompt too",
        field="sampling.maxCompletionTokens",
        good={"sampling": {"maxCompletionTokens": 96}, "recipe": {"maxSequenceLength": 160}},
        bad={"sampling": {"maxCompletionTokens": 160}, "recipe": {"maxSequenceLength": 160}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.sampling.groupsPerSubmission <= self.recipe.promptsPerStep",
        message="must be at most recipe.promptsPerStep",
        field="sampling.groupsPerSubmission",
        good={"sampling": {"groupsPerSubmission": 4}, "recipe": {"promptsPerStep": 32}},
        bad={"sampling": {"groupsPerSubmission": 64}, "recipe": {"promptsPerStep": 32}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.lengthReward) || "
        "self.lengthReward.targets.all(t, t <= self.sampling.maxCompletionTokens)",
        message="must all be at most sampling.maxCompletionTokens",
        field="lengthReward.targets",
        good={"lengthReward": {"targets": [16, 32]}, "sampling": {"maxCompletionTokens": 96}},
        bad={"lengthReward": {"targets": [16, 128]}, "sampling": {"maxCompletionTokens": 96}},
    ),
    Rule(
        model="RollBack",
        expression="self.toVersion <= self.atStep",
        message="must be at most atStep: later versions do not exist yet when that step begins",
        field="toVersion",
        good={"toVersion": 5, "atStep": 9},
        bad={"toVersion": 10, "atStep": 9},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.rollBack) || self.rollBack.atStep < self.steps",
        message="must be less than steps: the run ends before that step",
        field="rollBack.atStep",
        good={"rollBack": {"toVersion": 1, "atStep": 3}, "steps": 4},
        bad={"rollBack": {"toVersion": 1, "atStep": 4}, "steps": 4},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.recipe.overlongShaping) || "
        "self.recipe.overlongShaping.bufferTokens <= self.sampling.maxCompletionTokens",
        message="must be at most sampling.maxCompletionTokens",
        field="recipe.overlongShaping.bufferTokens",
        good={"recipe": {"overlongShaping": {"bufferTokens": 32}}, "sampling": {"maxCompletionTokens": 96}},
        bad={"recipe": {"overlongShaping": {"bufferTokens": 128}}, "sampling": {"maxCompletionTokens": 96}},
    ),
    Rule(
        model="TrainerTemplate",
        expression="!has(self.processesPerReplica) || self.gpu.count == 0 || self.processesPerReplica <= self.gpu.count",
        message="must be at most gpu.count: each rank has a GPU of its own",
        field="processesPerReplica",
        good={"processesPerReplica": 8, "gpu": {"count": 8}},
        bad={"processesPerReplica": 2, "gpu": {"count": 1}},
    ),
    Rule(
        model="TrainerTemplate",
        expression="!has(self.settings.contextParallel) || (self.replicas * (has(self.processesPerReplica) ? self.processesPerReplica : "
        "self.gpu.count > 0 ? self.gpu.count : 1)) % self.settings.contextParallel == 0",
        message="must divide the trainer's ranks, which are replicas x processesPerReplica: that many in a row share each pack",
        field="settings.contextParallel",
        good={"replicas": 2, "gpu": {"count": 8}, "settings": {"contextParallel": 16}},
        bad={"replicas": 2, "gpu": {"count": 8}, "settings": {"contextParallel": 3}},
    ),
    Rule(
        model="TrainerSettings",
        expression="!has(self.expertParallel) || self.expertParallel != 'Tokens' || !(self.cpuOffload || self.compile)",
        message="must not be Tokens with cpuOffload or compile: experts stay where they compute, and tokens are counted as they come",
        field="expertParallel",
        good={"expertParallel": "Tokens", "cpuOffload": False, "compile": False},
        bad={"expertParallel": "Tokens", "cpuOffload": True, "compile": False},
    ),
    *(
        rule
        for model in ("PodTemplate", "PodWithVariables")
        for rule in (
            Rule(
                model=model,
                expression="self.labels.all(key, !key.startsWith('shoal.dev/') && !key.startsWith('app.kubernetes.io/') && "
                "key != 'kueue.x-k8s.io/queue-name')",
                message="must not have keys under shoal.dev/ or app.kubernetes.io/, nor Kueue's queue name: spec.queueName queues the whole run",
                field="labels",
                good={"labels": {"team": "rl"}},
                bad={"labels": {"shoal.dev/run": "other"}},
            ),
            Rule(
                model=model,
                expression="self.annotations.all(key, !key.startsWith('container.apparmor.security.beta.kubernetes.io/') && "
                "!key.startsWith('shoal.dev/'))",
                message="must not have keys under shoal.dev/, which are the operator's, nor AppArmor's: pods keep to the restricted security level",
                field="annotations",
                good={"annotations": {"team.example/cost-centre": "7"}},
                bad={"annotations": {"container.apparmor.security.beta.kubernetes.io/worker": "unconfined"}},
            ),
        )
    ),
    Rule(
        model="Variable",
        expression="!self.name.matches('^(SHOAL_|LD_|PYTHON|TORCHELASTIC_)') && !(self.name in ['PATH', 'HOME', 'TMPDIR', 'RANK', "
        "'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'JOB_COMPLETION_INDEX', 'HF_HUB_OFFLINE'])",
        message="must not be a variable that says which part this is or what code it runs: SHOAL_*, LD_*, PYTHON*, PATH, HOME, TMPDIR, torchrun's,"
        " HF_HUB_OFFLINE",
        field="name",
        good={"name": "HF_TOKEN", "value": "a"},
        bad={"name": "SHOAL_ROLE", "value": "a"},
    ),
    Rule(
        model="Variable",
        expression="has(self.value) != has(self.valueFrom)",
        message="must have exactly one of value, valueFrom",
        field="",
        good={"name": "HF_ENDPOINT", "value": "https://hub.example"},
        bad={"name": "HF_ENDPOINT"},
    ),
    Rule(
        model="VariablesSource",
        expression="has(self.secretRef) != has(self.configMapRef)",
        message="must have exactly one of secretRef, configMapRef",
        field="",
        good={"secretRef": {"name": "hub"}},
        bad={"prefix": "HF_"},
    ),
    Rule(
        model="PodWithVariables",
        expression="!has(self.env) || self.env.all(one, self.env.exists_one(other, other.name == one.name))",
        message="must have names that differ",
        field="env",
        good={"env": [{"name": "HF_TOKEN", "value": "a"}, {"name": "HF_ENDPOINT", "value": "a"}]},
        bad={"env": [{"name": "HF_TOKEN", "value": "a"}, {"name": "HF_TOKEN", "value": "b"}]},
    ),
    Rule(
        model="TrackersTemplate",
        expression="has(self.wandb) || has(self.trackio) || has(self.tensorboard)",
        message="must have at least one of wandb, trackio, tensorboard",
        field="",
        good={"tensorboard": {}},
        bad={"volumeSize": "1Gi"},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trackers) || self.mode != 'Generate'",
        message="goes with modes Train and SFT: mode Generate trains no step",
        field="trackers",
        good={"trackers": {"tensorboard": {}}, "mode": "Train"},
        bad={"trackers": {"tensorboard": {}}, "mode": "Generate"},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.trackers) || !has(self.trackers.credentialsSecret) || has(self.storage.s3)",
        message="goes with storage.s3: a folder store is mounted to be read",
        field="trackers.credentialsSecret",
        good={
            "trackers": {"credentialsSecret": "reader", "tensorboard": {}},
            "storage": {"s3": {"endpoint": "http://s3", "bucket": "rollouts", "credentialsSecret": "s3"}},
        },
        bad={"trackers": {"credentialsSecret": "reader", "tensorboard": {}}, "storage": {"prefix": "shoal"}},
    ),
    Rule(
        model="Toleration",
        expression="self.operator == 'Exists' ? !has(self.value) : has(self.key)",
        message="Equal needs a key, and Exists has no value",
        field="",
        good={"operator": "Equal", "key": "gpu", "value": "a100"},
        bad={"operator": "Exists", "key": "gpu", "value": "a100"},
    ),
    Rule(
        model="NodeRequirement",
        expression="(self.operator in ['In', 'NotIn']) == (self.values.size() > 0)",
        message="must be given with In and NotIn, and only with them",
        field="values",
        good={"operator": "In", "values": ["a"]},
        bad={"operator": "Exists", "values": ["a"]},
    ),
    Rule(
        model="Exposure",
        expression="(self.type in ['Ingress', 'Gateway']) == has(self.domain)",
        message="must be given with the types Ingress and Gateway, and only with them",
        field="domain",
        good={"type": "Ingress", "domain": "relays.example.org"},
        bad={"type": "Ingress"},
    ),
    Rule(
        model="Exposure",
        expression="(self.type == 'NodePort') == has(self.nodeAddress)",
        message="must be given with type NodePort, and only with it",
        field="nodeAddress",
        good={"type": "NodePort", "nodeAddress": "nodes.example.org"},
        bad={"type": "ClusterIP", "nodeAddress": "nodes.example.org"},
    ),
    Rule(
        model="Exposure",
        expression="self.type == 'Ingress' || !has(self.ingressClassName)",
        message="goes with type Ingress only",
        field="ingressClassName",
        good={"type": "Ingress", "domain": "relays.example.org", "ingressClassName": "nginx"},
        bad={"type": "LoadBalancer", "ingressClassName": "nginx"},
    ),
    Rule(
        model="Exposure",
        expression="(self.type == 'Gateway') == has(self.gateway)",
        message="must be given with type Gateway, and only with it",
        field="gateway",
        good={"type": "Gateway", "domain": "relays.example.org", "gateway": {"name": "public"}},
        bad={"type": "Gateway", "domain": "relays.example.org"},
    ),
    Rule(
        model="Exposure",
        expression="self.type != 'Gateway' || !has(self.tlsSecret)",
        message="does not go with type Gateway: the Gateway's listener has the certificate",
        field="tlsSecret",
        good={"type": "Ingress", "domain": "relays.example.org", "tlsSecret": "relays-tls"},
        bad={
            "type": "Gateway",
            "domain": "relays.example.org",
            "gateway": {"name": "public"},
            "tlsSecret": "relays-tls",
        },
    ),
    Rule(
        model="Exposure",
        expression="!has(self.tlsSecrets) || (self.type == 'Ingress' && has(self.tlsSecret))",
        message="goes with type Ingress and a tlsSecret only",
        field="tlsSecrets",
        good={
            "type": "Ingress",
            "domain": "relays.example.org",
            "tlsSecret": "relays-tls",
            "tlsSecrets": "PerHost",
        },
        bad={"type": "Ingress", "domain": "relays.example.org", "tlsSecrets": "PerHost"},
    ),
    Rule(
        model="Exposure",
        expression="self.type != 'ClusterIP' || !has(self.tlsSecret)",
        message="goes with the types that let clients outside in",
        field="tlsSecret",
        good={"type": "LoadBalancer", "tlsSecret": "relays-tls"},
        bad={"type": "ClusterIP", "tlsSecret": "relays-tls"},
    ),
    Rule(
        model="ControlPlaneTemplate",
        expression="!has(self.exposure) || self.exposure.type == 'Ingress' || !has(self.exposure.tlsSecret)",
        message="exposure.tlsSecret goes with type Ingress only: discovery and orchestrator do not speak TLS themselves",
        field="",
        good={"exposure": {"type": "Ingress", "domain": "runs.example.org", "tlsSecret": "runs-tls"}},
        bad={"exposure": {"type": "LoadBalancer", "tlsSecret": "runs-tls"}},
    ),
    Rule(
        model="Exposure",
        expression="self.type == 'LoadBalancer' || !has(self.loadBalancerClass)",
        message="goes with type LoadBalancer only",
        field="loadBalancerClass",
        good={"type": "LoadBalancer", "loadBalancerClass": "internal"},
        bad={"type": "ClusterIP", "loadBalancerClass": "internal"},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="self.inferencePools.all(pool, self.inferencePools.exists_one(other, other.name == pool.name))",
        message="must have names that differ",
        field="inferencePools",
        good={"inferencePools": [{"name": "fast"}, {"name": "slow"}]},
        bad={"inferencePools": [{"name": "fast"}, {"name": "fast"}]},
    ),
    Rule(
        model="InferencePoolTemplate",
        expression="!(self.name in ['prepare', 'redis', 'discovery', 'trainer', 'ranks', 'relay', 'validator', 'runner', 'tracker', 'ui', "
        "'config', 'join', 'store', 'outbox', 'www'])",
        message="must not be the name of another part of the run",
        field="name",
        good={"name": "fast"},
        bad={"name": "relay"},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.relayServer) || !has(self.relayServerRef)",
        message="must not be given with relayServer: relays are made by the run or by others",
        field="relayServerRef",
        good={"relayServerRef": "shared"},
        bad={"relayServerRef": "shared", "relayServer": {"replicas": 2}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.validator) || !has(self.validatorRef)",
        message="must not be given with validator: validators are made by the run or by others",
        field="validatorRef",
        good={"validatorRef": "shared"},
        bad={"validatorRef": "shared", "validator": {"replicas": 2}},
    ),
    *MIXTURE_RULES,
    *PACKAGE_RULES,
    *MODE_RULES,
    *EVALUATION_RULES,
    *POD_RULES,
    *POOL_RULES,
    *PRIME_RULES,
    *PROMPT_RULES,
    *SFT_RULES,
    *ISLAND_RULES,
    *UI_RULES,
    *VALIDATOR_RULES,
    *VINE_RULES,
    *FILE_RULES,
    *VOLUME_RULES,
    immutable("run", "sums", "other", "InferencePoolSpec"),
    immutable("pool", "fast", "slow", "InferencePoolSpec"),
    immutable("run", "sums", "other", "RelayServerSpec"),
    immutable("run", "sums", "other", "ValidatorSpec"),
    immutable("storage", {"prefix": "shoal"}, {"prefix": "other"}, "ValidatorSpec"),
    immutable("model", {"path": "/models/a"}, {"path": "/models/b"}),
    immutable("tasks", {"environment": "arithmetic", "count": 8}, {"environment": "arithmetic", "count": 9}),
    immutable("storage", {"prefix": "shoal"}, {"prefix": "other"}),
)


def rules_of(model: str) -> list[Rule]:
    """The rules whose `self` is the model of this class name."""
    return [rule for rule in RULES if rule.model == model]


@functools.cache
def _program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def variables(value: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, Any]:
    """`value` (camelCase, after defaulting, absent for None), and what it was, as rules see them: once for all rules of a value,
    for it takes as long as they do."""
    return {"self": json_to_cel(value)} | ({} if old is None else {"oldSelf": json_to_cel(old)})


def holds(rule: Rule, seen: dict[str, Any]) -> bool:
    """Whether what `variables` gave passes the rule.

    An expression that cannot be evaluated does not pass, as on an API server; a rule of updates passes where there is no old value.
    """
    return evaluated(rule, seen) is True


def evaluated(rule: Rule, seen: dict[str, Any]) -> bool | None:
    """The value of the rule's expression for what `variables` gave; None when it cannot be evaluated."""
    if rule.of_updates and "oldSelf" not in seen:
        return True
    try:
        return bool(_program(rule.expression).evaluate(seen))
    except CELEvalError:
        return None
