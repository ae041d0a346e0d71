"""Builds a word-piece tokenizer and a lexicon from ONNX nodes that map texts to token ids,
attention mask and word columns.

Every node is available in onnxruntime from 1.17 on, in any language and in the browser. A regular
expression splits a text into words, each distinct word is tokenized once, and its pieces are found
by longest match (Wu et al. 2016).
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypedDict

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
        """Adds a table of texts; a key that it lacks gets the default."""
        element = "string" if isinstance(default, str) else "int64"
        values: Any = {f"values_{element}s": list(table.values()), f"default_{element}": default}
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
        looped = self("Loop", times, True, *states, outputs=len(results), body=graph)
        return [looped] if isinstance(looped, str) else looped

    def size(self, tensor: str, axis: int) -> str:
        return self("Shape", tensor, start=axis, end=axis + 1)

    def head(self, tensor: str, most: Any, axis: int) -> str:
        end = most if isinstance(most, str) else [most]
        return self("Slice", tensor, [0], end, [axis])

    def count(self, flags: str, axis: int) -> str:
        return self("ReduceSum", self.integers(flags), [axis], keepdims=0)

    def integers(self, tensor: str) -> str:
        return self("Cast", tensor, to=TensorProto.INT64)

    def unsqueezed(self, tensor: str, axis: int) -> str:
        return self("Unsqueeze", tensor, [axis])

    def filled(self, value: Any, shape: str) -> str:
        """Adds a tensor of one value."""
        return self("Expand", np.asarray(value), shape)

    def joined(self, *tensors: Any, axis: int) -> str:
        return self("Concat", *tensors, axis=axis)

    def distinct(self, texts: str) -> tuple[str, str]:
        """Adds the distinct texts, in order of appearance, and the place of each text among
        them.
        """
        flat = self("Reshape", texts, [-1])
        values, _, places, _ = self("Unique", flat, outputs=4, sorted=0)
        return values, places

    def numbers(self, end: str) -> str:
        return self("Range", 0, self("Squeeze", end), 1)


def _values(names: Sequence[str], kinds: Sequence[int]) -> list[ValueInfoProto]:
    """Declares tensors of any shape."""
    return [
        helper.make_tensor_value_info(name, kind, None)
        for name, kind in zip(names, kinds, strict=True)
    ]


class _WordPieces(TypedDict):
    """The model of BERT's tokenizer, as `tokenizer.json` has it."""

    continuing_subword_prefix: str
    unk_token: str
    vocab: dict[str, int]


