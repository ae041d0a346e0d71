"""Some pieces of a table to code, for any worker of the queue `coding`. Asked for by `code-batch`, not by hand."""

from __future__ import annotations

from typing import Annotated

from prefect import flow

from flows.server.form import titled
from tasks.coding import shards
from tasks.coding.shards import PiecesAsked
from tasks.running.failures import private_errors


@flow(
    name="code-shard",
    description="Code some pieces of a table. The answers go beside the output, for the run that asked.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def code_shard(shard: Annotated[PiecesAsked, titled("Which pieces of which job")]) -> int:
    """Code pieces, or find them coded. Run again after a crash it goes on at the next one; returns their number.

    Args:
        shard: which pieces of what; the run that asks for it fills this in.
    """
    with private_errors("code shard"):
        return shards.compute(shard)
