"""Would win: a code list that opens files and addresses or fills the memory, a wrong column in a message, a guess."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import rdf
from storage.codelist import read_codelist
from storage.correspondence import Correspondence, read_correspondence
from storage.errors import InputError
from tasks.coding.revise import revise_table

DECLARES = (
    (
        "a classification is read from its own file alone, in bounded memory and time",
        "contexts of JSON-LD by address and file, at five places; entities of XML that unfold or name a file, in "
        "UTF-16 too; nesting of 100,000 in Turtle and JSON",
        "titles that are wrong but well-formed",
    ),
    (
        "a revision chooses no code, loses no row and shows no cell",
        "splits with a share of 0.999; tables in the other direction; a column of narratives given for codes; sets "
        "with a code that the table lacks",
        "a table of correspondence that lacks a successor",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

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


@pytest.mark.parametrize("place", ["top", "list", "graph", "term", "import"])
@pytest.mark.parametrize("looked_through", [True, False], ids=["", "past the first check"])
def test_no_context_is_fetched(
    tmp_path: Path, address: tuple[str, list[str]], place: str, looked_through: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an address nor a file: the server hears nothing. Without the first check, the closed child refuses."""
    url, requests = address
    secret = tmp_path / "context.json"
    secret.write_text(json.dumps({"@context": {"notation": f"{SKOS}notation"}}))
    if not looked_through:
        program = tmp_path / "program.py"
        source = Path(rdf.rdf_program.__file__).read_text()
        assert source.count("if _refers_outside(parsed)") == 1
        program.write_text(source.replace("if _refers_outside(parsed)", "if False"))
        monkeypatch.setattr(rdf.rdf_program, "__file__", str(program))
    for target in (f"{url}context.json", secret.as_uri()):
        concept = {"@id": "urn:a", "@type": f"{SKOS}Concept", f"{SKOS}notation": "1", "x": {"@id": "urn:b"}}
        made = {
            "top": {"@context": target, **concept},
            "list": {"@context": [{"a": "urn:a"}, target], **concept},
            "graph": {"@graph": [{"@context": target, **concept}]},
            "term": {"@context": {"x": {"@id": "urn:x", "@context": target}}, **concept},
            "import": {"@context": {"@version": 1.1, "@import": target}, **concept},
        }[place]
        path = tmp_path / "list.jsonld"
        path.write_text(json.dumps(made))
        with pytest.raises(InputError, match="never opened"):
            read_codelist(path)
    assert requests == []


BOMB = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
XML = (
    '<?xml version="1.0" encoding="{encoding}"?>{doctype}<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#" '
    f'xmlns:s="{SKOS}"><s:Concept r:about="urn:a"><s:notation>{{body}}</s:notation></s:Concept></r:RDF>'
)


def test_entities_neither_unfold_nor_read_files(tmp_path: Path, address: tuple[str, list[str]]) -> None:
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
            path.write_text(XML.format(encoding=encoding, doctype=doctype, body=body), encoding=encoding)
            with pytest.raises(InputError, match=r"never opened|is no xml in UTF-8") as refused:
                read_codelist(path)
            assert "PLANTED" not in str(refused.value)
    assert requests == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("list.ttl", "<urn:a> <urn:b> " + "[ <urn:c> " * 100_000),
        ("list.ttl", "<urn:a> <urn:b> " + "( " * 100_000),
        ("list.jsonld", '{"a": ' * 100_000),
        ("list.jsonld", "[" * 100_000 + "]" * 100_000),
        ("list.rdf", "<a>" * 100_000),
        ("list.ttl", "\0" * 1000),
        ("list.rdf", ""),
    ],
)
def test_nesting_and_junk_end_in_a_refusal(tmp_path: Path, name: str, content: str) -> None:
    """Not in a crash, a hang or an endless stack."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=r"is no \S+ in UTF-8|0 concepts"):
        read_codelist(tmp_path / name)


def test_memory_and_time_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that may take less than its text needs, or no time, is refused as a damaged file is."""
    path = tmp_path / "list.ttl"
    path.write_text("\n".join(f'<urn:{n}> <{SKOS}prefLabel> "{n}" .' for n in range(200_000)))
    monkeypatch.setattr(rdf, "_SECONDS", 1)
    with pytest.raises(InputError, match="takes over 4 GB or 1 s"):
        read_codelist(path)
    path.write_text(f'<urn:a> <{SKOS}prefLabel> "{"x" * (24 << 20)}" .')
    monkeypatch.setattr(rdf, "_SECONDS", 100)
    monkeypatch.setattr(rdf, "_MEMORY", 90 << 20)
    with pytest.raises(InputError, match="GB or 100 s"):
        read_codelist(path)


def test_a_likely_successor_is_not_taken(tmp_path: Path) -> None:
    """A share of 0.999 decides nothing about one row: both successors are listed, and the row is for review."""
    (tmp_path / "table.csv").write_text("old,new,share\n1,11,0.999\n1,12,0.001\n")
    (tmp_path / "coded.csv").write_text("code\n1\n")
    table = read_correspondence(tmp_path / "table.csv")
    revised = revise_table(
        tmp_path / "coded.csv", tmp_path / "out.csv", Correspondence(table.to, table.shares, after="2")
    )
    assert (revised.one, revised.split) == (0, 1)
    assert (tmp_path / "out.csv").read_text().split() == [
        "code,crosswalk_code,crosswalk_version,crosswalk_review",
        "1,11;",
        "12,2,true",
    ]


def test_narratives_given_for_codes_are_in_no_message(tmp_path: Path) -> None:
    """In a refusal, in the account, or in the table of correspondence's own faults."""
    narrative = "Jane Roe fell"
    (tmp_path / "coded.csv").write_text(f"Text\n{narrative}\n{narrative} again\n")
    with pytest.raises(InputError, match="it has none of the codes") as refused:
        revise_table(
            tmp_path / "coded.csv", tmp_path / "out.csv", Correspondence({"1": ("2",)}, {}, after="2"), column="Text"
        )
    assert "Jane" not in str(refused.value)
    (tmp_path / "coded.csv").write_text(f"Text\n{narrative}\n1\n")
    revised = revise_table(
        tmp_path / "coded.csv", tmp_path / "out.csv", Correspondence({"1": ("2",)}, {}, after="2"), column="Text"
    )
    assert (revised.missing, revised.without) == (1, 1)
    assert "Jane" not in json.dumps(revised.as_dict())
    (tmp_path / "table.csv").write_text(f"old,new,share\n1,2,{narrative}\n")
    with pytest.raises(InputError, match="row 1") as refused:
        read_correspondence(tmp_path / "table.csv")
    assert "Jane" not in str(refused.value)
