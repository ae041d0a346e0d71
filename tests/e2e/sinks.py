"""A receiver of notifications: a small HTTP server that keeps what is posted to it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Sink:
    """Where notifications go, and the texts that came, the oldest first."""

    url: str
    texts: list[str] = field(default_factory=list)

    def having(self, *words: str) -> list[str]:
        return [text for text in self.texts if all(word in text for word in words)]


@contextmanager
def listening(port: int = 0) -> Iterator[Sink]:
    """A sink on loopback, at any free port unless one is given."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            sink.texts.append(json.loads(body)["text"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    sink = Sink(f"http://127.0.0.1:{server.server_address[1]}/notify")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield sink
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
