"""Converts a classification in SKOS or XKOS (Turtle, N-Triples, RDF/XML), ClaML, SDMX or FHIR to a
code list in one language.

Messages quote languages, schemes and notations, because a published classification is public.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.codelist import MAX_CODE
from storage.errors import Contradiction, NotInstalled, OutOfRange, Unknown, Unreadable
from storage.extras import install_command
from storage.list_formats import RDF_ENDINGS, Concept, concepts_of, published_form

if TYPE_CHECKING:
    from rdflib import Graph

_LARGEST = 512 << 20
_SKOS, _XKOS = "http://www.w3.org/2004/02/skos/core#", "http://rdf-vocabulary.ddialliance.org/xkos#"
_XL, _RDF = "http://www.w3.org/2008/05/skos-xl#", "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_TITLES = (f"{_SKOS}prefLabel", f"{_XL}prefLabel")
_NOTES = (
    f"{_SKOS}definition",
    f"{_SKOS}scopeNote",
    f"{_XKOS}coreContentNote",
    f"{_XKOS}additionalContentNote",
)
_INSIDE = (f"{_XL}literalForm", f"{_XKOS}plainText", f"{_RDF}value")
"""Properties with the text of a title or note that is a resource of its own."""
_ENDED = {"deprecated", "obsolete", "retired", "withdrawn"}


@dataclass(frozen=True)
class Import:
    """The concepts of a classification, and counts of what was left out."""

    rows: list[tuple[str, str, str, str]]
    """Code, title, description and the code above, sorted by code."""
    language: str
    deprecated: int
    without_notation: int
    without_title: int
    """Number of `rows` without a title in the language."""


def import_codes(
    path: Path,
    *,
    language: str | None = None,
    scheme: str | None = None,
    notation: str | None = None,
) -> Import:
    """The concepts of one scheme, with their titles in one language.

    Args:
        language: tag of the titles. Untagged texts are used for every language. None: the only
            language in the file.
        scheme: URI of the concept scheme, or the end of it.
        notation: if concepts have several: `dotted`, `plain`, or the end of the data type's URI.

    Raises:
        InputError: the file cannot be read, or has several languages, schemes or notations and none
            was chosen.
    """
    if (form := published_form(path)) not in (None, "RDF"):
        return _import_tree(concepts_of(path, form), path, language=language, scheme=scheme)
    graph = _parse(path)
    concepts = _of_scheme(graph, path, scheme)
    current = [concept for concept in concepts if not _ended(graph, concept)]
    titles = {concept: list(_texts(graph, concept, _TITLES)) for concept in current}
    tag = _language(_tags(titles.values()), language, path)
    kinds = {concept: _notations(graph, concept) for concept in current}
    codes: dict[Any, str] = {}
    for concept in current:
        code = _notation(kinds[concept], notation, path)
        if code:
            codes[concept] = code
    if twice := [code for code, number in Counter(codes.values()).items() if number > 1]:
        raise Contradiction(
            f"codelist: {path}: {len(twice)} codes have several concepts, "
            f"{twice[0]} first. Choose a --scheme",
            kind="several-concepts",
        )
    if len(codes) < 2 or max(map(len, codes.values())) > MAX_CODE:
        raise OutOfRange(
            f"codelist: {path} has {len(codes)} concepts with a skos:notation. It "
            f"needs at least two, of at most {MAX_CODE} characters each",
            kind="too-few-concepts",
        )
    rows = []
    for concept, code in codes.items():
        title = _without_code(_spoken(titles[concept], tag), kinds[concept].values())
        notes = [_spoken(_texts(graph, concept, (note,)), tag) for note in _NOTES]
        description = " ".join(filter(None, notes))
        rows.append((code, title, description, _parent(graph, concept, codes)))
    return Import(
        rows=sorted(rows),
        language=tag,
        deprecated=len(concepts) - len(current),
        without_notation=len(current) - len(codes),
        without_title=sum(not title for _, title, _, _ in rows),
    )


def _import_tree(
    concepts: list[Concept], path: Path, *, language: str | None, scheme: str | None
) -> Import:
    """The concepts of ClaML, SDMX or FHIR, whose codes identify them."""
    schemes = Counter(concept.scheme for concept in concepts)
    fitting = [name for name in schemes if scheme in (None, name, _end(name))]
    if len(fitting) != 1:
        shown = ", ".join(f"{name} ({count:,} codes)" for name, count in sorted(schemes.items()))
        raise Contradiction(
            f"--scheme: {path} has {len(schemes)} code lists: {shown or 'none'}. "
            "Choose one of them",
            kind="several-lists",
        )
    members = [concept for concept in concepts if concept.scheme == fitting[0]]
    titles = [_lower(concept.titles) for concept in members]
    tag = _language(_tags(titles), language, path)
    coded = {concept.code: concept for concept in members if concept.code}
    if len(coded) < 2 or max(map(len, coded)) > MAX_CODE:
        raise OutOfRange(
            f"codelist: {path} has {len(coded)} codes. It needs at least two, of at "
            f"most {MAX_CODE} characters each",
            kind="too-few-imported-codes",
        )
    rows = []
    for code, concept in coded.items():
        title = _without_code(_spoken(_lower(concept.titles), tag), [code])
        rows.append((code, title, _description(concept, tag), _listed_parent(concept, coded)))
    return Import(
        rows=sorted(rows),
        language=tag,
        deprecated=0,
        without_notation=len(members) - len(coded),
        without_title=sum(not title for _, title, _, _ in rows),
    )


def _listed_parent(concept: Concept, coded: Mapping[str, Concept]) -> str:
    return concept.parent if concept.parent in coded else ""


def _description(concept: Concept, language: str) -> str:
    notes = [text for text, tag in _lower(concept.notes) if tag in (language, "")]
    return " ".join(notes)


def _tags(titles: Iterable[Iterable[tuple[str, str]]]) -> Counter[str]:
    """Counts the concepts that have a title in each language."""
    tags: Counter[str] = Counter()
    for texts in titles:
        tags.update({tag for _, tag in texts})
    return tags


def _lower(texts: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(text, tag.lower()) for text, tag in texts]


def _uri(address: str) -> Any:
    from rdflib import URIRef

    return URIRef(address)


def _parse(path: Path) -> Graph:
    try:
        import rdflib
    except ImportError:
        raise NotInstalled(
            f"codelist import needs rdflib. Install the extra: {install_command('skos')}",
            kind="no-rdflib",
        ) from None
    form = RDF_ENDINGS.get(path.suffix.lower())
    if form is None or not path.is_file() or path.stat().st_size > _LARGEST:
        endings = ", ".join(RDF_ENDINGS)
        raise Unreadable(
            f"codelist: {path} is not a file of at most {_LARGEST >> 20} MB that ends in {endings}",
            kind="not-a-list-file",
        )
    rdflib.NORMALIZE_LITERALS = False  # pyrefly: ignore[bad-assignment]
    try:
        text = path.read_bytes().decode("utf-8-sig")
        # guard: test_entities_neither_unfold_nor_read_files
        if form != "xml" or not ("<!DOCTYPE" in text or "<!ENTITY" in text):
            return rdflib.Graph().parse(data=text, format=form, publicID="urn:list")
    except Exception:
        raise Unreadable(
            f"codelist: {path}: it is not {form} in UTF-8. Correct it, or fetch it again",
            kind="unreadable-graph",
        ) from None
    raise Unreadable(
        f"codelist: {path}: it has entities, which are never opened. Save it as Turtle",
        kind="entities-in-graph",
    )


def _of_scheme(graph: Graph, path: Path, wanted: str | None) -> list[Any]:
    concepts = sorted(set(graph.subjects(_uri(f"{_RDF}type"), _uri(f"{_SKOS}Concept"))), key=str)
    schemes: dict[str, set[Any]] = defaultdict(set)
    for concept in concepts:
        for name in ("inScheme", "topConceptOf"):
            for scheme in graph.objects(concept, _uri(_SKOS + name)):
                schemes[str(scheme)].add(concept)
    fitting = [name for name in schemes if wanted in (None, name, _end(name))]
    if len(fitting) > 1 or (wanted and not fitting):
        shown = ", ".join(
            f"{name} ({len(members):,} concepts)" for name, members in sorted(schemes.items())
        )
        raise Contradiction(
            f"--scheme: {path} has {len(schemes)} concept schemes: {shown}. Choose one of them",
            kind="several-schemes",
        )
    return [concept for concept in concepts if wanted is None or concept in schemes[fitting[0]]]


def _language(tags: Counter[str], wanted: str | None, path: Path) -> str:
    tagged = sorted(tag for tag in tags if tag)
    fitting = [tag for tag in tagged if wanted is None or tag == wanted.lower()]
    fitting = fitting or [tag for tag in tagged if tag.startswith(f"{str(wanted).lower()}-")]
    if tagged and len(fitting) != 1:
        shown = ", ".join(f"{tag} ({tags[tag]:,})" for tag in tagged)
        raise Unknown(
            f"--language: {path} has titles in {shown}. Choose one of them", kind="unknown-language"
        )
    return fitting[0] if fitting else ""


def _ended(graph: Graph, concept: Any) -> bool:
    return any(
        (_end(name) == "deprecated" and str(value).lower() in ("true", "1"))
        or (_end(name) == "status" and _end(value).lower() in _ENDED)
        for name, value in graph.predicate_objects(concept)
    )


def _end(address: object) -> str:
    return re.split(r"[/#:]", str(address).rstrip("/#"))[-1]


def _texts(graph: Graph, concept: Any, names: Iterable[str]) -> Iterator[tuple[str, str]]:
    for value in (value for name in names for value in graph.objects(concept, _uri(name))):
        inside = (text for name in _INSIDE for text in graph.objects(value, _uri(name)))
        for text in [value] if hasattr(value, "language") else inside:
            yield str(text), (getattr(text, "language", None) or "").lower()


def _spoken(texts: Iterable[tuple[str, str]], tag: str) -> str:
    fitting = sorted(texts, key=lambda text: (not text[1], text[0]))
    return next((" ".join(text.split()) for text, spoken in fitting if spoken in (tag, "")), "")


def _notations(graph: Graph, concept: Any) -> dict[str, str]:
    kinds: dict[str, str] = {}
    for value in sorted(graph.objects(concept, _uri(f"{_SKOS}notation")), key=str):
        text = str(value).strip()
        form = "dotted" if "." in text else "plain"
        kinds[f"{_end(getattr(value, 'datatype', None) or '')} {form}".strip()] = text
    return kinds


def _notation(kinds: dict[str, str], wanted: str | None, path: Path) -> str:
    different = {
        text for kind, text in kinds.items() if wanted is None or wanted in (kind, *kind.split())
    }
    if wanted is not None and len(set(kinds.values())) == 1:
        different = set(kinds.values())
    if len(different) > 1:
        shown = ", ".join(f"{kind!r} ({text})" for kind, text in kinds.items())
        raise Contradiction(
            f"--notation: {path}: a concept has {shown}. Choose one of these kinds",
            kind="several-notations",
        )
    return next(iter(different), "")


def _without_code(title: str, codes: Iterable[str]) -> str:
    for code in sorted(codes, key=len, reverse=True):
        for spelling in {code, code.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ") or code}:
            begin = rf"(?:section )?{re.escape(spelling)}(?:\s*[-\u2013\u2014:.]\s*|\s+)(?=\S)"
            if match := re.match(begin, title, re.IGNORECASE):
                return title[match.end() :]
    return title


def _parent(graph: Graph, concept: Any, codes: dict[Any, str]) -> str:
    above = [
        *graph.objects(concept, _uri(f"{_SKOS}broader")),
        *graph.subjects(_uri(f"{_SKOS}narrower"), concept),
    ]
    return min(
        (codes[broader] for broader in above if broader in codes and broader != concept), default=""
    )
