"""The notebook shows what its code says, and its page is made without running it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import run_notebook
import site_pages

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "own_model.ipynb"


def read() -> Any:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def shown(notebook: Any) -> str:
    """All that its cells print."""
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return "".join("".join(output.get("text", "")) for output in outputs)


def says_what_is_true(out: str) -> None:
    """Both targets are met, both types of guarantee are named, the attack works where nothing
    protects, and no formal claim is contradicted.
    """
    accuracies = dict(re.findall(r"^epsilon (\d): accuracy ([\d.]+)", out, flags=re.MULTILINE))
    assert set(accuracies) == {"1", "5"}
    assert all(float(found) > 0.6 for found in accuracies.values()), "one of ten classes by chance"
    found = re.findall(
        r"^epsilon (\d): .*the accountant says ([\d.]+) at delta 1e-05$", out, re.MULTILINE
    )
    assert all(0.9 * int(target) < float(said) <= int(target) for target, said in found)
    assert len(found) == 2
    assert re.search(
        r"^epsilon [\d.]+, delta O\(n\^-1/2\).*guarantee: asymptotic-local$", out, re.MULTILINE
    )
    found = re.findall(
        r"^(.+): (\d+) of 60 right, epsilon at least ([\d.]+); (.+)$", out, re.MULTILINE
    )
    verdicts = {name: (int(right), float(bound), words) for name, right, bound, words in found}
    right, bound, words = verdicts["Without protection"]
    assert (right > 50, bound > 1, words) == (True, True, "nothing was claimed")
    assert verdicts["DP-SGD, epsilon 1"][2].endswith(": not contradicted")
    assert "SWAG-PPM" in verdicts


def test_what_it_shows_is_of_the_code_that_it_holds() -> None:
    """A cell that was changed, left out or run out of order is reported: run
    scripts/run_notebook.py again.
    """
    notebook = read()
    assert notebook["metadata"]["code_sha256"] == run_notebook.digest_of(notebook)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    says_what_is_true(shown(notebook))
    assert not re.search(r"Traceback|Warning|/home/|/root/|/tmp/", json.dumps(notebook))


def test_its_page_has_text_code_outputs_and_picture() -> None:
    text, pictures = site_pages.page_of(NOTEBOOK, "own-model.md")
    assert text.startswith("# Your own model")
    assert text.count("```python") == sum(cell["cell_type"] == "code" for cell in read()["cells"])
    for line in shown(read()).splitlines():
        assert line.rstrip() in text
    assert list(pictures) == ["own-model-1.png"]
    assert pictures["own-model-1.png"].startswith(b"\x89PNG")
    assert "(own-model-1.png)" in text


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ({"execution_count": None, "outputs": []}, "not run"),
        (
            {"execution_count": 1, "outputs": [{"output_type": "error", "traceback": []}]},
            "contains an error",
        ),
    ],
)
def test_a_notebook_that_was_not_run_is_no_page(
    tmp_path: Path, cell: dict[str, Any], said: str
) -> None:
    path = tmp_path / "n.ipynb"
    path.write_text(
        json.dumps({"cells": [{"cell_type": "code", "source": "1", "metadata": {}, **cell}]})
    )
    with pytest.raises(ValueError, match=said):
        site_pages.page_of(path, "n.md")


_CELLS = "import json, sys\nfor cell in json.load(open(sys.argv[1]))['cells']:\n" + (
    "    if cell['cell_type'] == 'code': exec(''.join(cell['source']), globals())"
)


@pytest.mark.long
def test_it_runs_and_says_what_is_true() -> None:
    """Its cells one after another, as plain Python: Jupyter is not needed. A minute of one core."""
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _CELLS, str(NOTEBOOK)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    says_what_is_true(done.stdout)
