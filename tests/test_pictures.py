"""The pictures of the documentation: each has a command, and shows what the program shows."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import yaml

from flows.server.form import FormalForm
from studies import __main__ as studies

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
COMMANDS = yaml.safe_load((DOCS / "pictures" / "commands.yaml").read_text(encoding="utf-8"))
SHOWN = json.loads((DOCS / "pictures" / "shown.json").read_text(encoding="utf-8"))
LISTED = {name for names in COMMANDS.values() for name in names}


def pictures() -> set[str]:
    return {
        file.relative_to(DOCS).as_posix()
        for kind in ("svg", "png")
        for file in DOCS.rglob(f"*.{kind}")
    }


def test_every_picture_has_its_command() -> None:
    """Those of the studies by their names, as `python -m studies` has them."""
    named = tuple(str(command.name) for command in studies.app.registered_commands)
    of_studies = {
        name
        for name in pictures()
        if name.startswith("studies/") and Path(name).name.startswith(named)
    }
    assert pictures() - of_studies == LISTED - {"studies/**/STUDY*.svg"}


def test_every_picture_is_on_a_page() -> None:
    pages = [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert [name for name in pictures() if Path(name).name not in text] == []


def test_the_diagrams_are_those_of_the_script() -> None:
    """The plot of budgets too, which the ledger's own sums draw."""
    command = [sys.executable, "scripts/diagrams.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_noted_is_of_these_pictures() -> None:
    taken = {name for name in pictures() if name.endswith(".png")}
    assert {f"pictures/{name}" for name in SHOWN} == taken
    for name, facts in SHOWN.items():
        head = (DOCS / "pictures" / name).read_bytes()[16:24]
        assert list(struct.unpack(">2I", head)) == facts["size"], name


def test_the_picture_of_a_form_has_its_fields() -> None:
    """In their order, which Prefect's page takes from the schema."""
    labels = [label.removesuffix(" (Optional)") for label in SHOWN["form.png"]["labels"]]
    titles = [str(field.title) for field in FormalForm.model_fields.values()]
    schema = FormalForm.model_json_schema()["properties"].values()
    ordered = [field["title"] for field in sorted(schema, key=lambda field: field["position"])]
    assert sorted(titles) == sorted(ordered)
    assert [label for label in labels if label in titles] == ordered
