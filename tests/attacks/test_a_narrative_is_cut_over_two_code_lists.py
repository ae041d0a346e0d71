"""Would win: a narrative whose words are the last title of one field's code list and the first of the next one's, in a
finished bundle, of which each file alone holds half.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sealed_bundle import Sealed

from storage.bundle.folder import CODELIST, STATEMENT, UnsoundBundle
from storage.datasets import load_spaces
from storage.egress.gate import Expected, inspect
from storage.egress.sequences import SequenceFilter
from tasks.bundle import golden


def test_the_finished_bundle_is_refused(joint: Sealed, tmp_path: Path) -> None:
    """By the gate that a release passes, not only by the one for a model's own files."""
    folder, spaces = joint.copy(tmp_path, seal=False), load_spaces(joint.context.store.open(joint.candidate.dataset))
    (*_, last), (first, *_) = spaces.values()
    filtered = SequenceFilter.of([last.title[-22:] + first.title[:22]], key=b"k" * 32)
    assert not any(filtered.count("\n".join(code.title for code in own)) for own in spaces.values())
    expected = Expected(
        codes={name: tuple(own) for name, own in spaces.items()},
        tokenizer="",  # the lists are read before it
        tensors={},
        golden_texts={name: golden.texts(own) for name, own in spaces.items()},
        statement=json.loads((folder / STATEMENT).read_text(encoding="utf-8")),
        identities=(),
        narratives=filtered,
    )
    with pytest.raises(UnsoundBundle, match="private narrative") as refused:
        inspect(folder, expected)
    assert refused.value.file == CODELIST
