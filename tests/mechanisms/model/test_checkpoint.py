"""Checkpoints: all or nothing, bit for bit, and an error that names the file."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from mechanisms.model import checkpoint


def test_bits_and_description_come_back(tmp_path: Path) -> None:
    """Any type, views and strides included; floats in the description to the last digit."""
    tensors = {
        "f32": torch.randn(7),
        "f64": torch.randn(3, dtype=torch.float64),
        "i64": torch.arange(4),
        "scalar": torch.tensor(3),
        "strided": torch.randn(4, 6)[:, ::2],
    }
    meta = {"losses": [0.1 + 0.2, 1e-300], "name": "ä"}
    checkpoint.save(tmp_path / "x", tensors, meta)
    loaded, told = checkpoint.load(tmp_path / "x")
    assert told == meta
    assert set(loaded) == set(tensors)
    assert all(torch.equal(loaded[k], t) and loaded[k].dtype == t.dtype for k, t in tensors.items())
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("sizes", [(3,), (5, 1, 4), (0,), (2, 0)])
def test_joined_parts_are_the_file_of_the_whole(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Byte for byte, whatever the parts; the file in place of an older one."""
    parts = [
        {"scores": torch.randn(size, 3), "best": torch.arange(size), "a": torch.randn(size)}
        for size in sizes
    ]
    files = [tmp_path / str(number) for number in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        checkpoint.save(file, part, {"n": 1})
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    checkpoint.save(tmp_path / "whole", whole, {})
    (tmp_path / "joined").write_text("older")
    checkpoint.save_joined(tmp_path / "joined", files)
    assert (tmp_path / "joined").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not list(tmp_path.glob("*.partial"))


def test_parts_that_cannot_be_joined_leave_the_older_file(tmp_path: Path) -> None:
    (tmp_path / "joined").write_text("older")
    with pytest.raises(OSError):
        checkpoint.save_joined(tmp_path / "joined", [tmp_path / "absent"])
    assert [p.name for p in tmp_path.iterdir()] == ["joined"]


def test_an_open_checkpoint_outlives_its_replacement(tmp_path: Path) -> None:
    """Loaded tensors are memory-mapped: a new file in the old one's place must not change them."""
    checkpoint.save(tmp_path / "x", {"t": torch.zeros(10_000)}, {})
    old = checkpoint.load(tmp_path / "x")[0]["t"]
    checkpoint.save(tmp_path / "x", {"t": torch.ones(10_000)}, {})
    assert float(old.sum()) == 0
    assert float(checkpoint.load(tmp_path / "x")[0]["t"].sum()) == 10_000


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No space when the bytes are flushed: the old checkpoint stays, no leftover does."""
    checkpoint.save(tmp_path / "x", {"t": torch.zeros(3)}, {"n": 1})

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "sync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(tmp_path / "x", {"t": torch.ones(3)}, {"n": 2})
    monkeypatch.undo()
    loaded, meta = checkpoint.load(tmp_path / "x")
    assert meta == {"n": 1}
    assert float(loaded["t"].sum()) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    """The writer's own error type becomes an OSError that names the file."""
    with pytest.raises(OSError, match="gone"):
        checkpoint.save(tmp_path / "gone" / "x", {"t": torch.zeros(3)}, {})


def test_kill_9_while_writing(tmp_path: Path) -> None:
    """A process killed outright in a loop of saves leaves a whole checkpoint, one of those it
    wrote.
    """
    program = """
        import sys, torch
        from pathlib import Path
        from mechanisms.model import checkpoint
        n = 0
        while True:
            checkpoint.save(Path(sys.argv[1]), {"t": torch.full((200_000,), float(n))}, {"n": n})
            n += 1
            print(n, flush=True)
    """
    path = tmp_path / "x"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), str(path)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(5):
            process.stdout.readline()
        time.sleep(0.003)
        os.kill(process.pid, signal.SIGKILL)
    loaded, meta = checkpoint.load(path)
    assert meta["n"] >= 4
    assert bool((loaded["t"] == meta["n"]).all())
