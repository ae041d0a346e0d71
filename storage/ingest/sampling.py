"""Selects the records of each split.

`stratified` is the sample and split of Chew et al., section 3.1. Row n of the source has a random
rank, the n-th output of a seeded generator, whatever happens to other rows. In each group, the
records with the lowest ranks are used. Records therefore affect each other: removing one shifts the
rows behind it, lets another in under the cap, and may change how shares are apportioned.

`per-record` uses only each record's identity, code, date and unit, with fixed thresholds, so
adding, removing or changing a record never moves another one. If units are capped, this holds for
units: which records of a unit are used depends only on the unit's records. A record is identified
by its id. Without an id it is identified by every cell that ingest reads, byte for byte, and
records with identical cells by an additional number from 0. Removing one of them removes the last
number.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.ingest.config import IngestConfig
from storage.tables.source import to_arrow

SPLITS = ("train", "test", "holdout")
_TRAIN, _TEST, _HOLDOUT = range(3)
UNUSED = -1
_AT_A_TIME = 1 << 14
"""Number of rows whose digests are Python objects at the same time. Each takes about 60 bytes more
than its 16.
"""

Indices = NDArray[np.int64]
Digests = NDArray[np.uint64]
"""128 bits per record, [n, 2]. The probability that any two of a billion records collide is below
1e-20.
"""


def digests(columns: Sequence[pa.Array]) -> Digests:
    """A digest of each row's cells, in the order of the columns. A blank cell differs from a
    missing column.
    """
    parts: list[pa.Array] = []
    for column in columns:
        lengths = np.from_dlpack(pc.call_function("binary_length", [column])).astype("<u8")
        eight = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(8), len(column), [None, pa.py_buffer(lengths)]
        )
        parts += [eight.cast(pa.binary()), column.cast(pa.binary())]
    done, nothing = bytearray(), to_arrow([""])[0].cast(pa.binary())  # b"" would import pandas
    for start in range(0, len(columns[0]), _AT_A_TIME):
        slices = [part.slice(start, _AT_A_TIME) for part in parts]
        rows = pc.call_function("binary_join_element_wise", [*slices, nothing])
        done += b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in rows.to_pylist())
    return np.frombuffer(bytes(done), dtype="<u8").reshape(-1, 2)


def draws(
    identities: Digests,
    number: NDArray[np.uint32] | None = None,
    *,
    seed: int,
    purpose: str,
) -> NDArray[np.uint64]:
    """A uniform 64-bit number per record: BLAKE2b of its digest and number, keyed with the seed.

    Args:
        identities: digests of the records, or of their units.
        number: each record's number among identical ones; None for those that are drawn together.
        seed: seed of the ingest. The key must not depend on the records, which would make each
            record depend on all others.
    """
    key, person = seed.to_bytes(8, "little"), purpose.encode()
    drawn = bytearray()
    for start in range(0, len(identities), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        numbered = (
            identities[part]
            if number is None
            else np.column_stack([identities[part], number[part].astype(np.uint64)])
        )
        content = np.ascontiguousarray(numbered.astype("<u8")).view(f"V{8 * numbered.shape[1]}")
        for row in content[:, 0].tolist():
            drawn += hashlib.blake2b(row, key=key, person=person, digest_size=8).digest()
    return np.frombuffer(bytes(drawn), dtype="<u8")


@dataclass(frozen=True)
class Selection:
    """The split of each row, as an index into `SPLITS` or `UNUSED`, and the counts of records left
    out.
    """

    split: NDArray[np.int8]
    left_out: dict[str, int]
    """Usable rows that are in no split, by reason."""

    def codes_of(self, codes: NDArray[np.int32]) -> NDArray[np.int32]:
        """The distinct codes of the sample, without the -1 of records that have no code."""
        return np.unique(codes[(self.split != UNUSED) & (codes >= 0)])


def select(
    codes: NDArray[np.int32],
    units: NDArray[Any] | None,
    usable: NDArray[np.bool_],
    config: IngestConfig,
    *,
    late: NDArray[np.bool_] | None = None,
    identities: Digests | None = None,
    unit_identities: Digests | None = None,
) -> Selection:
    """Samples and splits, as configured.

    All arrays have one entry per row, as in `Survey`. A usable row has text, a code and a unit.
    `per-record` ignores the code.
    """
    rows = np.flatnonzero(usable)
    number = None if identities is None else _numbers(identities)
    if units is not None and config.max_per_unit is not None:
        # A separate stream. Otherwise a record selected from a large unit would also be early in
        # its code.
        ranks = (
            _ranks(len(codes), seed=config.seed, stream=1)
            if identities is None
            else draws(identities, number, seed=config.seed, purpose="unit-cap")
        )
        rows = _first_of_each(units, ranks, rows, config.max_per_unit)
    left_out = {"over_unit_cap": int(usable.sum()) - len(rows), "rare_code": 0, "over_code_cap": 0}
    if config.sampling == "stratified":
        return _stratified(codes, units, rows, config, late, left_out)
    assert identities is not None
    if unit_identities is None:
        drawn = draws(identities, number, seed=config.seed, purpose="split")
    else:
        assert units is not None
        drawn = draws(unit_identities, seed=config.seed, purpose="unit-split")[units]
    # fixed thresholds: first the holdout's share, then the test share of the rest
    held_out = config.holdout_share
    past = (
        drawn < _threshold(held_out + (1 - held_out) * config.test_share) if late is None else late
    )
    chosen = np.where(past, np.int8(_TEST), np.int8(_TRAIN))
    chosen[drawn < _threshold(held_out)] = _HOLDOUT
    split = np.full(len(usable), UNUSED, dtype=np.int8)
    split[rows] = chosen[rows]
    return Selection(split, left_out)


def _first_of_each(
    units: NDArray[Any], ranks: NDArray[np.uint64], rows: Indices, most: int
) -> Indices:
    """The rows with the lowest ranks in each unit, at most `most` per unit, in their order."""
    order = rows[np.lexsort((ranks[rows], units[rows]))]
    ordered = units[order]
    kept = np.ones(len(order), np.bool_)
    kept[most:] = ordered[most:] != ordered[:-most]
    return np.sort(order[kept])


def alike(identities: Digests) -> Indices:
    """The rows with a digest that another row shares, in their order."""
    words = np.sort(identities[:, 0])
    twice = np.unique(words[1:][words[1:] == words[:-1]])
    del words
    rows: list[Indices] = [np.empty(0, dtype=np.int64)]
    for start in range(0, len(identities) if len(twice) else 0, _AT_A_TIME):
        part = identities[start : start + _AT_A_TIME, 0]
        place = np.minimum(np.searchsorted(twice, part), len(twice) - 1)
        rows.append(start + np.flatnonzero(twice[place] == part))
    candidates = np.concatenate(rows)
    _, inverse, counts = np.unique(
        identities[candidates], axis=0, return_inverse=True, return_counts=True
    )
    return candidates[counts[inverse.reshape(-1)] > 1]


def _numbers(identities: Digests) -> NDArray[np.uint32]:
    """Numbers the rows with the same digest from 0, in their order."""
    before, rows = np.zeros(len(identities), dtype=np.uint32), alike(identities)
    if not len(rows):
        return before
    order = np.lexsort(identities[rows].T)
    ordered = identities[rows[order]]
    starts = np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)]
    place = np.arange(len(order))
    before[rows[order]] = place - np.maximum.accumulate(np.where(starts, place, 0))
    return before


def _threshold(share: float) -> np.uint64:
    return np.uint64(min(int(share * 2**64), 2**64 - 1))


def _stratified(
    codes: NDArray[np.int32],
    units: NDArray[Any] | None,
    rows: Indices,
    config: IngestConfig,
    late: NDArray[np.bool_] | None,
    left_out: dict[str, int],
) -> Selection:
    """Drops codes with fewer than `min_per_code` rows, uses at most `cap_per_code` of each code,
    and splits.

    The split takes the holdout and the test share of each code, or holds out the late records.
    """
    counts = np.bincount(codes[rows], minlength=1)
    common = counts[codes[rows]] >= config.min_per_code
    rows = rows[common]

    ranks = _ranks(len(codes), seed=config.seed, stream=0)
    order, position = _positions(codes[rows], ranks[rows])
    if config.cap_per_code is not None:
        below_cap = position < config.cap_per_code
        order, position = order[below_cap], position[below_cap]
    left_out |= {"rare_code": int((~common).sum()), "over_code_cap": len(rows) - len(order)}
    rows = rows[order]
    split = np.full(len(codes), UNUSED, dtype=np.int8)
    if units is None or not config.split_by_unit:
        split[rows] = _splits(codes[rows], position, ranks[rows], config)
        if late is not None:
            split[rows] = np.where(
                split[rows] == _HOLDOUT, _HOLDOUT, np.where(late[rows], _TEST, _TRAIN)
            )
        return Selection(split, left_out)

    # The record with the lowest rank represents its unit, and the others join its split.
    by_rank = rows[np.argsort(ranks[rows])]
    _, leader, unit_at = np.unique(units[by_rank], return_index=True, return_inverse=True)
    leaders = by_rank[leader]
    order, position = _positions(codes[leaders], ranks[leaders])
    of_unit = np.empty(len(leaders), dtype=np.int8)
    of_unit[order] = _splits(codes[leaders[order]], position, ranks[leaders[order]], config)
    split[by_rank] = of_unit[unit_at]
    return Selection(split, left_out)


def _splits(
    codes: NDArray[np.int32], position: Indices, ranks: NDArray[np.uint64], config: IngestConfig
) -> NDArray[np.int8]:
    """The split of each record: from each code first the holdout's share, then the test share.

    Args:
        codes: sorted codes; the records of a code are in order of rank.
        position: position of each record among those with its code.
    """
    distinct, starts, counts = np.unique(codes, return_index=True, return_counts=True)
    tie_break = ranks[starts]
    # Of two records one goes to each set, so the holdout takes neither.
    holdout = apportion(
        counts, config.holdout_share, at_most=np.maximum(counts - 2, 0), tie_break=tie_break
    )
    test = apportion(
        counts - holdout, config.test_share, at_most=counts - holdout - 1, tie_break=tie_break
    )
    code_at = np.searchsorted(distinct, codes)
    return np.where(
        position < holdout[code_at],
        _HOLDOUT,
        np.where(position < (holdout + test)[code_at], _TEST, _TRAIN),
    ).astype(np.int8)


def apportion(
    counts: Indices, share: float, *, at_most: Indices, tie_break: NDArray[Any]
) -> Indices:
    """Apportions a share of the total to groups (largest remainders, within `at_most`)."""
    exact = counts * share
    taken = np.minimum(np.floor(exact).astype(np.int64), at_most)
    missing = round(float(exact.sum())) - int(taken.sum())
    room = np.flatnonzero((taken < at_most) & (exact > taken))
    first = room[np.lexsort((tie_break[room], taken[room] - exact[room]))]
    taken[first[: max(missing, 0)]] += 1
    return taken


def _positions(groups: NDArray[Any], ranks: NDArray[Any]) -> tuple[Indices, Indices]:
    order = np.lexsort((ranks, groups))
    ordered = groups[order]
    starts = (
        np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        if len(ordered)
        else np.empty(0, dtype=np.int64)
    )
    lengths = np.diff(np.r_[starts, len(ordered)])
    return order, np.arange(len(ordered)) - np.repeat(starts, lengths)


def _ranks(n: int, *, seed: int, stream: int) -> NDArray[np.uint64]:
    return np.asarray(np.random.PCG64([seed, stream]).random_raw(n), dtype=np.uint64)
