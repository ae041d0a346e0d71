"""A bundle as one file: the same bytes each time, and nothing written but what a
bundle may hold.
"""

from __future__ import annotations

import io
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from refusals import of_kind
from sealed_bundle import Sealed

from storage.bundle.archive import open_folder, pack, unpack
from storage.bundle.check import check
from storage.bundle.folder import UnsoundBundle
from storage.egress.allow_list import FILES
from storage.errors import InputError


def archive(path: Path, *entries: tuple[tarfile.TarInfo, bytes]) -> Path:
    """An archive of whatever entries."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for entry, data in entries:
            tar.addfile(entry, io.BytesIO(data))
    path.write_bytes(compressed(content.getvalue()))
    return path


def compressed(content: bytes) -> bytes:
    """One frame."""
    return pa.compress(content, codec="zstd", asbytes=True)


def entry(name: str, size: int = 4, **fields: object) -> tarfile.TarInfo:
    """One entry."""
    made = tarfile.TarInfo(name)
    made.size = size
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def test_there_and_back(sealed: Sealed, tmp_path: Path) -> None:
    """Packed twice, at other times and from a copy, it is the same file; unpacked, it is sound."""
    first = pack(sealed.folder, tmp_path / "first.tar.zst")
    second = pack(sealed.copy(tmp_path), tmp_path / "second.tar.zst")
    assert first.read_bytes() == second.read_bytes()
    with open_folder(first) as folder:
        assert folder.name == sealed.folder.name
        assert check(folder, sealed.trust).files == 20
        kept = folder
    assert not kept.exists()
    with open_folder(sealed.folder) as folder:
        assert folder == sealed.folder
    with pytest.raises(InputError, check=of_kind("no-bundle")), open_folder(tmp_path / "none"):
        pass


LINK, HARD, DEVICE, PIPE, FOLDER = (
    {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd", "size": 0},
    {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd", "size": 0},
    {"type": tarfile.CHRTYPE, "size": 0},
    {"type": tarfile.FIFOTYPE, "size": 0},
    {"type": tarfile.DIRTYPE, "size": 0},
)


@pytest.mark.parametrize(
    ("name", "fields", "refusal"),
    [
        ("../README.md", {}, of_kind("outside-folder")),
        ("0123456789abcdef/../../README.md", {}, of_kind("outside-folder")),
        ("/0123456789abcdef/README.md", {}, of_kind("outside-folder")),
        ("./0123456789abcdef/README.md", {}, of_kind("outside-folder")),
        ("0123456789abcdef//README.md", {}, of_kind("outside-folder")),
        ("0123456789abcdef/./README.md", {}, of_kind("outside-folder")),
        ("README.md", {}, of_kind("outside-folder")),
        (".ssh/README.md", {}, of_kind("outside-folder")),
        ("b\\..\\README.md", {}, of_kind("outside-folder")),
        ("0123456789abcdef/pytorch_model.bin", {}, of_kind("unlisted-file")),
        ("0123456789abcdef/1_Pooling/../README.md", {}, of_kind("outside-folder")),
        ("0123456789abcdef/README.md", LINK, of_kind("archive-not-a-regular-file")),
        ("0123456789abcdef/README.md", HARD, of_kind("archive-not-a-regular-file")),
        ("0123456789abcdef/README.md", DEVICE, of_kind("archive-not-a-regular-file")),
        ("0123456789abcdef/README.md", PIPE, of_kind("archive-not-a-regular-file")),
        ("0123456789abcdef/1_Pooling", FOLDER, of_kind("archive-not-a-regular-file")),
    ],
)
def test_an_entry_that_would_go_elsewhere(
    tmp_path: Path, name: str, fields: dict[str, Any], refusal: of_kind
) -> None:
    """Refused before a byte is written, wherever it would have gone."""
    one = entry(name, **fields)
    made = archive(tmp_path / "a.tar.zst", (one, b"text"[: one.size]))
    into = tmp_path / "in" / "to"
    into.mkdir(parents=True)
    with pytest.raises(UnsoundBundle, check=refusal):
        unpack(made, into)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.tar.zst", "in", "to"]


@pytest.mark.parametrize(
    "kind",
    [
        tarfile.GNUTYPE_LONGNAME,
        tarfile.GNUTYPE_LONGLINK,
        tarfile.XHDTYPE,
        tarfile.XGLTYPE,
        tarfile.GNUTYPE_SPARSE,
    ],
)
def test_a_header_that_speaks_for_another_entry(tmp_path: Path, kind: bytes) -> None:
    """Refused as it stands; the megabytes that it announces are not read into memory."""
    size = 8 << 20
    made = archive(
        tmp_path / "a.tar.zst", (entry("0123456789abcdef/README.md", size, type=kind), bytes(size))
    )
    tracemalloc.start()
    try:
        with pytest.raises(UnsoundBundle, check=of_kind("archive-not-a-regular-file")):
            unpack(made, tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "fields",
    [
        {"pax_headers": {"size": "-5"}},
        {"pax_headers": {"size": "1e400"}},
        {"pax_headers": {"GNU.sparse.size": "many"}},
        {"pax_headers": {"GNU.sparse.map": "a,b", "GNU.sparse.size": "10"}},
        {"pax_headers": {"path": "b\0/README.md"}},
        {"name": "b" * 300 + "/README.md"},
        {"size": -4},
        {"name": "\udcff/README.md"},
    ],
)
def test_a_header_of_nonsense(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Told as damage in one line, whatever tar's own reader would have made of it."""
    made = entry("0123456789abcdef/README.md")
    for field, value in fields.items():
        setattr(made, field, value)
    archive_format = tarfile.PAX_FORMAT if "pax_headers" in fields else tarfile.GNU_FORMAT
    header = made.tobuf(archive_format, errors="surrogateescape")
    (tmp_path / "a.tar.zst").write_bytes(
        compressed(header + b"text".ljust(512, b"\0") + bytes(1024))
    )
    (tmp_path / "to").mkdir()
    with pytest.raises(UnsoundBundle):
        unpack(tmp_path / "a.tar.zst", tmp_path / "to")
    assert not list((tmp_path / "to").rglob("*"))


