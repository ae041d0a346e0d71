"""Would win: a partner's disk filled before any signature is read; words in the name of a bundle's
folder.
"""

import io
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from refusals import of_kind
from sealed_bundle import Sealed

from storage.bundle.archive import open_folder, pack, unpack
from storage.bundle.folder import UnsoundBundle

DECLARES = """
an archive does not fill a disk
| 64 MB of zeros as weights, said or not; many files together, or many of nothing
| a bundle may unfold to 32 times its archive and 16 MB, since its sizes are signed inside
"""


def compressed(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


def tar(*files: tuple[str, bytes], **fields: object) -> bytes:
    """A tar of files in the form that `pack` writes, except for the fields given."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            for field, value in ({"size": len(data), "mode": 0o644} | fields).items():
                setattr(entry, field, value)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "to").mkdir()
    return tmp_path / "to"


def zeros(size: int) -> Iterator[bytes]:
    entry = tarfile.TarInfo("0123456789abcdef/model.safetensors")
    entry.size, entry.mode = size, 0o644
    yield entry.tobuf(tarfile.USTAR_FORMAT)
    for _ in range(size >> 20):
        yield bytes(1 << 20)
    yield bytes(-(size + 512) % tarfile.RECORDSIZE)


@pytest.mark.parametrize("says", [True, False], ids=["says its size", "keeps it quiet"])
def test_weights_that_are_a_bomb(tmp_path: Path, into: Path, says: bool) -> None:
    """Allowed by name and by the file's own limit; refused before a byte of it is written."""
    pieces = list(zeros(64 << 20))
    bomb = tmp_path / "a.tar.zst"
    if says:
        bomb.write_bytes(compressed(b"".join(pieces)))
    else:
        with pa.output_stream(bomb, compression="zstd") as packed:
            for piece in pieces:
                packed.write(piece)
    assert bomb.stat().st_size < 20_000
    with pytest.raises(UnsoundBundle, check=of_kind("archive-too-large")):
        unpack(bomb, into)
    assert not list(into.rglob("*"))


def test_many_files_that_are_a_bomb_together(tmp_path: Path, into: Path) -> None:
    """Each within its limit; all of them count."""
    files = [
        (f"0123456789abcdef/{name}", bytes(9 << 20)) for name in ("codelist.csv", "config.json")
    ]
    (tmp_path / "a.tar.zst").write_bytes(compressed(tar(*files)))
    with pytest.raises(UnsoundBundle, check=of_kind("archive-too-large")):
        unpack(tmp_path / "a.tar.zst", into)


def test_many_files_of_nothing(tmp_path: Path, into: Path) -> None:
    """No file has a byte: an allowed name counts once, and no number makes another name."""
    top, name = "0123456789abcdef", "codelist.csv"

    def packed(*names: str) -> Path:
        archive = tmp_path / "a.tar.zst"
        archive.write_bytes(compressed(tar(*((f"{top}/{name}", b"") for name in names))))
        assert archive.stat().st_size < 1 << 20
        return archive

    for names, refusal in (
        ((name,) * 600, of_kind("repeated-entry")),
        ((name, *(f"field{n}/{name}" for n in range(600))), of_kind("unlisted-file")),
    ):
        with pytest.raises(UnsoundBundle, check=refusal):
            unpack(packed(*names), into)
        assert [path.name for path in into.rglob("*") if path.is_file()] in ([], [name])
        shutil.rmtree(into / top, ignore_errors=True)


def test_a_folder_with_a_name_that_says_something(sealed: Sealed, tmp_path: Path) -> None:
    """Words of a narrative, or sixteen digits that are not the release's id: refused, whatever
    signature is on it.
    """
    for name in (
        "The_employee_was_greasing_the_conveyor_chain_when_his_left_glove",
        "0123456789abcdef",
        "b",
    ):
        folder = tmp_path / "named" / name
        if name != ".":
            folder = sealed.copy(tmp_path / "named").rename(folder)
        made = pack(folder, tmp_path / "named.tar.zst")
        with pytest.raises(UnsoundBundle), open_folder(made):
            pass


def test_a_cut_download_is_said_to_be_cut(tmp_path: Path, into: Path) -> None:
    """At any length that its header reaches, and not as something that unfolds to too much."""
    whole = tmp_path / "whole.tar.zst"
    whole.write_bytes(compressed(tar(("0123456789abcdef/config.json", bytes(range(256)) * 4000))))
    for length in (len(whole.read_bytes()) // 2, 40):
        cut = tmp_path / f"{length}.tar.zst"
        cut.write_bytes(whole.read_bytes()[:length])
        with pytest.raises(UnsoundBundle, check=of_kind("damaged-archive")):
            unpack(cut, into)
    # weights whose header states more than what came could unfold to
    noise = np.random.default_rng(0).bytes(24 << 20)
    cut.write_bytes(compressed(tar(("0123456789abcdef/model.onnx", noise)))[:300_000])
    with pytest.raises(UnsoundBundle, check=of_kind("damaged-archive")):
        unpack(cut, into)
