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
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
_LONGEST_START = timedelta(minutes=10)
"""Time in which all ranks must have found each other."""


@contextmanager
def joined(meeting: Path, *, rank: int, ranks: int, device: torch.device) -> Iterator[None]:
    """Makes fits inside the block compute this rank's share, on CUDA on the card of its number. The
    ranks find each other through a file, so no port is exposed.

    Raises:
        MechanismError: not all ranks arrived within ten minutes.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = next(
        name for _, name in socket.if_nameindex() if name.startswith("lo")
    )
    with _own_card(device, rank):
        _meet(meeting, rank=rank, ranks=ranks, device=device)
        token = _ranks.set((rank, ranks))
        try:
            yield
        finally:
            _ranks.reset(token)
            distributed.destroy_process_group()


def _own_card(device: torch.device, rank: int) -> AbstractContextManager[object]:
    """Makes `cuda` mean the card of this rank's number in this thread."""
    return torch.cuda.device(rank) if device.type == "cuda" else nullcontext()


def _meet(meeting: Path, *, rank: int, ranks: int, device: torch.device) -> None:
    store = distributed.FileStore(str(meeting.resolve()), ranks)
    store.set(f"arrived {rank}", "")
    try:
        store.wait([f"arrived {other}" for other in range(ranks)], _LONGEST_START)
    except RuntimeError:
        raise MechanismError(
            "the processes of this training did not find each other. Run again, with any "
            "--processes, to resume",
            kind="processes-apart",
        ) from None
    distributed.init_process_group(
        "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
        store=store,
        rank=rank,
        world_size=ranks,
        timeout=_LONGEST_PAUSE,
    )


def rank() -> int:
    return _ranks.get()[0]


def number() -> int:
    return _ranks.get()[1]


def share(records: Tensor) -> Tensor:
    """This rank's share of a step's records: every n-th, so that shares have similar lengths if the
    records are sorted by length.
    """
    first, ranks = _ranks.get()
    return records if ranks == 1 else records[first::ranks]


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
                "from the last checkpoint",
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
