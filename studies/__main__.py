"""Tables of the papers, one command each: `python -m studies STUDY --help`.

Results are CSV files in --out. Every row is written as soon as it is measured, so a stopped run
continues with the same command, and more --seeds extend it. Noise has no seed, so a figure is
reproduced within its error. All records here are public or synthetic: nothing is charged, and
nothing may be released.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import typer

from mechanisms.errors import MechanismError

STUDIES = (
    "imbalance",
    "oversampling",
    "mixture",
    "boundaries",
    "images",
    "subsamples",
    "schedules",
    "swag_ppm",
    "rare_codes",
    "rmia",
)
EXTRA = frozenset({"imblearn", "mlxtend", "rtdl_revisiting_models", "xgboost"})
"""Modules that the extra `studies` installs."""
INSTALL = "Run `make setup`, or `pip install -e '.[studies]'`"

app = typer.Typer(
    help=__doc__,
    result_callback=print,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _add(name: str, module: str, function: str = "run") -> None:
    """Adds a study. If its extra is missing, adds a command that reports this, so that the list of
    studies is complete.
    """
    try:
        study = getattr(importlib.import_module(f"studies.{module}"), function)
        options: dict[str, Any] = {}
    except ModuleNotFoundError as error:
        absent = (error.name or "").partition(".")[0]
        if absent not in EXTRA:
            raise
        study = _without(absent)
        options = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(name, context_settings=options)(study)


def _without(module: str) -> Callable[[], None]:
    def study() -> None:
        raise MechanismError(f"{module} is missing. {INSTALL}", kind="not-installed")

    study.__doc__ = f"Needs the extra `studies`. {INSTALL}."
    return study


for _module in STUDIES:
    _add(_module.replace("_", "-"), _module)
for _command in ("sets", "regularisation"):
    _add(_command, "suite", _command)


def main(arguments: Sequence[str] | None = None) -> int:
    torch.set_num_threads(1)  # fits are small, and more threads would wait for each other
    try:
        app(arguments, prog_name="python -m studies")
    except (MechanismError, OSError) as error:
        print(error, file=sys.stderr)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 1


if __name__ == "__main__":
    sys.exit(main())
