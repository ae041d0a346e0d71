"""Collects the sentences of all refusals that have a kind, from the code that makes them.

    python tests/golden/sentences.py            # print them, as JSON
    python tests/golden/sentences.py --write    # put them into sentences.json

A test asserts the kind of a refusal; its sentence stands in the code once, and here.
"""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILE = HERE / "sentences.json"
ROOMS = ("storage", "mechanisms", "tasks", "flows", "service")

Sentences = dict[str, dict[str, list[str]]]


def collect() -> Sentences:
    """By room, then by kind: the type and the sentence, with {} for each value in it."""
    found: Sentences = {}
    for room in ROOMS:
        kinds: dict[str, set[str]] = {}
        for file in sorted((ROOT / room).rglob("*.py")):
            for kind, sentence in _refusals(ast.parse(file.read_text(encoding="utf-8"))):
                kinds.setdefault(kind, set()).add(sentence)
        found[room] = {kind: sorted(kinds[kind]) for kind in sorted(kinds)}
    return found


def _refusals(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        named = {word.arg: word.value for word in call.keywords}
        kind = named.get("kind")
        if not isinstance(kind, ast.Constant) or not call.func.id[0].isupper():
            continue
        yield str(kind.value), f"{call.func.id}: {': '.join(map(_text, call.args))}"


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
