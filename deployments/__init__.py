"""Files that ship with the program: profiles, branches, images, settings of servers.

They are data: the little code here gives the program's version and licence.
"""

from pathlib import Path

VERSION = "0.3.0"


def licence_text() -> str:
    """Reads the project's licence: of the wheel, which has a copy here, or of the checkout."""
    here = Path(__file__).parent
    copies = [folder / "LICENSE" for folder in (here, here.parent)]
    return next(copy for copy in copies if copy.is_file()).read_text(encoding="utf-8")
