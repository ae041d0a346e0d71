"""Defines `autocoder budget`: how to divide a budget before anything is spent."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say

app = typer.Typer(help="Divide a budget among the releases to come.", no_args_is_help=True)


@app.command()
def plan(
    releases: Annotated[int, typer.Option(min=1, max=100_000, help="Releases that the budget must last for.")],
    cap: Annotated[str, typer.Option(help="Epsilon of the cap.")],
    delta: Annotated[str, typer.Option(help="Delta of the cap.")] = "0.001",
    release_delta: Annotated[str, typer.Option(help="Delta at which each release states its epsilon.")] = "0.000001",
    as_json: options.AsJson = False,
) -> None:
    r"""Show which epsilon each of so many equal releases can have under a cap.

    `gaussian` holds where every release is full-batch (prior-descent); `basic` is what a policy
    with `composition: basic` allows. A descent on samples (DP-SGD) lies between: `autocoder ledger budget` counts it
    after the first release.

    [bold]Example[/bold]

      autocoder budget plan --releases 20 --cap 10
    """
    from storage.ledger import amounts
    from storage.ledger.composition import largest_size

    limits = amounts.epsilon(cap, name="--cap"), amounts.delta(delta, name="--delta")
    stated = amounts.delta(release_delta, name="--release-delta")
    sizes = largest_size(releases, epsilon=limits[0], delta=limits[1], at=stated)
    shown = {rule: amounts.short(size) for rule, size in sizes.items()}
    if as_json:
        say(json.dumps({"releases": releases, "cap": cap, "delta": delta, "release_delta": release_delta, **shown}))
        return
    say(f"{releases} releases under ε {amounts.short(limits[0])} at δ {amounts.short(limits[1])}:")
    say(f"  gaussian  ε {shown['gaussian']} each, stated at δ {amounts.short(stated)}")
    say(f"  basic     ε {shown['basic']} each")
