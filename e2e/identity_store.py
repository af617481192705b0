"""An object store for a run without a Secret: MinIO that gives keys for tokens of the cluster's service accounts.

Its issuer is the cluster's API server. A pod of the test's own publishes the issuer's documents, as platform teams do in a bucket: MinIO then needs
no way to the API server. Called by the tests of a run in a queue.
"""

import json

from e2e.space import CONTAINER_SECURITY, SECURITY, Object, Space
from oidc import AUDIENCE, role_arn

ACCOUNT = "research-store"
STORE, ISSUER, BUCKET = "store", "issuer", "rollouts"
ROOT_KEYS = {"accessKey": "root-of-the-store", "secretKey": "a-long-word-that-no-pod-of-the-run-knows"}
"""The administrator's."""
DOCUMENTS = "/shoal/tmp/openid"
PUBLISH = """import pathlib, sys
path = pathlib.Path(sys.argv[1])
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text(sys.stdin.read())
"""


def endpoint(space: Space) -> str:
    """The store's URL, and its token service's."""
    return f"http://{STORE}.{space.name}.svc:9000"


def storage(space: Space) -> Object:
    """`spec.storage` of a run that reaches the store as `ACCOUNT`."""
    identity = {"serviceAccount": ACCOUNT, "roleArn": role_arn(AUDIENCE), "audience": AUDIENCE}
    return {
        "s3": {
            "endpoint": endpoint(space),
            "bucket": BUCKET,
            "workloadIdentity": identity | {"stsEndpoint": endpoint(space)},
        }
    }


def _service(name: str, port: int) -> Object:
    spec = {"selector": {"app": name}, "ports": [{"name": "http", "port": port, "targetPort": "http"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


def _minio(space: Space) -> Object:
    published = f"http://{ISSUER}.{space.name}.svc:8080/openid/configuration"
    variables = {
        "HOME": "/shoal/tmp",
        "MINIO_ROOT_USER": ROOT_KEYS["accessKey"],
        "MINIO_ROOT_PASSWORD": ROOT_KEYS["secretKey"],
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "MINIO_IDENTITY_OPENID_CONFIG_URL": published,
        "MINIO_IDENTITY_OPENID_CLIENT_ID": AUDIENCE,
        "MINIO_IDENTITY_OPENID_ROLE_POLICY": "readwrite",
    }
    container = {
        "name": "minio",
        "image": space.image("minio"),
        "imagePullPolicy": "IfNotPresent",
        "args": ["server", "--address", ":9000", "--certs-dir", "/shoal/tmp/certs", "/data"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "ports": [{"name": "http", "containerPort": 9000}],
        "readinessProbe": {"httpGet": {"path": "/minio/health/ready", "port": "http"}, "periodSeconds": 2},
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/shoal/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": STORE, "labels": {"app": STORE}},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": SECURITY,
            "containers": [container],
            "volumes": [{"name": name, "emptyDir": {}} for name in ("data", "tmp")],
        },
    }


def start(space: Space) -> None:
    """The account, the published issuer and the store with its bucket, all ready."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    space.apply(account, space.probe_pod(ISSUER, serves=8080), _service(ISSUER, 8080), _service(STORE, 9000))
    space.wait_ready(ISSUER)
    said = json.loads(space.kubectl("get", "--raw", "/.well-known/openid-configuration"))
    said["jwks_uri"] = f"http://{ISSUER}.{space.name}.svc:8080/openid/jwks"
    keys = space.kubectl("get", "--raw", "/openid/v1/jwks")
    for name, document in {"configuration": json.dumps(said), "jwks": keys}.items():
        put = ("exec", "-i", ISSUER, "--", "python", "-c", PUBLISH, f"{DOCUMENTS}/{name}")
        space.kubectl(*put, text=document)
    space.apply(_minio(space))
    space.wait_ready(STORE)
    space.run(STORE, "mkdir", f"/data/{BUCKET}")
