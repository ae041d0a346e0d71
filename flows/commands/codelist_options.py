"""Options of commands that code with a published list only, before any record exists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flows.commands import file_checks, options
from flows.commands.terminal import say
from mechanisms.errors import MechanismError
from storage.errors import Contradiction, InputError, Missing

if TYPE_CHECKING:
    from mechanisms.model.config import ModelConfig
    from storage.tables.options import ReadOptions
    from tasks.coding.groups import Levels
    from tasks.coding.untrained import UntrainedCoder


@dataclass(frozen=True)
class CodelistOptions:
    codelist: Annotated[
        Path | None,
        options.data(
            help=(
                "Instead of a bundle: a published list of codes and titles, to code "
                "from its titles alone."
            )
        ),
    ] = None
    sentence: Annotated[
        str,
        options.more(
            help=(
                "With --codelist: a sentence in which titles are read, with {} for the "
                "title, such as 'An employee suffered {}.'."
            )
        ),
    ] = ""

    def require_alone(self, *, bundle: bool) -> None:
        """Refuses a bundle together with a list, or a sentence without a list."""
        if self.codelist is None and self.sentence:
            raise Missing("--sentence: requires --codelist", kind="sentence-without-list")
        if self.codelist is not None and bundle:
            raise Contradiction(
                "--bundle and --codelist are mutually exclusive", kind="bundle-and-codelist"
            )
        if self.codelist is not None:
            file_checks.require_readable("--codelist", self.codelist.expanduser())

    def coder(self, home: Path, *, read: ReadOptions, levels: Levels = "auto") -> UntrainedCoder:
        """Builds the untrained coder and describes it."""
        from tasks.coding.untrained import open_codelist

        assert self.codelist is not None
        path, model = self.codelist.expanduser(), starting_model(self.sentence)
        try:
            coder = open_codelist(path, model, home=home, read=read, levels=levels)
        except MechanismError as error:
            raise InputError(f"--codelist: {error}", kind=error.kind) from None
        for note in coder.notes:
            say(f"read {note}", err=True)
        say(coder.description, err=True)
        return coder


def starting_model(sentence: str = "") -> ModelConfig:
    """Returns the model of the profile `formal`. The untrained coder is its starting point."""
    from flows.commands.profiles import load_profile, validate
    from mechanisms.model.config import ModelConfig

    section = load_profile("formal")["model"] | {"prior_sentence": sentence}
    try:
        return validate(ModelConfig, section, where="--sentence: ")
    except MechanismError as error:
        raise InputError(f"--codelist: {error}", kind=error.kind) from None
