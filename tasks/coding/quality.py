"""Measures the quality of coded tables: draws a sample for people to code, and compares their codes with the model's.

The sample shows how reliable the scores are on an agency's narratives. The human coder does not see the model's code.
All rows with sensitive codes are drawn; the rest is a simple random sample, or one of strata. Each row has the weight
one over its sampling probability, so that agreement is estimated for the whole table and not for the sample.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from storage import strict_yaml
from storage.durable import replace_atomically
from storage.errors import InputError
from storage.spelling import HumanCodes
from storage.tables.reader import Row, pieces, survey
from storage.tables.writer import open_writer, output_kind
from tasks.coding.strata import Stratum, stratify

ROW, HUMAN, WEIGHT = "qa_row", "human_code", "qa_weight"
_BOOTSTRAP, _SEEN = 1000, 1000


class Policy(BaseModel, frozen=True, extra="forbid"):
    """Holds an agency's rule on which rows are coded twice."""

    share: float = Field(default=0.05, gt=0, le=1, description="Share of all coded rows.")
    sensitive_codes: tuple[str, ...] = Field(default=(), description="Codes that are always coded twice.")


def read_policy(path: Path) -> Policy:
    """Reads a YAML file of `share` and `sensitive_codes`.

    Raises:
        InputError: names the file and the field.
    """
    try:
        return Policy.model_validate(strict_yaml.load(path.read_text(encoding="utf-8")) or {})
    except (OSError, UnicodeDecodeError):
        fault = "it cannot be read"
    except yaml.YAMLError as error:
        fault = f"it is not valid YAML ({getattr(error, 'problem', None) or 'it does not read'})"
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    raise InputError(f"--policy: {path}: {fault}")


@dataclass(frozen=True)
class Sample:
    """Holds the sizes of a sample."""

    rows: int
    sampled: int
    sensitive: int


def text_column(coded: Path, prefix: str = "") -> str:
    """Returns the column of a coded table that the narratives seem to be in: the longest texts left of the answers.

    Raises:
        InputError: it is no coded table, or has the answers alone.
    """
    table = survey(coded, text_columns=[])
    code = f"{prefix}code"
    if code not in table.columns:
        raise InputError(f"CODED: {coded} has no column {code!r}. Give a table that `autocoder code` wrote.")
    given = table.columns[: table.columns.index(code)]
    if not given:
        raise InputError("--text: the table has no column but the answers. Name that of the narratives.")
    rows = list(islice(table.text_rows(given), _SEEN))
    return max(given, key=lambda name: sum(len(row[given.index(name)]) for row in rows))


def draw(
    coded: Path,
    out: Path,
    *,
    columns: Sequence[str],
    policy: Policy,
    seed: int | None,
    size: int | None = None,
    prefix: str = "",
) -> Sample:
    """Writes the sample of a coded table: row number, text, weight and an empty column for the human's code.

    Rows without a code take part: they may not be blank to a person.

    Args:
        columns: the columns for the human coder.
        seed: repeats a sample. Without a seed nobody can predict it.
        size: rows in all, in place of the policy's share: stratified, by Neyman's allocation (`tasks.coding.strata`).
        prefix: of the columns of one bundle, where the table has the codes of several.

    Raises:
        InputError: the table lacks a column, the output exists, or the sensitive codes
            have more rows than the size.
    """
    if out.exists():
        raise InputError(f"--out: {out} exists and may contain work. Name another file.")
    kind = output_kind(out)
    code, human = f"{prefix}code", f"{prefix}{HUMAN}"
    taken = (ROW, WEIGHT, human)
    if twice := [name for at, name in enumerate(columns) if name in taken or name in columns[:at]]:
        raise InputError(f"--text {twice[0]!r}: the sample has such a column already. Leave it out, or rename it.")
    table = survey(coded, text_columns=[code, *columns])
    rng = Random(seed) if seed is not None else SystemRandom()
    always = {at for at, (cell,) in enumerate(table.text_rows([code])) if cell in policy.sensitive_codes}
    others = [at for at in range(table.rows) if at not in always]
    if size is None:
        strata = [Stratum(others, math.ceil(policy.share * len(others)))]
    elif size <= len(always):
        raise InputError(f"--hours: they allow {size} rows, and sensitive codes have {len(always)}. Give more hours.")
    else:
        strata = stratify(coded, others, prefix=prefix, size=size - len(always))
    weight = dict.fromkeys(always, 1.0)
    for stratum in strata:
        weight |= dict.fromkeys(rng.sample(stratum.rows, stratum.size), stratum.weight)
    schema = pa.schema(
        [
            (ROW, pa.int64()),
            *((name, pa.string()) for name in columns),
            (WEIGHT, pa.float64()),
            (human, pa.string()),
        ]
    )
    picked: Iterator[Row] = (
        (at + 1, *row, round(weight[at], 6), None) for at, row in enumerate(table.text_rows(columns)) if at in weight
    )
    with replace_atomically(out, source=coded) as fresh, open_writer(fresh, kind, schema) as write:
        for piece in pieces(picked, columns=len(schema)):
            write(piece)
    return Sample(rows=table.rows, sampled=len(weight), sensitive=len(always))


@dataclass(frozen=True)
class CodeAgreement:
    """Holds the agreement on one code of the human coder."""

    code: str
    human: int
    model: int
    both: int

    @property
    def f1(self) -> float:
        """Returns 2 both / (human + model)."""
        return 2 * self.both / (self.human + self.model)


