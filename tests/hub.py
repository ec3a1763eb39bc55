"""A hub of models on this machine: what huggingface_hub asks of the real one, for one folder."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def serving(hub_id: str, revision: str, folder: Path, gated: str = "") -> Iterator[str]:
    """Serve `folder` as a model at one revision; yields the address for HF_ENDPOINT.

    Args:
        gated: the id of a second model, which asks for a licence to be accepted.
    """

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = self.path.split("?")[0]
            if gated and f"/{gated}/" in path:
                self._send(403, b"", {"X-Error-Code": "GatedRepo"})
            elif path == f"/api/models/{hub_id}/tree/{revision}":
                files = [
                    {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0"}
                    for file in sorted(folder.iterdir())
                ]
                self._send(200, json.dumps(files).encode(), {"Content-Type": "application/json"})
            elif path.startswith(f"/{hub_id}/resolve/{revision}/"):
                file = folder / path.rsplit("/", 1)[1]
                if file.is_file():
                    tag = hashlib.sha256(file.read_bytes()).hexdigest()
                    headers = {"ETag": f'"{tag}"', "X-Repo-Commit": revision}
                    self._send(200, file.read_bytes(), headers)
                else:
                    self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            elif f"/{hub_id}/" in path:
                self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
            else:
                self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
