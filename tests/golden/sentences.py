"""Collects the sentences of all refusals that have a kind, from the code that makes them.

    python tests/golden/sentences.py            # print them, as JSON
    python tests/golden/sentences.py --write    # put them into sentences.json

A test asserts the kind of a refusal; its sentence stands in the code once, and here.
"""

import ast
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILE = HERE / "sentences.json"
ROOMS = ("storage", "mechanisms", "tasks", "flows", "service")

Sentences = dict[str, dict[str, list[str]]]


def collect() -> Sentences:
    """By room, then by kind: the type and the sentence, with {} for each value in it."""
    found: Sentences = {room: {} for room in ROOMS}
    for file, call in _refusals():
        kind = _kind(call)
        if isinstance(kind, ast.Constant):
            text = f"{_name(call)}: {': '.join(map(_text, call.args))}"
            kinds = found[file.relative_to(ROOT).parts[0]]
            kinds[str(kind.value)] = sorted({*kinds.get(str(kind.value), ()), text})
    return {room: dict(sorted(kinds.items())) for room, kinds in found.items()}


def without_kind() -> list[str]:
    """The places of refusals that have no kind."""
    return [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for file, call in _refusals()
        if _kind(call) is None
    ]


def _refusals() -> Iterator[tuple[Path, ast.Call]]:
    trees = {
        file: ast.parse(file.read_text(encoding="utf-8"))
        for room in ROOMS
        for file in sorted((ROOT / room).rglob("*.py"))
    }
    types = _types(trees.values())
    for file, tree in trees.items():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and _name(call) in types:
                yield file, call


def _types(trees: Iterable[ast.AST]) -> set[str]:
    """The names of the program's types of error, and of a part of a sentence."""
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    types, before = {"StorageError", "MechanismError", "Fault"}, 0
    while len(types) > before:
        before = len(types)
        types |= {
            node.name
            for node in classes
            if types & {ast.unparse(base).split(".")[-1] for base in node.bases}
        }
    return types


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).split(".")[-1]


def _kind(call: ast.Call) -> ast.expr | None:
    return next((word.value for word in call.keywords if word.arg == "kind"), None)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return "{}"


if __name__ == "__main__":
    text = json.dumps(collect(), indent=1, ensure_ascii=False) + "\n"
    if "--write" in sys.argv:
        FILE.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
