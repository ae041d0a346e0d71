"""Commands with help that fits a terminal, and that refuse an option that is used twice."""

import inspect
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from typer.core import TyperCommand, TyperOption

from flows.commands.terminal import Group, say
from storage.errors import Contradiction

MORE = "More"
"""Panel of options that only `--help-all` shows."""


class Command(TyperCommand):
    """Shows the most important options. A value that is set twice is an error, not an override."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            if "--help-all" in args:
                ctx.meta[MORE] = True
                say(ctx.get_help())
                ctx.exit()
            _, _, order = self.make_parser(ctx).parse_args(args=list(args))
            for option in order:
                times = order.count(option)
                if times > 1 and isinstance(option, TyperOption) and not option.multiple:
                    raise Contradiction(
                        f"{option.opts[0]}: used {times} times. Use it once.",
                        kind="option-repeated",
                        option=option.opts[0],
                    )
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        left_out = 0
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or parameter.name == "help":
                continue
            panel = getattr(parameter, "rich_help_panel", None)
            if panel == MORE and not ctx.meta.get(MORE):
                left_out += 1
                continue
            title = "Arguments" if parameter.param_type_name == "argument" else panel or "Options"
            names, text = record
            sections.setdefault(title, []).append(
                (re.sub(r"<list\[(\w+)\]>", r"<\1>", names), text)
            )
        for title in ("Arguments", "Data", "Privacy", "Options", MORE):
            if title in sections:
                with formatter.section(title):
                    formatter.write_dl(sections[title])
        if left_out:
            options = "option" if left_out == 1 else "options"
            formatter.write(f"\n{left_out} more {options}: {ctx.command_path} --help-all\n")


class Commands(Group):
    sections: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    """By title and command: its description. If empty, all commands with the first
    sentence of their help.
    """
    ending: ClassVar[str] = ""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections = self.sections or {
            "Commands": {
                name: command.get_short_help_str(limit=200)
                for name, command in self.commands.items()
            }
        }
        for title, commands in sections.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))
        formatter.write(f"\n{self.ending or f'Options: {ctx.command_path} COMMAND --help'}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)


def unwrap(text: str) -> str:
    """Marks indented examples, so that the help keeps their line breaks."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if part.startswith(" ") else part for part in paragraphs)
