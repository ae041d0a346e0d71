"""Reads files that may expand in memory in a subprocess with limited memory: a whole Parquet file,
or a workbook or a file of Stata, SPSS or SAS, which it converts to CSV.

For Parquet the exit status is 0 if it fits or is damaged (the reader reports the damage), and 1 if
it does not fit. For a workbook it writes a sheet as CSV. The exit status is 1 if that needs more
memory, 2 if the file cannot be read, and 3 if several sheets have rows, in which case their names
are written to standard error as JSON.
"""

import csv
import datetime
import json
import os
import sys
from typing import Any

SHEETS = 3


def check_parquet(rows: int, most_bytes: int) -> int:
    """Reads the Parquet file at standard input; returns 1 if a batch of rows exceeds the allowed
    bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_memory_pool(pa.system_memory_pool())
    with pq.ParquetFile(sys.stdin.buffer) as file:
        return int(
            any(
                batch.nbytes > most_bytes
                for batch in file.iter_batches(batch_size=rows, use_threads=False)
            )
        )


def write_csv(path: str, wanted: str) -> int:
    """Writes a sheet, or the only one with rows, to standard output."""
    import python_calamine

    try:
        book = python_calamine.CalamineWorkbook.from_path(path)
        names = [name for name in book.sheet_names if not wanted or name == wanted]
        sheets = [sheet for name in names if (sheet := book.get_sheet_by_name(name)).height]
        if len(sheets) > 1 or not names:
            sys.stderr.write(json.dumps(book.sheet_names))
            return SHEETS
        sys.stdout.reconfigure(encoding="utf-8", newline="")  # pyrefly: ignore[missing-attribute]
        out = csv.writer(sys.stdout, lineterminator="\n")
        for sheet in sheets:
            out.writerows([text_of(cell) for cell in row] for row in sheet.iter_rows())
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has all it needs
        os._exit(0)
    except python_calamine.CalamineError:
        return 2
    return 0


def write_statistics(path: str, program: str) -> int:
    """Writes the data of a file of Stata, SPSS or SAS to standard output: values instead of their
    labels, and blanks for user-defined missing values.
    """
    import pyreadstat

    reader = {
        "Stata": pyreadstat.read_dta,
        "SPSS": pyreadstat.read_sav,
        "SPSS portable": pyreadstat.read_por,
        "SAS transport": pyreadstat.read_xport,
        "SAS": pyreadstat.read_sas7bdat,
    }[program]
    try:
        columns, _ = reader(path, output_format="dict")
    except pyreadstat.ReadstatError:
        return 2
    try:
        sys.stdout.reconfigure(encoding="utf-8", newline="")  # pyrefly: ignore[missing-attribute]
        out = csv.writer(sys.stdout, lineterminator="\n")
        out.writerow(columns)
        rows = zip(*columns.values(), strict=True)
        out.writerows(["" if _is_missing(cell) else text_of(cell) for cell in row] for row in rows)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has all it needs
        os._exit(0)
    return 0


def _is_missing(cell: Any) -> bool:
    return cell is None or cell != cell


def text_of(cell: Any) -> str:
    """A cell as it is displayed: whole numbers without a point, days without a time."""
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 1e15 else repr(cell)
    if isinstance(cell, datetime.datetime) and cell.time() == datetime.time():
        cell = cell.date()
    return (
        cell.isoformat()
        if isinstance(cell, datetime.date | datetime.time)
        else str(cell).replace("\r", "\n")
    )


def main(kind: str, memory: int, *settings: str) -> int:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        pass
    else:
        # guard: test_parquet_that_takes_all_memory
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    try:
        if kind == "parquet":
            return check_parquet(*map(int, settings))
        path, wanted = settings
        return write_csv(path, wanted) if kind == "workbook" else write_statistics(path, wanted)
    except MemoryError:
        return 1
    except Exception:  # the reader reports all other faults
        return 0 if kind == "parquet" else 2


if __name__ == "__main__":
    done = main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
    sys.stderr.flush()
    os._exit(done)  # Arrow's threads may still wait for the input, and would abort a normal exit
