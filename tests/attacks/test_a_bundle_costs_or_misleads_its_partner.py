"""Would win: an agency, or whoever has its key, whose signed bundle holds a partner's machine busy
or makes its scores meaningless, and which `verify` calls sound.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from in_process import invoke
from sealed_bundle import Sealed

from mechanisms.errors import MechanismError
from storage.bundle.check import check
from storage.bundle.folder import GOLDEN, MATERIALS, RELIABILITY, THRESHOLDS, UnsoundBundle
from tasks.bundle import tokenizer
from tasks.bundle.thresholds import read_thresholds

DECLARES = """
a sound bundle is cheap to check and has usable scores
| temperatures of 1e-300, 1e300 and 1e999, on the bundle and in a file of one's own; 28,800 test
vectors; nine tokenizers that never end, fill the memory or cannot be loaded, of a bundle with and
without a graph; drawings with a script, a handler, a link, a style, an entity or another file in
them; shapes of a tensor with thousands of long numbers, with 1e999, fractions, texts, truths and
numbers below zero; 1e999 in every kind of document
| a model that is slow or wrong
"""


@pytest.mark.parametrize("temperature", ["1e-300", "1e300", "1e999", "0", "-1"])
def test_thresholds_that_make_every_score_nan(
    sealed: Sealed, tmp_path: Path, temperature: str
) -> None:
    """`verify` refuses the bundle, and `adopt` and `code` refuse the file."""
    folder = sealed.copy(tmp_path, seal=False)
    content = json.dumps(
        {"schema": 1, "thresholds": [], "fitted_on": "generated", "temperature": 7}
    )
    (folder / THRESHOLDS).write_text(content.replace("7", temperature))
    with pytest.raises(UnsoundBundle) as refused:
        check(sealed.unsigned_proof(folder), None, unsigned=True)
    assert refused.value.file == THRESHOLDS
    with pytest.raises(MechanismError):
        read_thresholds(folder / THRESHOLDS)
    (folder / THRESHOLDS).write_text(content)
    check(sealed.unsigned_proof(folder), None, unsigned=True)
    assert read_thresholds(folder / THRESHOLDS)["temperature"] == 7


_WEIGHTS = "2_Dense/model.safetensors"


def _with_shape(content: bytes, shape: str) -> bytes:
    """The safetensors file with another shape of its first matrix, in which A and B stand for the
    real lengths.
    """
    length = int.from_bytes(content[:8], "little")

    def other(found: re.Match[str]) -> str:
        return f'"shape":{shape.replace("A", found[1]).replace("B", found[2])}'

    text = content[8 : 8 + length].decode()
    header = re.sub(r'"shape":\[(\d+),(\d+)\]', other, text, count=1).encode()
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


@pytest.mark.parametrize(
    "shape",
    [
        f"[{','.join(['9' * 3999] * 2000)}]",
        "[1e999,B]",
        "[A.0,B.0]",
        '["A","B"]',
        "[true,A,B]",
        "[-A,-B]",
        "[0,1099511627776]",
    ],
    ids=["long", "infinite", "fraction", "text", "truth", "negative", "huge"],
)
def test_a_shape_that_never_ends(sealed: Sealed, tmp_path: Path, shape: str) -> None:
    """`verify` refuses it before it multiplies the numbers, and says which file it is."""
    folder = sealed.copy(tmp_path, seal=False)
    weights = folder / _WEIGHTS
    weights.write_bytes(_with_shape(weights.read_bytes(), "[A,B]"))
    check(sealed.unsigned_proof(folder), None, unsigned=True)
    weights.write_bytes(_with_shape(weights.read_bytes(), shape))
    with pytest.raises(UnsoundBundle) as refused:
        check(sealed.unsigned_proof(folder), None, unsigned=True)
    assert refused.value.file == _WEIGHTS


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1E+400", "NaN", "Infinity"])
def test_numbers_that_are_none(sealed: Sealed, tmp_path: Path, number: str) -> None:
    """In a document whose fields have no schema, whatever reads it later."""
    folder = sealed.copy(tmp_path, seal=False)
    (folder / MATERIALS).write_text(f'{{"metadata": {number}}}')
    with pytest.raises(
        UnsoundBundle, check=lambda error: error.kind == "not-strict-json"
    ) as refused:
        check(sealed.unsigned_proof(folder), None, unsigned=True)
    assert refused.value.file == MATERIALS
    (folder / MATERIALS).write_text('{"metadata": 1e9}')
    check(sealed.unsigned_proof(folder), None, unsigned=True)


_LINE = '<path d="M0 0L9 9"/>'


@pytest.mark.parametrize(
    "inside",
    [
        "<script>hit()</script>",
        '<path d="M0 0" onload="hit()"/>',
        '<image href="https://example.org/x.png"/>',
        '<path d="M0 0" fill="url(https://example.org/x.svg#a)"/>',
        '<path d="M0 0" style="fill:red"/>',
        "<foreignObject/>",
        '<html xmlns="http://www.w3.org/1999/xhtml"/>',
        "<!-- words -->",
        "&xxe;",
        "<path",
    ],
)
def test_a_drawing_that_acts(sealed: Sealed, tmp_path: Path, inside: str) -> None:
    """A card's plot is lines, dots and words: `verify` refuses one that runs or loads anything."""
    folder, head = sealed.copy(tmp_path, seal=False), '<svg xmlns="http://www.w3.org/2000/svg">'
    (folder / RELIABILITY).write_text(f"{head}{inside}</svg>")
    with pytest.raises(UnsoundBundle) as refused:
        check(sealed.unsigned_proof(folder), None, unsigned=True)
    assert refused.value.file == RELIABILITY
    (folder / RELIABILITY).write_text(f"{head}{_LINE}</svg>")
    check(sealed.unsigned_proof(folder), None, unsigned=True)


