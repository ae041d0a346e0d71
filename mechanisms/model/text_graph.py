"""Builds a word-piece tokenizer and a lexicon from ONNX nodes that map texts to token ids,
attention mask and word columns.

Every node is available in onnxruntime from 1.17 on, in any language and in the browser. A regular
expression splits a text into words, each distinct word is tokenized once, and its pieces are found
by longest match (Wu et al. 2016).
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from mechanisms.errors import MechanismError
from mechanisms.model.lexicon import Lexicon

_TYPES = {"string": TensorProto.STRING, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
_LONGEST_WORD = 100
"""In characters. Longer words are unknown, as in BERT's own tokenizer."""
_CODE_POINTS = range(1, 0x20000)
_IDEOGRAPHS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002ceaf\U0002f800-\U0002fa1f"
_STEPS = 255


class Nodes:
    """Collects the nodes and constants of a graph under generated names."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self._prefix = prefix
        self._count = 0

    def name(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"

    def __call__(
        self, kind: str, *inputs: Any, domain: str = "", outputs: int = 1, **attributes: Any
    ) -> Any:
        """Adds a node and returns the name of its output, or a list of names. Inputs that are not
        names become constants.
        """
        input_names = [
            value if isinstance(value, str) else self.constant(value) for value in inputs
        ]
        names = [self.name() for _ in range(outputs)]
        self.nodes.append(
            helper.make_node(kind, input_names, names, domain=domain, name=names[0], **attributes)
        )
        return names[0] if outputs == 1 else names

    def constant(self, value: Any) -> str:
        name, array = self.name(), np.asarray(value)
        if array.dtype.kind == "U":
            texts = [text.encode() for text in array.flatten().tolist()]
            self.constants.append(helper.make_tensor(name, TensorProto.STRING, array.shape, texts))
        else:
            self.constants.append(numpy_helper.from_array(array, name))
        return name

    def lookup(
        self, keys: str, table: Mapping[str, int] | Mapping[str, str], default: int | str
    ) -> str:
        kind, element = ("strings", "string") if isinstance(default, str) else ("int64s", "int64")
        values: dict[str, Any] = {
            f"values_{kind}": list(table.values()),
            f"default_{element}": default,
        }
        return self("LabelEncoder", keys, domain="ai.onnx.ml", keys_strings=list(table), **values)

    def split(self, texts: str, **how: Any) -> str:
        return self(
            "Tokenizer", texts, domain="com.microsoft", mark=0, pad_value="", mincharnum=1, **how
        )

    def loop(
        self, times: Any, states: Mapping[str, str], body: Callable[..., Any], *, scanned: int = 0
    ) -> list[str]:
        """Repeats a body `times` times, or until its first result is false; returns the final
        states, followed by scanned values.

        Args:
            states: type of each state, by the name of its initial value.
            body: called with the iteration number and the states; returns the condition to continue
                (or None), the new states, and scanned values.
        """
        inner = Nodes(f"{self.name()}.")
        turn, going, *inside = (inner.name() for _ in range(2 + len(states)))
        on, *results = body(inner, turn, *inside)
        on = inner("Identity", going if on is None else on)
        results = [inner("Identity", result) for result in results]
        types = [_TYPES[kind] for kind in states.values()]
        inputs = [
            helper.make_tensor_value_info(turn, TensorProto.INT64, []),
            helper.make_tensor_value_info(going, TensorProto.BOOL, []),
            *_values(inside, types),
        ]
        types += [TensorProto.INT64] * scanned
        outputs = [
            helper.make_tensor_value_info(on, TensorProto.BOOL, []),
            *_values(results, types),
        ]
        graph = helper.make_graph(inner.nodes, "body", inputs, outputs, inner.constants)
        looped = self("Loop", times, np.array(True), *states, outputs=len(results), body=graph)
        return [looped] if isinstance(looped, str) else looped

    def size(self, tensor: str, axis: int) -> str:
        return self("Shape", tensor, start=axis, end=axis + 1)

    def head(self, tensor: str, most: Any, axis: int) -> str:
        return self(
            "Slice",
            tensor,
            np.array([0]),
            most if isinstance(most, str) else np.array([most]),
            np.array([axis]),
        )

    def count(self, flags: str, axis: int) -> str:
        return self(
            "ReduceSum", self("Cast", flags, to=TensorProto.INT64), np.array([axis]), keepdims=0
        )

    def numbers(self, end: str) -> str:
        return self("Range", np.array(0), self("Squeeze", end), np.array(1))


def _values(names: Sequence[str], kinds: Sequence[int]) -> list[ValueInfoProto]:
    """Declares tensors of any shape."""
    return [
        helper.make_tensor_value_info(name, kind, None)
        for name, kind in zip(names, kinds, strict=True)
    ]


def reads(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a tokenizer is BERT's, which `inputs` can build."""
    parts = (
        (tokenizer.get(part) or {}).get("type") for part in ("model", "normalizer", "pre_tokenizer")
    )
    return tuple(parts) == ("WordPiece", "BertNormalizer", "BertPreTokenizer")


