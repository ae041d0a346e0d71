"""`autocoder imbalance`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options


def imbalance(
    output: options.OutputOptions,
    data: Annotated[Path, typer.Option(help="Folder of the suite's sets, one CSV each, label 0 or 1.")],
    seeds: Annotated[int, typer.Option(help="Splits of each set, from 0 on.", min=1, max=100)] = 10,
    sets: Annotated[str, typer.Option(help="Names by comma, or `all`.")] = "all",
    branches: Annotated[str, typer.Option(help="Names by comma, or `all` of the suite.")] = "all",
    suite: Annotated[
        Path | None, typer.Option(help="YAML of sets, epsilons and branches.", show_default="suites/imbalance.yaml")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Write the page there, and its cells beside it, which a later run takes up.",
            show_default="private/imbalance/page/imbalance.md of the workspace",
        ),
    ] = None,
    finished: Annotated[bool, typer.Option("--finished", help="Fit nothing: the page of what is finished.")] = False,
    home: options.Home = None,
) -> None:
    """Measure private learning on tables of uneven classes: sets times epsilons times systems times seeds.

    The folder is checked before work starts: columns, records and labels of every file. Each fit ends in a small file
    under the workspace's private folder; interrupted or killed, the same command goes on where it stopped, and more
    seeds add to what is there. The bar shows the time left. Nothing is released, and nothing is charged to the ledger.

    [bold]Examples[/bold]

      autocoder imbalance --data imblearn --seeds 10 --results docs/imbalance.md

      autocoder imbalance --data imblearn --sets mammography --branches bayes-table,gem --seeds 3

      autocoder imbalance --data imblearn --suite deployments/suites/rare.yaml --results docs/rare-codes/tables.md
    """
    from flows.server.settings import before_prefect, home_of
    from storage.errors import InputError
    from storage.paths import Workspace

    place = home_of(home)
    before_prefect(place, make_home=True)
    from tasks.imbalance import page, run
    from tasks.imbalance import suite as suites
    from tasks.running.failures import private_errors

    with private_errors("imbalance"):
        given = suites.load(suite.expanduser() if suite else suites.STANDARD)
        chosen_sets = _chosen("--sets", sets, tuple(given.sets))
        known = given.chosen
        chosen = {name: known[name] for name in _chosen("--branches", branches, tuple(known))}
        if results is not None:
            options.require_place("--results", results)
        tables = suites.read_sets(given, data.expanduser(), chosen_sets)
        workspace = Workspace(place)
        workspace.create()
        written = results or workspace.private / "imbalance" / "page" / "imbalance.md"
        written.parent.mkdir(parents=True, exist_ok=True)
        before = run.kept(page.cells_beside(results)) if results else {}
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
            raise InputError("nothing is finished" if finished else "the suite limits these branches to other sets")
        page.write(written, given, chosen, tables, cells, suite=(suite or suites.STANDARD).name)
    said = f"{len(cells):,} cells of {len(chosen)} systems on {len(tables)} sets; the page: {written}"
    output.answer(run.Summary(cells=len(cells), page=str(written)), said)


def _chosen(option: str, given: str, known: tuple[str, ...]) -> tuple[str, ...]:
    from storage.errors import InputError

    if given == "all":
        return known
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if strange := [name for name in names if name not in known]:
        raise InputError(f"{option}: no `{strange[0]}`; there are {', '.join(known)}")
    if not names:
        raise InputError(f"{option}: no name")
    return names
