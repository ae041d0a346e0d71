"""Quality of coded tables: a sample that people code again, and how far they agree with the model.

The sample is what says whether the scores can be believed here, on this agency's own narratives. Whoever codes it does
not see the model's code. Codes named sensitive are all taken; the rest is a simple random sample. Each row remembers
one over its probability of being taken, so that agreement is estimated for the whole table and not for the sample.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import numpy as np
import pyarrow as pa
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from storage import strict_yaml
from storage.codelist import normalise_code
from storage.durable import replacing
from storage.errors import InputError
from storage.tables.reading import Row, pieces, survey
from storage.tables.writing import kind_of, writing
from tasks.coding.names import code_column, fields_of

ROW, HUMAN, WEIGHT = "qa_row", "human_code", "qa_weight"
_BOOTSTRAP = 1000


class Policy(BaseModel, frozen=True, extra="forbid"):
    """What an agency has decided to have coded twice."""

    share: float = Field(default=0.05, gt=0, le=1, description="Of all coded rows.")
    sensitive_codes: tuple[str, ...] = Field(
        default=(), description="Coded twice always. Where there are several fields: `nature=1311`, field and code."
    )


def read_policy(path: Path) -> Policy:
    """Read a YAML file of `share` and `sensitive_codes`.

    Raises:
        InputError: names the file and the field.
    """
    try:
        return Policy.model_validate(strict_yaml.load(path.read_text(encoding="utf-8")) or {})
    except (OSError, UnicodeDecodeError):
        fault = "it cannot be read"
    except yaml.YAMLError as error:
        fault = f"it is no YAML ({getattr(error, 'problem', None) or 'it does not read'})"
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    raise InputError(f"--policy: {path}: {fault}")


@dataclass(frozen=True)
class Drawn:
    """What a sample took."""

    rows: int
    sampled: int
    sensitive: int


def human_column(field: str) -> str:
    """Where a person writes the code of a field."""
    return f"human_{field}" if field else HUMAN


def draw(coded: Path, out: Path, *, columns: Sequence[str], policy: Policy, seed: int | None) -> Drawn:
    """Write the sample of a coded table: row number, text, weight and an empty column for the human's code of each
    field.

    Rows without a code take part: nothing was said in them, or so it was thought.

    Args:
        columns: what the human coder reads.
        seed: repeats a sample; without one it cannot be foreseen by whoever made the table.

    Raises:
        InputError: the table has no column `code` or lacks one of the others; a sensitive code is of no field; the
            output is there.
    """
    if out.exists():
        raise InputError(f"--out: {out} is there; name another file, it may hold somebody's work")
    kind = kind_of(out)
    fields = fields_of(survey(coded, text_columns=[]))
    own = [code_column(field) for field in fields]
    table = survey(coded, text_columns=[*own, *columns])
    rng = Random(seed) if seed is not None else SystemRandom()
    sensitive = _sensitive(policy, fields)
    always = {
        at
        for at, row in enumerate(table.text_rows(own))
        if any((field, code) in sensitive for field, code in zip(fields, row, strict=True))
    }
    others = [at for at in range(table.rows) if at not in always]
    size = math.ceil(policy.share * len(others))
    taken = set(rng.sample(others, size))
    weight = len(others) / size if size else 1.0
    blank: Row = (None,) * len(fields)
    schema = pa.schema(
        [
            (ROW, pa.int64()),
            *((name, pa.string()) for name in columns),
            (WEIGHT, pa.float64()),
            *((human_column(field), pa.string()) for field in fields),
        ]
    )
    picked: Iterator[Row] = (
        (at + 1, *row, 1.0 if at in always else round(weight, 6), *blank)
        for at, row in enumerate(table.text_rows(columns))
        if at in always or at in taken
    )
    with replacing(out) as fresh, writing(fresh, kind, schema) as write:
        for piece in pieces(picked, columns=len(schema)):
            write(piece)
    return Drawn(rows=table.rows, sampled=size + len(always), sensitive=len(always))


def _sensitive(policy: Policy, fields: Sequence[str]) -> set[tuple[str, str]]:
    if fields == ("",):
        return {("", code) for code in policy.sensitive_codes}
    pairs = {(name, code) for name, _, code in (one.partition("=") for one in policy.sensitive_codes)}
    if wrong := sorted(name for name, code in pairs if name not in fields or not code):
        raise InputError(
            f"--sensitive: {wrong[0]!r} is no field and code of this table, such as {fields[0]}=CODE; its fields are "
            f"{', '.join(fields)}"
        )
    return pairs


@dataclass(frozen=True)
class CodeAgreement:
    """One code of the human's: how often the model gave it, too."""

    code: str
    human: int
    model: int
    both: int

    @property
    def f1(self) -> float:
        """2 both / (human + model)."""
        return 2 * self.both / (self.human + self.model)


