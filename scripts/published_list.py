"""Registers a code list as published, so that bundles may contain its titles: python
scripts/published_list.py oiics201_nature.csv "OIICS 2.01, nature". Writes digests of its entries to
storage/egress/lists/, for review. By adding a list you confirm that anyone can read it, and where.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from flows.commands.options import read_options
from storage.codelist import read_codelist
from storage.egress.public_lists import LISTS, entry_digest


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("list", type=Path, help="published CSV with code and title")
    parser.add_argument("name", help="publisher and version, such as 'OIICS 2.01, nature'")
    parser.add_argument(
        "--columns", nargs="+", default=[], help="columns of codes and titles, if not found"
    )
    parser.add_argument(
        "--read-codelist", action="append", help="reading settings, as in training: sheet=…"
    )
    options = parser.parse_args()
    reading = read_options(options.read_codelist, "--read-codelist")
    codes = read_codelist(options.list, option="--codelist", columns=options.columns, read=reading)
    name = re.sub(r"[^a-z0-9.]+", "-", options.name.casefold()).strip("-")
    LISTS.mkdir(exist_ok=True)
    file = LISTS / f"{name}.txt"
    file.write_text("".join(f"{entry_digest(entry)}\n" for entry in codes), encoding="ascii")
    print(f"{file}: {len(codes)} entries")


if __name__ == "__main__":
    main()
