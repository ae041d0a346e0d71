"""Resolves the licence of a bundle, which must be a name from the SPDX list, so that no free text
is released as a licence.
"""

from __future__ import annotations

from deployments import licence_text
from storage.errors import Unknown

OURS = "Apache-2.0"
SPDX = (
    OURS,
    "0BSD",
    "AGPL-3.0-only",
    "AGPL-3.0-or-later",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "CC-BY-4.0",
    "CC-BY-NC-4.0",
    "CC-BY-NC-ND-4.0",
    "CC-BY-NC-SA-4.0",
    "CC-BY-ND-4.0",
    "CC-BY-SA-4.0",
    "CC0-1.0",
    "DL-DE-BY-2.0",
    "DL-DE-ZERO-2.0",
    "EUPL-1.2",
    "GPL-2.0-only",
    "GPL-2.0-or-later",
    "GPL-3.0-only",
    "GPL-3.0-or-later",
    "ISC",
    "LGPL-3.0-only",
    "LGPL-3.0-or-later",
    "MIT",
    "MPL-2.0",
    "ODC-By-1.0",
    "OGL-Canada-2.0",
    "OGL-UK-3.0",
    "Unlicense",
    "etalab-2.0",
)
"""Supported names from the SPDX list (spdx.org/licenses, 3.25)."""


def resolve(name: str | None) -> str:
    """Returns the licence's SPDX name, by default the project's. Refuses unsupported names."""
    if name is None:
        return OURS
    if name not in SPDX:
        raise Unknown(
            f"release.licence: {name[:80]} is not a supported SPDX name. Choose "
            f"from {', '.join(SPDX)}",
            kind="unknown-licence",
        )
    return name


def text_of(name: str) -> str:
    if resolve(name) == OURS:
        return licence_text()
    return (
        f"SPDX-License-Identifier: {name}\n\nThe text of this licence: "
        f"https://spdx.org/licenses/{name}.html\n"
    )
