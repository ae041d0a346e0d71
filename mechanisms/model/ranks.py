"""Shares the steps of a fit among processes of one machine, its ranks, which all compute the same
parameters.

Each rank processes its share of the records of a step. Sums are added over the ranks before
anything else is computed from them, so that noise, clips and optimiser equal those of a single
process. Only rank 0 writes; the others read its checkpoint, including the key of the noise. Outside
`joined` there is a single rank.
"""

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor, distributed

from mechanisms.errors import MechanismError

_ranks: ContextVar[tuple[int, int]] = ContextVar("ranks", default=(0, 1))
"""(rank, number of ranks) of the current fit. This is per fit, not per process, because other fits
of the process are not shared.
"""
_LONGEST_PAUSE = timedelta(days=7)


@contextmanager
def joined(meeting: Path, *, rank: int, ranks: int, device: torch.device) -> Iterator[None]:
    """Makes fits inside the block compute this rank's share. The ranks find each other through a
    file, so no port is exposed.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = next(
        name for _, name in socket.if_nameindex() if name.startswith("lo")
    )
    distributed.init_process_group(
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        init_method=meeting.resolve().as_uri(),
        rank=rank,
        world_size=ranks,
        timeout=_LONGEST_PAUSE,
    )
    token = _ranks.set((rank, ranks))
    try:
        yield
    finally:
        _ranks.reset(token)
        distributed.destroy_process_group()


def rank() -> int:
    return _ranks.get()[0]


def number() -> int:
    return _ranks.get()[1]


def share(records: Tensor) -> Tensor:
    """This rank's share of a step's records: every n-th, so that shares have similar lengths if the
    records are sorted by length.
    """
    first, ranks = _ranks.get()
    return records[first::ranks]


def add_up(*values: Tensor) -> None:
    """Adds values over the ranks, in place and bit-identically on every rank.

    Raises:
        MechanismError: another rank ended.
    """
    if _ranks.get()[1] > 1:
        try:
            for value in values:
                distributed.all_reduce(value)
        except RuntimeError:
            raise MechanismError(
                "a process of this training ended. Run again, with any --processes, to resume "
                "from the last epoch",
                kind="process-ended",
            ) from None


def add_up_gradients(parameters: Iterable[Tensor]) -> None:
    gradients = [p.grad for p in parameters if p.grad is not None] if _ranks.get()[1] > 1 else []
    if gradients:
        total = torch.cat([gradient.reshape(-1) for gradient in gradients])
        add_up(total)
        for gradient, summed in zip(
            gradients, total.split([g.numel() for g in gradients]), strict=True
        ):
            gradient.copy_(summed.view_as(gradient))


def wait() -> None:
    add_up(torch.zeros(1))
