"""Measures the quality of coded tables: draws a sample for manual coding, and compares the manual
codes with the model's.

The human coder does not see the model's code. All rows with sensitive codes are drawn. The rest is
a simple random sample or a stratified sample. Each row's weight is one over its sampling
probability, so that agreement is estimated for the whole table and not for the sample.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random, SystemRandom

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.durable import replace_atomically
from storage.errors import Contradiction, Missing, OutOfRange
from storage.ingest.cell_digests import normal_form
from storage.json_values import Json
from storage.spelling import human_codes
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import Table, pieces, survey
from storage.tables.writer import open_writer, output_kind
from tasks.coding.strata import Stratum, scores_of, stratify

ROW, HUMAN, WEIGHT = "qa_row", "human_code", "qa_weight"
_BOOTSTRAP, _SEEN, _MOST_GROUPS = 1000, 1000, 3


@dataclass(frozen=True)
class DrawnSample:
    rows: int
    sampled: int
    sensitive: int


def text_column(coded: Path, prefix: str = "", read: ReadOptions = AS_IT_LOOKS) -> str:
    """Returns the column of a coded table that probably has the narratives: the one with the
    longest texts to the left of the answers.
    """
    table = survey(coded, text_columns=[f"{prefix}code"], option="CODED", read=read)
    input_columns = table.columns[: table.columns.index(f"{prefix}code")]
    if not input_columns:
        raise Missing(
            "--text: the table has only the columns of the answers. Specify the "
            "column of the narratives.",
            kind="no-text-column",
        )
    rows = list(islice(table.text_rows(input_columns), _SEEN))
    lengths = [sum(map(len, cells)) for cells in zip(*rows, strict=True)]
    return input_columns[lengths.index(max(lengths))]


def draw(
    coded: Path,
    out: Path,
    *,
    columns: Sequence[str],
    seed: int | None,
    share: float = 0.05,
    sensitive: Collection[str] = (),
    size: int | None = None,
    prefix: str = "",
    read: ReadOptions = AS_IT_LOOKS,
) -> DrawnSample:
    """Writes a sample of a coded table: row number, text, weight, and an empty column for the
    manual code.

    Rows without a code are included, because a person may not consider them blank.

    Args:
        columns: the columns for the human coder.
        seed: makes a sample repeatable. Without a seed, no one can predict it.
        share: share of the rows to draw, apart from rows with sensitive codes, which are all drawn.
        size: total number of rows, instead of the share; the sample is then stratified with
            Neyman's allocation (`tasks.coding.strata`).
        prefix: prefix of one bundle's columns, if the table has the codes of several bundles.
    """
    if out.exists():
        raise Contradiction(
            f"--out: {out} exists and may contain work. Specify another file.", kind="sample-exists"
        )
    kind = output_kind(out)
    code, human = f"{prefix}code", f"{prefix}{HUMAN}"
    sample_columns = [ROW, *columns, WEIGHT, human]
    if twice := [name for name, count in Counter(sample_columns).items() if count > 1]:
        raise Contradiction(
            f"--text {twice[0]!r}: the sample already has such a column. Leave it out, or rename "
            "it.",
            kind="column-in-sample",
            column=twice[0],
        )
    table = survey(coded, text_columns=[code, *columns], option="CODED", read=read)
    rng = Random(seed) if seed is not None else SystemRandom()
    always = {row for row, (cell,) in enumerate(table.text_rows([code])) if cell in sensitive}
    remaining = [row for row in range(table.rows) if row not in always]
    if size is None:
        strata = [Stratum(remaining, math.ceil(share * len(remaining)))]
    elif size <= len(always):
        raise OutOfRange(
            f"--rows: there are {len(always)} rows with sensitive codes alone. "
            f"Use more than {size}.",
            kind="too-few-rows",
        )
    else:
        strata = stratify(*scores_of(table, prefix), remaining, size=size - len(always))
    weight = dict.fromkeys(always, 1.0)
    for stratum in strata:
        weight |= dict.fromkeys(rng.sample(stratum.rows, stratum.size), stratum.weight)
    kinds = [pa.int64(), *[pa.string()] * len(columns), pa.float64(), pa.string()]
    schema = pa.schema(list(zip(sample_columns, kinds, strict=True)))
    picked = (
        (number + 1, *row, round(weight[number], 6), None)
        for number, row in enumerate(table.text_rows(columns))
        if number in weight
    )
    with replace_atomically(out, source=coded) as fresh, open_writer(fresh, kind, schema) as write:
        for piece in pieces(picked, columns=len(schema)):
            write(piece)
    return DrawnSample(rows=table.rows, sampled=len(weight), sensitive=len(always))


@dataclass(frozen=True)
class DoubleCoded:
    """A coded table with the manual codes of its sample."""

    codes: list[str]
    """The model's code of every row."""
    groups: list[tuple[str, ...]]
    """Cells of the grouping columns of every row."""
    titles: dict[str, str]
    rows: NDArray[np.int64]
    """Row indices in the table of the sampled rows with a manual code."""
    human: list[str]
    """The manual code of each of `rows`."""
    weights: NDArray[np.float64]
    """One over the probability that each of `rows` was drawn."""
    missing: NDArray[np.float64]
    """The weights of sampled rows that were returned without a code."""
    people: str
    """Summary of the manual codes: listed, unlisted, missing."""
    by: tuple[str, ...] = ()
    """Names of the grouping columns."""


