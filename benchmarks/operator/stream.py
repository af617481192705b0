"""How many events a second the operator absorbs, its children's and its own kinds' apart: a recorded watch stream is replayed into the engine.

The stream comes from a process of its own over HTTP, as from an API server, but made before: only the operator's side is measured. Children's
events come by the engine's informer: status changes of StatefulSets, as their controller writes them. Events of own kinds come by kopf: an
annotation of an InferencePool. The workers run the real reconcile from the cache. A reconcile that wanted to write would fail, and be counted.
"""

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Object = dict[str, Any]
WORKERS = 4


def events(objects: Sequence[Object], count: int) -> bytes:
    """The body of a watch with `count` events: each object in turn, with a change that nobody reads."""
    version = 1 + newest(objects)
    lines = []
    for number in range(count):
        found = objects[number % len(objects)]
        metadata = {**found["metadata"], "resourceVersion": str(version + number)}
        status = found.get("status", {})
        if found["kind"] == "StatefulSet":
            status = {**status, "collisionCount": number, "availableReplicas": number // len(objects) % 2}
        else:
            metadata["annotations"] = {"bench": str(number)}
        changed = {**found, "metadata": metadata, "status": status}
        lines.append(json.dumps({"type": "MODIFIED", "object": changed}, separators=(",", ":")))
    # Each event is a chunk of its own, as an API server sends them.
    return b"".join(b"%x\r\n%s\n\r\n" % (len(line) + 1, line) for line in (each.encode() for each in lines))


def newest(objects: Sequence[Object]) -> int:
    """The latest version of any."""
    return max(int(each["metadata"]["resourceVersion"]) for each in objects)


def discovery() -> dict[str, Object]:
    """What kopf asks for before it watches, by path."""
    from shoal_operator.api.base import GROUP, VERSION
    from shoal_operator.engine.kinds import OWN

    def named(kind: str, plural: str) -> Object:
        verbs = ["list", "watch"]
        return {"kind": kind, "name": plural, "singularName": kind.lower(), "namespaced": True, "verbs": verbs}

    version = {"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}
    return {
        "/api": {"versions": ["v1"]},
        "/api/v1": {"resources": [named("Namespace", "namespaces"), named("Event", "events")]},
        "/apis": {"groups": [{"name": GROUP, "versions": [version], "preferredVersion": version}]},
        f"/apis/{GROUP}/{VERSION}": {"resources": [named(each.kind, each.plural) for each in OWN.values()]},
    }


def serve() -> None:
    """The process with the stream: objects, their plural and a count come on stdin as JSON, the port goes to stdout."""
    given = json.loads(sys.stdin.readline())
    objects: list[Object] = given["objects"]
    lines = events(objects, given["count"])
    metadata = {"resourceVersion": str(newest(objects))}
    known = {path: json.dumps(found).encode() for path, found in discovery().items()}

    def listed(items: Sequence[Object]) -> bytes:
        return json.dumps({"kind": "AnyList", "apiVersion": "v1", "metadata": metadata, "items": items}).encode()

    full, empty = listed(objects), listed([])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            place = urlsplit(self.path)
            wanted = place.path.endswith(f"/{given['plural']}")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if "watch=" not in place.query:
                body = known.get(place.path) or (full if wanted else empty)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if wanted:
                self.wfile.write(lines)
            self.wfile.flush()
            time.sleep(600)  # as a watch: it stays open; the process is ended from outside

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


def absorb(objects: Sequence[Object], kind: str, count: int) -> dict[str, float]:
    """Replay `count` events of a kind over the objects of a real namespace.

    Args:
        objects: live objects of our kinds and their children, with `kind` and `apiVersion`.
        kind: `StatefulSet`, by an informer, or one of our own, by kopf.

    Returns:
        `events_per_second`, the same by CPU time, which other work on the machine does not change,
        and beside them `reconciles` and `writes` (must be 0: nothing changed that matters).
    """
    from kubernetes.client import Configuration

    from benchmarks.operator.cluster import OPERATOR_NAMESPACE
    from shoal_operator.engine.api_server import ApiServer
    from shoal_operator.engine.cache import Cache
    from shoal_operator.engine.cluster import ClusterError
    from shoal_operator.engine.events import EventRecorder
    from shoal_operator.engine.informer import Informer
    from shoal_operator.engine.kinds import CACHED, OWN, Key
    from shoal_operator.engine.kubernetes_cluster import KubernetesCluster, Parts
    from shoal_operator.engine.progress import RunProgressReader
    from shoal_operator.engine.queue import WorkQueue
    from shoal_operator.engine.storage_classes import StorageClasses
    from shoal_operator.engine.unchanged import Unchanged
    from shoal_operator.engine.warning_events import WarningEvents
    from shoal_operator.reconcile import reconcile

    replayed = [each for each in objects if each["kind"] == kind]
    resource = CACHED[kind]
    server = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.operator.stream"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(json.dumps({"objects": replayed, "plural": resource.plural, "count": count}) + "\n")
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
        parts = Parts(
            api,
            cache,
            RunProgressReader(queue.add),
            EventRecorder(api, "bench"),
            StorageClasses(api),
            WarningEvents(api),
            Unchanged(cache),
            home=OPERATOR_NAMESPACE,  # otherwise the NetworkPolicy that lets the operator in differs, and that is a write
        )
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
        final = newest(replayed) + count
        metadata = replayed[(count - 1) % len(replayed)]["metadata"]
        last = Key(kind, metadata["namespace"], metadata["name"])
        began, cpu = time.monotonic(), time.process_time()
        if kind in OWN:
            first = threading.Event()

            def seen(event: str, found: Object) -> None:
                if event == "MODIFIED":
                    first.set()
                cache.observe(event, found)

            stop = watch_by_kopf(configuration, seen)
            first.wait(60)  # kopf needs a second to start
            began, cpu = time.monotonic(), time.process_time()
        else:
            informer = Informer(api, cache, resource, None)
            stop = informer.stop
            informer.start()
        while not cache.knows(last, final) or queue.depth() or queue.running_seconds():
            if time.monotonic() - began > 120:
                raise RuntimeError(f"the stream of {kind} was not absorbed within 120 s")
            time.sleep(0.01)
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        stop()
        queue.close()
        return {
            "events_per_second": round(count / seconds, 1),
            "events_per_cpu_second": round(count / cpu, 1),
            **done,
        }
    finally:
        server.kill()
        server.wait()


def watch_by_kopf(configuration: Any, seen: Callable[[str, Object], None]) -> Callable[[], None]:
    """Run the operator's kopf loop in a thread; returns what ends it."""
    from shoal_operator.engine.manager import Options
    from shoal_operator.kopf_loop import KopfLoop

    class Engine:
        """In place of the manager, whose cache and workers this benchmark has itself."""

        def __init__(self) -> None:
            self.seen = seen

        def start(self) -> None: ...
        def stop(self) -> None: ...
        def kopf_restarted(self) -> None: ...

    running = KopfLoop(Engine(), configuration, Options())  # type: ignore[arg-type]  # what kopf's loop calls of it
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(running.run(),), daemon=True)
    thread.start()

    def stop() -> None:
        loop.call_soon_threadsafe(running.stop)
        thread.join(30)

    return stop


if __name__ == "__main__":
    serve()
