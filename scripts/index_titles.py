#!/usr/bin/env python
"""Writes a code list with titles from an index of many entries per code, and the other entries as
records.

    python scripts/index_titles.py soc2010_job_title_index.csv --codelist titles.csv --records records.csv

The shortest entry of each code (of several, the first in the alphabet) becomes its title, and is no record any more. An
index is published, so that this is public; of entries that are records the titles would be taken from records.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from storage.durable import write_atomically

COLUMNS = ["title", "code"]


def titled(entries: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The title of each code, in the order of codes."""
    by_code: dict[str, list[str]] = {}
    for entry in entries:
        by_code.setdefault(entry["code"], []).append(entry["title"])
    return {code: min(own, key=lambda title: (len(title), title)) for code, own in sorted(by_code.items())}


def main() -> None:
    """Reads the index, write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path, help="CSV with columns title and code")
    parser.add_argument("--codelist", type=Path, required=True)
    parser.add_argument("--records", type=Path, required=True)
    given = parser.parse_args()
    with given.index.open(encoding="utf-8-sig", newline="") as file:
        entries = list(csv.DictReader(file))
    if not entries or not set(COLUMNS) <= entries[0].keys():
        raise SystemExit(f"{given.index}: no entries with columns title and code")
    titles = titled(entries)
    rest = [entry for entry in entries if titles[entry["code"]] != entry["title"]]
    listed, records = pd.DataFrame(list(titles.items()), columns=["code", "title"]), pd.DataFrame(rest, columns=COLUMNS)
    for file, table in ((given.codelist, listed), (given.records, records)):
        write_atomically(file, table.to_csv(index=False).encode())
    print(f"{len(titles):,} codes with a title, {len(rest):,} records, of {len(entries):,} entries")


if __name__ == "__main__":
    main()
