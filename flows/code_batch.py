"""Coding a file of narratives with a released bundle, as a deployment."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from prefect import flow
from pydantic import BaseModel, Field

from flows.server.form import Workspace, titled
from flows.server.settings import home_of
from storage.tables.reading import survey
from tasks.coding import shards
from tasks.coding.coder import newest_bundle, require_standing
from tasks.coding.job import run
from tasks.coding.joint import open_bundle
from tasks.parameters import Spread
from tasks.running import progress
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
    fan_out: Annotated[Spread | None, titled("Shards")] = None,
    allow_revoked: Annotated[bool, titled("Use a revoked bundle")] = False,
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
        fan_out: whether other workers code some of the pieces; it does not change what comes out. They must see the
            narratives, the output's folder and the bundle at the same paths.
        allow_revoked: code all the same with a bundle that this house revoked.
    """
    settings = fan_out or Spread()
    with private_errors("code-batch"):
        if settings.shards > 1:
            shards.preflight()
        table = survey(Path(data).expanduser(), text_columns=(column,))
        folder = Path(bundle).expanduser() if bundle else newest_bundle(home_of(home))
        coder = open_bundle(folder)
        if not allow_revoked:
            otherwise = "name a newer one (Bundle), or set allow_revoked (Use a revoked bundle)"
            require_standing(coder, home_of(home), otherwise=otherwise)
        job = shards.job_of(coder, table, out=out, column=column, top_k=top_k, threshold=threshold)
        spread = None
        if settings.shards > 1:
            told, heard = shards.told(coder, job, bundle=folder), progress.reporter("code, by shards")
            spread = partial(shards.finish, coder, job, told, settings, heard)
        coded = run(coder, job, spread=spread)
        return Coded(rows=coded.rows, needs_review=coded.review, out=out, release=coder.release)
