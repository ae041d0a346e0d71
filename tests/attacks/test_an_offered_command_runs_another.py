"""Would win: a command that the officer is offered, and copies, does other than it says: by names that nobody signs.

What a plan was made with lies beside it in a file that is signed by nobody.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from releases import make_planned

from flows.commands.plan import wrap_lines
from flows.commands.profiles import parameters
from storage.artifacts import ArtifactRef
from tasks.releasing import formal_offer
from tasks.releasing.plan import PlannedRelease

DECLARES = (
    (
        "a command that an officer is offered does what it says",
        "file names and columns that a shell or YAML reads otherwise: `;`, `$( )`, quotes, blanks, line "
        "ends, backticks, `null`, dates",
        "names with line ends or two blanks, as a page shows them",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

HOSTILE = (
    "records.csv; touch owned",
    "$(touch owned).csv",
    'it\'s "mine".csv',
    "a b  c.csv --home elsewhere",
    "two\nlines.csv",
    "`touch owned`.csv",
    "null",
    "~",
    "[a, b]",
    "2016-05-01",
    "#none",
    "x=y",
)


def planned(home: Path, data: dict[str, Any]) -> PlannedRelease:
    """A plan in a workspace, with settings beside it as somebody wrote them."""
    (home / "private" / "plans").mkdir(parents=True)
    dataset = ArtifactRef(uri=f"file://{home}/private/stages/ingest/a", sha256="a" * 64, kind="ingest")
    (home / "private" / "plans" / f"{'0' * 16}.settings").write_text(json.dumps({"parameters": {"data": data}}))
    claim = {"delta_text": "", "sensitivity": None, "neighbouring_relation": "add-remove"}
    return make_planned(key="0" * 64, claim=claim, candidate={"dataset": dataset})


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_a_shell_or_yaml_reads_otherwise(tmp_path: Path, name: str) -> None:
    """As it stands on the terminal, through a shell, into the parameters: the very names, and nothing else done."""
    ingest = {"text_columns": [f"{name} text", "second"], "label_column": name, "date_column": name}
    data = {"source": f"/data/{name}", "codelist": f"/data/{name}", "classification": "", "ingest": ingest}
    command = formal_offer.retrain_command(planned(tmp_path / "home", data), 2.5)
    if not {"`", "\n"} & set(name):
        assert f"`{command}`." in wrap_lines(f"Take this: `{command}`.", 40)
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "autocoder"
    stub.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    stub.chmod(0o700)
    path = f"{stub.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env={"PATH": path}, capture_output=True, text=True, timeout=60, check=True
    )
    words: list[str] = json.loads(done.stdout)
    assert not (tmp_path / "owned").exists()
    assert words[words.index("--data") + 1] == f"/data/{name}"
    assert words.count("--home") == 1
    settings = [words[at + 1] for at, word in enumerate(words) if word == "--set"]
    made = parameters("osha-formal", settings, data=Path("x.csv"), codelist=Path("y.csv"))
    assert made.data.ingest.text_columns == (f"{name} text", "second")
    assert (made.data.ingest.label_column, made.data.ingest.date_column) == (name, name)
