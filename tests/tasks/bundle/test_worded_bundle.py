"""A bundle whose model reads words next to its encoder: what the gate compares, and that others
read it alike.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind
from sealed_bundle import Sealed, answers_by_the_card

from mechanisms.model import export, lexicon
from storage.bundle.check import check
from storage.bundle.folder import UnsoundBundle
from storage.codelist import Code
from storage.datasets import load_codes
from storage.egress.allow_list import FILES, check_layers, read_files
from storage.egress.gate import inspect
from storage.errors import InputError
from tasks.bundle import golden
from tasks.coding.coder import open_bundle


def titles_of(sealed: Sealed) -> list[Code]:
    dataset = sealed.context.store.open(sealed.candidate.dataset)
    return load_codes(dataset)


def test_a_partner_finds_it_sound(worded: Sealed) -> None:
    """With all digests and layers; the model gives the test vectors, and the coder reads it."""
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


def test_onnxruntime_alone_gives_the_golden_answers(titled: Sealed) -> None:
    """By the card's program, of at most six lines."""
    answers = [
        json.loads(line) for line in (titled.folder / "golden.jsonl").read_text().splitlines()
    ]
    codes, scores = answers_by_the_card(titled.folder, [answer["text"] for answer in answers])
    for answer, best, probabilities in zip(answers, codes.tolist(), scores.tolist(), strict=True):
        given = dict(zip(best, probabilities, strict=True))
        assert [given[code] for code in answer["codes"]] == pytest.approx(
            answer["scores"], abs=golden.TOLERANCE
        )


def test_a_library_that_leaves_out_the_words_does_not_load_it(worded: Sealed) -> None:
    """Its features would look like scores."""
    from sentence_transformers import SentenceTransformer

    with pytest.raises((ValueError, OSError)):
        SentenceTransformer(str(worded.folder), device="cpu", local_files_only=True)


def test_the_gate_compares_the_graphs(titled: Sealed, tmp_path: Path) -> None:
    """Another graph does not pass, nor one in eight bits that was not planned."""
    expected = titled.refill(tmp_path, int8=True)
    graphs = ["model.int8.onnx", "model.onnx"]
    assert "`model.int8.onnx` is used in the same way" in (tmp_path / "README.md").read_text()
    unplanned = {
        name: sha256 for name, sha256 in expected.files.items() if name != "model.int8.onnx"
    }
    with pytest.raises(UnsoundBundle, check=of_kind("differs-from-plan", saying="int8.onnx")):
        inspect(tmp_path, replace(expected, files=unplanned))
    for name in graphs:
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content + b"narrative")
        with pytest.raises(UnsoundBundle, check=of_kind("differs-from-plan"), match=r"\.onnx"):
            inspect(tmp_path, expected)
        (tmp_path / name).write_bytes(content)
    inspect(tmp_path, expected)


def test_eight_bits_need_a_graph(sealed: Sealed, tmp_path: Path) -> None:
    """Another encoder's tokenizer is in no graph, which is said before anything is charged."""
    assert not (sealed.folder / "model.onnx").exists()
    with pytest.raises(InputError, check=of_kind("no-int8-graph")):
        sealed.refill(tmp_path, int8=True)


def rewritten(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def test_the_gate_makes_the_lexicon_again(worded: Sealed, tmp_path: Path) -> None:
    """A stem that no title has, another scale, and a lexicon that is missing do not leave."""
    (tmp_path / "again").mkdir()
    expected = worded.refill(tmp_path / "again")  # which passes
    folder = worded.copy(tmp_path, seal=False)
    content = json.loads((folder / "lexicon.json").read_text())
    for change in (
        {"vocabulary": ["smith", *content["vocabulary"][1:]]},
        {"word_scale": content["word_scale"] * 2},
    ):
        (folder / "lexicon.json").write_text(json.dumps(content | change))
        with pytest.raises(UnsoundBundle, check=of_kind("differs-from-plan")) as refused:
            inspect(folder, expected)
        assert refused.value.file == "lexicon.json"
        assert "smith" not in str(refused.value)
    (folder / "lexicon.json").unlink()
    with pytest.raises(UnsoundBundle, check=of_kind("no-file")):
        inspect(folder, expected)


def test_a_model_without_words_has_no_lexicon(
    sealed: Sealed, worded: Sealed, tmp_path: Path
) -> None:
    """Nor does a worded one read another number of words than its layer; a partner's check says
    which file.
    """
    allowed = frozenset(FILES)
    folder = sealed.copy(tmp_path / "plain")
    shutil.copy(worded.folder / "lexicon.json", folder)
    with pytest.raises(UnsoundBundle, check=of_kind("conflicting-layout")):
        check_layers(read_files(folder, allowed=allowed))
    folder = worded.copy(tmp_path / "other")
    rewritten(
        folder / "lexicon.json",
        lambda content: content | {"columns": 5, "vocabulary": ["a", "b", "c", "d", "e"]},
    )
    with pytest.raises(UnsoundBundle, check=of_kind("wrong-width")):
        check_layers(read_files(folder, allowed=allowed))
    rewritten(
        folder / "lexicon.json", lambda content: content | {"kind": "titles", "vocabulary": ["a"]}
    )
    with pytest.raises(UnsoundBundle, check=of_kind("wrong-number-of-stems")):
        check_layers(read_files(folder, allowed=allowed))
    rewritten(folder / "lexicon.json", lambda content: content | {"narrative": "He fell."})
    with pytest.raises(UnsoundBundle, check=of_kind("schema-violation", saying="list of fields")):
        read_files(folder, allowed=allowed)
