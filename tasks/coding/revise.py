"""Takes coded tables and bundles to the next version of a classification, by a table of correspondence.

No code is chosen where an old code was split: all that may follow are listed, and a person decides. A conformal set
becomes the union of what follows its members. If the old set contains the right old code, the new one contains the
right new code, as far as the table of correspondence is complete. The probability stays. A set with a member that the
table lacks has no such promise, and becomes empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from storage.codelist import MAX_CODE, describe_shape, normalise_code
from storage.correspondence import OPTION, Correspondence
from storage.crosswalk import successors
from storage.durable import replace_atomically
from storage.errors import InputError
from storage.tables.reader import Row, Table, pieces, survey
from storage.tables.writer import csv_lines, open_writer, output_kind
from tasks.coding.coded_table import code_column, column_of, fields_of
from tasks.coding.coder import Coder
from tasks.coding.quality import unquoted

_VERSION = "classification_version"


@dataclass(frozen=True)
class Revision:
    """Accounts for every row of a coded table, or every code of a bundle."""

    what: str
    """`rows` or `codes`."""
    version: str
    total: int
    one: int
    """With one new code."""
    split: int
    """With several, for review."""
    missing: int
    """With a code that ended or that the table of correspondence lacks, for review."""
    blank: int
    """Without a code, for review."""
    splits: dict[str, int]
    """Rows by each split code, the most frequent first."""
    without: int
    """Different codes without a new one; not by name, since a wrong column would show its cells."""

    @property
    def review(self) -> int:
        """Returns the number for review."""
        return self.split + self.missing + self.blank

    def as_dict(self) -> dict[str, Any]:
        """Returns the content for JSON."""
        return vars(self) | {"review": self.review}

    @property
    def sentence(self) -> str:
        """Returns the account in words; its numbers add up."""
        parts = [f"{self.one:,} with one new code", f"{self.split:,} split", f"{self.missing:,} without a new code"]
        parts += [f"{self.blank:,} blank"] if self.what == "rows" else []
        return f"{self.total:,} {self.what}: {', '.join(parts)}. {self.review:,} are for review."


def with_version(
    correspondence: Correspondence, version: str | None, *, listed: Collection[str] = ()
) -> Correspondence:
    """Returns the correspondence with the new version's name, after a check against the new code list.

    Args:
        version: in place of the one in the table.
        listed: codes of the new version; empty: not checked.

    Raises:
        InputError: there is no name, or the names differ, or a new code is in no list.
    """
    after = correspondence.after
    if version and after and version != after:
        raise InputError(f"--version: {version} is not {after}, which {OPTION} leads to. Leave it out.")
    if not (version or after):
        raise InputError(f"--version: {OPTION} does not name the new version. Give its name, such as --version 3.01.")
    unlisted = {new for follows in correspondence.to.values() for new in follows} - set(listed)
    if listed and unlisted:
        raise InputError(
            f"--codelist: {len(unlisted)} new codes of {OPTION} are not in it ({describe_shape(unlisted)}). Correct "
            "the table, or give the list of the new version."
        )
    return replace(correspondence, after=version or after)


def revise_table(
    coded: Path, out: Path, correspondence: Correspondence, *, field: str = "", column: str | None = None
) -> Revision:
    """Writes a coded table with the columns of the new version next to those that it has.

    Args:
        field: of several that the table was coded in.
        column: with the codes, for a table that `autocoder code` did not write.

    Raises:
        InputError: a column is missing or in the way, rows are of another version, or no code is in the correspondence.
    """
    kind = output_kind(out)
    table = survey(coded, text_columns=[], option="CODED")
    of, source, sets, version = _columns(table, field, column)
    names = [source, *sets, *version]
    table = survey(coded, text_columns=names, option="CODED")
    added = [(f"{of}crosswalk_code", pa.string()), (f"{of}crosswalk_version", pa.string())]
    added += [(f"{of}crosswalk_review", pa.bool_())]
    added += [(f"{of}crosswalk_set", pa.string()), (f"{of}crosswalk_set_size", pa.int64())] if sets else []
    if taken := [name for name, _ in added if name in table.columns]:
        raise InputError(f"CODED: {coded.name} has a column {taken[0]!r}: it was revised already, or rename it.")
    schema = pa.schema([*table.schema, *added])
    if kind != "csv" and len(set(schema.names)) < len(schema.names):
        raise InputError(f"CODED: {coded.name} has duplicate column names, which only CSV supports.")
    if version:
        _require_version(table, version[0], correspondence)
    rows: Counter[str] = Counter()
    with (
        replace_atomically(out, source=coded) as fresh,
        open_writer(fresh, kind, schema) as write,
        closing(table.read()) as read,
        closing(table.text_rows(names)) as texts,
    ):

        def revised() -> Iterator[Row]:
            for row, (cell, *more) in zip(read, texts, strict=True):
                code = _code(cell, correspondence)
                rows[code] += 1
                yield (*row, *_cells(code, more[0] if sets else None, correspondence))

        for piece in pieces(revised(), columns=len(schema)):
            write(piece)
        _require_known(rows, correspondence)
    return _account("rows", rows, correspondence)


def _columns(table: Table, field: str, column: str | None) -> tuple[str, str, list[str], list[str]]:
    """Returns the beginning of new names, and the columns of codes, sets and versions."""
    if column is not None:
        if field:
            raise InputError("--field and --column: give one of them.")
        return "", column, [], []
    fields = fields_of(table)
    if field not in fields:
        names = ", ".join(filter(None, fields)) or "one field only"
        raise InputError(f"--field: no field {field or 'of that name'}. The table has {names}.")
    if fields == ("",) and code_column("") not in table.columns:
        raise InputError("CODED: no column 'code'. Name the column that has the codes with --column.")
    sets = [name for name in [column_of(field, "set")] if name in table.columns]
    version = [_VERSION] if fields == ("",) and _VERSION in table.columns else []
    return f"{field}_" if field else "", code_column(field), sets, version


def _require_version(table: Table, column: str, correspondence: Correspondence) -> None:
    versions = {unquoted(cell) for (cell,) in table.text_rows([column])} - {""}
    if len(versions) > 1:
        raise InputError(
            f"CODED: {table.source.name} mixes {len(versions)} versions ({describe_shape(versions)}). "
            "Revise each alone."
        )
    if versions == {correspondence.after}:
        raise InputError(f"CODED: {table.source.name} has the new version already. Give the table from it to the next.")
    if correspondence.before and versions and versions != {correspondence.before}:
        raise InputError(
            f"{OPTION}: it starts from {correspondence.before}; {table.source.name} has another version "
            f"({describe_shape(versions)}). Give the table for that one."
        )


def _code(cell: str, correspondence: Correspondence) -> str:
    """Returns a cell's code; a number's `.0`, which a table program adds, goes where the correspondence lacks it."""
    return normalise_code(unquoted(cell), correspondence.to)


def _cells(code: str, members: str | None, correspondence: Correspondence) -> Row:
    new = correspondence.to.get(code, ())
    # guard: a split is for review however large a share
    cells: Row = ("; ".join(new) or None, correspondence.after if new else None, len(new) != 1)
    if members is None:
        return cells
    parts = [part for part in (one.strip() for one in unquoted(members).split(";")) if part]
    union = successors(correspondence.to, parts)
    return (*cells, "; ".join(union) or None, len(union))


def _require_known(rows: Counter[str], correspondence: Correspondence) -> None:
    codes = rows.keys() - {""}
    if codes and not codes & correspondence.to.keys():
        raise InputError(
            f"{OPTION}: it has none of the codes ({describe_shape(codes)}). Give the table from their version to the "
            "next, in this direction."
        )
    if longest := [code for code in codes if len(code) > MAX_CODE]:
        raise InputError(f"CODED: {len(longest)} codes have over {MAX_CODE} characters. Name the column of codes.")


def _account(what: str, rows: Counter[str], correspondence: Correspondence) -> Revision:
    numbers = {code: len(correspondence.to.get(code, ())) for code in rows if code}
    splits = {code: count for code, count in rows.most_common() if numbers.get(code, 0) > 1}
    split, blank, total = sum(splits.values()), rows[""], rows.total()
    missing = sum(rows[code] for code, number in numbers.items() if not number)
    return Revision(
        what=what,
        version=correspondence.after,
        total=total,
        one=total - split - missing - blank,
        split=split,
        missing=missing,
        blank=blank,
        splits=splits,
        without=sum(not number for number in numbers.values()),
    )


def revise_bundle(coder: Coder, out: Path, correspondence: Correspondence) -> Revision:
    """Writes the crosswalk of a bundle's codes, which `autocoder code --crosswalk` reads, as CSV.

    Raises:
        InputError: the correspondence starts from another version, or has none of the codes.
    """
    if output_kind(out) != "csv":
        raise InputError("--out: a bundle's crosswalk is a CSV. Name a file that ends in .csv.")
    if correspondence.before and correspondence.before != coder.version:
        raise InputError(
            f"{OPTION}: it starts from {correspondence.before}; the bundle codes {coder.version}. Give the table for "
            "that version."
        )
    codes = Counter(coder.model.codes)
    _require_known(codes, correspondence)
    lines: list[Row] = [("from_code", "to_code", "from_version", "to_version", "share", "review")]
    for code in codes:
        new = correspondence.to.get(code, ())
        lines += [
            (code, one, coder.version, correspondence.after, correspondence.shares.get((code, one)), len(new) > 1)
            for one in new
        ]
    with replace_atomically(out) as fresh:
        fresh.write_text(csv_lines(lines), encoding="utf-8", newline="")
    return _account("codes", codes, correspondence)