def inputs(
    g: Nodes, texts: str, tokenizer: str, lexicon: Lexicon | None, *, max_length: int, pad_id: int
) -> dict[str, str]:
    """Adds the nodes that turn texts, string [n], into a model's inputs; returns their names.

    Args:
        tokenizer: content of its `tokenizer.json`.

    Raises:
        MechanismError: the tokenizer is not BERT's.
    """
    from tokenizers import Tokenizer

    read = json.loads(tokenizer)
    if not reads(read):
        raise MechanismError(
            "model.onnx: needs an encoder with BERT's word pieces", kind="no-word-pieces"
        )
    ids = {token["content"]: token["id"] for token in read["added_tokens"]} | read["model"]["vocab"]
    table = lexicon.table if lexicon is not None else {}
    # an extra text, dropped at the end, so that no step has an empty list of words
    texts = g(
        "Concat", texts, np.array([f"{next(iter(ids))} {next(iter(table), 'word')} word"]), axis=0
    )
    loaded: Any = Tokenizer.from_str(tokenizer)
    loaded.no_padding()
    loaded.no_truncation()
    special = (*loaded.encode("").ids, pad_id)
    names = _tokens(g, texts, tokenizer, read, ids, max_length - 2, special)
    if lexicon is not None:
        names["words"] = _words(g, texts, table, lexicon.columns)
    return {
        name: g("Slice", node, np.array([0]), np.array([-1]), np.array([0]))
        for name, node in names.items()
    }


def _tokens(
    g: Nodes,
    texts: str,
    tokenizer: str,
    read: Mapping[str, Any],
    ids: Mapping[str, int],
    limit: int,
    special: tuple[int, ...],
) -> dict[str, str]:
    characters, expression = _characters(tokenizer)
    words = g.head(g.split(texts, tokenexp=expression), limit, 1)
    distinct, _, places, _ = g("Unique", g("Reshape", words, np.array([-1])), outputs=4, sorted=0)
    pieces = _pieces(g, _spelled(g, distinct, characters), read["model"], ids)
    places = g("Reshape", places, g("Shape", words))
    counts = g("Gather", g.count(g("GreaterOrEqual", pieces, np.array(0)), 1), places)
    starts = g("CumSum", counts, np.array(1), exclusive=1)
    lengths = g("Min", g("ReduceSum", counts, np.array([1]), keepdims=0), np.array(limit))
    all_pieces = g("Gather", pieces, places)
    columns = g("Add", g("Unsqueeze", starts, np.array([2])), g.numbers(g.size(pieces, 1)))
    chosen = g(
        "And", g("GreaterOrEqual", all_pieces, np.array(0)), g("Less", columns, np.array(limit))
    )
    where = g("Transpose", g("NonZero", chosen))
    rows, width = g.size(texts, 0), g("Add", g("ReduceMax", lengths, keepdims=1), np.array([2]))
    begin, end, pad = special
    table = g("Expand", np.array(pad), g("Concat", rows, width, axis=0))
    row_numbers = g("Unsqueeze", g.numbers(rows), np.array([1]))
    after = g("Add", g("Unsqueeze", lengths, np.array([1])), np.array(1))
    column = g("Unsqueeze", g("Add", g("GatherND", columns, where), np.array(1)), np.array([1]))
    table = g(
        "ScatterND",
        table,
        g("Concat", g.head(where, 1, 1), column, axis=1),
        g("GatherND", all_pieces, where),
    )
    for token, place in ((begin, g("Mul", row_numbers, np.array(0))), (end, after)):
        table = g(
            "ScatterND",
            table,
            g("Concat", row_numbers, place, axis=1),
            g("Expand", np.array(token), rows),
        )
    mask = g("Cast", g("LessOrEqual", g.numbers(width), after), to=TensorProto.INT64)
    return {"input_ids": table, "attention_mask": mask}


