#!/usr/bin/env python
"""Writes OSHA's severe injury reports with the codes of four fields, and a code list per field, from titles.

    python scripts/osha_fields.py reports.csv --titles osha_title_to_oiics_code.csv --out FOLDER

The public reports have the code of `nature`, and of part of body, event and source the title alone; the second file
(columns field, title, code) says which code is meant. Writes records.csv, part.csv, event.csv and source.csv, which the
profile `osha-fields` reads; nature has a published list. These lists hold the codes that the titles name and not all of
the classification, and so come from the reports, which are public.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from storage.durable import write_atomically

COLUMNS = {"part": "Part of Body", "event": "Event", "source": "Source"}
"""Of the codes, by field; the column of titles has ` Title` or `Title` behind."""


def lists(titles: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """(code, title) of each field, sorted; of two titles of a code the first in the alphabet."""
    lists = {}
    for field in COLUMNS:
        codes = titles.loc[titles["field"] == field, ["code", "title"]].sort_values(["code", "title"])
        lists[field] = codes.drop_duplicates("code")
    return lists


def coded(reports: pd.DataFrame, titles: pd.DataFrame) -> pd.DataFrame:
    """The reports with a column of codes a field; empty where a title is not among the titles.

    Raises:
        SystemExit: names the column that is not there.
    """
    out = reports.copy()
    for field, column in COLUMNS.items():
        title_column = next((name for name in (f"{column} Title", f"{column}Title") if name in reports), None)
        if title_column is None:
            raise SystemExit(f"no column `{column} Title` or `{column}Title`: are these OSHA's severe injury reports?")
        codes = titles[titles["field"] == field].set_index("title")["code"]
        out[column] = reports[title_column].map(codes)
    return out


def main() -> None:
    """Reads both files, writes four."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path)
    parser.add_argument("--titles", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    titles = pd.read_csv(given.titles, dtype=str)
    records = coded(pd.read_csv(given.reports, dtype=str, encoding_errors="replace"), titles)
    given.out.mkdir(parents=True, exist_ok=True)
    for name, table in {"records": records, **lists(titles)}.items():
        write_atomically(given.out / f"{name}.csv", table.to_csv(index=False).encode())
    lacking = {field: int(records[column].isna().sum()) for field, column in COLUMNS.items()}
    print(f"{len(records):,} reports; without a code of {', '.join(f'{k}: {n:,}' for k, n in lacking.items())}")


if __name__ == "__main__":
    main()