@dataclass(frozen=True)
class Agreement:
    """Holds the agreement of the model's codes with the human's."""

    rows: int
    missing: int
    """Rows of the sample that were returned without a code."""
    share: float
    share_interval: tuple[float, float]
    kappa: float | None
    """Cohen's kappa; None if both gave one code throughout, so that chance explains everything."""
    kappa_interval: tuple[float, float] | None
    codes: tuple[CodeAgreement, ...]
    """Unweighted rows of the sample, the human's most frequent code first."""
    people: str = ""
    """Account of the human's codes: on the list, not on it, missing."""

    def as_dict(self) -> dict[str, Any]:
        """Returns the content for JSON."""
        content = {
            name: getattr(self, name) for name in ("people", "rows", "missing", "share", "share_interval", "kappa")
        }
        per_code = [vars(code) | {"f1": round(code.f1, 4)} for code in self.codes]
        return content | {"kappa_interval": self.kappa_interval, "confidence": 0.95, "codes": per_code}


def agreement(
    coded: Path, sample: Path, *, prefix: str = "", listed: Collection[str] = (), allow_unlisted: bool = False
) -> Agreement:
    """Compares the returned codes with those of the sampled table.

    The human's codes went through a table program and are read by `HumanCodes`; the model's are not.
    Shares and kappa are weighted by one over the probability of being sampled. The intervals are percentile bootstrap
    intervals over the sampled rows (95 %, 1,000 resamples); with under some 30 rows they are too narrow.

    Raises:
        InputError: a column is missing, a row number occurs twice or not in the table, or no row has a code.
    """
    model_column = f"{prefix}code"
    table = survey(coded, text_columns=[model_column])
    codes = [unquoted(code) for (code,) in table.text_rows([model_column])]
    people = HumanCodes(listed or set(codes) - {""}, complete=bool(listed))
    human, missing = read_returned(sample, people, prefix=prefix, codes=codes)
    people.require_listed(f"--sample: {sample}, column {prefix + HUMAN!r}", allowed=allow_unlisted)
    rows = sorted(human)
    theirs, given = [human[at][0] for at in rows], [codes[at - 1] for at in rows]
    names = sorted({*theirs, *given})
    place = {name: at for at, name in enumerate(names)}
    a, b = np.array([place[code] for code in theirs]), np.array([place[code] for code in given])
    weights = np.array([human[at][1] for at in rows])
    rng = np.random.default_rng(0)
    resampled = [
        _share_and_kappa(a[pick], b[pick], weights[pick], len(names))
        for pick in (rng.integers(0, len(rows), len(rows)) for _ in range(_BOOTSTRAP))
    ]
    share, kappa = _share_and_kappa(a, b, weights, len(names))
    kappas = [value for _, value in resampled if value is not None]
    counted, mine = Counter(theirs), Counter(given)
    both = Counter(x for x, y in zip(theirs, given, strict=True) if x == y)
    return Agreement(
        rows=len(rows),
        missing=len(missing),
        share=round(share, 4),
        share_interval=_interval([value for value, _ in resampled]),
        kappa=None if kappa is None else round(kappa, 4),
        kappa_interval=None if kappa is None else _interval(kappas),
        codes=tuple(CodeAgreement(code, n, mine[code], both[code]) for code, n in counted.most_common()),
        people=people.sentence,
    )


def read_returned(
    sample: Path, people: HumanCodes, *, prefix: str, codes: Sequence[str]
) -> tuple[dict[int, tuple[str, float]], list[float]]:
    """Reads a sample that came back: code and weight by row number, and the weights of rows without a code.

    `codes` are the model's, of the sampled table in its order.
    """
    human_code = f"{prefix}{HUMAN}"
    returned = survey(sample, text_columns=[ROW, human_code, WEIGHT], option="--sample")
    given: dict[int, tuple[str, float]] = {}
    for number, cells in enumerate(returned.text_rows([ROW, human_code, WEIGHT]), start=1):
        row, code, weight = map(unquoted, cells)
        at, value = _number(row), _number(weight)
        # a weight is one over a probability that is one over the rows at least
        if at is None or value is None or at != int(at) or not 1 <= at <= len(codes) or not 1 <= value <= len(codes):
            raise InputError(f"--sample: {sample}, row {number}: {ROW} or {WEIGHT} differs from the drawn sample.")
        if int(at) in given:
            raise InputError(f"--sample: {sample}, row {number}: {ROW} {int(at)} occurs twice.")
        given[int(at)] = (code, value)
    read = dict(zip(given, people.read([code for code, _ in given.values()]), strict=True))
    human = {at: (read[at], weight) for at, (_, weight) in given.items() if read[at]}
    missing = [weight for at, (_, weight) in given.items() if not read[at]]
    if not human:
        raise InputError(f"--sample: {sample}: no row has a {human_code}. Fill in the column.")
    return human, missing


def _share_and_kappa(
    a: NDArray[np.int64], b: NDArray[np.int64], weights: NDArray[np.float64], codes: int
) -> tuple[float, float | None]:
    """Returns the weighted share of equal codes p_o, and kappa = (p_o - p_e) / (1 - p_e) (Cohen 1960)."""
    total = weights.sum()
    observed = float(weights[a == b].sum() / total)
    first, second = (np.bincount(side, weights=weights, minlength=codes) / total for side in (a, b))
    chance = float(first @ second)
    return observed, None if chance > 1 - 1e-12 else (observed - chance) / (1 - chance)


def _interval(values: Sequence[float]) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return round(float(low), 4), round(float(high), 4)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def unquoted(cell: str) -> str:
    """Returns a cell without outer blanks and the apostrophe that guards against formulas."""
    return cell.strip().removeprefix("'")
