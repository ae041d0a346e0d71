"""Whose fit a folder holds, in digests under a key of its own.

A finished or broken fit is continued with whatever is in its folder, under the claim of the plan
that continues: so it has to be that plan's, on those records. Digests are BLAKE2b under 32 random
bytes that are next to them: to whom the folder is not open they say nothing, and folders of the
same records have none in common. A folder with files and without identity is anyone's, and refused:
starting over costs time, believing it could cost a claim.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import checkpoint
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import Inputs

IDENTITY = "identity.json"
_START = "start"
_OTHER = {
    "plan": "another event or config",
    "records": "other records",
    "seed": "another seed",
    "classes": "other classes or fields",
    _START: "another untrained model",
}
_AT_ONCE = 4096


class Identity:
    """Holds the identity of the fit in a folder. `Identity.of` reads and writes it."""

    def __init__(self, folder: Path, digests: Mapping[str, str]) -> None:
        self._folder, self._digests = folder, dict(digests)

    @classmethod
    def of(cls, folder: Path, parts: Mapping[str, Iterable[str | Tensor]]) -> Identity:
        """Returns the identity of a fit's folder; one without files gets it before anything is
        drawn.

        It refuses a folder of another fit, or one that does not say whose it is.

        Args:
            parts: what the fit is of, by the names of `_OTHER`: all but the model that it starts
                from.
        """
        file = folder / IDENTITY
        folder.mkdir(parents=True, exist_ok=True)
        known = _read(file)
        # guard: test_a_folder_of_before_is_nobodys
        if known is None and any(
            path.is_file() and path.name != _partial(file).name for path in folder.rglob("*")
        ):
            raise MechanismError(
                f"folder {folder} does not record which fit it contains. Remove it to start over",
                kind="unknown-fit",
            )
        identity = cls(folder, known or {"key": secrets.token_bytes(32).hex()})
        identity._hold(parts)
        return identity

    def starting(self, build: Callable[[], Classifier]) -> Callable[[], Classifier]:
        """Returns a builder of the untrained model, whose first has to be the one that the fit
        started from before.
        """
        checked = False

        def classifier() -> Classifier:
            nonlocal checked
            classifier = build()
            if not checked:
                self._hold({_START: _parameters(classifier)})
            checked = True
            return classifier

        return classifier

    def _hold(self, parts: Mapping[str, Iterable[str | Tensor]]) -> None:
        key = bytes.fromhex(self._digests["key"])
        digests = {name: _digest(key, content) for name, content in parts.items()}
        others = [
            _OTHER[name]
            for name, digest in digests.items()
            if self._digests.get(name, digest) != digest
        ]
        # guard: test_a_loud_fit_under_a_quiet_claim
        if others:
            raise MechanismError(
                f"folder {self._folder} belongs to {' and '.join(others)}. Remove it to start over",
                kind="another-fit",
            )
        if not digests.keys() <= self._digests.keys():
            self._digests |= digests
            _write(self._folder / IDENTITY, self._digests)


def contents(inputs: Inputs) -> Iterator[str | Tensor]:
    cpu = torch.device("cpu")
    for index in torch.arange(len(inputs)).split(_AT_ONCE):
        if len(index):
            batch = inputs.batch(index, cpu)
            for name in sorted(batch):
                yield name
                yield batch[name]


def _parameters(classifier: Classifier) -> Iterator[str | Tensor]:
    yield classifier.config.model_dump_json()
    yield classifier.flat
    trained = {id(parameter) for parameter in classifier.parameters}
    for name, tensor in chain(
        classifier.whole.named_parameters(), classifier.whole.named_buffers()
    ):
        if id(tensor) not in trained:
            yield name
            yield tensor


def _digest(key: bytes, parts: Iterable[str | Tensor]) -> str:
    hasher = hashlib.blake2b(key=key, digest_size=32)
    for part in parts:
        if isinstance(part, Tensor):
            head = f"{part.dtype} {tuple(part.shape)}"
            body = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        else:
            head, body = "text", part.encode()
        for piece in (head.encode(), body):
            hasher.update(len(piece).to_bytes(8, "big"))
            hasher.update(piece)
    return hasher.hexdigest()


def _partial(file: Path) -> Path:
    return file.with_name(file.name + ".partial")


def _read(file: Path) -> dict[str, str] | None:
    try:
        content = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return None
    needed = {"key", *_OTHER} - {_START}
    return content if isinstance(content, dict) and needed <= content.keys() else None


def _write(file: Path, identity: Mapping[str, str]) -> None:
    partial = _partial(file)
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(identity))
    checkpoint.sync(partial)
    partial.replace(file)
    checkpoint.sync(file.parent)
