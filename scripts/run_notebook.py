"""Runs a notebook from its first cell and saves its outputs, without what changes from run to run.

    python scripts/run_notebook.py examples/own_model.ipynb

Needs the extra `notebooks`. Times and the name of the machine's kernel stay out, so that two
versions differ in text, code and outputs alone. A digest of the code goes in: a test fails when a
cell was changed and not run.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from pathlib import Path
from typing import Any

SECONDS = 3600
"""Of one cell, on a machine that does other things too."""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def digest_of(notebook: Any) -> str:
    """SHA-256 of the code of all cells in their order."""
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()


def tidied(notebook: Any) -> Any:
    """The notebook with its outputs and the digest of what made them."""
    notebook["metadata"] = METADATA | {"code_sha256": digest_of(notebook)}
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):  # beside the picture, its size in words
                output["data"].pop("text/plain", None)
    return notebook


def run(path: Path) -> None:
    """Replaces the outputs of the notebook at `path`; where a cell fails the file
    stays as it was.
    """
    try:
        nbformat, nbclient = (importlib.import_module(name) for name in ("nbformat", "nbclient"))
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error.name} is missing: pip install -e '.[notebooks]'") from error
    notebook: Any = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": "."}}
    nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources=where
    ).execute()
    written = path.with_suffix(".partial")
    nbformat.write(tidied(notebook), written)
    written.replace(path)


if __name__ == "__main__":
    for name in sys.argv[1:] or sys.exit("give the notebooks to run"):
        run(Path(name))
