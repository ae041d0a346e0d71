"""What no text of a bundle may hold: pickles, places of the machine, names of user and host, fine times, scores."""

from __future__ import annotations

import getpass
import re
import socket
from contextlib import suppress
from pathlib import Path

from storage.bundle.folder import UnsoundBundle

_PICKLES = ((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"), (b"PK\x03\x04",), (b"\x1f\x8b",))
_PLACES = re.compile(
    r"(?<![\w./:<])/(?:home|root|users|tmp|var|opt|mnt|media|srv|work|data|etc|private|usr|scratch|nfs)/\w"
    r"|\bfile:/{1,3}\w|(?<![\w])[a-z]:\\\w|\\\\\w+\\\w",
    re.IGNORECASE,
)
_TIMES = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\b1[5-9]\d{8}(?:\.\d+)?\b")
"""Times finer than a day: ISO 8601, and seconds since 1970 from 2017 to 2033."""
_SCORES = re.compile(r"\b(?:macro|weighted|micro)?[- ]?(?:f1|accuracy|precision|recall|kappa)\b\D{0,20}\d", re.I)
_NOBODY = frozenset(
    {"root", "user", "admin", "runner", "demo", "nobody", "worker", "prefect", "docker", "ubuntu", "debian", "postgres"}
    | {"localhost", "autocoder"}
)
"""Names of accounts and hosts that name nobody."""


def identities(*places: Path) -> tuple[str, ...]:
    """What would tell who made a bundle and where: user, host, home, and the folders given."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0], Path.home().name}
    with suppress(KeyError, OSError):  # an account without a name
        names.add(getpass.getuser())
    kept = {name for name in names if len(name) >= 4 and name.casefold() not in _NOBODY}
    return tuple(sorted(kept | {str(place) for place in places if len(place.parts) > 1}))


def check_pickle(name: str, start: bytes) -> None:
    """Refuse a file that begins as a pickle or an archive does.

    Raises:
        UnsoundBundle: names the file.
    """
    for kind, marks in zip(("a pickle", "a ZIP archive, as pickled models are", "gzip"), _PICKLES, strict=True):
        if start.startswith(marks):
            raise UnsoundBundle(name, f"begins like {kind}")


def check_text(name: str, text: str, *, identities: tuple[str, ...] = (), scores: bool = True) -> None:
    """Refuse a text that tells where, by whom or at what time of day it was made, or how well the model did.

    Args:
        name: of the file.
        text: what it holds.
        identities: names and folders that it must not hold.
        scores: look for scores too.

    Raises:
        UnsoundBundle: names the file and the kind of trace, and quotes nothing.
    """
    forbidden = (
        (_PLACES, "holds an absolute path"),
        (_TIMES, "holds a time finer than a day"),
        (_SCORES, "holds a score, which private records gave and nobody was charged for"),
    )
    for pattern, what in forbidden if scores else forbidden[:2]:
        if pattern.search(text):
            raise UnsoundBundle(name, what)
    for identity in identities:
        if re.search(rf"(?<![\w-]){re.escape(identity)}(?![\w-])", text):
            raise UnsoundBundle(name, "names the user, the host or a folder that it was made by, on or in")
