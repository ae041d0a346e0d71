"""Options of commands that use a bundle: the bundle, the partner's trust, and the computation."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flows.commands import options
from flows.server.settings import home_of
from storage.errors import Missing, OutOfRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from storage.bundle.adoption import AdoptedBundle
    from storage.bundle.trust import Trust

Key = Annotated[
    Path | None,
    options.privacy("--key", help="The agency's first public key (PEM), obtained out of band."),
]
Roots = Annotated[
    Path | None,
    options.privacy(help="The agency's newest roots (roots.json): replaced keys, revocations."),
]
AllowUnsigned = Annotated[
    bool,
    options.more(
        "--allow-unsigned", help="Skip the signature check. Everything else is still checked."
    ),
]
_WHICH = "Bundle: a folder, a .tar.zst file, or a folder written by `autocoder adopt`."


_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}")


@dataclass(frozen=True)
class BundleOptions:
    bundle: Annotated[
        Path | None, options.data(help=_WHICH, show_default="the newest release in the workspace")
    ] = None
    home: options.Home = None

    def adopted(self) -> AdoptedBundle | None:
        """The partner's decisions on the bundle, or None if --bundle is not an adopted bundle."""
        from storage.bundle.adoption import AdoptedBundle

        return AdoptedBundle.read(self.bundle)

    def columns(
        self, columns: list[str] | None, template: str | None
    ) -> tuple[Sequence[str], str | None]:
        """Returns the text columns and their template from the options, or from an
        adopted bundle.
        """
        adopted = None if columns else self.adopted()
        if adopted is None:
            return columns or ("Final Narrative",), template
        return adopted.adoption.columns or (
            "Final Narrative",
        ), template or adopted.adoption.template

    def opened(self) -> AbstractContextManager[Path]:
        """Opens the folder of the bundle. An archive is unpacked for the duration of the block."""
        from storage.bundle.archive import open_folder
        from tasks.coding.coder import newest_bundle

        return open_folder(
            self.bundle.expanduser()
            if self.bundle is not None
            else newest_bundle(home_of(self.home))
        )


@dataclass(frozen=True)
class SeveralBundleOptions:
    """Selects the bundles that code. If there are several, each has a name, which
    is the prefix of its columns.
    """

    bundle: Annotated[
        list[str] | None,
        options.data(
            metavar="[NAME=]BUNDLE",
            help=f"{_WHICH} For several, repeat it with a NAME each: their columns start with "
            "NAME_, and texts are encoded once for bundles that share an encoder.",
            show_default="the newest release in the workspace",
        ),
    ] = None
    home: options.Home = None

    def each(self) -> dict[str, BundleOptions]:
        """Returns the options of each bundle by the prefix of its columns; "" for a
        single bundle without a name.
        """
        chosen: dict[str, BundleOptions] = {}
        for option in self.bundle or ():
            name, sign, path = option.partition("=")
            if not sign or Path(option).expanduser().exists():
                name, path = "", option
            elif not _NAME.fullmatch(name):
                raise OutOfRange(
                    f"--bundle: {name!r} is not a valid column prefix. Use letters, digits and _, "
                    "such as nature=BUNDLE.",
                    kind="bundle-name",
                )
            prefix = f"{name}_" if name else ""
            if prefix in chosen or (not prefix and len(self.bundle or ()) > 1):
                raise Missing(
                    "--bundle: several bundles need names, such as nature=BUNDLE and part=OTHER.",
                    kind="unnamed-bundles",
                )
            chosen[prefix] = BundleOptions(Path(path), self.home)
        return chosen or {"": BundleOptions(None, self.home)}


def trust(key: Path | None, roots: Path | None) -> Trust | None:
    """Returns the partner's trust, or None without a key. Roots require a key."""
    from storage.bundle.trust import Trust

    if key is None and roots is not None:
        raise Missing(
            "--roots requires --key, the agency's first public key, obtained out of band",
            kind="roots-without-key",
        )
    return None if key is None else Trust(key.expanduser(), roots and roots.expanduser())