def reads(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a tokenizer is BERT's, which `inputs` can build."""
    expected = {
        "model": "WordPiece",
        "normalizer": "BertNormalizer",
        "pre_tokenizer": "BertPreTokenizer",
    }
    for part, kind in expected.items():
        settings = tokenizer.get(part) or {}
        if settings.get("type") != kind:
            return False
    return True


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
    added = {token["content"]: token["id"] for token in read["added_tokens"]}
    ids = added | read["model"]["vocab"]
    table = {} if lexicon is None else lexicon.table
    # an extra text, dropped at the end, so that no step has an empty list of words
    first_token = next(iter(ids))
    first_word = next(iter(table), "word")
    texts = g.joined(texts, [f"{first_token} {first_word} word"], axis=0)
    loaded: Any = Tokenizer.from_str(tokenizer)
    loaded.no_padding()
    loaded.no_truncation()
    special = (*loaded.encode("").ids, pad_id)
    names = _tokens(g, texts, tokenizer, read["model"], ids, max_length - 2, special)
    if lexicon is not None:
        names["words"] = _words(g, texts, table, lexicon.columns)
    return {name: g("Slice", node, [0], [-1], [0]) for name, node in names.items()}


def _tokens(
    g: Nodes,
    texts: str,
    tokenizer: str,
    model: _WordPieces,
    ids: Mapping[str, int],
    limit: int,
    special: tuple[int, ...],
) -> dict[str, str]:
    characters, expression = _characters(tokenizer)
    words = g.head(g.split(texts, tokenexp=expression), limit, 1)
    distinct, places = g.distinct(words)
    pieces = _pieces(g, _spelled(g, distinct, characters), model, ids)
    places = g("Reshape", places, g("Shape", words))
    counts = g.count(g("GreaterOrEqual", pieces, 0), 1)
    counts = g("Gather", counts, places)
    starts = g("CumSum", counts, 1, exclusive=1)
    lengths = g("ReduceSum", counts, [1], keepdims=0)
    lengths = g("Min", lengths, limit)
    all_pieces = g("Gather", pieces, places)
    starts = g.unsqueezed(starts, 2)
    columns = g("Add", starts, g.numbers(g.size(pieces, 1)))
    is_piece = g("GreaterOrEqual", all_pieces, 0)
    fits = g("Less", columns, limit)
    where = g("Transpose", g("NonZero", g("And", is_piece, fits)))
    rows = g.size(texts, 0)
    longest = g("ReduceMax", lengths, keepdims=1)
    width = g("Add", longest, [2])
    begin, end, pad = special
    table = g.filled(pad, g.joined(rows, width, axis=0))
    row_numbers = g.unsqueezed(g.numbers(rows), 1)
    after = g("Add", g.unsqueezed(lengths, 1), 1)
    # the pieces stand one column further to the right, since each row begins with a special token
    column = g("Add", g("GatherND", columns, where), 1)
    column = g.unsqueezed(column, 1)
    cells = g.joined(g.head(where, 1, 1), column, axis=1)
    table = g("ScatterND", table, cells, g("GatherND", all_pieces, where))
    for token, place in ((begin, g("Mul", row_numbers, 0)), (end, after)):
        cells = g.joined(row_numbers, place, axis=1)
        table = g("ScatterND", table, cells, g.filled(token, rows))
    mask = g.integers(g("LessOrEqual", g.numbers(width), after))
    return {"input_ids": table, "attention_mask": mask}


def _spelled(g: Nodes, words: str, characters: Mapping[str, str]) -> str:
    signs = g.head(g.split(words, separators=[""]), 128, 1)
    unlisted = "\x01"
    replaced = g.lookup(signs, characters, unlisted)
    is_unlisted = g("Equal", replaced, np.array(unlisted))
    signs = g("Where", is_unlisted, signs, replaced)
    empty = g.filled("", g("Shape", words))

    def append_sign(b: Nodes, turn: str, spelled: str) -> tuple[Any, ...]:
        sign = b("Gather", signs, turn, axis=1)
        return None, b("StringConcat", spelled, sign)

    times = g("Squeeze", g.size(signs, 1))
    return g.loop(times, {empty: "string"}, append_sign)[0]


def _pieces(g: Nodes, words: str, model: _WordPieces, ids: Mapping[str, int]) -> str:
    signs = g.split(words, separators=[""])
    is_sign = g("Not", g("Equal", signs, np.array("")))
    lengths = g.count(is_sign, 1)
    signs = g.head(signs, _LONGEST_WORD, 1)
    size = g.size(signs, 0), g.size(signs, 1)
    best = _longest_matches(g, signs, size, model)
    matched, failed = _greedy_pieces(g, lengths, size, best)
    failed = g("Or", failed, g("Greater", lengths, _LONGEST_WORD))
    first = g("Equal", g.numbers(g.size(matched, 1)), 0)
    unknown = g("Where", first, ids[model["unk_token"]], -1)
    return g("Where", g.unsqueezed(failed, 1), unknown, matched)


def _longest_matches(
    g: Nodes, signs: str, size: tuple[str, str], model: _WordPieces
) -> tuple[str, str]:
    """The longest piece of the vocabulary from each sign on, or -1, and how many signs it has."""
    mark, vocabulary = model["continuing_subword_prefix"], model["vocab"]
    longest = max(len(piece.removeprefix(mark)) for piece in vocabulary)
    shape = g("Shape", signs)
    count, width = size
    padding = g.filled([[""] * longest], g.joined(count, [1], axis=0))
    padded = g.joined(signs, padding, axis=1)
    is_first = g("Equal", g.numbers(width), 0)
    begun = g("Where", is_first, np.array(""), np.array(mark))
    begun = g("Expand", begun, shape)
    none = g.filled(-1, shape)

    def add_sign(b: Nodes, turn: str, part: str, best: str, length: str) -> tuple[Any, ...]:
        start = b.unsqueezed(turn, 0)
        sign = b("Slice", padded, start, b("Add", start, width), [1])
        part = b("StringConcat", part, sign)
        matched = b.lookup(part, vocabulary, -1)
        is_piece = b("GreaterOrEqual", matched, 0)
        is_sign = b("Not", b("Equal", sign, np.array("")))
        holds = b("And", is_piece, is_sign)
        longer_by_one = b("Add", turn, 1)
        best = b("Where", holds, matched, best)
        length = b("Where", holds, longer_by_one, length)
        return None, part, best, length

    zero = g.filled(0, shape)
    states = {begun: "string", none: "int64", zero: "int64"}
    _, best, length = g.loop(longest, states, add_sign)
    return best, length


def _greedy_pieces(
    g: Nodes, lengths: str, size: tuple[str, str], best: tuple[str, str]
) -> tuple[str, str]:
    """The pieces of each word, [words, turns] with -1 behind the last, and which words have a part
    that is no piece.
    """
    count, width = size
    pieces, signs_of_pieces = best
    last = g("Sub", width, [1])

    def next_piece(b: Nodes, turn: str, place: str, failed: str) -> tuple[Any, ...]:
        here = b.unsqueezed(b("Min", place, last), 1)
        piece = b("Squeeze", b("GatherElements", pieces, here, axis=1), [1])
        length = b("Squeeze", b("GatherElements", signs_of_pieces, here, axis=1), [1])
        unfinished = b("Less", place, lengths)
        matched = b("And", unfinished, b("Greater", length, 0))
        unmatched = b("And", unfinished, b("Not", matched))
        failed = b("Or", failed, unmatched)
        place = b("Where", matched, b("Add", place, length), lengths)
        words_left = b.count(b("Less", place, lengths), 0)
        going = b("Greater", words_left, 0)
        return going, place, failed, b("Where", matched, piece, -1)

    states = {g.filled(0, count): "int64", g.filled(False, count): "bool"}
    _, failed, matched = g.loop(g("Squeeze", width), states, next_piece, scanned=1)
    return g("Transpose", matched, perm=[1, 0]), failed


def _words(
    g: Nodes, texts: str, table: Mapping[str, Sequence[tuple[int, int]]], columns: int
) -> str:
    matched = g.split(texts, tokenexp=f"[{_ranges(_letters())}]{{3,}}")
    distinct, places = g.distinct(matched)
    row_of = {word: row for row, word in enumerate(table)}
    rows = g.lookup(_spelled(g, distinct, _lower()), row_of, -1)
    rows = g("Gather", rows, places)
    of_texts = g("Reshape", rows, g("Shape", matched))
    where = g("NonZero", g("GreaterOrEqual", of_texts, 0))
    row = g("GatherND", of_texts, g("Transpose", where))
    numbers_of_entries = [len(entry) for entry in table.values()]
    counts = g("Gather", numbers_of_entries, row)
    firsts = g("Gather", np.cumsum([0, *numbers_of_entries[:-1]]), row)
    # Repeat each word of a text once per entry. The word number increases where the entries of the
    # next word begin.
    ends = g("CumSum", counts, 0)
    begins = g("Sub", ends, counts)
    total = g("ReduceMax", ends, keepdims=1)
    ones = g.filled(1, g("Shape", begins))
    steps = g("ScatterElements", g.filled(0, total), begins, ones, axis=0)
    number = g("Sub", g("CumSum", steps, 0), 1)
    within = g("Sub", g.numbers(total), g("Gather", begins, number))
    entry = g("Add", g("Gather", firsts, number), within)
    flat = np.array([pair for pairs in table.values() for pair in pairs])
    column_of, likeness_of = flat[:, 0].astype(np.int32), flat[:, 1].astype(np.uint8)
    text = g("Gather", where, 0, axis=0)
    text = g("Gather", text, number)
    column = g.integers(g("Gather", column_of, entry))
    likeness = g("Cast", g("Gather", likeness_of, entry), to=TensorProto.FLOAT)
    cells = g.joined(g.unsqueezed(text, 1), g.unsqueezed(column, 1), axis=1)
    shape = g.joined(g.size(texts, 0), [columns], axis=0)
    block = g.filled(np.array(0, np.float32), shape)
    likest = g("ScatterND", block, cells, likeness, reduction="max")
    return g("Div", likest, np.array(_STEPS, np.float32))


@lru_cache(maxsize=2)
def _characters(tokenizer: str) -> tuple[dict[str, str], str]:
    from tokenizers import Tokenizer

    loaded: Any = Tokenizer.from_str(tokenizer)
    replaced: dict[str, str] = {}
    alone, between = set[int](), set[int]()
    for point in _CODE_POINTS:
        sign = chr(point)
        is_unassigned = unicodedata.category(sign) in ("Cn", "Co", "Cs")
        if is_unassigned or re.match(f"[{_IDEOGRAPHS}]", sign):
            continue
        normal = loaded.normalizer.normalize_str(f"a{sign}a")
        words = [word for word, _ in loaded.pre_tokenizer.pre_tokenize_str(normal)]
        if words == ["a", "a"]:
            between.add(point)
            continue
        if len(words) > 1:
            alone.add(point)
        spelled = normal[1:-1].strip()
        if spelled != sign:
            replaced[sign] = spelled
    isolated = rf"{_ranges(alone)}{_ranges(_points(_IDEOGRAPHS))}"
    return replaced, rf"[{isolated}]|[^{isolated}{_ranges(between)}]+"


def _points(ranges: str) -> Iterator[int]:
    for first, last in re.findall("(.)-(.)", ranges):
        yield from range(ord(first), ord(last) + 1)


@lru_cache(maxsize=1)
def _letters() -> tuple[int, ...]:
    return tuple(point for point in range(0x30000) if re.fullmatch(r"[^\W\d_]", chr(point)))


def _lower() -> dict[str, str]:
    lower: dict[str, str] = {}
    for sign in map(chr, _CODE_POINTS):
        if sign.lower() != sign:
            lower[sign] = sign.lower()
    return lower


def _ranges(points: Iterable[int]) -> str:
    ranges: list[list[int]] = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in ranges)
