"""Commands whose help fits a terminal, and which refuse an option that is given twice."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption

from flows.commands.terminal import Group, say
from storage.errors import InputError

MOST = 12
"""Options that `--help` shows; `--help-all` shows the others too."""
WIDTH = 80
_DATA = {
    *("profile", "data", "codelist", "text", "label", "date", "population", "classification", "template", "field"),
    *("classification-version", "sample", "reference", "bundle", "out", "append", "overwrite", "by"),
}
_PRIVACY = {
    *("epsilon", "delta", "epsilons", "policy", "key", "roots", "state", "signing-key", "unsigned", "allow-unsigned"),
    *("allow-revoked", "accept-texts", "reason", "verify-key", "approval", "trials", "canaries", "confidence"),
}


_VALUES = {"--text": "COLUMN", "--label": "COLUMN", "--date": "COLUMN", "--home": "FOLDER"}


class Command(TyperCommand):
    """Shows a plain help of 80 columns; a value that is given twice is an error, not an override."""

    first: Sequence[str] = ()
    """Options that the short help shows, of a command with more than `MOST`; empty: as they come."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--help-all" in args and not ctx.resilient_parsing:
            say(self.help_text(ctx, everything=True))
            ctx.exit()
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in {one.name: one for one in order if isinstance(one, TyperOption)}.values():
            times = sum(one is option for one in order)
            if times > 1 and not option.multiple and not ctx.resilient_parsing:
                raise InputError(f"{option.opts[0]}: given {times} times. It takes one value: leave the others out.")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(self.help_text(ctx))

    def help_text(self, ctx: Any, *, everything: bool = False) -> str:
        """Lays out usage, what the command does, and its options by what they concern."""
        parameters = [one for one in self.get_params(ctx) if not getattr(one, "hidden", False)]
        options = [one for one in parameters if isinstance(one, TyperOption) and one.name != "help"]
        arguments = [one for one in parameters if isinstance(one, TyperArgument)]
        shown = options if everything else self._first(options)
        lines = [f"Usage: {ctx.command_path} {' '.join(self.collect_usage_pieces(ctx))}", "", *_prose(self.help or "")]
        if arguments:
            lines += ["", "Arguments"]
            for argument in arguments:
                lines += [f"  {' '.join(argument.get_usage_pieces(ctx))}", *_indented(argument.help or "")]
        for title in ("Data", "Privacy", "Run"):
            group = [option for option in shown if _group_of(option) == title]
            lines += ["", title] if group else []
            for option in group:
                lines += [f"  {_usage_of(option)}", *_indented(_explained(option))]
        if len(shown) < len(options):
            lines += ["", f"{len(options) - len(shown)} more options: {ctx.command_path} --help-all"]
        return "\n".join(lines) + "\n"

    def _first(self, options: Sequence[TyperOption]) -> Sequence[TyperOption]:
        if len(options) <= MOST:
            return options
        named = {one.name: one for one in options}
        return [named[name] for name in self.first if name in named][:MOST] if self.first else options[:MOST]


class Commands(Group):
    """Lists the commands that a person starts with, by what they are for."""

    overview: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """Section -> command -> what it does. Empty: all commands, with the first sentence of their help."""
    intro = ""
    ending = ""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        sections = self.overview or {"Commands": {name: self.summary(ctx, name) for name in self.list_commands(ctx)}}
        lines = [f"Usage: {ctx.command_path} COMMAND [OPTIONS]", "", *_prose(self.intro or self.help or "")]
        for title, commands in sections.items():
            lines += ["", title, *table(commands)]
        ending = self.ending or f"Options of one: {ctx.command_path} COMMAND --help"
        formatter.write("\n".join([*lines, "", ending]) + "\n")

    def summary(self, ctx: Any, name: str) -> str:
        """Reads the first sentence of a command's help."""
        command = self.get_command(ctx, name)
        return re.split(r"(?<=\.)\s", _plain(command.help or "") if command else "", maxsplit=1)[0].rstrip(".")


def table(commands: Mapping[str, str]) -> list[str]:
    """Lays out commands beside what they do, within 80 columns."""
    width = max(map(len, commands)) + 4
    return [
        line
        for name, text in commands.items()
        for line in textwrap.wrap(
            f"{name}{text}" if not text else f"{name:<{width - 2}}{text}",
            WIDTH,
            initial_indent="  ",
            subsequent_indent=" " * width,
        )
    ]


def use_plain_help(app: typer.Typer, first: Mapping[str, Sequence[str]]) -> None:
    """Gives every command of an app, and of its groups, these classes; `first` has the options of their short help."""
    for info in app.registered_commands:
        name = info.name or getattr(info.callback, "__name__", "").replace("_", "-")
        info.cls = type("Command", (Command,), {"first": first.get(name, ())})
        info.no_args_is_help = info.no_args_is_help or False
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.typer_instance.info.cls = Commands
            use_plain_help(group.typer_instance, first)


def _plain(text: str) -> str:
    return re.sub(r"\[/?bold\]", "", inspect.cleandoc(text))


def _prose(text: str) -> Iterator[str]:
    """Wraps paragraphs; indented examples stay as they are."""
    for number, paragraph in enumerate(_plain(text).split("\n\n")):
        if number:
            yield ""
        if paragraph.startswith(" "):
            yield from paragraph.split("\n")
        else:
            yield from textwrap.wrap(paragraph, WIDTH - 2, break_long_words=False, break_on_hyphens=False)


def _indented(text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6, break_long_words=False, break_on_hyphens=False
    )


def _group_of(option: TyperOption) -> str:
    name = option.opts[0].removeprefix("--")
    return "Data" if name in _DATA else "Privacy" if name in _PRIVACY else "Run"


def _usage_of(option: TyperOption) -> str:
    if option.is_flag:
        return " / ".join([option.opts[0], *option.secondary_opts[:1]])
    kind = option.type_descriptor.annotation
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    if option.metavar:
        value = option.metavar
    elif get_origin(kind) is Literal:
        value = "|".join(map(str, get_args(kind)))
    else:
        value = {Path: "FILE", int: "NUMBER", float: "NUMBER"}.get(kind, "TEXT")
        value = _VALUES.get(option.opts[0], value)
    return f"{option.opts[0]} {value}"


def _explained(option: TyperOption) -> str:
    text = " ".join((option.help or "").split())
    if option.required:
        return f"{text} Required."
    default: Any = option.show_default if isinstance(option.show_default, str) else option.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        return f"{text} Default: {default}."
    return text
