"""Coding a file of narratives with a released bundle, as a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from prefect import flow
from pydantic import BaseModel, Field

from flows.server.form import Workspace, titled
from flows.server.settings import home_of
from storage.tables.narratives import Narratives
from storage.tables.reading import survey
from tasks.coding.coder import Coder, newest_bundle, require_standing
from tasks.coding.columns import Added
from tasks.coding.job import CodingJob, run
from tasks.running.failures import private_errors


class Coded(BaseModel, frozen=True):
    """What a batch leaves: a file, and how long it is."""

    rows: int
    needs_review: int | None
    out: str
    release: str


@flow(
    name="code-batch",
    description="Code a file of narratives (CSV, Parquet, JSON Lines) with a released model.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def code_batch(
    data: Annotated[str, titled("Narratives")],
    out: Annotated[str, titled("Output")],
    column: Annotated[str, titled("Text column")] = "Final Narrative",
    bundle: Annotated[str | None, titled("Bundle")] = None,
    top_k: Annotated[int, Field(ge=1, le=50), titled("Codes a narrative")] = 1,
    threshold: Annotated[Annotated[float, Field(ge=0, le=1)] | None, titled("Threshold")] = None,
    home: Workspace = None,
) -> Coded:
    """Write a file with the input's columns and the codes. A run that died goes on where it stopped.

    Args:
        data: narratives: CSV, Parquet or JSON Lines.
        out: file to write, of one of these kinds; one that is finished is not replaced.
        column: its text column.
        bundle: bundle folder; empty: the newest release in the workspace.
        top_k: codes a narrative, 1 to 50.
        threshold: score, 0 to 1, below which a person must look; empty: nothing is marked.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
    """
    with private_errors("code-batch"):
        table = survey(Path(data).expanduser(), text_columns=(column,))
        coder = Coder.open(Path(bundle).expanduser() if bundle else newest_bundle(home_of(home)))
        require_standing(coder, home_of(home), otherwise="name a newer one")
        added = Added(min(top_k, len(coder.model.codes)), threshold, None, coder.groups is not None)
        coded = run(coder, CodingJob(table, Path(out).expanduser(), Narratives((column,), None), added))
        return Coded(rows=coded.rows, needs_review=coded.review, out=out, release=coder.release)
