"""Runs a notebook from its first cell and saves its outputs, without content that changes between
runs.

    python scripts/run_notebook.py examples/own_model.ipynb

Needs the extra `notebooks`. Times and the name of the machine's kernel are removed, so that two
versions differ only in text, code and outputs. A digest of the code is added, and a test fails if a
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
"""Time limit of one cell, on a machine with other load."""
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def digest_of(notebook: Any) -> str:
    """Returns the SHA-256 of the code of all cells in their order."""
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()


def tidied(notebook: Any) -> Any:
    """Returns the notebook with its outputs and the digest of the code that made them."""
    notebook["metadata"] = METADATA | {"code_sha256": digest_of(notebook)}
    for cell in notebook["cells"]:
        cell["metadata"] = {}
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):  # its text form contains its size
                output["data"].pop("text/plain", None)
    return notebook


def run(path: Path) -> None:
    """Replaces the outputs of the notebook at `path`. If a cell fails, the file is not changed."""
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
    for name in sys.argv[1:] or sys.exit("specify the notebooks to run"):
        run(Path(name))
