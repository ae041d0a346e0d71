"""Coding with a released bundle: texts in, codes with scores out. Narratives are never logged."""

from __future__ import annotations

import csv
import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mechanisms import export
from mechanisms.errors import MechanismError
from storage.bundle import CODELIST, STATEMENT
from storage.errors import InputError, StorageError

_CHUNK = 2048
"""Rows read, coded and written at a time: memory does not grow with the file."""


@dataclass(frozen=True)
class Answer:
    """One code for one narrative; the score is the model's probability."""

    code: str
    title: str
    score: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"score": round(self.score, 6)}


@dataclass(frozen=True)
class Coder:
    """A released model with its titles."""

    bundle: str
    model: export.Released
    titles: dict[str, str]

    @classmethod
    def open(cls, folder: Path) -> Coder:
        """Load a bundle.

        Raises:
            InputError: the folder is no bundle.
        """
        if not (folder / STATEMENT).is_file():
            raise InputError(f"--bundle: {folder} is no bundle (it has no {STATEMENT})")
        try:
            with (folder / CODELIST).open(newline="", encoding="utf-8") as file:
                titles = {row["code"]: row["title"] for row in csv.DictReader(file)}
            release_id = json.loads((folder / STATEMENT).read_text(encoding="utf-8"))["release_id"]
        except (OSError, ValueError, KeyError):
            raise InputError(f"--bundle: {folder} is damaged: {CODELIST} or {STATEMENT} cannot be read") from None
        try:
            return cls(bundle=release_id, model=export.load(folder), titles=titles)
        except MechanismError as error:
            raise InputError(f"--bundle: {error}") from None

    def code(self, texts: Sequence[str], *, top_k: int = 1) -> list[list[Answer]]:
        """The best `top_k` codes of each text, best first."""
        scores = self.model.logits(texts).softmax(-1)
        best = scores.topk(min(top_k, scores.shape[1]), dim=-1)
        codes = self.model.codes
        return [
            [Answer(codes[i], self.titles.get(codes[i], ""), s) for s, i in zip(row_scores, row, strict=True)]
            for row_scores, row in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]


def code_file(coder: Coder, source: Path, out: Path, *, column: str, top_k: int) -> int:
    """Code a CSV, chunk by chunk, into a CSV with the input's columns and the codes; return the rows written.

    A blank narrative gets no code.

    Raises:
        InputError: no such file or column, or it is no UTF-8 CSV.
    """
    import pandas as pd

    partial = out.with_name(out.name + ".partial")
    rows = 0
    try:
        with partial.open("w", encoding="utf-8", newline="") as target:
            for chunk in pd.read_csv(source, dtype=str, keep_default_na=False, chunksize=_CHUNK):
                _check_columns(list(chunk.columns), source, column=column)
                blank = chunk[column].str.strip() == ""
                answers = coder.code(chunk[column].tolist(), top_k=top_k)
                for place in range(min(top_k, len(coder.model.codes))):
                    suffix = "" if place == 0 else f"_{place + 1}"
                    chunk[f"code{suffix}"] = [answer[place].code for answer in answers]
                    chunk[f"score{suffix}"] = [f"{answer[place].score:.6f}" for answer in answers]
                    chunk.loc[blank, [f"code{suffix}", f"score{suffix}"]] = ""  # nothing was said: nothing is coded
                chunk["bundle"] = coder.bundle
                chunk.to_csv(target, index=False, header=rows == 0)
                rows += len(chunk)
        partial.replace(out)
    except FileNotFoundError:
        raise InputError(f"--data: no file {source}") from None
    except (UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError):
        raise InputError(f"--data: {source} is no CSV in UTF-8 with a header line") from None
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _check_columns(columns: Sequence[str], source: Path, *, column: str) -> None:
    if column not in columns:
        near = difflib.get_close_matches(column, list(columns), n=1)
        # The other names stay unsaid: without a header line they are a record.
        hint = f"did you mean {near[0]!r}?" if near else f"its first line names {len(columns)} others"
        raise InputError(f"--column: {source} has no column {column!r}; {hint}")
    taken = [name for name in columns if re.fullmatch(r"(code|score)(_\d+)?|bundle", name)]
    if taken:
        raise InputError(f"--data: {source} has a column {taken[0]!r}, which the answers would overwrite; rename it")


def newest_bundle(home: Path) -> Path:
    """The bundle committed last in a workspace.

    Raises:
        StorageError: there is none.
    """
    folders = [p for p in (home / "bundles").glob("*") if p.is_dir() and not p.name.startswith(".")]
    if not folders:
        raise StorageError(f"no bundle in {home / 'bundles'}; run `autocoder retrain`, or name one with --bundle")
    return max(folders, key=lambda p: p.stat().st_mtime)
