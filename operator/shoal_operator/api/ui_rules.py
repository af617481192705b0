"""The CEL rules about the page of a run (`spec.ui`). Part of `rules.RULES`."""

from shoal_operator.api.rule import Rule

_S3 = {"endpoint": "http://s3", "bucket": "rollouts", "credentialsSecret": "s3"}

UI_RULES: tuple[Rule, ...] = (
    Rule(
        model="UiTemplate",
        expression="!has(self.exposure) || self.exposure.type == 'Ingress' || !has(self.exposure.tlsSecret)",
        message="exposure.tlsSecret goes with type Ingress only: the page does not speak TLS itself",
        field="",
        good={"exposure": {"type": "Ingress", "domain": "runs.example.org", "tlsSecret": "runs-tls"}},
        bad={"exposure": {"type": "NodePort", "nodeAddress": "nodes.example.org", "tlsSecret": "runs-tls"}},
    ),
    Rule(
        model="TrainingRunSpec",
        expression="!has(self.ui) || !has(self.ui.credentialsSecret) || has(self.storage.s3)",
        message="goes with storage.s3: a folder store is mounted to be read",
        field="ui.credentialsSecret",
        good={"ui": {"credentialsSecret": "reader"}, "storage": {"s3": _S3}},
        bad={"ui": {"credentialsSecret": "reader"}, "storage": {"prefix": "shoal"}},
    ),
)
