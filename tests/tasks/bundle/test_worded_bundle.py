"""A bundle whose model reads words next to its encoder: what the gate compares, and that others read it alike."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sealed_bundle import Sealed, scores_by_the_card

from mechanisms.model import export, lexicon
from storage.bundle.check import check
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code
from storage.datasets import load_codes
from storage.egress.allow_list import FILES, check_layers, read_files
from storage.egress.gate import inspect
from tasks.bundle import golden
from tasks.coding.coder import open_bundle


def titles_of(sealed: Sealed) -> list[Code]:
    dataset = sealed.context.store.open(sealed.candidate.dataset)
    return load_codes(dataset)


def test_a_partner_finds_it_sound(worded: Sealed) -> None:
    """With all digests and layers; the model gives the golden answers, and the coder reads it."""
    contents = check(worded.folder, worded.trust).contents
    golden.check(export.load(worded.folder), contents["golden.jsonl"])
    text = contents["golden.jsonl"][0]["text"]
    (coding,) = open_bundle(worded.folder).code([text])
    assert coding.answers[0].code == contents["golden.jsonl"][0]["codes"][0]


def test_the_vocabulary_comes_from_the_titles(worded: Sealed) -> None:
    """Every stem of a bundle is one of its own code list; hashes need none."""
    content = json.loads((worded.folder / "lexicon.json").read_text())
    stems = {stem for code in titles_of(worded) for stem in lexicon.stems_of(code.title)}
    assert set(content["vocabulary"]) <= stems
    assert bool(content["vocabulary"]) == (content["kind"] == "titles")


def golden_by_the_card(folder: Path, field: str = "") -> None:
    """Checks the card's program against the golden answers."""
    answers = [json.loads(line) for line in (folder / field / "golden.jsonl").read_text().splitlines()]
    codes = json.loads((folder / field / "labels.json").read_text())["codes"]
    weights = np.exp(scores_by_the_card(folder, [answer["text"] for answer in answers]))
    for row, answer in zip(weights / weights.sum(1, keepdims=True), answers, strict=True):
        scores = [row[codes.index(code)] for code in answer["codes"]]
        assert scores == pytest.approx(answer["scores"], abs=golden.TOLERANCE)


def test_published_libraries_read_it(worded: Sealed) -> None:
    """The card's program, of at most 21 lines, gives the golden answers of either kind of words."""
    golden_by_the_card(worded.folder)


def rewritten(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def test_the_gate_makes_the_lexicon_again(worded: Sealed, tmp_path: Path) -> None:
    """A stem that no title has, another scale, and a lexicon that is missing do not leave."""
    (tmp_path / "again").mkdir()
    expected = worded.refill(tmp_path / "again")  # which passes
    folder = worded.copy(tmp_path, seal=False)
    content = json.loads((folder / "lexicon.json").read_text())
    for change in ({"vocabulary": ["smith", *content["vocabulary"][1:]]}, {"word_scale": content["word_scale"] * 2}):
        (folder / "lexicon.json").write_text(json.dumps(content | change))
        with pytest.raises(UnsoundBundle, match="differs from what") as refused:
            inspect(folder, expected)
        assert refused.value.file == "lexicon.json"
        assert "smith" not in str(refused.value)
    (folder / "lexicon.json").unlink()
    with pytest.raises(UnsoundBundle, match=r"lexicon\.json: is missing"):
        inspect(folder, expected)


def test_a_model_without_words_has_no_lexicon(sealed: Sealed, worded: Sealed, tmp_path: Path) -> None:
    """Nor does a worded one read another number of words than its layer; a partner's check says which file."""
    allowed = frozenset(FILES)
    folder = sealed.copy(tmp_path / "plain")
    shutil.copy(worded.folder / "lexicon.json", folder)
    with pytest.raises(UnsoundBundle, match="other layers"):
        check_layers(read_files(folder, allowed=allowed))
    folder = worded.copy(tmp_path / "other")
    rewritten(
        folder / "lexicon.json", lambda content: content | {"columns": 5, "vocabulary": ["a", "b", "c", "d", "e"]}
    )
    with pytest.raises(UnsoundBundle, match="does not map"):
        check_layers(read_files(folder, allowed=allowed))
    rewritten(folder / "lexicon.json", lambda content: content | {"kind": "titles", "vocabulary": ["a"]})
    with pytest.raises(UnsoundBundle, match="another number of stems"):
        check_layers(read_files(folder, allowed=allowed))
    rewritten(folder / "lexicon.json", lambda content: content | {"narrative": "He fell."})
    with pytest.raises(UnsoundBundle, match="not on the list of fields"):
        read_files(folder, allowed=allowed)
