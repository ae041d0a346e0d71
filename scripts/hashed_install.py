"""Installs the program's dependencies with pip, each checked against its hash in the lock file.

pip accepts neither hashes with an editable install nor a part of a lock file. This script therefore
first gets the list of packages from a dry run of pip, then installs the lock file's entries for
them, and finally the program without dependencies, with a build backend that has a hash too. torch
is installed separately before, from the index that a site chooses, and has no hash.

    python scripts/hashed_install.py train,minilm
    python scripts/hashed_install.py --tool cyclonedx-bom /build/sbom    # next to the program
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]


def requirements(project: dict[str, Any], extras: list[str]) -> list[str]:
    """Lists the requirements of the program and its extras, including extras of extras."""
    name, optional = project["project"]["name"], project["project"]["optional-dependencies"]
    lines = list(project["project"]["dependencies"])
    for extra in extras:
        lines += optional[extra]
    self_reference = re.compile(rf"{name}\[(.+)\]")
    inner = {
        extra_name
        for line in lines
        if (found := self_reference.match(line))
        for extra_name in found[1].split(",")
    }
    lines = [line for line in lines if not self_reference.match(line)]
    return lines if inner <= set(extras) else requirements(project, sorted({*extras, *inner}))


def pins(lock: str) -> dict[str, str]:
    """Returns the entries of a lock file by name, with their hashes."""
    entries = re.split(r"\n(?=[A-Za-z0-9])", lock.strip("\n"))
    return {_normal(entry.partition("==")[0].partition("[")[0]): entry for entry in entries}


def chosen(report: dict[str, Any], locked: dict[str, str]) -> list[str]:
    """Returns the lock file's entries for the packages that pip would install.

    Raises:
        SystemExit: a package has another version in the lock file, or no hash.
    """
    lines = []
    for item in report["install"]:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        entry = locked.get(_normal(name), "")
        if f"=={version} " not in entry or "--hash=" not in entry:
            sys.exit(f"hashed_install: {name} {version} has no hash in requirements.lock")
        lines.append(entry)
    return lines


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install(asked: list[str], *options: str) -> None:
    """Installs requirements with all their dependencies, each checked against its hash."""
    locked = pins((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as made:
        constraints, wanted = Path(made) / "constraints.txt", Path(made) / "requirements.txt"
        constraints.write_text("\n".join(entry.split("\\")[0] for entry in locked.values()))
        wanted.write_text("\n".join(asked))
        plan = [*PIP, *options, "--dry-run", "--quiet", "--report", "-", "-c", str(constraints)]
        done = subprocess.run([*plan, "-r", str(wanted)], stdout=subprocess.PIPE, check=True)
        wanted.write_text("\n".join(chosen(json.loads(done.stdout), locked)))
        hashed = ["--require-hashes", "--no-deps", "-r", str(wanted)]
        subprocess.run([*PIP, *options, *hashed], check=True)


def install_program(extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    install([*requirements(project, extras), *project["build-system"]["requires"]])
    arguments = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
    subprocess.run([*PIP, *arguments], check=True)


if __name__ == "__main__":
    if sys.argv[1] == "--tool":
        install([sys.argv[2]], "--target", sys.argv[3])
    else:
        install_program(sys.argv[1].split(","))
