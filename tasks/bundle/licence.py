"""The licence of a bundle: a name of the SPDX list, or a text that the plan pins by its digest."""

from __future__ import annotations

import hashlib
import re
from importlib import metadata
from pathlib import Path

from storage.durable import write_atomically
from storage.errors import InputError, StorageError

OURS = "Apache-2.0"
SPDX = (
    OURS, "0BSD", "AGPL-3.0-only", "AGPL-3.0-or-later", "BSD-2-Clause", "BSD-3-Clause", "CC-BY-4.0", "CC-BY-NC-4.0",
    "CC-BY-NC-ND-4.0", "CC-BY-NC-SA-4.0", "CC-BY-ND-4.0", "CC-BY-SA-4.0", "CC0-1.0", "DL-DE-BY-2.0", "DL-DE-ZERO-2.0",
    "EUPL-1.2", "GPL-2.0-only", "GPL-2.0-or-later", "GPL-3.0-only", "GPL-3.0-or-later", "ISC", "LGPL-3.0-only",
    "LGPL-3.0-or-later", "MIT", "MPL-2.0", "ODC-By-1.0", "OGL-Canada-2.0", "OGL-UK-3.0", "Unlicense", "etalab-2.0",
)  # fmt: skip
"""Names of the SPDX list (spdx.org/licenses, 3.25) that go into a bundle by name."""
_PINNED = "sha256:"
_MOST = 64 << 10
_SECRET = re.compile(r"-----BEGIN|(?=[A-Za-z0-9+/=_]*\d)(?=[A-Za-z0-9+/=_]*[A-Za-z])[A-Za-z0-9+/=_]{40,}")
_ADDRESS = re.compile(r"https?://\S+")


def chosen(private: Path, licence: str | None) -> str:
    """What a plan says of its licence: an SPDX name, or the digest of a text, which is kept in the workspace.

    Raises:
        InputError: neither a name that is known nor a licence's text.
    """
    if licence is None:
        return OURS
    if licence in SPDX or licence.startswith(_PINNED):
        return licence
    text = read(licence)
    name = _PINNED + hashlib.sha256(text.encode()).hexdigest()
    file = _kept(private, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text.encode())
    return name


def read(licence: str) -> str:
    """The text of a file that is to be a bundle's licence.

    Raises:
        InputError: it is not there, is no text, is too long, or holds what looks like a key.
    """
    try:
        text = Path(licence).expanduser().read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        raise InputError(
            f"release.licence: {licence} is no name of the SPDX list that is known ({', '.join(SPDX[:6])}, …), and "
            "cannot be read as UTF-8 text"
        ) from None
    if len(text) > _MOST or not text.strip():
        raise InputError(f"release.licence: {licence} is empty or longer than {_MOST >> 10} KB, which is no licence")
    if _SECRET.search(_ADDRESS.sub("", text)):
        raise InputError(f"release.licence: {licence} holds what looks like a key or encoded data; no licence does")
    return text


def text_of(private: Path, name: str) -> str:
    """The text of a licence that a plan names.

    Raises:
        InputError: the name is not known.
        StorageError: the text is gone from the workspace, or another.
    """
    if name == OURS:
        ours = metadata.distribution("swag-ppm-autocoder").read_text("licenses/LICENSE")
        if ours is None:
            raise InputError("release.licence: the package came without its own; name a licence's text file")
        return ours
    if name in SPDX:
        return f"SPDX-License-Identifier: {name}\n\nThe text of this licence: https://spdx.org/licenses/{name}.html\n"
    if not re.fullmatch(_PINNED + "[0-9a-f]{64}", name):
        raise InputError(f"release.licence: {name[:80]} is no name of the SPDX list that is known")
    try:
        content = _kept(private, name).read_bytes()
    except OSError as error:
        raise StorageError(
            f"licence: {_kept(private, name)}: {error.strerror}; plan again with release.licence"
        ) from None
    if hashlib.sha256(content).hexdigest() != name.removeprefix(_PINNED):
        raise StorageError(f"licence: {_kept(private, name)} is not the text that the plan pins; plan again")
    return content.decode("utf-8")


def _kept(private: Path, name: str) -> Path:
    return private / "licences" / name.removeprefix(_PINNED)
