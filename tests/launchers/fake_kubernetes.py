"""Stands in for the API server of Kubernetes: real HTTP on loopback, with answers as a real one gave them."""

from __future__ import annotations

import contextlib
import copy
import http.server
import itertools
import json
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

TOKEN = "canary-of-the-token"


@dataclass
class Request:
    """What was asked."""

    method: str
    path: str
    query: dict[str, str]
    body: Any

    @property
    def what(self) -> str:
        """The method, the kind and the name, if one is in the path."""
        words = self.path.split("/")
        return " ".join(
            [self.method, *words[words.index("namespaces") + 2 :]] if "namespaces" in words else [self.path]
        )


@dataclass
class FakeKubernetes:
    """Keeps what it is given, shows the pods and events that a test puts into it, and refuses what it is told to."""

    folder: pathlib.Path
    minor: str = "34"
    pods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    refuses: dict[str, tuple[int, str]] = field(default_factory=dict)  # by the start of `what`
    delay_s: float = 0.0
    requests: list[Request] = field(default_factory=list)
    objects: dict[str, dict[str, dict[str, Any]]] = field(
        default_factory=lambda: {"jobs": {}, "secrets": {}, "services": {}}
    )
    port: int = 0

    @property
    def kubeconfig(self) -> str:
        """A file that leads here."""
        path = self.folder / "kubeconfig"
        contexts = [
            {"name": name, "context": {"cluster": "c", "user": "u", "namespace": namespace}}
            for name, namespace in (("one", "research"), ("two", "other"))
        ]
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
                    "users": [{"name": "u", "user": {"token": TOKEN}}],
                    "contexts": contexts,
                    "current-context": "one",
                }
            )
        )
        return str(path)

    def asked(self, start: str) -> list[Request]:
        """The requests whose `what` starts like this."""
        return [each for each in self.requests if each.what.startswith(start)]

    def answer(self, request: Request) -> tuple[int, Any]:
        """The status and the body."""
        for start, (code, message) in self.refuses.items():
            if request.what.startswith(start):
                return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}
        if request.path == "/version/":
            return 200, {"major": "1", "minor": self.minor, "gitVersion": f"v1.{self.minor}.0"}
        kind, *name = request.what.split()[1].split("/") + request.what.split()[2:]
        if request.method == "POST":
            return self._create(kind, copy.deepcopy(request.body))
        if request.method == "DELETE":
            return self._delete(kind, name[0])
        if kind == "pods" and name[1:] == ["log"]:
            return (200, self.logs[name[0]]) if name[0] in self.logs else (404, {"message": "no log"})
        shown = {"pods": self.pods, "events": self.events}.get(kind)
        return 200, {"items": list(self.objects[kind].values()) if shown is None else shown}

    def _create(self, kind: str, body: dict[str, Any]) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        body["metadata"]["uid"] = f"uid-of-{name}"
        self.objects[kind][name] = body
        return 201, body

    def _delete(self, kind: str, name: str) -> tuple[int, Any]:
        if kind == "pods":
            gone = [pod for pod in self.pods if pod["metadata"]["name"] == name]
            self.pods = [pod for pod in self.pods if pod not in gone]
            return (200, gone[0]) if gone else (404, {"message": f'pods "{name}" not found'})
        found = self.objects[kind].pop(name, None)
        if kind == "jobs" and not self.objects["jobs"]:
            self.pods = []
        return (200, found) if found else (404, {"message": f'{kind} "{name}" not found'})


_numbers = itertools.count()


def pod(node: int, phase: str = "Running", **status: Any) -> dict[str, Any]:
    """A pod of a node; later ones are newer."""
    number = next(_numbers)
    return {
        "metadata": {
            "name": f"pod-{node}-{number}",
            "uid": f"uid-{number}",
            "creationTimestamp": f"2026-01-01T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}Z",
            "labels": {"batch.kubernetes.io/job-completion-index": str(node)},
        },
        "status": {"phase": phase, **status},
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    """The part of a status that tells why a container waits."""
    return {"containerStatuses": [{"name": "node", "state": {"waiting": {"reason": reason, "message": message}}}]}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    """The part of a status that tells how a container ended."""
    return {"containerStatuses": [{"name": "node", "state": {"terminated": {"exitCode": code, "reason": reason}}}]}


@contextlib.contextmanager
def served(fake: FakeKubernetes) -> Iterator[FakeKubernetes]:
    """Serve on a free port of loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            request = Request(self.command, parts.path, query, json.loads(raw) if raw else None)
            assert self.headers["Authorization"] == f"Bearer {TOKEN}"
            fake.requests.append(request)
            time.sleep(fake.delay_s)
            status, body = fake.answer(request)
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            with contextlib.suppress(OSError):  # who asked has given up
                self.send_response(status)
                self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    fake.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