def _grown(times: int) -> dict[str, Any]:
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    return {"type": "Sequence", "normalizers": [grows] * times}


def _split(pattern: str) -> dict[str, Any]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


HOSTILE: dict[str, dict[str, Any]] = {
    "a pattern that goes back": {"pre_tokenizer": _split("(a|aa)+b")},
    "a pattern of blanks": {"pre_tokenizer": _split("( +)+x")},
    "a letter becomes a million": {"normalizer": _grown(2)},
    "a table of random bytes": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "3q2+7w" * 64}
    },
    "a table that ends early": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAgHh4eHg="}
    },
    "padded to 8 billion": {
        "padding": {
            "strategy": {"Fixed": 1 << 33},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        }
    },
    "no vocabulary": {"model": {"type": "WordPiece", "vocab": {}}},
    "a model of no kind": {"model": {"type": "none", "vocab": {}}},
    "a normalizer of no kind": {"normalizer": {"type": "none"}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_tokenizer_that_never_ends(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`verify` meets it in a process with limits, and says which file it is."""
    graph = request.getfixturevalue("titled" if len(name) % 2 else "sealed")
    monkeypatch.setattr(tokenizer, "SECONDS", 2)
    folder = graph.copy(tmp_path, seal=False)
    file = folder / "0_Transformer" / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | HOSTILE[name]))
    code, out, _ = invoke("verify", graph.unsigned_proof(folder), "--allow-unsigned", "--json")
    assert code == 1
    assert json.loads(out)["file"] == "0_Transformer/tokenizer.json"


def test_a_sound_tokenizer_passes(worded: Sealed, tmp_path: Path) -> None:
    folder = worded.unsigned_proof(worded.copy(tmp_path, seal=False))
    code, out, _ = invoke("verify", folder, "--allow-unsigned", "--json")
    assert code == 0
    assert json.loads(out)["golden_answers"] == 48


def test_more_test_vectors_than_a_release_writes(sealed: Sealed, tmp_path: Path) -> None:
    """They are counted before any of them is parsed or computed."""
    folder = sealed.copy(tmp_path, seal=False)
    vectors = (folder / GOLDEN).read_text()
    assert vectors.count("\n") == 48
    (folder / GOLDEN).write_text(vectors * 600)
    with pytest.raises(UnsoundBundle) as refused:
        check(sealed.unsigned_proof(folder), None, unsigned=True)
    assert refused.value.file == GOLDEN
