"""Codes a file of narratives with a released bundle, as a deployment."""

from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from flows.server.form import Workspace, with_title
from flows.server.prefect_run import as_flow
from flows.server.settings import home_of
from storage.tables.narratives import Narratives
from storage.tables.reader import survey
from tasks.coding.bundles import Bundles
from tasks.coding.coder import newest_bundle, open_bundle, require_not_revoked
from tasks.coding.columns import answer_columns
from tasks.coding.distribute import distribute
from tasks.coding.job import CodingJob, run
from tasks.running import progress
from tasks.running.engine import check, of_environment
from tasks.running.failures import private_errors


class CodingReport(BaseModel, frozen=True):
    rows: int
    needs_review: int | None
    out: str
    release: str


@as_flow(
    name="code-batch",
    description="Code a file of narratives (CSV, Parquet, JSON Lines) with a released model.",
)
def code_batch(
    data: Annotated[str, with_title("Narratives")],
    out: Annotated[str, with_title("Output")],
    column: Annotated[str, with_title("Text column")] = "Final Narrative",
    bundle: Annotated[str | None, with_title("Bundle")] = None,
    top_k: Annotated[int, Field(ge=1, le=50), with_title("Codes per narrative")] = 1,
    threshold: Annotated[
        Annotated[float, Field(ge=0, le=1)] | None, with_title("Threshold")
    ] = None,
    home: Workspace = None,
) -> CodingReport:
    """Code a file of narratives with a released bundle. After a crash, a rerun resumes.

    The output has the input's columns and the codes.

    Args:
        data: Narratives: CSV, Parquet or JSON Lines.
        out: Output file of one of these formats; a finished file is not replaced.
        column: The text column.
        bundle: Bundle folder; empty: the newest release in the workspace.
        top_k: Codes per narrative, 1 to 50.
        threshold: Score from 0 to 1 below which a person must review; empty: no rows are marked.
        home: Workspace folder; empty: the worker's (AUTOCODER_HOME).
    """
    engine = of_environment()
    with private_errors("code-batch"):
        check(engine)
        folder = Path(bundle).expanduser() if bundle else newest_bundle(home_of(home))
        table = survey(Path(data).expanduser(), text_columns=(column,))
        coder = open_bundle(folder)
        require_not_revoked(coder, home_of(home))
        answers = (answer_columns(coder, top_k=top_k, threshold=threshold),)
        job = CodingJob(table, Path(out).expanduser(), Narratives((column,)), answers)
        bundles, report = Bundles.of(coder), progress.reporter("code, by workers")
        by_workers = (
            partial(distribute, bundles, job, engine=engine, report=report, bundle=folder)
            if engine
            else None
        )
        coded = run(bundles, job, distribute=by_workers)
        return CodingReport(
            rows=coded.rows, needs_review=coded.review, out=out, release=coder.release
        )
