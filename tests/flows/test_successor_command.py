"""`autocoder successor` on two released bundles: one page, no narrative on it, and verdicts that
follow the records.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from in_process import command, invoke
from jobs import read_csv, write_csv
from refusals import of_kind
from review_browser import CHROMIUM, check_accessible_file
from sealed_bundle import Sealed

from storage.errors import InputError


def _coded(bundle: Sealed, texts: list[str], folder: Path) -> list[str]:
    """What a bundle answers."""
    source, out = (
        write_csv(folder / "texts.csv", [{"Text": text} for text in texts]),
        folder / "answers.csv",
    )
    given = ("--bundle", bundle.folder, "--data", source, "--text", "Text", "--out", out)
    command("code", *given, "--overwrite", "--home", folder)
    return [row["code"] for row in read_csv(out)]


def test_two_released_bundles_are_compared(
    sealed: Sealed, titled: Sealed, narratives: Callable[..., list[str]], tmp_path: Path
) -> None:
    """On records with the new model's own answers it is right throughout and better; the other way
    round it is worse. Counts and agreement are those of both models' coded files.
    """
    texts = narratives(60)
    before, after = _coded(sealed, texts, tmp_path), _coded(titled, texts, tmp_path)
    agreement = sum(a == b for a, b in zip(before, after, strict=True)) / len(texts)
    assert agreement < 1, "two models that answer alike would prove nothing"
    rows = [
        {"Text": text, "Code": code, "State": f"S{n % 2}"}
        for n, (text, code) in enumerate(zip(texts, after, strict=True))
    ]
    coded = write_csv(tmp_path / "coded.csv", rows)
    others = write_csv(tmp_path / "others.csv", [{"Text": text} for text in texts])
    page = tmp_path / "successor.html"
    files = ("--labelled", coded, "--unlabelled", others, "--text", "Text", "--label", "Code")
    found = json.loads(
        command(
            "successor",
            sealed.folder,
            titled.folder,
            *files,
            "--by",
            "State",
            "--html",
            page,
            "--json",
        )
    )
    assert (found["old"], found["new"]) == (sealed.folder.name, titled.folder.name)
    assert found["overall"]["new"] == 1
    assert found["overall"]["old"] == pytest.approx(agreement)
    assert found["agreement"] == pytest.approx(agreement)
    assert found["verdict"] == "better"
    assert (
        sum(old for _, old, _ in found["counts"]) == sum(new for _, _, new in found["counts"]) == 60
    )
    assert [one["name"] for one in found["groups"]] == ["S0", "S1"]
    text = page.read_text()
    assert "The new model is better" in text
    assert not any(narrative in text for narrative in texts), "the page has no narrative"
    if CHROMIUM is not None:
        check_accessible_file(page)
    back = command("successor", titled.folder, sealed.folder, *files)
    assert back.startswith("The new model is worse")
    with pytest.raises(InputError, check=of_kind("file-exists")):
        invoke("successor", sealed.folder, titled.folder, *files, "--html", page)
