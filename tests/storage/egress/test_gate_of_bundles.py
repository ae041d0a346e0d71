"""The gate refuses what may not leave, file by file: other words, weights, fields and kinds of file."""

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sealed_bundle import Sealed

from storage.bundle.folder import CARD, GOLDEN, UnsoundBundle
from storage.egress.documents import check_schema, read_shapes, strict_json
from storage.egress.gate import Expected, inspect


@pytest.fixture(scope="module")
def expected(sealed: Sealed, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """What the gate expects of the sealed bundle; made by building it again, which passes the gate."""
    return sealed.refill(tmp_path_factory.mktemp("again"))


@pytest.fixture
def folder(sealed: Sealed, tmp_path: Path) -> Path:
    return sealed.copy(tmp_path, seal=False)


@pytest.fixture
def secret(sealed: Sealed) -> str:
    return max(sealed.narratives, key=len)


def rewrite(path: Path, change: Callable[[Any], Any]) -> None:
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
        refuses(folder, expected, CARD, planted, match="differs from what")


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


def test_traces_in_a_real_bundle(folder: Path, expected: Expected) -> None:
    """No word of a place, a person or a host is known; no pickle passes."""
    card = (folder / CARD).read_text()
    (folder / CARD).write_text(f"{card} see /home/jdoe/records.csv, made by jdoe on buildhost-17")
    with pytest.raises(UnsoundBundle):
        inspect(folder, expected)
    (folder / CARD).write_bytes(pickle.dumps(card))
    with pytest.raises(UnsoundBundle, match="is not UTF-8"):
        inspect(folder, expected)


def test_json_is_read_strictly() -> None:
    for content in (b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\xff{}", b"[" * 100_000, b'{"a": 1} trailing'):
        with pytest.raises(UnsoundBundle):
            strict_json("x.json", content)
    with pytest.raises(UnsoundBundle, match="field `epsilon`"):
        check_schema("x.json", {"epsilon": "1"}, "config")


def test_a_file_that_is_no_safetensors(tmp_path: Path) -> None:
    for content in (b"", b"\x00" * 8, b"{}", b"\x00" * 100):
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(UnsoundBundle):
            read_shapes("m", tmp_path / "m")
