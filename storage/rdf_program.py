"""Reads RDF from standard input, in a program of limited memory and time that opens no file and no connection.

The arguments are the format, the bytes of memory and the seconds. It prints the statements about concepts as JSON. The
exit status is 0; 3 where the text refers to a file or an address, or has entities; 4 where it is damaged or too large;
5 without rdflib.
"""

import json
import resource
import sys
from typing import Any

SKOS, XKOS = "http://www.w3.org/2004/02/skos/core#", "http://rdf-vocabulary.ddialliance.org/xkos#"
NAMES = {
    "http://www.w3.org/1999/02/22-rdf-syntax-ns#": ("type",),
    SKOS: ("notation", "prefLabel", "definition", "scopeNote", "broader", "narrower", "inScheme", "topConceptOf"),
    XKOS: ("sourceConcept", "targetConcept"),
    "http://www.w3.org/2002/07/owl#": ("versionInfo",),
}
OUTSIDE, DAMAGED, MISSING = 3, 4, 5
_EMPTY = {"json-ld": "{}", "turtle": "", "xml": '<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"/>'}
_EVENTS = ("open", "socket.", "urllib.", "subprocess.", "os.", "shutil.", "ctypes.", "http.", "ftplib.", "import")
_state = {"closed": False, "refused": False}


def _refuse(event: str, _arguments: tuple[Any, ...]) -> None:
    if _state["closed"] and event.startswith(_EVENTS):
        _state["refused"] = True
        raise PermissionError(event)


def _refers_outside(value: Any) -> bool:
    """Checks JSON-LD for contexts by address, at any depth."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            contexts = one.get("@context", ())
            contexts = contexts if isinstance(contexts, list) else [contexts]
            if "@import" in one or any(isinstance(context, str) for context in contexts):
                return True
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return False


def statements(content: bytes, form: str) -> list[list[str]]:
    """Returns subject, name, object and language of each statement about concepts, in order.

    Raises:
        PermissionError: the text refers to a file or an address, or has entities. Parsers raise anything else.
    """
    import rdflib

    rdflib.NORMALIZE_LITERALS = False  # pyrefly: ignore[bad-assignment]
    rdflib.Graph().parse(data=_EMPTY[form], format=form)  # imports what the parser needs
    text = content.decode("utf-8-sig")
    if form == "xml" and ("<!DOCTYPE" in text or "<!ENTITY" in text):
        raise PermissionError
    if form == "json-ld":
        parsed = json.loads(text)
        if _refers_outside(parsed):
            raise PermissionError
        text = json.dumps(parsed)  # what was looked through, also where a name came twice
    names = {f"{space}{name}": name for space, every in NAMES.items() for name in every}
    _state["closed"] = True
    graph = rdflib.Graph().parse(data=text, format=form, publicID="urn:list")
    return sorted(
        [str(subject), names[str(name)], str(value), getattr(value, "language", None) or ""]
        for subject, name, value in graph
        if str(name) in names
    )


def main(form: str, memory: int, seconds: int) -> int:
    """Prints the statements and returns the exit status."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        import rdflib  # noqa: F401
    except ImportError:
        return MISSING
    content = sys.stdin.buffer.read()
    sys.addaudithook(_refuse)
    try:
        text = json.dumps(statements(content, form))
    except PermissionError:
        return OUTSIDE
    except Exception:  # whatever a parser raises
        return OUTSIDE if _state["refused"] else DAMAGED
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
