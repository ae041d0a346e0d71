#!/usr/bin/env python
"""Computes the published figures of docs/ again, all or some of them, each with its own command.

    python scripts/figures.py --list
    python scripts/figures.py --out figures --osha osha.csv --codelist oiics201_nature.csv
    python scripts/figures.py --out figures --only mixture,schedules
    python scripts/figures.py --out figures --publish

docs/studies/figures.yaml lists the parts: the files that they publish, the pages that show them,
and the commands with their run time in minutes. Each part has its own folder in --out, with its
output in printed.txt. A part without its data is skipped and listed. Figures of two commits
are never mixed: the tree must have no uncommitted changes, and a folder belongs to one commit. An
interrupted run continues with the same command.

With --publish, the files of the parts that are finished in --out are copied to docs/, and the table
gets their commit and their minutes. Then the tests name the pages that show other figures.
"""

from __future__ import annotations

import argparse
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter

import yaml

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "studies" / "figures.yaml"
DATA = {
    "osha": "OSHA's severe injury reports, CSV",
    "codelist": "OIICS 2.01, nature, CSV of code and title",
    "neiss": "injuries by fireworks from NEISS, CSV",
    "soc": "ONS's index of job titles, SOC 2010, CSV",
    "soc_titles": "titles of SOC 2010's unit groups, CSV",
    "sets": "folder with the eight sets of Rosenblatt et al.",
    "ham": "HAM10000 at 8 x 8, npz",
}
"""Options of the script, which commands refer to in braces."""


@dataclass(frozen=True)
class Part:
    """One entry of the table."""

    name: str
    files: Sequence[str]
    """Published files, relative to docs/."""
    pages: Sequence[str]
    """Pages with figures of these files, relative to the repository."""
    commit: str
    """Commit at which the published files were made."""
    commands: Sequence[str] = ()
    minutes: float | None = None
    """Minutes of a processor core for all commands together; None if there are no commands."""
    made: Mapping[str, str] = field(default_factory=dict)
    """Published files that have another name in the part's folder, with that name or pattern."""
    reason: str = ""
    """Why there are no commands at this commit."""

    @property
    def needs(self) -> set[str]:
        """Names of the data that the commands read."""
        fields = {name for c in self.commands for _, name, _, _ in Formatter().parse(c) if name}
        return fields - {"out"}


def parts() -> list[Part]:
    entries = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return [Part(**entry) for entry in entries]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="list the parts and stop")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder for the results")
    parser.add_argument("--only", default="", help="names of parts, separated by commas")
    parser.add_argument(
        "--publish", action="store_true", help="copy the finished parts of --out to docs/ and stop"
    )
    for name, what in DATA.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=Path, help=what)
    arguments = parser.parse_args()
    all_parts = parts()
    if arguments.list:
        _print_table(all_parts)
        return
    chosen = _choose(all_parts, arguments.only)
    if arguments.publish:
        _publish(chosen, arguments.out.resolve())
        return
    files = {name: str(path.resolve()) for name in DATA if (path := getattr(arguments, name))}
    ready = [part for part in chosen if part.commands and part.needs <= files.keys()]
    for part in chosen:
        if not part.commands:
            print(f"{part.name}: left out. {part.reason}")
        elif part not in ready:
            options = sorted(f"--{name.replace('_', '-')}" for name in part.needs - files.keys())
            print(f"{part.name}: skipped. It needs {', '.join(options)}")
    out = arguments.out.resolve()
    _claim_folder(out)
    total = sum(part.minutes or 0 for part in ready)
    print(f"{len(ready)} parts: about {total:.0f} minutes", flush=True)
    for number, part in enumerate(ready, start=1):
        _run(part, out / part.name, files, label=f"{number}/{len(ready)} {part.name}")