def test_a_file_twice_and_two_folders(tmp_path: Path) -> None:
    """What a reader shows and what another extracts must be the same."""
    one = (entry("0123456789abcdef/README.md"), b"text")
    for second, refusal in (
        (entry("0123456789abcdef/README.md"), of_kind("repeated-entry")),
        (entry("fedcba9876543210/LICENSE"), of_kind("two-folders")),
    ):
        into = tmp_path / refusal.__name__
        into.mkdir()
        with pytest.raises(UnsoundBundle, check=refusal):
            unpack(archive(tmp_path / "a.tar.zst", one, (second, b"text")), into)


def test_a_bomb(tmp_path: Path) -> None:
    """A few kilobytes that unfold to more than the file's limit are refused by their header;
    nothing is unfolded.
    """
    size = FILES["README.md"].max_bytes + 1
    made = archive(tmp_path / "a.tar.zst", (entry("0123456789abcdef/README.md", size), bytes(size)))
    assert made.stat().st_size < 10_000
    (tmp_path / "to").mkdir()
    with pytest.raises(UnsoundBundle, check=of_kind("file-too-large")):
        unpack(made, tmp_path / "to")
    assert not list((tmp_path / "to").rglob("*"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:100] + b"\x00" * 50 + content[150:],
        lambda content: b"",
        lambda content: b"not an archive at all, but text",
    ],
)
def test_a_damaged_archive(
    sealed: Sealed, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """Told in one line, whatever the damage; where the tar is whole, by the digest of the file."""
    made = pack(sealed.folder, tmp_path / "a.tar.zst")
    made.write_bytes(damage(made.read_bytes()))
    (tmp_path / "to").mkdir()
    with pytest.raises(UnsoundBundle):
        check(unpack(made, tmp_path / "to"), sealed.trust)


def test_a_full_disk_leaves_no_archive(
    sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a part of one."""
    import errno

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("storage.bundle.archive.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        pack(sealed.folder, tmp_path / "a.tar.zst")
    assert not list(tmp_path.iterdir())
