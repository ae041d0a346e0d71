"""Tables of the papers, each by one command: `python -m studies STUDY --help`.

Results are CSV files in --out. Every row is written when it is measured: a run that was stopped
continues with the same command, and more --seeds add to it. Noise has no seed, so a figure comes
out again within its error. All records here are public or invented: nothing is charged, and nothing
may be released.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import typer

from mechanisms.errors import MechanismError

try:
    from studies import (
        boundaries,
        images,
        imbalance,
        mixture,
        oversampling,
        rare_codes,
        rmia,
        schedules,
        subsamples,
        suite,
        swag_ppm,
    )
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is missing. Install the extra `studies`: pip install '.[studies]'")

app = typer.Typer(
    help=__doc__,
    result_callback=print,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for study in (
    imbalance,
    oversampling,
    mixture,
    boundaries,
    images,
    subsamples,
    schedules,
    swag_ppm,
    rare_codes,
    rmia,
):
    app.command(study.__name__.removeprefix("studies.").replace("_", "-"))(study.run)
for command in (suite.sets, suite.regularisation):
    app.command()(command)


def main(arguments: Sequence[str] | None = None) -> int:
    torch.set_num_threads(1)  # fits are small: more threads wait for each other
    try:
        app(arguments, prog_name="python -m studies")
    except (MechanismError, OSError) as error:
        print(error, file=sys.stderr)
    except SystemExit as ended:
        return int(ended.code or 0)
    return 1


if __name__ == "__main__":
    sys.exit(main())
