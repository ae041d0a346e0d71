"""A coder that needs no records: the starting point of prior descent, from a published code list.

It is the classifier from which training would start (`tasks.fitting.model_inputs.untrained`): the
titles of the list form its head, and their words are features in addition to the encoder's. It has
read no record, so it is not private data, and its scores are not probabilities of being right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from mechanisms.model.config import ModelConfig
from storage.artifacts import digest
from storage.code_version import code_version
from storage.codelist import Code, read_list
from storage.durable import own_folder
from storage.egress.public_lists import published_name
from storage.errors import Contradiction, Missing, NotInstalled
from storage.paths import Workspace
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from tasks.coding.coder import UNTRAINED, Coder, ModelKind, Reads
from tasks.coding.groups import Levels, groups_of
from tasks.running import installation
from tasks.running.stage import Context

_LIBRARIES = ("torch", "transformers", "safetensors")


@dataclass(frozen=True, kw_only=True)
class UntrainedCoder(Coder):
    """Codes by the titles of a list, as prior descent would before its first step."""

    kind: ClassVar[ModelKind] = UNTRAINED
    config: ModelConfig
    notes: tuple[str, ...]
    """Sentences on entries of the list that were left out or chosen."""

    @cached_property
    def reads(self) -> Reads:
        """Limits of the model on narratives, from its configuration."""
        return Reads.of_config(self.config)

    @property
    def label(self) -> str:
        """Name of the model on a page."""
        return UNTRAINED

    @property
    def description(self) -> str:
        """Describes the coder in one line."""
        return (
            f"untrained coder of {self.folder.name}, {len(self.model.codes):,} codes: it has read "
            "no record, and its scores are not probabilities of being right"
        )

    def with_sets(self, coverage: float) -> Coder:
        raise Contradiction(
            "--coverage: an untrained coder has no sets, because they are fitted "
            "on coded records. Leave it out, or use a bundle",
            kind="untrained-sets",
        )

    def threshold_for(self, accuracy: float) -> float:
        raise Contradiction(
            "--accuracy: an untrained coder has no thresholds, because they are "
            "fitted on coded records. Choose a score with --threshold, or use a "
            "bundle",
            kind="untrained-thresholds",
        )


def open_codelist(
    path: Path,
    model: ModelConfig,
    *,
    home: Path,
    read: ReadOptions = AS_IT_LOOKS,
    levels: Levels = "auto",
) -> UntrainedCoder:
    """Builds the coder from a published list of codes and titles, which is read once.

    Args:
        model: a model that starts at titles.
        home: a workspace. If it exists, the stage of the titles is the one that a later training
            uses.
    """
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        raise NotInstalled(f"--codelist: {installation.refusal(missing)}", kind="training-missing")
    listed = read_list(path, option="--codelist", read=read)
    if not any(code.title or code.description for code in listed.codes):
        raise Missing(
            f"--codelist: {path} has no titles, and an untrained coder reads "
            "nothing else. Use a list with titles",
            kind="untitled-list",
        )
    return _coder_of(listed.codes, model, path=path, home=home, levels=levels, notes=listed.notes)


def _coder_of(
    codes: Sequence[Code],
    model: ModelConfig,
    *,
    path: Path,
    home: Path,
    levels: Levels,
    notes: tuple[str, ...],
) -> UntrainedCoder:
    from mechanisms.model import encoder_files, export
    from tasks.fitting.model_inputs import untrained
    from tasks.fitting.prior import encoder_digest

    with _context(home) as context:
        classifier = untrained(context, model, codes, seed=0)
    names = tuple(code.code for code in codes)
    of_list = digest([code.as_json() for code in codes])
    parts = {
        "list": of_list,
        "model": model.model_dump(mode="json"),
        "encoder": encoder_digest(model),
        "code": code_version("tasks.fitting.model_inputs"),
    }
    classification = published_name(codes) or "unnamed"
    return UntrainedCoder(
        release=UNTRAINED,
        digest=digest(parts),
        classification=classification,
        version=f"list-{of_list[:12]}",
        folder=path,
        model=export.Released(
            classifier.releasable().eval(),
            encoder_files.load_tokenizer(model.encoder),
            names,
            model.max_length,
            device=classifier.device,
        ),
        titles={code.code: code.title for code in codes},
        groups=groups_of(names, classification=classification, levels=levels),
        thresholds=None,
        config=model,
        notes=notes,
    )


@contextmanager
def _context(home: Path) -> Iterator[Context]:
    """Yields an existing workspace, or a temporary one."""
    if Workspace(home).private.is_dir():
        yield Context(home=str(home))
        return
    with own_folder(UNTRAINED) as folder:
        yield Context(home=str(Workspace(folder).create().home))
