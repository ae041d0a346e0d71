"""`autocoder curve`, as its user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from in_process import command

from storage.errors import InputError


def test_a_noise_has_an_epsilon_at_every_delta_and_a_picture(tmp_path: Path) -> None:
    """The table, the same as JSON, and the figure."""
    picture = tmp_path / "curve.svg"
    words = ("curve", "--noise", "8.44", "--steps", "70", "--delta", "1e-5", "--delta", "1e-6")
    shown = command(*words, "--plot", picture).splitlines()
    assert shown[0] == "epsilon of one record, rounded up:"
    assert [line.split() for line in shown[2:]] == [
        ["delta", "added", "or", "removed", "replaced"],
        ["1e-05", "4.3332", "9.8904"],
        ["1e-06", "4.8383", "10.8818"],
    ]
    assert [point["delta"] for point in json.loads(command(*words, "--json"))] == [1e-5, 1e-6]
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ((), "no plan, or a plan and --noise"),
        (("--noise", "0"), "--noise: 0.0 is not above 0"),
        (("--noise", "1", "--delta", "1"), "--delta: 1.0 is not between 0 and 1"),
        (("--noise", "1", "--plot", "curve.gif"), "--plot: curve.gif must end in"),
        (("absent.json",), "plan absent.json: No such file"),
    ],
)
def test_what_has_no_curve_is_refused(words: tuple[str, ...], wrong: str) -> None:
    """Before an accountant is imported."""
    with pytest.raises(InputError, match=wrong):
        command("curve", *words)
