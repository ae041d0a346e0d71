"""Reads classifications in SKOS and tables of correspondence in XKOS: Turtle, RDF/XML and JSON-LD.

A child of limited memory and time parses, since a small text may unfold to anything; it opens no file and no address.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage import rdf_program
from storage.errors import InputError

_FORMS: Final = {".ttl": "turtle", ".rdf": "xml", ".xml": "xml", ".jsonld": "json-ld"}
_LARGEST, _MEMORY, _SECONDS = 32 << 20, 4 << 30, 300
_DEEPEST = 64

Values = Mapping[str, Mapping[str, list[tuple[str, str]]]]
"""By subject and name: objects with their languages."""


@dataclass(frozen=True)
class Concept:
    """Holds a concept of a classification; `above` has the titles of the broader ones, the nearest first."""

    code: str
    title: str
    description: str
    above: tuple[str, ...]


def is_rdf(path: Path) -> bool:
    """Checks a file's ending."""
    return path.suffix.lower() in _FORMS


def read_concepts(path: Path, *, option: str) -> list[Concept]:
    """Returns the concepts of one scheme in one language, in the order of their notations."""
    values = _read(path, option)
    subjects = [name for name in values if _has(values, name, "type", f"{rdf_program.SKOS}Concept")]
    schemes = {scheme for name in subjects for scheme in _schemes(values, name)}
    if len(schemes) > 1:
        raise InputError(f"{option}: {path} has {len(schemes)} concept schemes. Keep the concepts of one")
    language = _language(path, option, [one for name in subjects for one in values[name].get("prefLabel", ())])
    codes = {name: _notation(values, name, path, option) for name in subjects}
    titles = {name: _text(values, name, ("prefLabel",), language) for name in subjects}
    broader = _broader(values, subjects)
    concepts = [
        Concept(
            code,
            titles[name],
            _text(values, name, ("definition", "scopeNote"), language),
            tuple(titles[one] for one in _chain(broader, name)),
        )
        for name, code in codes.items()
    ]
    return sorted(concepts, key=lambda one: one.code)


def read_associations(path: Path, *, option: str) -> tuple[list[tuple[str, str]], str]:
    """Returns pairs of an old and a new code, and the new version's name or "", from XKOS's concept associations.

    An old concept that becomes none has a pair with "". An association of several old and new concepts gives all
    pairs.
    """
    values = _read(path, option)
    pairs: set[tuple[str, str]] = set()
    schemes: set[str] = set()
    for about in values.values():
        new = [name for name, _ in about.get("targetConcept", ())]
        schemes |= {scheme for name in new for scheme in _schemes(values, name)}
        for old, _ in about.get("sourceConcept", ()):
            code = _notation(values, old, path, option)
            pairs |= {(code, _notation(values, name, path, option)) for name in new} or {(code, "")}
    if not pairs:
        raise InputError(
            f"{option}: {path} has no xkos:ConceptAssociation with a sourceConcept. Give the table of correspondence"
        )
    versions = [values.get(scheme, {}).get("versionInfo", ()) for scheme in schemes]
    return sorted(pairs), versions[0][0][0].strip() if len(versions) == 1 and len(versions[0]) == 1 else ""


def _read(path: Path, option: str) -> Values:
    if not path.is_file():
        raise InputError(f"{option}: no file {path}")
    if path.stat().st_size > _LARGEST:
        raise InputError(f"{option}: {path} has over {_LARGEST >> 20} MB. Keep one language and one version")
    form = _FORMS[path.suffix.lower()]
    program = [sys.executable, "-I", str(Path(rdf_program.__file__)), form, str(_MEMORY), str(_SECONDS)]
    with path.open("rb") as file:
        done = subprocess.run(program, stdin=file, capture_output=True, check=False)
    fault = {
        0: "",
        rdf_program.MISSING: "RDF needs rdflib. Install the extra: pip install '.[skos]'. Or give a CSV",
        rdf_program.OUTSIDE: "it has entities, or refers to a file or an address, which are never opened. Put the "
        "context into the file, or give Turtle",
    }.get(
        done.returncode,
        f"it is no {form} in UTF-8, or takes over {_MEMORY >> 30} GB or {_SECONDS} s to read. Correct it or shorten it",
    )
    if fault:
        raise InputError(f"{option}: {path}: {fault}")
    values: dict[str, dict[str, list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for subject, name, value, language in json.loads(done.stdout):
        values[subject][name].append((value, language))
    return {subject: dict(about) for subject, about in values.items()}


def _has(values: Values, subject: str, name: str, value: str) -> bool:
    return any(one == value for one, _ in values[subject].get(name, ()))


def _schemes(values: Values, subject: str) -> set[str]:
    about = values.get(subject, {})
    return {scheme for name in ("inScheme", "topConceptOf") for scheme, _ in about.get(name, ())}


def _notation(values: Values, subject: str, path: Path, option: str) -> str:
    notations = {value.strip() for value, _ in values.get(subject, {}).get("notation", ())}
    if len(notations) != 1:
        raise InputError(
            f"{option}: {path}: a concept has {len(notations)} skos:notation. Give each one, in the same file"
        )
    return notations.pop()


def _language(path: Path, option: str, labels: Iterable[tuple[str, str]]) -> str:
    languages = sorted({language for _, language in labels})
    if len(languages) > 1:
        raise InputError(f"{option}: {path} has titles in {len(languages)} languages. Keep the narratives' language")
    return languages[0] if languages else ""


def _text(values: Values, subject: str, names: Iterable[str], language: str) -> str:
    """Returns the first text of the first name that has one in the language or in none; blanks are single."""
    for name in names:
        texts = sorted(value for value, spoken in values[subject].get(name, ()) if spoken in (language, ""))
        if texts:
            return " ".join(texts[0].split())
    return ""


def _broader(values: Values, subjects: Iterable[str]) -> dict[str, str]:
    """Returns the broader concept of each; the first where there are several."""
    pairs = [(name, above) for name in subjects for above, _ in values[name].get("broader", ())]
    pairs += [(below, name) for name in subjects for below, _ in values[name].get("narrower", ())]
    known = set(subjects)
    return {name: above for name, above in sorted(pairs, reverse=True) if above in known}


def _chain(broader: Mapping[str, str], name: str) -> list[str]:
    chain = [name]
    while (name := broader.get(name, "")) and name not in chain and len(chain) <= _DEEPEST:
        chain.append(name)
    return chain[1:]
