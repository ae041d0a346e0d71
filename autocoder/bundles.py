"""Opens a bundle for coding, without a command, a workspace or a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from storage.bundle.archive import open_folder
from tasks.coding import coder

if TYPE_CHECKING:
    from tasks.coding.coder import Coder


def open_bundle(
    path: str | Path, *, key: str | Path | None = None, roots: str | Path | None = None
) -> Coder:
    """Loads a bundle's model, code list and thresholds on the CPU.

        coder = open_bundle("coder")  # a folder written by `autocoder adopt`; it is checked again
        coder.code(["Fell from a ladder."], top_k=3)[0].answers[0].code

    Args:
        path: a bundle's folder, its `.tar.zst`, or a folder written by `autocoder adopt`.
        key: the agency's first public key (PEM), obtained through a trusted channel. The signature,
            all digests and the position in the ledger are checked against it before anything is
            loaded. If None, only an adopted bundle is checked.
        roots: the agency's newest roots (`roots.json`), used together with `key`. Replaced keys are
            followed, and a revoked bundle is refused.

    Raises:
        storage.errors.InputError: the path contains no bundle, or the bundle is damaged.
        storage.bundle.folder.UnsoundBundle: a check failed; the message names the file.
    """
    with open_folder(Path(path).expanduser()) as folder:
        if key is not None:
            from storage.bundle.check import check
            from storage.bundle.trust import Trust

            check(
                folder,
                Trust(Path(key).expanduser(), None if roots is None else Path(roots).expanduser()),
            )
        return coder.open_bundle(folder)
