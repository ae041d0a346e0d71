"""Defines `autocoder imbalance`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from storage.errors import InputError
from storage.paths import Workspace
from tasks.running.failures import private_errors


def imbalance(
    output: options.OutputOptions,
    data: Annotated[Path, typer.Option(help="Folder with the sets of the suite, one CSV each, label 0 or 1.")],
    seeds: Annotated[int, typer.Option(help="Splits per set, from 0 on.", min=1, max=100)] = 10,
    sets: Annotated[str, typer.Option(help="Names by comma, or `all`.")] = "all",
    branches: Annotated[str, typer.Option(help="Names by comma, or `all` of the suite.")] = "all",
    epsilons: Annotated[
        str, typer.Option(help="Of the suite's, by comma, or `all`: the ε that one record replaced may cost.")
    ] = "all",
    suite: Annotated[
        Path | None, typer.Option(help="YAML of sets, epsilons and branches.", show_default="suites/imbalance.yaml")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Write the page to this file, and its cells next to it, which a later run reuses.",
            show_default="private/imbalance/page/imbalance.md of the workspace",
        ),
    ] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="Fit nothing: write the page of finished cells.")
    ] = False,
    home: options.Home = None,
) -> None:
    r"""Measure private learning on tables with imbalanced classes: sets, epsilons, systems and seeds.

    Columns, records and labels of every file are checked before work starts. Each fit ends in a small file under the
    private folder of the workspace: after an interruption, run the same command to resume, and more seeds reuse
    finished ones. Nothing is released, and nothing is charged to the ledger.

    [bold]Examples[/bold]

      autocoder imbalance --data imblearn --seeds 10 --results docs/imbalance.md

      autocoder imbalance --data imblearn --sets mammography \
          --branches bayes-table,gem --seeds 3
    """
    from flows.server.settings import configure_prefect, home_of

    place = home_of(home)
    configure_prefect()
    from tasks.imbalance import page, run
    from tasks.imbalance import suite as suites

    with private_errors("imbalance"):
        given = suites.load(suite.expanduser() if suite else suites.STANDARD)
        chosen_sets = _chosen("--sets", sets, tuple(given.sets))
        choices = {f"{epsilon:g}": epsilon for epsilon in given.epsilons}
        some = tuple(choices[name] for name in _chosen("--epsilons", epsilons, tuple(choices)))
        given = given.model_copy(update={"epsilons": some})
        systems = given.chosen
        chosen = {name: systems[name] for name in _chosen("--branches", branches, tuple(systems))}
        if results is not None:
            options.require_writable("--results", results)
        tables = suites.read_sets(given, data.expanduser(), chosen_sets)
        workspace = Workspace(place)
        workspace.create()
        written = results or workspace.private / "imbalance" / "page" / "imbalance.md"
        written.parent.mkdir(parents=True, exist_ok=True)
        before = run.load_cells(page.cells_beside(results)) if results else {}
        with output.progress():
            cells = run.run(
                given,
                chosen,
                tables,
                seeds=seeds,
                folder=workspace.private / "imbalance",
                before=before,
                fitting=not finished,
            )
        if not cells:
            raise InputError(
                "no cell is finished. Run without --finished."
                if finished
                else "the suite limits these branches to other sets"
            )
        page.write(written, given, chosen, tables, cells, suite=(suite or suites.STANDARD).name)
    sentence = f"{len(cells):,} cells of {len(chosen)} systems on {len(tables)} sets; the page: {written}"
    output.answer(run.Summary(cells=len(cells), page=str(written)), sentence)


def _chosen(option: str, given: str, choices: tuple[str, ...]) -> tuple[str, ...]:
    if given == "all":
        return choices
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if unknown := [name for name in names if name not in choices]:
        raise InputError(f"{option}: `{unknown[0]}` is unknown. Choose from {', '.join(choices)}.")
    if not names:
        raise InputError(f"{option}: it is empty. Give names, or `all`.")
    return names