def _spelled(g: Nodes, words: str, characters: Mapping[str, str]) -> str:
    signs = g.head(g.split(words, separators=[""]), 128, 1)
    unlisted = "\x01"
    replaced = g.lookup(signs, characters, unlisted)
    signs = g("Where", g("Equal", replaced, np.array(unlisted)), signs, replaced)
    empty = g("Expand", np.array(""), g("Shape", words))

    def body(b: Nodes, turn: str, spelled: str) -> tuple[Any, ...]:
        return None, b("StringConcat", spelled, b("Gather", signs, turn, axis=1))

    return g.loop(g("Squeeze", g.size(signs, 1)), {empty: "string"}, body)[0]


def _pieces(g: Nodes, words: str, model: Mapping[str, Any], ids: Mapping[str, int]) -> str:
    mark = model["continuing_subword_prefix"]
    longest = max(len(piece.removeprefix(mark)) for piece in model["vocab"])
    signs = g.split(words, separators=[""])
    lengths = g.count(g("Not", g("Equal", signs, np.array(""))), 1)
    signs = g.head(signs, _LONGEST_WORD, 1)
    shape, count, width = g("Shape", signs), g.size(signs, 0), g.size(signs, 1)
    padded = g(
        "Concat",
        signs,
        g("Expand", np.array([[""] * longest]), g("Concat", count, np.array([1]), axis=0)),
        axis=1,
    )
    begun = g("Where", g("Equal", g.numbers(width), np.array(0)), np.array(""), np.array(mark))
    begun = g("Expand", begun, shape)
    none = g("Expand", np.array(-1), shape)

    def longer(b: Nodes, turn: str, part: str, best: str, length: str) -> tuple[Any, ...]:
        start = b("Unsqueeze", turn, np.array([0]))
        sign = b("Slice", padded, start, b("Add", start, width), np.array([1]))
        part = b("StringConcat", part, sign)
        matched = b.lookup(part, model["vocab"], -1)
        holds = b(
            "And",
            b("GreaterOrEqual", matched, np.array(0)),
            b("Not", b("Equal", sign, np.array(""))),
        )
        longer_by_one = b("Add", turn, np.array(1))
        return (
            None,
            part,
            b("Where", holds, matched, best),
            b("Where", holds, longer_by_one, length),
        )

    zero = g("Expand", np.array(0), shape)
    states = {begun: "string", none: "int64", zero: "int64"}
    _, best, length = g.loop(np.array(longest), states, longer)
    last = g("Sub", width, np.array([1]))

    def next_piece(b: Nodes, turn: str, place: str, failed: str) -> tuple[Any, ...]:
        here = b("Unsqueeze", b("Min", place, last), np.array([1]))
        piece, signs_of = (
            b("Squeeze", b("GatherElements", of, here, axis=1), np.array([1]))
            for of in (best, length)
        )
        unfinished = b("Less", place, lengths)
        matched = b("And", unfinished, b("Greater", signs_of, np.array(0)))
        failed = b("Or", failed, b("And", unfinished, b("Not", matched)))
        place = b("Where", matched, b("Add", place, signs_of), lengths)
        going = b("Greater", b.count(b("Less", place, lengths), 0), np.array(0))
        return going, place, failed, b("Where", matched, piece, np.array(-1))

    start = g("Expand", np.array(0), count)
    fine = g("Expand", np.array(False), count)
    _, failed, matched = g.loop(
        g("Squeeze", width), {start: "int64", fine: "bool"}, next_piece, scanned=1
    )
    matched = g("Transpose", matched, perm=[1, 0])
    failed = g("Or", failed, g("Greater", lengths, np.array(_LONGEST_WORD)))
    first = g("Equal", g.numbers(g.size(matched, 1)), np.array(0))
    unknown = g("Where", first, np.array(ids[model["unk_token"]]), np.array(-1))
    return g("Where", g("Unsqueeze", failed, np.array([1])), unknown, matched)


