"""How many child events a second the operator absorbs: a recorded watch stream is replayed into the engine's own informer, cache and queue.

The stream comes from a process of its own over HTTP, as from an API server, but made before: only the operator's side is measured. Every
event is a status change of a StatefulSet as its controller writes them, and the workers run the real reconcile for what they are told,
from the cache. A reconcile that wanted to write would fail, and be counted.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Object = dict[str, Any]
WORKERS = 4


def events(sets: Sequence[Object], count: int) -> bytes:
    """The body of a watch with `count` events: each StatefulSet in turn, with what changes when its pods do."""
    version = 1 + max(int(each["metadata"]["resourceVersion"]) for each in sets)
    lines = []
    for number in range(count):
        found = sets[number % len(sets)]
        metadata = {**found["metadata"], "resourceVersion": str(version + number)}
        status = {**found.get("status", {}), "collisionCount": number, "availableReplicas": number // len(sets) % 2}
        lines.append(
            json.dumps(
                {
                    "type": "MODIFIED",
                    "object": {
                        **found,
                        "apiVersion": "apps/v1",
                        "kind": "StatefulSet",
                        "metadata": metadata,
                        "status": status,
                    },
                },
                separators=(",", ":"),
            )
        )
    # Each event is a chunk of its own, as an API server sends them.
    return b"".join(b"%x\r\n%s\n\r\n" % (len(line) + 1, line) for line in (each.encode() for each in lines))


def serve() -> None:
    """The process with the stream: list and watch lines come on stdin as JSON, the port goes to stdout."""
    given = json.loads(sys.stdin.readline())
    sets: list[Object] = given["sets"]
    lines = events(sets, given["count"])
    metadata = {"resourceVersion": str(max(int(each["metadata"]["resourceVersion"]) for each in sets))}
    listed = json.dumps(
        {"kind": "StatefulSetList", "apiVersion": "apps/v1", "metadata": metadata, "items": sets}
    ).encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            watched = "watch=1" in self.path
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if watched:
                self.send_header("Transfer-Encoding", "chunked")
            else:
                self.send_header("Content-Length", str(len(listed)))
            self.end_headers()
            self.wfile.write(lines if watched else listed)
            if watched:
                self.wfile.flush()
                time.sleep(600)  # as a watch: it stays open; the process is ended from outside

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


def absorb(objects: Sequence[Object], count: int) -> dict[str, float]:
    """Replay `count` events over the objects of a real namespace.

    Args:
        objects: live objects of our kinds and their children, with `kind` and `apiVersion`.

    Returns:
        `events_per_second`, the same by CPU time, which other work on the machine does not change,
        and beside them `reconciles` and `writes` (must be 0: nothing changed that matters).
    """
    from kubernetes.client import Configuration

    from shoal_operator.engine.api_server import ApiServer
    from shoal_operator.engine.cache import Cache
    from shoal_operator.engine.cluster import ClusterError
    from shoal_operator.engine.events import EventRecorder
    from shoal_operator.engine.informer import Informer
    from shoal_operator.engine.kinds import CACHED, Key
    from shoal_operator.engine.kubernetes_cluster import KubernetesCluster, Parts
    from shoal_operator.engine.progress import ProgressReader
    from shoal_operator.engine.queue import WorkQueue
    from shoal_operator.reconcile import reconcile

    sets = [each for each in objects if each["kind"] == "StatefulSet"]
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.operator.stream"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(json.dumps({"sets": sets, "count": count}) + "\n")
        server.stdin.flush()
        port = int(server.stdout.readline())
        configuration = type.__call__(Configuration)
        configuration.host = f"http://127.0.0.1:{port}"
        api = ApiServer(configuration)
        api.may_write = lambda: False
        queue = WorkQueue()
        cache = Cache(queue)
        for each in objects:
            cache.observe("LISTED", each)
        parts = Parts(api, cache, ProgressReader(queue.add), EventRecorder(api, "bench"))
        done = {"reconciles": 0, "writes": 0}
        counting = threading.Lock()

        def work() -> None:
            while (key := queue.get()) is not None:
                failed = 0
                try:
                    reconcile(KubernetesCluster(parts, key), key.kind, key.name)
                except ClusterError:
                    failed = 1
                queue.done(key)
                with counting:
                    done["reconciles"] += 1
                    done["writes"] += failed

        for _ in range(WORKERS):
            threading.Thread(target=work, daemon=True).start()
        while queue.depth() or queue.running_seconds():
            time.sleep(0.05)  # all were news; what is measured begins with the stream
        done.update(reconciles=0, writes=0)
        informer = Informer(api, cache, CACHED["StatefulSet"], None)
        last = Key(
            "StatefulSet",
            sets[(count - 1) % len(sets)]["metadata"]["namespace"],
            sets[(count - 1) % len(sets)]["metadata"]["name"],
        )
        final = max(int(each["metadata"]["resourceVersion"]) for each in sets) + count
        began, cpu = time.monotonic(), time.process_time()
        informer.start()
        while (entry := cache.entry(last)) is None or entry.version < final or queue.depth() or queue.running_seconds():
            if time.monotonic() - began > 120:
                raise RuntimeError("the stream was not absorbed within 120 s")
            time.sleep(0.01)
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        informer.stop()
        queue.close()
        return {
            "events_per_second": round(count / seconds, 1),
            "events_per_cpu_second": round(count / cpu, 1),
            **done,
        }
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    serve()