def read_double_coded(
    coded: Path,
    sample: Path,
    *,
    by: Sequence[str] = (),
    prefix: str = "",
    listed: Collection[str] = (),
    allow_unlisted: bool = False,
    read: ReadOptions = AS_IT_LOOKS,
) -> DoubleCoded:
    """Reads a coded table and a sample of it that people filled in.

    Args:
        sample: file from `autocoder sample` with manual codes, possibly saved by a spreadsheet
            program.
        listed: all valid codes. If empty, they are unknown and only codes in the table are valid.
        allow_unlisted: whether unlisted codes count as codes of their own.
        read: how the sample is read.
    """
    if len(by) > _MOST_GROUPS or len(set(by)) < len(by):
        raise OutOfRange(
            f"--by: specify at most {_MOST_GROUPS} different columns.", kind="grouping-columns"
        )
    table = survey(coded, text_columns=[f"{prefix}code", *by], option="CODED")
    title = [f"{prefix}title"] if f"{prefix}title" in table.columns else []
    codes: list[str] = []
    groups: list[tuple[str, ...]] = []
    titles: dict[str, str] = {}
    for row in table.text_rows([f"{prefix}code", *by, *title]):
        code, *cells = map(_plain, row)
        codes.append(code)
        groups.append(tuple(cells[: len(by)]))
        titles.setdefault(code, "".join(cells[len(by) :]))
    columns = [ROW, WEIGHT, f"{prefix}{HUMAN}"]
    returned = survey(sample, text_columns=columns, option="--sample", read=read)
    manual_codes: dict[int, tuple[float, str]] = {}
    texts: dict[int, Sequence[str]] = {}
    beside = [
        name for name in returned.columns if name not in columns and table.columns.count(name) == 1
    ]
    for number, row in enumerate(returned.text_rows([*columns, *beside]), start=1):
        place, weight, cell, *text_cells = map(_plain, row)
        rank, value = _number(place), _number(weight)
        # a weight is one over a probability, which is at least one over the number of rows
        if (
            rank != int(rank)
            or not 1 <= rank <= len(codes)
            or not 1 <= value <= len(codes)
            or int(rank) - 1 in manual_codes
        ):
            raise Contradiction(
                f"--sample: {sample}, row {number}: {ROW} or {WEIGHT} differs "
                "from the sample that was taken, or the row occurs twice. Use "
                "the sample as it was taken, with its codes.",
                kind="changed-sample",
                row=number,
            )
        manual_codes[int(rank) - 1] = (value, cell)
        texts[int(rank) - 1] = text_cells
    _require_own_rows(table, texts, beside, f"--sample: {sample}")
    _require_own_codes(
        [cell for _, cell in manual_codes.values()],
        [codes[place] for place in manual_codes],
        f"--sample: {sample}, column {columns[-1]!r}",
    )
    read_codes, people = human_codes(
        [cell for _, cell in manual_codes.values()],
        set(listed or codes) - {""},
        place=f"--sample: {sample}, column {columns[-1]!r}",
        allowed=allow_unlisted,
        complete=bool(listed),
        marks=read.missing,
    )
    human = np.array(read_codes)
    has = human != ""
    if not has.any():
        raise Missing(
            f"--sample: {sample}: no row has a {columns[-1]}. Fill in the column.",
            kind="no-codes-in-sample",
            column=columns[-1],
        )
    places, weights = (
        np.array(list(manual_codes)),
        np.array([weight for weight, _ in manual_codes.values()]),
    )
    order = np.argsort(places[has])
    return DoubleCoded(
        codes=codes,
        groups=groups,
        titles=titles,
        rows=places[has][order],
        human=human[has][order].tolist(),
        weights=weights[has][order],
        missing=weights[~has],
        people=people,
        by=tuple(by),
    )


def _require_own_rows(
    table: Table, texts: Mapping[int, Sequence[str]], columns: Sequence[str], place: str
) -> None:
    """Refuses a sample with text cells that differ from those of the coded table's rows."""
    differing = 0
    if columns:
        for number, row in enumerate(table.text_rows(columns)):
            cells = texts.get(number)
            differing += cells is not None and not all(map(_is_same, cells, row))
    if differing:
        raise Contradiction(
            f"{place}: in {differing:,} of {len(texts):,} rows the text differs from "
            f"that of the coded table's row in {ROW}. Either one column was "
            "sorted alone, or the sample is of another table. Use the sample as "
            "it was taken, with its codes.",
            kind="sorted-alone",
        )