def _print_table(known: Sequence[Part]) -> None:
    for part in known:
        if part.commands:
            needs = ", ".join(sorted(part.needs)) or "no data"
            print(f"{part.name}: about {part.minutes:g} min; {needs}; published at {part.commit}")
        else:
            print(f"{part.name}: published at {part.commit}; {part.reason}")
        for command in part.commands:
            print(f"    {command}")


def _choose(known: Sequence[Part], only: str) -> list[Part]:
    names = [name for name in only.split(",") if name]
    unknown = sorted(set(names) - {part.name for part in known})
    if unknown:
        choices = ", ".join(part.name for part in known)
        sys.exit(f"--only: unknown part {unknown[0]}. Choose from {choices}")
    return [part for part in known if not names or part.name in names]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _claim_folder(out: Path) -> None:
    """Refuses changed code and a folder with figures of another commit, and records the commit."""
    if _git("status", "--porcelain", "--untracked-files=no"):
        sys.exit(
            "The working tree has uncommitted changes. Commit them first: figures name a commit."
        )
    commit, note = _git("rev-parse", "HEAD"), out / "commit.txt"
    if note.is_file() and note.read_text(encoding="utf-8").strip() != commit:
        sys.exit(f"--out: {out} contains figures of another commit. Choose an empty folder.")
    out.mkdir(parents=True, exist_ok=True)
    note.write_text(f"{commit}\n", encoding="utf-8")


def _run(part: Part, folder: Path, files: dict[str, str], *, label: str) -> None:
    done = folder / "done.txt"
    if done.is_file():
        print(f"{label}: already computed", flush=True)
        return
    print(f"{label}: about {part.minutes:g} min", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    before = _processor_seconds()
    with (folder / "printed.txt").open("w", encoding="utf-8") as printed:
        for command in part.commands:
            words = [word.format(out=folder, **files) for word in shlex.split(command)]
            if words[0] in ("python", "autocoder"):
                words[0] = str(Path(sys.executable).with_name(words[0]))
            subprocess.run(words, cwd=ROOT, stdout=printed, check=True)
    took = (_processor_seconds() - before) / 60
    done.write_text(f"{took:.1f} minutes of a processor core\n", encoding="utf-8")
    print(f"{label}: took {took:.1f} min of a processor core", flush=True)


def _processor_seconds() -> float:
    """Returns the seconds of all processor cores that finished child processes have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _publish(chosen: Sequence[Part], out: Path) -> None:
    """Copies the files of the finished parts to docs/, and notes their commit in the table."""
    commit = (out / "commit.txt").read_text(encoding="utf-8").strip()[:8]
    finished = [part for part in chosen if (out / part.name / "done.txt").is_file()]
    for part in finished:
        folder = out / part.name
        for name in part.files:
            pattern = part.made.get(name, Path(name).name)
            made = list(folder.glob(pattern))
            if len(made) != 1:
                sys.exit(f"--publish: {part.name} made {len(made)} files {pattern}, not one")
            shutil.copyfile(made[0], ROOT / "docs" / name)
        minutes = float((folder / "done.txt").read_text(encoding="utf-8").split()[0])
        text = TABLE.read_text(encoding="utf-8")
        TABLE.write_text(_noted(text, part, commit, minutes), encoding="utf-8")
        print(f"{part.name}: {len(part.files)} files of {commit}")
    if not finished:
        sys.exit(f"--publish: no part is finished in {out}")


def _noted(table: str, part: Part, commit: str, minutes: float) -> str:
    """Returns the text of the table with another commit and other minutes in this part's entry."""
    before, name, rest = table.partition(f"- name: {part.name}\n")
    entry, next_entry, after = rest.partition("\n- name: ")
    entry = re.sub(r'commit: "[0-9a-f]+"', f'commit: "{commit}"', entry)
    entry = re.sub(r"minutes: [\d.]+", f"minutes: {max(1, round(minutes))}", entry)
    return before + name + entry + next_entry + after


if __name__ == "__main__":
    main()
