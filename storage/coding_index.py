"""Reads a published coding index: texts with their codes, such as job titles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from storage.artifacts import digest
from storage.codelist import Code, normalise_code
from storage.durable import write_atomically
from storage.errors import Changed, Missing, OutOfRange, Unknown
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import read_small

INDEX = "index.json"
"""File in a dataset's folder with the entries that the index digest covers."""
_OPTION = "--examples"
_COLUMNS = ("text", "code")
_FEWEST = 20


@dataclass(frozen=True)
class CodingIndex:
    """The entries of a public index in order, as text and code."""

    entries: tuple[tuple[str, str], ...]

    @property
    def digest(self) -> str:
        """SHA-256 of texts and codes, which identifies the index in a plan."""
        return digest([list(entry) for entry in self.entries])

    def labels(self, codes: Sequence[Code]) -> tuple[int, ...]:
        """The position of each entry's code in a list.

        Raises:
            InputError: an entry has a code that is not in the list.
        """
        places = {code.code: place for place, code in enumerate(codes)}
        found = [places.get(normalise_code(code, places), -1) for _, code in self.entries]
        if unknown := [number for number, place in enumerate(found, 1) if place < 0]:
            first = self.entries[unknown[0] - 1][1]
            raise Unknown(
                f"{_OPTION}: {len(unknown):,} of {len(found):,} entries have a code "
                f"that is not on the code list, {first[:40]!r} first (entry "
                f"{unknown[0]:,}). Use an index of this classification and level",
                kind="unlisted-index-codes",
                row=unknown[0],
            )
        return tuple(found)

    def save(self, folder: Path) -> None:
        content = [list(entry) for entry in self.entries]
        write_atomically(folder / INDEX, json.dumps(content, ensure_ascii=False).encode())


def read_index(path: Path, read: ReadOptions = AS_IT_LOOKS) -> CodingIndex:
    """Reads the columns `text` and `code`. Rows without one of them are skipped.

    Raises:
        InputError: the file does not exist, or has too few entries.
    """
    if not path.is_file():
        raise Missing(f"{_OPTION}: file {path} does not exist. Check the path", kind="no-index")
    status = path.stat()
    return _read(path, read.model_dump_json(), status.st_ctime_ns, status.st_size)


@lru_cache(maxsize=4)
def _read(path: Path, read: str, changed: int, size: int) -> CodingIndex:
    """Reads a file once per process, as long as the file does not change."""
    header, rows = read_small(
        path, _COLUMNS, option=_OPTION, read=ReadOptions.model_validate_json(read)
    )
    text, code = map(header.index, _COLUMNS)
    entries = ((row[text].strip(), row[code].strip()) for row in rows)
    index = CodingIndex(tuple(dict.fromkeys(entry for entry in entries if all(entry))))
    if len(index.entries) < _FEWEST:
        raise OutOfRange(
            f"{_OPTION}: {path} has {len(index.entries)} entries with text and code. An index has "
            f"{_FEWEST} or more",
            kind="index-too-small",
        )
    return index


def load_index(dataset: Path, sha256: str) -> CodingIndex:
    """Loads the entries that ingest read. Refuses entries with another digest."""
    try:
        content = json.loads((dataset / INDEX).read_bytes())
        index = CodingIndex(tuple((text, code) for text, code in content))
    except (OSError, ValueError, TypeError):
        index = None
    # guard: test_an_index_that_changed_between_two_readings
    if index is None or index.digest != sha256:
        raise Changed(
            "--examples: the index that ingest read is not the one that the fit names. Keep the "
            "file as it is while a command runs, and run again",
            kind="index-changed",
        )
    return index