@dataclass(frozen=True)
class Agreement:
    """The model's codes against the human's."""

    rows: int
    missing: int
    """Rows of the sample that came back without a code."""
    share: float
    share_interval: tuple[float, float]
    kappa: float | None
    """Cohen's kappa; None where both gave one and the same code throughout, and chance explains everything."""
    kappa_interval: tuple[float, float] | None
    codes: tuple[CodeAgreement, ...]
    """Most frequent with the human first; rows of the sample, not weighted."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = {name: getattr(self, name) for name in ("rows", "missing", "share", "share_interval", "kappa")}
        per_code = [vars(code) | {"f1": round(code.f1, 4)} for code in self.codes]
        return told | {"kappa_interval": self.kappa_interval, "confidence": 0.95, "codes": per_code}


def agreements(coded: Path, sample: Path) -> dict[str, Agreement]:
    """`agreement` of each field of a coded table, by its name; of the only one by the name "".

    Raises:
        InputError: what `agreement` refuses.
    """
    return {field: agreement(coded, sample, field=field) for field in fields_of(survey(coded, text_columns=[]))}


def agreement(coded: Path, sample: Path, *, field: str = "") -> Agreement:
    """Compare the codes that came back with those of the table that was sampled.

    The human's codes went through a table program and are read as `normalise_code` does; the model's stand as they are.
    Shares and kappa are weighted by one over the probability of being sampled. The intervals are percentile bootstrap
    intervals over the sampled rows (95 %, 1,000 resamples); with under some 30 rows they are too narrow.

    Raises:
        InputError: a column is missing, a row number is doubled or not in the table, or no row has a code.
    """
    own, given_by = code_column(field), human_column(field)
    table = survey(coded, text_columns=[own])
    returned = survey(sample, text_columns=[ROW, given_by, WEIGHT], option="--sample")
    codes = [_unquoted(code) for (code,) in table.text_rows([own])]
    known = set(codes)
    human: dict[int, tuple[str, float]] = {}
    missing = 0
    for number, cells in enumerate(returned.text_rows([ROW, given_by, WEIGHT]), start=1):
        row, code, weight = map(_unquoted, cells)
        at, value = _number(row), _number(weight)
        # a weight is one over a probability that is one over the rows at least
        if at is None or value is None or at != int(at) or not 1 <= at <= table.rows or not 1 <= value <= table.rows:
            raise InputError(f"--sample: {sample}, row {number}: {ROW} or {WEIGHT} is not as it was drawn")
        if int(at) in human:
            raise InputError(f"--sample: {sample}, row {number}: {ROW} {int(at)} is there twice")
        if code:
            human[int(at)] = (normalise_code(code, known), value)
        else:
            missing += 1
    if not human:
        raise InputError(f"--sample: {sample}: no row has a {given_by}; fill the column in")
    rows = sorted(human)
    told, given = [human[at][0] for at in rows], [codes[at - 1] for at in rows]
    names = sorted({*told, *given})
    place = {name: at for at, name in enumerate(names)}
    a, b = np.array([place[code] for code in told]), np.array([place[code] for code in given])
    weights = np.array([human[at][1] for at in rows])
    rng = np.random.default_rng(0)
    resampled = [
        _share_and_kappa(a[pick], b[pick], weights[pick], len(names))
        for pick in (rng.integers(0, len(rows), len(rows)) for _ in range(_BOOTSTRAP))
    ]
    share, kappa = _share_and_kappa(a, b, weights, len(names))
    kappas = [value for _, value in resampled if value is not None]
    counted, mine, both = Counter(told), Counter(given), Counter(x for x, y in zip(told, given, strict=True) if x == y)
    return Agreement(
        rows=len(rows),
        missing=missing,
        share=round(share, 4),
        share_interval=_interval([value for value, _ in resampled]),
        kappa=None if kappa is None else round(kappa, 4),
        kappa_interval=None if kappa is None else _interval(kappas),
        codes=tuple(CodeAgreement(code, n, mine[code], both[code]) for code, n in counted.most_common()),
    )


def _share_and_kappa(
    a: NDArray[np.int64], b: NDArray[np.int64], weights: NDArray[np.float64], codes: int
) -> tuple[float, float | None]:
    """Weighted share of equal codes p_o, and kappa = (p_o - p_e) / (1 - p_e) (Cohen 1960)."""
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


def _unquoted(cell: str) -> str:
    """A cell without outer blanks and without the apostrophe that keeps a table program from reading a formula."""
    return cell.strip().removeprefix("'")
