"""Small workloads for tests: a Python program as a container, in a StatefulSet, Deployment or Job."""

from typing import Any

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        ok = not os.path.exists(os.environ["SHOAL_HOME"] + "/tmp/sick")
        self.send_response(200 if ok else 503); self.end_headers(); self.wfile.write(os.environ["SHOAL_POD"].encode())
    def log_message(self, *_): pass
print("serving on", os.environ["SHOAL_BIND"], flush=True)
http.server.ThreadingHTTPServer((os.environ["SHOAL_BIND"], 8080), Handler).serve_forever()
"""

READY = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 0.1}


def container(program: str, name: str = "main", **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": ["python", "-c", program], **fields}


def template(*containers: dict[str, Any], component: str = "part", **pod_fields: Any) -> dict[str, Any]:
    return {
        "metadata": {"labels": {"shoal.dev/component": component}},
        "spec": {"containers": list(containers), "terminationGracePeriodSeconds": 5, **pod_fields},
    }


def stateful_set(name: str, pod: dict[str, Any], replicas: int = 1, claims: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "template": pod,
            "volumeClaimTemplates": [{"metadata": {"name": claim}} for claim in claims],
        },
    }


def job(name: str, pod: dict[str, Any], backoff_limit: int = 6) -> dict[str, Any]:
    pod = {**pod, "spec": {"restartPolicy": "OnFailure", **pod["spec"]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": backoff_limit, "template": pod},
    }