def _words(
    g: Nodes, texts: str, table: Mapping[str, Sequence[tuple[int, int]]], columns: int
) -> str:
    matched = g.split(texts, tokenexp=f"[{_ranges(_letters())}]{{3,}}")
    distinct, _, places, _ = g("Unique", g("Reshape", matched, np.array([-1])), outputs=4, sorted=0)
    rows = g.lookup(
        _spelled(g, distinct, _lower()), {word: row for row, word in enumerate(table)}, -1
    )
    of_texts = g("Reshape", g("Gather", rows, places), g("Shape", matched))
    where = g("NonZero", g("GreaterOrEqual", of_texts, np.array(0)))
    row = g("GatherND", of_texts, g("Transpose", where))
    entries = [len(entry) for entry in table.values()]
    counts, firsts = (
        g("Gather", np.array(bounds), row) for bounds in (entries, np.cumsum([0, *entries[:-1]]))
    )
    # Repeat each word of a text once per entry. The word number increases where the entries of the
    # next word begin.
    ends = g("CumSum", counts, np.array(0))
    begins = g("Sub", ends, counts)
    total = g("ReduceMax", ends, keepdims=1)
    ones = g("Expand", np.array(1), g("Shape", begins))
    steps = g("ScatterElements", g("Expand", np.array(0), total), begins, ones, axis=0)
    number = g("Sub", g("CumSum", steps, np.array(0)), np.array(1))
    within = g("Sub", g.numbers(total), g("Gather", begins, number))
    entry = g("Add", g("Gather", firsts, number), within)
    flat = np.array([pair for pairs in table.values() for pair in pairs])
    text = g("Gather", g("Gather", where, np.array(0), axis=0), number)
    column = g("Cast", g("Gather", flat[:, 0].astype(np.int32), entry), to=TensorProto.INT64)
    likeness = g("Cast", g("Gather", flat[:, 1].astype(np.uint8), entry), to=TensorProto.FLOAT)
    target = g(
        "Concat", *(g("Unsqueeze", index, np.array([1])) for index in (text, column)), axis=1
    )
    block = g(
        "Expand",
        np.array(0, np.float32),
        g("Concat", g.size(texts, 0), np.array([columns]), axis=0),
    )
    return g(
        "Div",
        g("ScatterND", block, target, likeness, reduction="max"),
        np.array(_STEPS, np.float32),
    )


@lru_cache(maxsize=2)
def _characters(tokenizer: str) -> tuple[dict[str, str], str]:
    from tokenizers import Tokenizer

    loaded: Any = Tokenizer.from_str(tokenizer)
    replaced: dict[str, str] = {}
    alone, between = set[int](), set[int]()
    for point in _CODE_POINTS:
        sign = chr(point)
        if unicodedata.category(sign) in ("Cn", "Co", "Cs") or re.match(f"[{_IDEOGRAPHS}]", sign):
            continue
        normal = loaded.normalizer.normalize_str(f"a{sign}a")
        words = [word for word, _ in loaded.pre_tokenizer.pre_tokenize_str(normal)]
        if words == ["a", "a"]:
            between.add(point)
            continue
        if len(words) > 1:
            alone.add(point)
        if (normal := normal[1:-1].strip()) != sign:
            replaced[sign] = normal
    isolated = rf"{_ranges(alone)}{_ranges(_points(_IDEOGRAPHS))}"
    return replaced, rf"[{isolated}]|[^{isolated}{_ranges(between)}]+"


def _points(ranges: str) -> Iterable[int]:
    return (
        point
        for first, last in re.findall("(.)-(.)", ranges)
        for point in range(ord(first), ord(last) + 1)
    )


@lru_cache(maxsize=1)
def _letters() -> tuple[int, ...]:
    return tuple(point for point in range(0x30000) if re.fullmatch(r"[^\W\d_]", chr(point)))


def _lower() -> dict[str, str]:
    return {
        chr(point): chr(point).lower() for point in _CODE_POINTS if chr(point).lower() != chr(point)
    }


def _ranges(points: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)
