"""Would win: records that leave in a packed bundle beside its files; a partner's disk filled before any signature."""

from __future__ import annotations

import io
import shutil
import struct
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard
from sealed_bundle import Sealed

from storage.bundle.archive import open_folder, pack, unpack
from storage.bundle.check import check
from storage.bundle.folder import UnsoundBundle

DECLARES = (
    (
        "an archive holds a bundle and nothing else",
        "data after the end, in further and skippable frames, headers, padding, names of owners, times, a"
        " dictionary's number, unused bits, empty blocks, another order",
        "what a compressor's choices may tell (a few bits a block)",
    ),
    (
        "an archive does not fill a disk",
        "64 MB of zeros as weights, said or not; many files together, or many of nothing",
        "a bundle may unfold to 32 times its archive and 16 MB, since its sizes are signed inside",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

SECRET = b"The employee was greasing the conveyor chain when his left glove was pulled in."
TWO = ("0123456789abcdef/LICENSE", b"text"), ("0123456789abcdef/README.md", b"a card")


def compressed(content: bytes, *, checksum: bool = True) -> bytes:
    """One frame."""
    return zstandard.ZstdCompressor(write_checksum=checksum).compress(content)


def skippable(content: bytes) -> bytes:
    """A frame that readers pass over."""
    return struct.pack("<II", 0x184D2A50, len(content)) + content


def tar(*files: tuple[str, bytes], **fields: object) -> bytes:
    """A tar of files in the form that `pack` writes, but for the fields given."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            for field, value in ({"size": len(data), "mode": 0o644} | fields).items():
                setattr(entry, field, value)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def planted(content: bytes, at: int) -> bytes:
    """The secret over what stands at a place of a tar."""
    return content[:at] + SECRET + content[at + len(SECRET) :]


GOOD = tar(*TWO)
FORMS: dict[str, Callable[[], bytes]] = {
    # named by the issue
    "after the end": lambda: compressed(GOOD) + SECRET,
    "a skippable frame after": lambda: compressed(GOOD) + skippable(SECRET),
    "a skippable frame before": lambda: skippable(SECRET) + compressed(GOOD),
    "padding of a file": lambda: compressed(planted(GOOD, 512 + 100)),
    "padding of the record": lambda: compressed(planted(GOOD, len(GOOD) - 200)),
    "an owner's name": lambda: compressed(tar(*TWO, uname=SECRET[:31].decode())),
    "a group's name": lambda: compressed(tar(*TWO, gname="records")),
    "a time": lambda: compressed(tar(*TWO, mtime=1_700_000_000)),
    "a mode": lambda: compressed(tar(*TWO, mode=0o755)),
    "owners": lambda: compressed(tar(*TWO, uid=1234, gid=4321)),
    # its neighbours
    "a second frame": lambda: compressed(GOOD) + compressed(SECRET),
    "an empty second frame": lambda: compressed(GOOD) + compressed(b""),
    "the tar in two frames": lambda: compressed(GOOD[:1024]) + compressed(GOOD[1024:]),
    "the second empty block": lambda: compressed(planted(GOOD, 2048 + 512)),
    "more records": lambda: compressed(GOOD + bytes(tarfile.RECORDSIZE)),
    "a link's target": lambda: compressed(tar(*TWO, linkname=SECRET[:40].decode())),
    "another order": lambda: compressed(tar(*reversed(TWO))),
    "a dictionary's number": lambda: with_dictionary(compressed(GOOD)),
    "an unused bit": lambda: with_bit(compressed(GOOD), 0b00010000),
    "empty blocks": lambda: with_empty_blocks(compressed(GOOD)),
    "no checksum": lambda: compressed(GOOD, checksum=False),
    "the whole compressed twice": lambda: compressed(compressed(GOOD)),
}


def with_bit(frame: bytes, bit: int) -> bytes:
    """A frame with a bit set that decompressors ignore."""
    return frame[:4] + bytes([frame[4] | bit]) + frame[5:]


def with_dictionary(frame: bytes) -> bytes:
    """A frame that names a dictionary: four bytes of the sender's own, where none is needed."""
    at = zstandard.frame_header_size(frame)
    single = bool(frame[4] & 0b00100000)
    place = 5 if single else 6
    return frame[:4] + bytes([frame[4] | 3]) + frame[5:place] + SECRET[:4] + frame[place:at] + frame[at:]


def with_empty_blocks(frame: bytes) -> bytes:
    """A frame with blocks of nothing before its own: their number tells something."""
    at = zstandard.frame_header_size(frame)
    return frame[:at] + bytes(3) * 42 + frame[at:]


@pytest.fixture
def into(tmp_path: Path) -> Path:
    """An empty folder."""
    (tmp_path / "to").mkdir()
    return tmp_path / "to"


def test_the_form_itself(tmp_path: Path, into: Path) -> None:
    """What the attacks below change is taken."""
    (tmp_path / "a.tar.zst").write_bytes(compressed(GOOD))
    assert (unpack(tmp_path / "a.tar.zst", into) / "README.md").read_bytes() == b"a card"


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_foreign_data(tmp_path: Path, into: Path, form: Callable[[], bytes]) -> None:
    """Refused wherever it lies."""
    (tmp_path / "a.tar.zst").write_bytes(form())
    with pytest.raises(UnsoundBundle):
        unpack(tmp_path / "a.tar.zst", into)


def test_an_archive_of_an_earlier_version(sealed: Sealed, tmp_path: Path) -> None:
    """The same tar in a frame that does not say its size: sound."""
    before = tmp_path / "before.tar.zst"
    whole = zstandard.decompress(pack(sealed.folder, tmp_path / "now.tar.zst").read_bytes())
    with (
        before.open("wb") as file,
        zstandard.ZstdCompressor(level=10, write_checksum=True).stream_writer(file, closefd=False) as packed,
    ):
        packed.write(whole)
    assert zstandard.get_frame_parameters(before.read_bytes()[:18]).content_size == zstandard.CONTENTSIZE_UNKNOWN
    with open_folder(before) as folder:
        assert check(folder, sealed.trust).files == 21


def zeros(size: int) -> Iterator[bytes]:
    """A tar with one file of so many zeros, in pieces."""
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
    size = sum(map(len, pieces)) if says else -1
    with (
        bomb.open("wb") as file,
        zstandard.ZstdCompressor(write_checksum=True).stream_writer(file, size=size, closefd=False) as packed,
    ):
        for piece in pieces:
            packed.write(piece)
    assert bomb.stat().st_size < 20_000
    with pytest.raises(UnsoundBundle, match="decompresses to more"):
        unpack(bomb, into)
    assert not list(into.rglob("*"))


def test_many_files_that_are_a_bomb_together(tmp_path: Path, into: Path) -> None:
    """Each within its limit; all of them count."""
    files = [(f"0123456789abcdef/{name}", bytes(9 << 20)) for name in ("codelist.csv", "config.json")]
    (tmp_path / "a.tar.zst").write_bytes(compressed(tar(*files)))
    with pytest.raises(UnsoundBundle, match="decompresses to more"):
        unpack(tmp_path / "a.tar.zst", into)


def test_many_files_of_nothing(tmp_path: Path, into: Path) -> None:
    """No file has a byte: their headers count, an allowed name counts once, and no number makes another name."""
    top, name = "0123456789abcdef", "codelist.csv"

    def packed(*names: str) -> Path:
        archive = tmp_path / "a.tar.zst"
        archive.write_bytes(compressed(tar(*((f"{top}/{name}", b"") for name in names))))
        assert archive.stat().st_size < 1 << 20
        return archive

    for names, match in (
        ((name,) * 80_000, "decompresses to more"),
        ((name,) * 600, "occurs twice"),
        ((name, *(f"field{n}/{name}" for n in range(600))), "is not on the list"),
    ):
        with pytest.raises(UnsoundBundle, match=match):
            unpack(packed(*names), into)
        assert [path.name for path in into.rglob("*") if path.is_file()] in ([], [name])
        shutil.rmtree(into / top, ignore_errors=True)


def test_a_folder_with_a_name_that_says_something(sealed: Sealed, tmp_path: Path) -> None:
    """Words of a narrative, or sixteen digits that are not the release's id: refused, whoever signed what is in it."""
    for name in ("The_employee_was_greasing_the_conveyor_chain_when_his_left_glove", "0123456789abcdef", "b"):
        folder = tmp_path / "named" / name
        if name != ".":
            folder = sealed.copy(tmp_path / "named").rename(folder)
        made = pack(folder, tmp_path / "named.tar.zst")
        with pytest.raises(UnsoundBundle), open_folder(made):
            pass


def test_a_cut_download_is_said_to_be_cut(tmp_path: Path, into: Path) -> None:
    """At any length that its header reaches, and not as something that unfolds to too much."""
    whole = tmp_path / "whole.tar.zst"
    whole.write_bytes(compressed(tar(("a/b.json", bytes(range(256)) * 4000))))
    for length in (len(whole.read_bytes()) - 1, len(whole.read_bytes()) // 2, 40):
        cut = tmp_path / f"{length}.tar.zst"
        cut.write_bytes(whole.read_bytes()[:length])
        with pytest.raises(UnsoundBundle, match=r"is cut off\. Fetch it again"):
            unpack(cut, into)
