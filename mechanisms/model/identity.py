"""Records which fit a folder belongs to, as keyed digests.

A finished or interrupted fit continues from the contents of its folder under the claim of the plan
that continues it. The folder must therefore belong to that plan and those records. Digests are
BLAKE2b with a random 32-byte key that is stored with them. They reveal nothing to anyone without
access to the folder, and folders of the same records have no digest in common. A folder with files
but without an identity is refused: starting over costs time, while trusting it could invalidate a
claim.
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
    """The identity of the fit in a folder. `Identity.of` reads and writes it."""

    def __init__(self, folder: Path, digests: Mapping[str, str]) -> None:
        self._folder, self._digests = folder, dict(digests)

    @classmethod
    def of(cls, folder: Path, parts: Mapping[str, Iterable[str | Tensor]]) -> Identity:
        """The identity of a fit's folder. An empty folder gets an identity before anything is
        drawn.

        Args:
            parts: content that identifies the fit, by the names in `_OTHER`, except the starting
                model.

        Raises:
            MechanismError: the folder belongs to another fit, or does not record its fit.
        """
        file = folder / IDENTITY
        folder.mkdir(parents=True, exist_ok=True)
        stored = _read(file)
        # guard: test_a_folder_of_before_is_nobodys
        if stored is None and any(
            path.is_file() and path.name != _partial(file).name for path in folder.rglob("*")
        ):
            raise MechanismError(
                f"folder {folder} does not record which fit it contains. Remove it to start over",
                kind="unknown-fit",
            )
        identity = cls(folder, stored or {"key": secrets.token_bytes(32).hex()})
        identity._hold(parts)
        return identity

    def starting(self, build: Callable[[], Classifier]) -> Callable[[], Classifier]:
        """A builder of the untrained model. Its first model must equal the one from which the fit
        started before.
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
        unlike = [
            _OTHER[name]
            for name, digest in digests.items()
            if self._digests.get(name, digest) != digest
        ]
        # guard: test_a_loud_fit_under_a_quiet_claim
        if unlike:
            raise MechanismError(
                f"folder {self._folder} belongs to {' and '.join(unlike)}. Remove it to start over",
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
