"""`autocoder qa`: a sample to code twice, and how far human and model agree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say

if TYPE_CHECKING:
    from tasks.coding.quality import Agreement

app = typer.Typer(
    no_args_is_help=True, help="Have a sample of a coded table coded by a person, and compare.", rich_markup_mode="rich"
)


@app.command()
def draw(
    coded: Annotated[Path, typer.Argument(help="Table that `autocoder code` wrote.")],
    out: Annotated[Path, typer.Option(help="Sample to write: .csv, .parquet or .jsonl.")],
    column: Annotated[
        list[str] | None, typer.Option(help="What the coder reads; may be repeated.", show_default="Final Narrative")
    ] = None,
    share: Annotated[float | None, typer.Option(min=0.0001, max=1, help="Of all rows.", show_default="0.05")] = None,
    sensitive: Annotated[
        list[str] | None,
        typer.Option(help="Code that is always sampled (of several fields: nature=1311); may be repeated."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="YAML with share and sensitive_codes; the options above win.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Repeats a sample.", show_default="none, it cannot be foreseen")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Draw a random sample for double coding, without the model's codes.

    [bold]Examples[/bold]

      autocoder qa draw coded.csv --out sample.csv --share 0.05 --sensitive 1311

      autocoder qa draw coded.parquet --column Narrative --policy qa.yaml --out sample.csv
    """
    from tasks.coding.quality import Policy, draw, read_policy
    from tasks.running.failures import private_errors

    with private_errors("qa"):
        chosen = read_policy(policy.expanduser()) if policy else Policy()
        changes = {"share": share, "sensitive_codes": tuple(sensitive) if sensitive else None}
        chosen = chosen.model_copy(update={name: value for name, value in changes.items() if value is not None})
        sample = draw(coded, out, columns=column or ["Final Narrative"], policy=chosen, seed=seed)
    if as_json:
        say(json.dumps(vars(sample) | {"out": str(out)}))
    else:
        say(
            f"{sample.sampled:,} of {sample.rows:,} rows in {out} ({sample.sensitive:,} of sensitive codes); fill in "
            "the column human_code (of several fields, one each) and run `autocoder qa agree`"
        )


@app.command()
def agree(
    coded: Annotated[Path, typer.Argument(help="The table that was sampled.")],
    sample: Annotated[Path, typer.Option(help="The sample, with human_code filled in.")],
    as_json: options.AsJson = False,
) -> None:
    """Compare the human's codes with the model's: share, Cohen's kappa, each code.

    [bold]Examples[/bold]

      autocoder qa agree coded.csv --sample sample.csv
    """
    from tasks.coding.quality import agreements
    from tasks.running.failures import private_errors

    with private_errors("qa"):
        agreed = agreements(coded, sample)
    if as_json:
        told = {field: one.as_dict() for field, one in agreed.items()}
        say(json.dumps(told.get("", told), indent=2))
        return
    for field, one in agreed.items():
        _tell(field, one)


def _tell(field: str, agreed: Agreement) -> None:
    from rich.table import Table

    from flows.commands.terminal import Console

    of = f"{field}: " if field else ""
    low, high = agreed.share_interval
    say(f"{of}same code: {agreed.share:.1%} of the table, 95 % interval {low:.1%} to {high:.1%}")
    if agreed.kappa is None or agreed.kappa_interval is None:
        say(f"{of}Cohen's kappa: not defined, both gave one code throughout")
    else:
        say(
            f"{of}Cohen's kappa: {agreed.kappa:.3f}, 95 % interval {agreed.kappa_interval[0]:.3f} to "
            f"{agreed.kappa_interval[1]:.3f}"
        )
    table = Table(title=f"{of}{agreed.rows:,} rows coded twice ({agreed.missing:,} came back without a code)")
    for name in ("code", "human", "model", "both", "F1"):
        table.add_column(name, justify="left" if name == "code" else "right")
    for code in agreed.codes:
        table.add_row(code.code, str(code.human), str(code.model), str(code.both), f"{code.f1:.2f}")
    Console().print(table)
