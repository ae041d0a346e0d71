"""The gate refuses what may not leave, file by file; planted texts are told by keyed fingerprints alone."""

from __future__ import annotations

import json
import pickle
import random
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sealed_bundle import Sealed

from storage.bundle.folder import CARD, GOLDEN, UnsoundBundle
from storage.demo_data import narratives
from storage.egress import gate, leaks
from storage.egress.documents import check_schema, strict_json
from storage.egress.gate import Expected, inspect
from storage.egress.sequences import SequenceFilter, load_key
from storage.egress.tensors import shapes
from storage.errors import StorageError

KEY = b"k" * 32


@pytest.fixture(scope="module")
def expected(sealed: Sealed, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """What the gate expects of the sealed bundle; made by building it again, which passes the gate."""
    return sealed.refill(tmp_path_factory.mktemp("again"))


@pytest.fixture
def folder(sealed: Sealed, tmp_path: Path) -> Path:
    """The content of the bundle."""
    return sealed.copy(tmp_path, seal=False)


@pytest.fixture
def secret(sealed: Sealed, expected: Expected) -> str:
    """A training narrative that is not, by chance, all public words."""
    return max(sealed.narratives, key=expected.narratives.count)


def rewrite(path: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file."""
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def refuses(folder: Path, expected: Expected, file: str, secret: str, match: str | None = None) -> None:
    """The gate names the file, and doesn't repeat what was planted in it."""
    with pytest.raises(UnsoundBundle, match=match) as refused:
        inspect(folder, expected)
    assert refused.value.file == file
    assert secret not in str(refused.value)


def test_the_bundle_passes(folder: Path, expected: Expected) -> None:
    """And is what a second build gives, byte for byte."""
    inspect(folder, expected)


def test_a_second_build_gives_the_same_bytes(sealed: Sealed, tmp_path: Path) -> None:
    """Content alone decides the digest that the ledger holds."""
    from storage.bundle.folder import bundle_digest

    again = tmp_path / "again"
    again.mkdir()
    sealed.refill(again)
    assert bundle_digest(again) == sealed.row.bundle_digest


def test_a_narrative_in_the_card(folder: Path, expected: Expected, secret: str) -> None:
    """Whole, or fifteen words of it, in other case and punctuation."""
    card = (folder / CARD).read_text()
    words = secret.split()
    for planted in (secret, " ".join(words[2:17]).upper(), " -- ".join(words[:12])):
        (folder / CARD).write_text(card + "\n" + planted + "\n")
        refuses(folder, expected, CARD, planted, match="private narrative")


def test_a_narrative_in_the_tokenizer(folder: Path, expected: Expected, secret: str) -> None:
    """As one token, as a vocabulary of its words, or in a field: it is not the public tokenizer any more."""
    file = folder / "0_Transformer" / "tokenizer.json"
    before = file.read_text()

    def token(content: str) -> dict[str, Any]:
        return {"id": 900, "content": content, "single_word": False, "lstrip": False, "rstrip": False} | {
            "normalized": False,
            "special": True,
        }

    def vocabulary(document: dict[str, Any]) -> dict[str, Any]:
        words = {word: 1000 + n for n, word in enumerate(secret.split())}
        return document | {"model": document["model"] | {"vocab": document["model"]["vocab"] | words}}

    changes: tuple[Callable[[Any], Any], ...] = (
        lambda d: d | {"added_tokens": [*d["added_tokens"], token(secret)]},
        lambda d: d | {"added_tokens": [*d["added_tokens"], token("-".join(secret.split())[:39])]},
        vocabulary,
        lambda d: d | {"comment": secret},
        lambda d: d | {"normalizer": {"type": "Replace", "pattern": {"String": secret}, "content": ""}},
    )
    for change in changes:
        rewrite(file, change)
        refuses(folder, expected, "0_Transformer/tokenizer.json", secret)
        file.write_text(before)


def test_a_short_text_that_is_a_word_of_the_vocabulary(folder: Path, expected: Expected) -> None:
    """Such as a job title: the public tokenizer holds it whoever trained; anywhere else it is told."""
    vocabulary = json.loads((folder / "0_Transformer" / "tokenizer.json").read_text())["model"]["vocab"]
    word = "".join(letter for letter in "".join(vocabulary) if letter.isalpha())[200:216]
    knowing = replace(expected, narratives=SequenceFilter.of([word], key=KEY))
    assert knowing.narratives.count(word)
    assert knowing.narratives.count("".join(vocabulary)), "a scan of the vocabulary would find it"
    inspect(folder, knowing)
    (folder / CARD).write_text((folder / CARD).read_text() + f"\n{word}\n")
    refuses(folder, knowing, CARD, word, match="private narrative")


@pytest.mark.parametrize(
    "change",
    [
        lambda config, secret: config | {"comment": secret},
        lambda config, secret: config | {"architectures": [secret]},
        lambda config, secret: config | {"id2label": {"0": secret}},
        lambda config, secret: config | {"label2id": {secret: 0}},
        lambda config, secret: config | {"hidden_act": "_".join(secret.split())[:79]},
        lambda config, secret: config | {"class_counts": [3, 17]},
        lambda config, secret: config | {"_name_or_path": "elsewhere"},
    ],
)
def test_anything_in_the_config(folder: Path, expected: Expected, secret: str, change: Any) -> None:
    """Text, counts or origin: none is on the list of fields, or is what the code list says."""
    rewrite(folder / "0_Transformer" / "config.json", lambda config: change(config, secret))
    refuses(folder, expected, "0_Transformer/config.json", secret)


@pytest.mark.parametrize("name", ["PRIVACY.md", "LICENSE", "bom.cdx.json", "codelist.csv", "thresholds.json", GOLDEN])
def test_a_narrative_anywhere_else(folder: Path, expected: Expected, secret: str, name: str) -> None:
    """Every file that holds text is read for it."""
    file = folder / name
    if name == "bom.cdx.json":
        rewrite(file, lambda d: d | {"components": [{"type": "data", "name": "x", "description": secret}]})
    elif name == "thresholds.json":
        rewrite(file, lambda d: d | {"fitted_on": f"generated {secret}"[:300]})
    elif name == "codelist.csv":
        lines = file.read_text().splitlines()
        lines[1] = f'{lines[1].split(",")[0]},"{secret.replace(chr(34), "")}",OIICS,2.01'.replace("\n", " ")
        file.write_text("\n".join(lines) + "\n")
    elif name == GOLDEN:
        first, *rest = file.read_text().splitlines()
        file.write_text("\n".join([json.dumps(json.loads(first) | {"text": secret}), *rest]) + "\n")
    else:
        file.write_text(file.read_text() + secret)
    refuses(folder, expected, name, secret)


def test_text_in_a_binary_file_is_seen_wherever_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 printable bytes or more, the same as a pattern finds, across the border of two reads and at both ends."""
    file = tmp_path / "weights"
    monkeypatch.setattr(gate, "_CHUNK", 6000)
    text = b"fell from a scaffold 24+"
    for place in (0, 5985, 6000, 12_000 - len(text), 20_000 - len(text)):
        for cut, seen in ((0, True), (1, False)):
            hidden = text[cut:]
            content = bytearray(20_000)
            content[place : place + len(hidden)] = hidden
            file.write_bytes(content)
            assert (hidden.decode() in gate._printable(file)) == seen
    monkeypatch.undo()
    noise = random.Random(1).choices(range(256), weights=[1 if 32 <= b < 127 else 0.05 for b in range(256)], k=100_000)
    file.write_bytes(bytes(noise))
    runs = [run.decode("ascii") for run in re.findall(rb"[\x20-\x7e]{24,}", file.read_bytes())]
    assert len(runs) > 100
    assert list(gate._runs(file.read_bytes())) == runs


def test_other_weights_than_inference_needs(folder: Path, expected: Expected, secret: str, tmp_path: Path) -> None:
    """A second draw, a deviation, optimiser state, metadata, bytes or text beside the tensors, a pickle."""
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "2_Dense" / "model.safetensors"
    good = load_file(file)
    rows, columns = good["linear.weight"].shape
    damages: tuple[Callable[[], object], ...] = (
        lambda: save_file(good | {"swag.deviations": torch.zeros(2, 3)}, file),
        lambda: save_file(good | {"linear.weight": torch.zeros(rows + 1, columns)}, file),
        lambda: save_file(good | {"linear.bias": good["linear.bias"].double()}, file),
        lambda: save_file(good, file, metadata={"note": secret[:40]}),
        lambda: file.write_bytes(file.read_bytes() + secret.encode()),
        lambda: file.write_bytes(pickle.dumps(good)),
        lambda: file.write_bytes(struct.pack("<Q", 1 << 40) + b"{}"),
    )
    before = file.read_bytes()
    for damage in damages:
        damage()
        refuses(folder, expected, "2_Dense/model.safetensors", secret)
        file.write_bytes(before)
    text = secret.encode()[: (rows * 4) // 4 * 4].ljust(rows * 4)[: rows * 4]
    hidden = torch.frombuffer(bytearray(text), dtype=torch.float32)
    save_file(good | {"linear.bias": hidden}, file)
    refuses(folder, expected, "2_Dense/model.safetensors", secret, match="private narrative")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("see /home/jdoe/records.csv", "absolute path"),
        ("from file:///srv/data/x", "absolute path"),
        (r"kept in C:\Users\jdoe", "absolute path"),
        ("made 2026-11-21T09:15:02Z", "finer than a day"),
        ("made at 1795252502.11", "finer than a day"),
        ("weighted F1 0.59 on the test half", "a score"),
        ("Accuracy: 81 %", "a score"),
        ("by jane.clerk", "names the user"),
        ("on buildhost-17", "names the user"),
    ],
)
def test_traces_of_where_who_and_when(text: str, what: str) -> None:
    """Each is told by its kind, without being quoted; a day and a URL may stay."""
    who = ("jane.clerk", "buildhost-17")
    with pytest.raises(UnsoundBundle, match=what) as refused:
        leaks.check_text("README.md", f"A card.\n{text}\n", identities=who)
    assert text not in str(refused.value)
    leaks.check_text(
        "README.md", "committed 2026-11-21, see https://example.org/home/x and jane.clerkson", identities=who
    )


def test_traces_in_a_real_bundle(folder: Path, expected: Expected) -> None:
    """The gate looks in the bundle for the workspace that it was made in."""
    card = (folder / CARD).read_text()
    (folder / CARD).write_text(card + expected.identities[-1])
    with pytest.raises(UnsoundBundle):
        inspect(folder, expected)
    (folder / CARD).write_bytes(pickle.dumps(card))
    with pytest.raises(UnsoundBundle, match="like a pickle"):
        inspect(folder, expected)
    (folder / CARD).write_text(card.replace("license: apache-2.0", "license: apache-2.0\nmodel-index: []"))
    with pytest.raises(UnsoundBundle, match="model-index"):
        inspect(folder, expected)


def test_rare_windows_only() -> None:
    """A phrase that five units share, or that is public, tells nothing; four units are few; a short text is whole."""
    common = "employee was taken to the hospital for treatment"
    told = [f"{word} happened, then {common}" for word in "abcde"] + ["cut hand on saw", "fell on ice"]
    few = ["he was found under the blue tarpaulin"] * 4
    public = "a sentence that everybody may read anyway"
    made = SequenceFilter.of([*told, *few, public], key=KEY, public=[public])
    assert made.count(common) == 0
    assert made.count(few[0].upper()) > 0
    assert made.count(public) == 0
    assert made.count("He cut hand on saw.") == 1
    assert made.count("fell on ice") == 0, "nine letters are nobody's"


def test_a_short_text_that_is_public_is_told_by_no_other() -> None:
    """The job title `representative` stands in a licence; another that begins like it must not betray it there."""
    titles = ["representative", "representation clerk", "market trader's clerk"]
    made = SequenceFilter.of(titles, key=KEY, public=["the Legal Representative of"])
    assert made.count("a representative of the licensor") == 0
    assert made.count("the representation clerk said") > 0
    assert SequenceFilter.of(titles, key=KEY).count("a representative of the licensor") > 0


def test_one_unit_is_one_however_many_records_it_has() -> None:
    """Five persons with the same words are common; five records of one person are that person's."""
    texts = ["slipped on the loading dock ramp in the rain"] * 5
    for units, private in ((None, True), (["a"] * 5, True), (["a", "b", "c", "d", "e"], False)):
        assert (SequenceFilter.of(texts, key=KEY, units=units).count(texts[0]) > 0) == private


def test_no_text_and_no_guessing_without_the_key(tmp_path: Path) -> None:
    """The file holds 64 bits a sequence, none of the words, and is of no use with another key."""
    texts = narratives(200, seed=9)
    made = SequenceFilter.of(texts, key=KEY)
    file = tmp_path / "filter"
    made.save(file)
    content = file.read_bytes()
    assert not any(word.encode() in content for text in texts for word in text.split() if len(word) > 5)
    again = SequenceFilter.load(file, key=KEY)
    assert again.count(texts[0]) == made.count(texts[0]) > 0
    assert SequenceFilter.load(file, key=b"x" * 32).count(texts[0]) == 0
    file.write_bytes(content[:-3])
    with pytest.raises(StorageError, match="no filter"):
        SequenceFilter.load(file, key=KEY)


def test_false_alarms_on_unrelated_texts() -> None:
    """Ten thousand words that no narrative has, against as many windows: 64 bits make a false alarm 1 in 10^10."""
    made = SequenceFilter.of(narratives(1500, seed=10), key=KEY)
    assert len(made.marks) > 10_000
    assert made.count(" ".join(f"word{n}" for n in range(10_000))) == 0


def test_the_key_is_made_once_and_closed(tmp_path: Path) -> None:
    """Of the system's entropy, mode 0600, the same at the next call."""
    path = tmp_path / "egress" / "key"
    key = load_key(path)
    assert len(key) == 32
    assert load_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["key"]


def test_json_is_read_strictly() -> None:
    """What readers differ about is refused."""
    for content in (b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\xff{}", b"[" * 100_000, b'{"a": 1} trailing'):
        with pytest.raises(UnsoundBundle):
            strict_json("x.json", content)
    with pytest.raises(UnsoundBundle, match="field `epsilon`"):
        check_schema("x.json", {"epsilon": "1"}, "config")


def test_a_file_that_is_no_safetensors(tmp_path: Path) -> None:
    """Empty, short or of another kind."""
    for content in (b"", b"\x00" * 8, b"{}", b"\x00" * 100):
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(UnsoundBundle):
            shapes("m", tmp_path / "m")
