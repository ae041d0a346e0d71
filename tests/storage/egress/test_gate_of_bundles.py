"""The gate refuses what may not leave, file by file: other words, weights, fields and kinds of
file.
"""

import json
import pickle
import re
import struct
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind
from sealed_bundle import Sealed

from storage.bundle.folder import CARD, GOLDEN, UnsoundBundle, bundle_digest
from storage.egress import documents
from storage.egress.documents import check_schema, read_shapes, strict_json
from storage.egress.gate import Expected, inspect


@pytest.fixture(scope="module")
def expected(sealed: Sealed, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """What the gate expects of the sealed bundle; made by building it again, which
    passes the gate.
    """
    return sealed.refill(tmp_path_factory.mktemp("again"))


@pytest.fixture
def folder(sealed: Sealed, tmp_path: Path) -> Path:
    """The content of the bundle."""
    return sealed.copy(tmp_path, seal=False)


@pytest.fixture
def secret(sealed: Sealed) -> str:
    """The longest training narrative."""
    return max(sealed.narratives, key=len)


def refuses(folder: Path, expected: Expected, file: str, secret: str) -> None:
    """The gate names the file, and doesn't repeat what was planted in it."""
    with pytest.raises(UnsoundBundle) as refused:
        inspect(folder, expected)
    assert refused.value.file == file
    assert secret not in str(refused.value)


def test_a_second_build_gives_the_same_bytes(
    folder: Path, expected: Expected, sealed: Sealed, tmp_path: Path
) -> None:
    """Content alone decides the digest that the ledger holds, and the gate lets it pass."""
    inspect(folder, expected)
    again = tmp_path / "again"
    again.mkdir()
    sealed.refill(again)
    assert bundle_digest(again) == sealed.row.bundle_digest


Change = Callable[[bytes, str], bytes]


def appended(content: bytes, secret: str) -> bytes:
    return content + secret.encode()


def as_json(change: Callable[[dict[str, Any], str], dict[str, Any]]) -> Change:
    return lambda content, secret: json.dumps(change(json.loads(content), secret)).encode()


def as_token(spelt: Callable[[str], str]) -> Change:
    named = {
        "id": 900,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return as_json(
        lambda d, secret: (
            d | {"added_tokens": [*d["added_tokens"], named | {"content": spelt(secret)}]}
        )
    )


def as_vocabulary(document: dict[str, Any], secret: str) -> dict[str, Any]:
    words = {word: 1000 + n for n, word in enumerate(secret.split())}
    return document | {"model": document["model"] | {"vocab": document["model"]["vocab"] | words}}


def title(secret: str) -> bytes:
    return re.sub(r'["\\\n]', " ", secret).encode()


CONFIG, TOKENIZER = "0_Transformer/config.json", "0_Transformer/tokenizer.json"
PLANTED: list[tuple[str, Change]] = [
    *((name, appended) for name in (CARD, "PRIVACY.md", "LICENSE")),
    (CARD, lambda content, secret: content + " ".join(secret.split()[2:17]).upper().encode()),
    (CARD, lambda content, secret: content + " -- ".join(secret.split()[:12]).encode()),
    (CARD, lambda content, _: pickle.dumps(content)),
    (TOKENIZER, as_token(str)),
    (TOKENIZER, as_token(lambda secret: "-".join(secret.split())[:39])),
    (TOKENIZER, as_json(as_vocabulary)),
    (TOKENIZER, as_json(lambda d, secret: d | {"comment": secret})),
    (
        TOKENIZER,
        as_json(
            lambda d, secret: d | {"normalizer": {"type": "Replace", "pattern": {"String": secret}}}
        ),
    ),
    (CONFIG, as_json(lambda d, secret: d | {"comment": secret})),
    (CONFIG, as_json(lambda d, secret: d | {"architectures": [secret]})),
    (CONFIG, as_json(lambda d, secret: d | {"id2label": {"0": secret}})),
    (CONFIG, as_json(lambda d, secret: d | {"label2id": {secret: 0}})),
    (CONFIG, as_json(lambda d, secret: d | {"hidden_act": "_".join(secret.split())[:79]})),
    (CONFIG, as_json(lambda d, _: d | {"class_counts": [3, 17]})),
    (CONFIG, as_json(lambda d, _: d | {"_name_or_path": "elsewhere"})),
    (
        "bom.cdx.json",
        as_json(lambda d, secret: d | {"components": [{"type": "data", "description": secret}]}),
    ),
    ("thresholds.json", as_json(lambda d, secret: d | {"fitted_on": f"generated {secret}"[:300]})),
    (
        "codelist.csv",
        lambda content, secret: re.sub(
            rb"(?<=\n)(\w+),[^\n]*?,OI", rb'\1,"%b",OI' % title(secret), content, count=1
        ),
    ),
    (
        GOLDEN,
        lambda content, secret: content.replace(b'"text": "', b'"text": "' + secret.encode(), 1),
    ),
]


@pytest.mark.parametrize(("name", "change"), PLANTED)
def test_a_narrative_in_a_file(
    folder: Path, expected: Expected, secret: str, name: str, change: Change
) -> None:
    """Whole, in part, in other case and punctuation; as token, vocabulary or field. Counts, an
    origin and a pickle.
    """
    (folder / name).write_bytes(change((folder / name).read_bytes(), secret))
    refuses(folder, expected, name, secret)


def test_other_weights_than_inference_needs(
    folder: Path, expected: Expected, secret: str, tmp_path: Path
) -> None:
    """A second draw, a deviation, optimiser state, metadata, bytes or text beside the tensors, a
    pickle.
    """
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


def test_json_is_read_strictly() -> None:
    """What readers differ about is refused."""
    for content in (
        b'{"a": 1, "a": 2}',
        b'{"a": NaN}',
        b"\xff{}",
        b"[" * 100_000,
        b'{"a": 1} trailing',
    ):
        with pytest.raises(UnsoundBundle):
            strict_json("x.json", content)
    with pytest.raises(UnsoundBundle, check=of_kind("schema-violation", saying="`epsilon`")):
        check_schema("x.json", {"epsilon": "1"}, "config")


def test_every_rule_of_the_schema_is_known() -> None:
    """A rule that the reader does not know would hold of everything."""
    schema = json.loads(
        (Path(documents.__file__).parents[1] / "schemas" / "bundle.schema.json").read_text()
    )
    known = {
        *documents._RULES,
        *documents._FIELDS,
        "$ref",
        "items",
        "required",
        "$defs",
        "$schema",
        "$id",
    }
    known |= {"title", "description", "$comment"}

    def unknown(part: Any) -> set[str]:
        if not isinstance(part, dict):
            return set()
        named = [
            part.get(rule, {}).values() for rule in ("properties", "patternProperties", "$defs")
        ]
        inner = [
            *chain(*named),
            *part.get("anyOf", ()),
            *(part.get(r) for r in ("items", "propertyNames")),
        ]
        return (part.keys() - known).union(
            *map(unknown, [*inner, part.get("additionalProperties")])
        )

    assert unknown(schema) == set()
    assert unknown({"properties": {"a": {"minProperties": 1}}}) == {"minProperties"}


def test_a_file_that_is_no_safetensors(tmp_path: Path) -> None:
    """Empty, short or of another kind."""
    for content in (b"", b"\x00" * 8, b"{}", b"\x00" * 100):
        (tmp_path / "m").write_bytes(content)
        with pytest.raises(UnsoundBundle):
            read_shapes("m", tmp_path / "m")