def _is_same(first: str, second: str) -> bool:
    """True if two cells have the same letters, as far as spreadsheet programs preserve them."""
    if len(first) >= _CELL or len(second) >= _CELL:
        first, second = first[: _CELL // 2], second[: _CELL // 2]
    if normal_form(first) == normal_form(second):
        return True
    plain = [re.sub(r"[^a-z0-9]", "", cell.casefold()) for cell in (first, second)]
    accents = not (first.isascii() and second.isascii())  # saved as ? in some encodings
    return accents and bool(plain[0]) and plain[0] == plain[1]


_CELL = 32_000
"""Length in characters at which spreadsheet programs truncate a cell."""


def _require_own_codes(human: Sequence[str], model: Sequence[str], place: str) -> None:
    """Refuses manual codes in alphabetical order if the model's codes of the same
    rows are not sorted.
    """
    pairs = [
        (code, model_code) for code, model_code in zip(human, model, strict=True) if code.strip()
    ]
    codes, model_codes = [code for code, _ in pairs], [model_code for _, model_code in pairs]
    arrangements = math.lgamma(len(codes) + 1) - sum(
        math.lgamma(count + 1) for count in Counter(codes).values()
    )
    if arrangements < _BY_CHANCE:
        return
    for order in (_numbers_first, str):
        for falls in (False, True):
            if codes == sorted(codes, key=order, reverse=falls) and model_codes != sorted(
                model_codes, key=order, reverse=falls
            ):
                raise Contradiction(
                    f"{place}: the codes are in order, but those of the model for "
                    "the same rows are not, so the column was sorted alone. Use "
                    "the sample as it was taken, with its codes.",
                    kind="sorted-codes",
                )


_BY_CHANCE = math.log(1e9)
"""Logarithm of the number of arrangements above which sorted codes cannot be a coincidence."""


def _numbers_first(code: str) -> tuple[int, float, str]:
    number = _number(code)
    return (0, number, "") if number else (1, 0.0, code.casefold())


def _plain(cell: str) -> str:
    return cell.strip().removeprefix("'")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


@dataclass(frozen=True)
class CodeAgreement:
    code: str
    human: int
    model: int
    both: int

    @property
    def f1(self) -> float:
        return 2 * self.both / (self.human + self.model)


@dataclass(frozen=True)
class Agreement:
    rows: int
    missing: int
    """Sampled rows that were returned without a code."""
    share: float
    share_interval: tuple[float, float]
    kappa: float | None
    """Cohen's kappa. None if both gave one code throughout, so that chance explains everything."""
    kappa_interval: tuple[float, float] | None
    codes: tuple[CodeAgreement, ...]
    """By code, from unweighted rows of the sample; the most frequent manual code first."""
    people: str = ""

    def as_dict(self) -> dict[str, Json]:
        codes = [vars(code) | {"f1": round(code.f1, 4)} for code in self.codes]
        return vars(self) | {"codes": codes, "confidence": 0.95}


def agreement(table: DoubleCoded) -> Agreement:
    """Compares manual codes with the model's.

    Shares and kappa are weighted by one over the probability of being sampled. The intervals are
    percentile bootstrap intervals over the sampled rows (95%, 1,000 resamples). With fewer than
    about 30 rows they are too narrow.
    """
    model_codes = [table.codes[row] for row in table.rows]
    names, numbers = np.unique([*table.human, *model_codes], return_inverse=True)
    human, model = np.split(numbers, 2)
    rng, n = np.random.default_rng(0), len(model_codes)
    picks = [np.arange(n), *rng.integers(0, n, (_BOOTSTRAP, n))]
    figures = np.array(
        [_share_and_kappa(human[p], model[p], table.weights[p], len(names)) for p in picks]
    )
    share, kappa = figures[0].tolist()
    shares, kappas = figures[1:].T
    defined = not math.isnan(kappa)
    counted, mine = Counter(table.human), Counter(model_codes)
    both = Counter(
        code
        for code, model_code in zip(table.human, model_codes, strict=True)
        if code == model_code
    )
    return Agreement(
        rows=n,
        missing=len(table.missing),
        share=round(share, 4),
        share_interval=_interval(shares),
        kappa=round(kappa, 4) if defined else None,
        kappa_interval=_interval(kappas[~np.isnan(kappas)]) if defined else None,
        codes=tuple(
            CodeAgreement(code, rows, mine[code], both[code])
            for code, rows in counted.most_common()
        ),
        people=table.people,
    )


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def _share_and_kappa(
    a: NDArray[np.int64], b: NDArray[np.int64], weights: NDArray[np.float64], codes: int
) -> tuple[float, float]:
    """Returns the weighted share of equal codes p_o, and kappa = (p_o - p_e) / (1 -
    p_e) (Cohen 1960), or NaN.
    """
    total = weights.sum()
    observed = float(weights[a == b].sum() / total)
    first, second = (np.bincount(side, weights=weights, minlength=codes) / total for side in (a, b))
    chance = float(first @ second)
    return observed, math.nan if chance > 1 - 1e-12 else (observed - chance) / (1 - chance)
