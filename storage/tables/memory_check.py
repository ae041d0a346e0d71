"""Reads a table to its end in a program of limited memory: a small file may hold cells, lists or rows of gigabytes.

It exits with 0 for a table that fits, and for a damaged one, which the reader reports; with 1 for one that does not
fit; with 2, and the line's number, for a line or record of too many characters. For text it imports the standard
library alone, so that it starts in some 30 ms.
"""

import csv
import io
import json
import resource
import sys
import zipfile
from collections.abc import Iterator
from decimal import Decimal
from typing import Any


class TooLong(Exception):
    """Reports a line, or a record of several lines, over the limit."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class Lines:
    """Yields the lines of a file while neither one nor all of a record have more characters than they may."""

    def __init__(self, file: Any, most: int) -> None:
        self.number, self._file, self._most, self._record = 0, file, most, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        line = self._file.readline(self._most)
        if not line:
            raise StopIteration
        self.number += 1
        self._record += len(line)
        # guard: a record of many lines has a limit
        if self._record >= self._most:
            raise TooLong(self.number)
        return line

    def end_record(self) -> None:
        """Begins the next record at the next line."""
        self._record = 0


def check_text(kind: str, most: int, encoding: str, delimiter: str, member: str | None) -> int:
    """Reads the CSV or JSON Lines at standard input, or inside the ZIP there, record by record."""
    file: Any = sys.stdin.buffer
    if member is not None:
        file = zipfile.ZipFile(file).open(member)  # noqa: SIM115  (open until the program ends)
    if kind == "jsonl":
        lines = Lines(file, most)
        for line in lines:
            json.loads(line, object_pairs_hook=dict, parse_float=Decimal)
            lines.end_record()
        return 0
    lines = Lines(io.TextIOWrapper(file, encoding=encoding, newline=""), most)
    csv.field_size_limit(most)
    for _ in csv.reader(lines, delimiter=delimiter, strict=True):
        lines.end_record()
    return 0


def check_parquet(rows: int, most_bytes: int) -> int:
    """Reads the Parquet file at standard input; returns 1 where some rows take more bytes than they may."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_memory_pool(pa.system_memory_pool())
    with pq.ParquetFile("/dev/stdin") as file:
        return int(any(batch.nbytes > most_bytes for batch in file.iter_batches(batch_size=rows, use_threads=False)))


def main(kind: str, memory: int, *settings: str) -> int:
    """Checks a table; returns what the program exits with."""
    # guard: a table is read first by a program of limited memory
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        if kind == "parquet":
            rows, most_bytes = settings
            return check_parquet(int(rows), int(most_bytes))
        most, encoding, delimiter, *member = settings
        return check_text(kind, int(most), encoding, delimiter, member[0] if member else None)
    except MemoryError:
        return 1
    except TooLong as fault:
        sys.stdout.write(f"{fault.line}")
        return 2
    except Exception:  # whatever is wrong with it otherwise, its reader says
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
