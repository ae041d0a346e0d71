"""Defines `autocoder curve`: what a noise costs at every delta."""

from __future__ import annotations

import json
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.ledger_text import spent
from flows.commands.terminal import say
from storage.errors import InputError
from tasks.running.failures import private_errors


def curve(
    plan: Annotated[Path | None, typer.Argument(help="Plan of a formal release; its own delta is marked.")] = None,
    noise: Annotated[
        float | None, typer.Option(help="In place of a plan: standard deviation of the noise, in clips.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Noisy sums; with --noise.")] = 1,
    sampling_prob: Annotated[
        float, typer.Option(min=1e-9, max=1, help="Probability of a record in each sum; with --noise.")
    ] = 1.0,
    records_per_unit: Annotated[int, typer.Option(min=1, help="Records of a privacy unit; with --noise.")] = 1,
    delta: Annotated[list[float] | None, typer.Option(help="A delta; repeatable.", show_default="1e-3 to 1e-9")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw a figure: .png, .svg or .pdf.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Show the epsilon of a formal release at every delta, before or after noise is drawn. Reads no record.

    With a plan, the accountants read its event. With --noise they read so many noisy sums.

    [bold]Examples[/bold]

      autocoder curve workspace/private/plans/0123456789abcdef.json

      autocoder curve --noise 8.4 --steps 70 --plot curve.png

      autocoder curve --noise 1.1 --steps 2000 --sampling-prob 0.02
    """
    if (plan is None) == (noise is None):
        raise InputError("no plan, or a plan and --noise. Give one of them.")
    if noise is not None and not 0 < noise < float("inf"):
        raise InputError(f"--noise: {noise} is not above 0. Give the standard deviation in clips.")
    for one in delta or ():
        if not 0 < one < 1:
            raise InputError(f"--delta: {one} is not between 0 and 1")
    if plot is not None:
        options.require_figure(plot)
    if plan is not None:
        options.home_of_plan(plan, None)
    from mechanisms.privacy.events import DpSgdEvent, Event, NoiseSegment
    from tasks.releasing import cost_curve

    with private_errors("curve"):
        stated: list[float] = []
        if plan is not None:
            from tasks.releasing.plan import PlannedRelease

            planned = PlannedRelease.load(plan.expanduser()).plan
            event: Event = planned.event
            records_per_unit = planned.claim.max_records_per_unit
            stated = [] if planned.claim.delta is None else [planned.claim.delta]
        else:
            segment = NoiseSegment(steps=steps, noise_multiplier=noise or 0, l2_clip_norm=1.0)
            event = DpSgdEvent(sampling_prob=sampling_prob, segments=(segment,))
        points = cost_curve.cost_curve(
            event, [*(delta or cost_curve.DELTAS), *stated], records_per_unit=records_per_unit
        )
        marked = next((point for point in points if point.delta in stated), None)
        if plot is not None:
            cost_curve.plot(points, plot.expanduser(), marked=marked)
    if as_json:
        say(json.dumps([asdict(point) for point in points], indent=2))
        return
    of = "one record" if records_per_unit == 1 else f"a unit of {records_per_unit} records"
    say(f"epsilon of {of}, rounded up:\n")
    say(f"{'delta':>8}  {'added or removed':>16}  {'replaced':>10}")
    for point in points:
        both = [None if one is None else Decimal(one) for one in (point.epsilon, point.epsilon_replaced)]
        ours = "  the plan" if point == marked else ""
        say(f"{point.delta:>8g}  {spent(both[0]):>16}  {spent(both[1]):>10}{ours}")
