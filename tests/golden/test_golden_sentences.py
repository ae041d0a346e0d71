"""The sentences of refusals are what sentences.json says they are.

To correct one, change it in the code and run `python tests/golden/sentences.py --write`.
"""

import ast
import importlib.util
import json
from pathlib import Path

import pytest
from refusals import of_kind

from mechanisms.errors import MechanismError
from storage.errors import InputError, Missing, StorageError

_spec = importlib.util.spec_from_file_location(
    "sentences", Path(__file__).with_name("sentences.py")
)
assert _spec is not None
assert _spec.loader is not None
sentences = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(sentences)


def test_every_sentence_is_what_it_was() -> None:
    assert sentences.collect() == json.loads(sentences.FILE.read_text(encoding="utf-8"))


def test_every_kind_that_a_test_asks_for_is_made() -> None:
    """A test of a kind that nothing raises would wait for it in vain."""
    made = {name for kinds in sentences.collect().values() for name in kinds}
    tests = Path(__file__).parents[1]
    asked = {
        word.value
        for file in tests.rglob("test_*.py")
        if file.parent.name not in ("golden", "studies")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "of_kind"
        for word in call.args
        if isinstance(word, ast.Constant)
    }
    assert asked
    assert asked <= made | {"another"}


def test_every_refusal_has_a_kind_of_its_own() -> None:
    """In its room: two sentences are two kinds, and no refusal goes without."""
    for room, kinds in sentences.collect().items():
        shared = {kind: texts for kind, texts in kinds.items() if len(texts) > 1}
        assert not shared, f"{room}: sentences that share a kind"
    assert not sentences.without_kind()


def test_kinds_tell_refusals_apart() -> None:
    """A kind is part of the error, through every type of the tree; another kind is no match."""
    for error in (
        StorageError("x", kind="a"),
        Missing("x", kind="a"),
        MechanismError("x", kind="a"),
    ):
        assert of_kind("a")(error)
        with pytest.raises(AssertionError):
            of_kind("another")(error)
    assert isinstance(Missing("x"), InputError)
    assert str(Missing("x", kind="a")) == "x"
