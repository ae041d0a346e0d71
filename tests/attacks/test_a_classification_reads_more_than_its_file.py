"""Would win: a code list that opens files and addresses, or a parser's error that shows it."""

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import of_kind

from storage.errors import InputError
from storage.skos import import_codes

DECLARES = """
a classification is read from its own file alone
| entities of XML that unfold, or name a file or an address, in UTF-16 too; nesting of 100,000 in
Turtle
| titles that are wrong but well-formed; the memory of a file that its publisher made to be large
"""

SKOS = "http://www.w3.org/2004/02/skos/core#"


@pytest.fixture
def address() -> Iterator[tuple[str, list[str]]]:
    """A server on this machine, and the paths that it was sent."""
    requests: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", requests
    server.shutdown()
    thread.join()
    server.server_close()


BOMB = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
XML = (
    '<?xml version="1.0" encoding="{encoding}"?>{doctype}<r:RDF '
    'xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
    f'xmlns:s="{SKOS}"><s:Concept '
    f'r:about="urn:a"><s:notation>{{body}}</s:notation></s:Concept></r:RDF>'
)


def test_entities_neither_unfold_nor_read_files(
    tmp_path: Path, address: tuple[str, list[str]]
) -> None:
    """Refused in any encoding; what they name is in no message."""
    url, requests = address
    secret = tmp_path / "secret.txt"
    secret.write_text("PLANTED")
    for encoding in ("utf-8", "utf-16"):
        for doctype, body in (
            (f'<!DOCTYPE r [<!ENTITY e0 "x">{BOMB}]>', "&e11;"),
            (f'<!DOCTYPE r [<!ENTITY e SYSTEM "{secret.as_uri()}">]>', "&e;"),
            (f'<!DOCTYPE r SYSTEM "{url}list.dtd">', "1"),
            (f'<!DOCTYPE r [<!ENTITY % p SYSTEM "{url}p"> %p;]>', "1"),
        ):
            path = tmp_path / "list.rdf"
            path.write_text(
                XML.format(encoding=encoding, doctype=doctype, body=body), encoding=encoding
            )
            with pytest.raises(
                InputError, check=of_kind("entities-in-graph", "unreadable-graph")
            ) as refused:
                import_codes(path)
            assert "PLANTED" not in str(refused.value)
    assert requests == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.ttl", "<urn:a> <urn:b> " + "[ <urn:c> " * 100_000),
        ("list.ttl", "<urn:a> <urn:b> " + "( " * 100_000),
        ("list.rdf", "<a>" * 100_000),
        ("list.ttl", "\0" * 1000),
        ("list.rdf", ""),
    ],
)
def test_nesting_and_junk_end_in_a_refusal(tmp_path: Path, name: str, content: str) -> None:
    """Not in a crash, a hang or an endless stack."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, check=of_kind("unreadable-graph", "too-few-concepts")):
        import_codes(tmp_path / name)
