"""Recognises publication formats of classifications other than tables, and reads ClaML, SDMX and
FHIR.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from xml.etree import ElementTree

from storage.errors import Unreadable

Form = Literal["RDF", "ClaML", "SDMX", "FHIR"]
RDF_ENDINGS: Final = {".ttl": "turtle", ".nt": "nt", ".rdf": "xml", ".xml": "xml", ".owl": "xml"}
_LOOKED_AT = 1 << 14
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_FORMS: Final[dict[Form, re.Pattern[str]]] = {
    "ClaML": re.compile(r"<ClaML[\s>]"),
    "SDMX": re.compile(r"<(?:\w+:)?(?:Structure|StructureSpecificData)[\s>][^>]*sdmx", re.DOTALL),
    "FHIR": re.compile(r'"resourceType"\s*:\s*"(?:CodeSystem|ValueSet)"'),
    "RDF": re.compile(
        r"<(?:\w+:)?RDF[\s>]|^\s*(?:@prefix|@base|PREFIX|BASE)\s|^\s*<[^<>\s]+>\s+<[^<>\s]+>\s",
        re.MULTILINE,
    ),
}


@dataclass(frozen=True)
class Concept:
    """A code of a published classification, with its texts by language."""

    code: str
    titles: list[tuple[str, str]]
    """Texts with their language tags."""
    notes: list[tuple[str, str]]
    parent: str
    scheme: str


def published_form(path: Path) -> Form | None:
    """The format of a classification that is not a table; None if it may be a table."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(_LOOKED_AT).decode("utf-8-sig", errors="replace")
    return next((form for form, begins in _FORMS.items() if begins.search(head)), None)


def refuse_published_forms(path: Path, option: str) -> None:
    """Refuses a list that is not a table. The error contains the command that converts it."""
    if form := published_form(path):
        raise Unreadable(
            f"{option}: {path} is {form}, not a table. Convert it: autocoder "
            f"codelist {path.name} --out codes.csv",
            kind="not-a-table",
        )


def concepts_of(path: Path, form: Form, option: str = "codelist") -> list[Concept]:
    """Reads the concepts of ClaML, SDMX or FHIR."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        if form == "FHIR":
            return list(_fhir(json.loads(text)))
        if not _has_entities(text):
            root = ElementTree.fromstring(text)
            return list(_claml(root) if form == "ClaML" else _sdmx(root))
    except Exception:
        raise Unreadable(
            f"{option}: {path}: it is not {form} in UTF-8. Correct it, or fetch it again",
            kind="unreadable-list",
            option=option,
        ) from None
    raise Unreadable(
        f"{option}: {path}: it has entities, which are never opened. Remove them",
        kind="entities",
        option=option,
    )


def _has_entities(text: str) -> bool:
    return "<!ENTITY" in text or re.search(r"<!DOCTYPE[^>]*\[", text) is not None


def _local(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _text(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def _claml(root: ElementTree.Element) -> Iterator[Concept]:
    for entry in root.iter("Class"):
        titles, notes = [], []
        for rubric in entry.iter("Rubric"):
            kind = rubric.get("kind", "")
            texts = [(_text(label), label.get(_LANGUAGE, "")) for label in rubric.iter("Label")]
            if kind == "preferred":
                titles += texts
            elif kind in ("definition", "text", "note", "inclusion", "coding-hint"):
                notes += texts
        above = entry.find("SuperClass")
        parent = "" if above is None else above.get("code", "")
        yield Concept(entry.get("code", ""), titles, notes, parent, "")


def _sdmx(root: ElementTree.Element) -> Iterator[Concept]:
    for scheme in root.iter():
        if _local(scheme) not in ("Codelist", "CodeList"):
            continue
        for entry in scheme:
            if _local(entry) != "Code":
                continue
            texts = {"Name": [], "Description": []}
            parent = entry.get("parentCode", "")
            for part in entry:
                if _local(part) in texts:
                    texts[_local(part)].append((_text(part), part.get(_LANGUAGE, "")))
                elif _local(part) == "Parent":
                    ids = [inner.get("id") for inner in part.iter() if inner.get("id")]
                    parent = str(ids[0]) if ids else parent
            code = entry.get("id") or entry.get("value") or ""
            titles = texts["Name"] or texts["Description"]
            notes = texts["Description"] if texts["Name"] else []
            yield Concept(code, titles, notes, parent, scheme.get("id", ""))


def _fhir(resource: Any) -> Iterator[Concept]:
    scheme = str(resource.get("url") or resource.get("name") or "")
    below = resource.get("concept") or resource.get("expansion", {}).get("contains", [])
    language = str(resource.get("language", ""))
    waiting = [(entry, "") for entry in below]
    while waiting:
        entry, parent = waiting.pop(0)
        code = str(entry.get("code", ""))
        titles = [(str(entry.get("display", "")), language)] if entry.get("display") else []
        for name in entry.get("designation", ()):
            if (tag := str(name.get("language", ""))) and tag != language:
                titles.append((str(name.get("value", "")), tag))
        note = entry.get("definition")
        yield Concept(code, titles, [(str(note), language)] if note else [], parent, scheme)
        inner = entry.get("concept") or entry.get("contains") or ()
        waiting += [(child, code or parent) for child in inner]
