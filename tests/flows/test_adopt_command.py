"""`autocoder adopt` and what later commands take from its folder, as a partner types them."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import command, invoke
from jobs import read_csv, write_csv
from refusals import of_kind
from review_browser import CHROMIUM, check_accessible_file
from sealed_bundle import Sealed
from stack import free_port

from storage.bundle.archive import pack
from storage.bundle.folder import UnsoundBundle
from storage.bundle.trust import RevokedRelease, Root, sign_newest, with_next_root, write_roots
from storage.errors import InputError


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def archive(sealed: Sealed, tmp_path: Path) -> Path:
    return pack(sealed.folder, tmp_path / f"{sealed.folder.name}.tar.zst")


@pytest.fixture
def own(sealed: Sealed, tmp_path: Path, narratives: Callable[..., list[str]]) -> Path:
    """300 records that a person codes as the model does, except for each tenth."""
    source, out = tmp_path / "new.csv", tmp_path / "machine.csv"
    write_csv(source, [{"Text": text} for text in narratives(300)])
    command("code", "--bundle", sealed.folder, "--data", source, "--text", "Text", "--out", out)
    codes = [row["code"] for row in read_csv(out)]
    other = {
        code: codes[0] if code != codes[0] else next(c for c in [*codes, "111"] if c != codes[0])
        for code in codes
    }
    records = [
        {"Text": row["Text"], "Code": row["code"] if n % 10 else other[row["code"]]}
        for n, row in enumerate(read_csv(out))
    ]
    return write_csv(tmp_path / "own.csv", records)


def _adopt(archive: Path, sealed: Sealed, out: Path, *more: Any) -> tuple[int, str, str]:
    return invoke("adopt", archive, "--key", sealed.trust.pinned, "--out", out, *more)


def test_unlisted_codes_are_refused_or_errors(
    archive: Path, sealed: Sealed, own: Path, tmp_path: Path
) -> None:
    """Refused before anything is written, with the option that takes them; with it fewer rows are
    right.
    """
    rows = read_csv(own)
    strange = write_csv(
        tmp_path / "strange.csv", [row | {"Code": "no-code"} for row in rows[:60]] + rows[60:]
    )
    given, folder = ("--text", "Text", "--label", "Code"), tmp_path / "coder"
    with pytest.raises(InputError, check=of_kind("unlisted-codes"), match=r"\b60\b.*\b300\b"):
        _adopt(archive, sealed, folder, "--data", strange, *given)
    assert not folder.exists()
    best = {}
    for name, data in (("listed", own), ("unlisted", strange)):
        code, said, _ = _adopt(
            archive, sealed, tmp_path / name, "--data", data, *given, "--allow-unlisted"
        )
        assert code == 0, said
        best[name] = json.loads((tmp_path / name / "thresholds.json").read_text())["reached"][
            "accuracy_of_all"
        ]
    assert best["unlisted"] < best["listed"]


def test_later_commands_take_settings_from_it(
    archive: Path, sealed: Sealed, own: Path, tmp_path: Path
) -> None:
    """Adopted with own records, `code` needs neither --text nor --accuracy; a page sums each up."""
    folder = tmp_path / "coder"
    given = ("--data", own, "--text", "Text", "--label", "Code", "--accuracy", "0.8", "--sets")
    code, said, _ = _adopt(archive, sealed, folder, *given)
    assert code == 0, said
    assert "80% right: score" in said
    assert "not checked: revocation" in said
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "thresholds depend on records"
    report = (folder / "report.html").read_text(encoding="utf-8")
    assert "80% right: score" in report
    assert "autocoder code --bundle" in report
    out = tmp_path / "coded.csv"
    code, said, _ = invoke("code", "--bundle", folder, "--data", own, "--out", out, "--json")
    known = json.loads(said)
    fitted = json.loads((folder / "thresholds.json").read_text())["thresholds"]
    assert known["threshold"] == next(
        one["threshold"] for one in fitted if one["target_accuracy"] == 0.8
    )
    marked = sum(row["needs_review"] == "true" for row in read_csv(out))
    assert marked == known["needs_review"]
    summary = Path(known["summary"]).read_text(encoding="utf-8")
    assert f"{marked:,} (" in summary
    (target,) = known["targets"]
    assert target[1:] in summary, "the summary names the target and the threshold too"
    assert "autocoder sample" in summary
    assert "--text Text" in summary
    if CHROMIUM is not None:
        check_accessible_file(folder / "report.html", Path(known["summary"]))
    chosen = invoke(
        "code",
        "--bundle",
        folder,
        "--data",
        own,
        "--out",
        tmp_path / "b.csv",
        "--threshold",
        "0",
        "--json",
    )
    assert json.loads(chosen[1])["threshold"] == 0
    covered = (
        "code",
        "--bundle",
        folder,
        "--data",
        own,
        "--out",
        tmp_path / "c.csv",
        "--coverage",
        "0.9",
    )
    assert invoke(*covered)[0] == 0
    assert invoke("verify", folder)[0] == 0
    assert "fell" not in report + "".join(row["Code"] for row in read_csv(own))


def test_the_summary_counts_each_row_once(sealed: Sealed, own: Path, tmp_path: Path) -> None:
    """Rows by score and by code add up to those of the file; without a threshold nothing is for a
    person.
    """
    from tasks.coding import coded_summary

    out = tmp_path / "plain.csv"
    invoke("code", "--bundle", sealed.folder, "--data", own, "--text", "Text", "--out", out)
    page = coded_summary.write_summary(out).read_text(encoding="utf-8")
    assert "300 rows.\n" in page
    assert "No row is marked for a person" in page
    codes = [row["code"] for row in read_csv(out)]
    most = max(codes, key=codes.count)
    assert f"<td>{most}</td>" in page
    assert f"<td>{codes.count(most):,}</td>" in page


def test_a_summary_that_cannot_be_written_costs_no_row(
    sealed: Sealed, own: Path, tmp_path: Path
) -> None:
    """The coded file is whole, and a note says why it stands alone."""
    out = tmp_path / "plain.csv"
    (tmp_path / "plain.csv.summary.html").mkdir()
    given = (
        "code",
        "--bundle",
        sealed.folder,
        "--data",
        own,
        "--text",
        "Text",
        "--out",
        out,
        "--json",
    )
    code, said, noted = invoke(*given)
    assert (code, json.loads(said)["summary"]) == (0, None)
    assert "note: no summary" in noted
    assert len(read_csv(out)) == 300


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        (("--label", "Code"), of_kind("options-need-data")),
        (("--data", "OWN"), of_kind("no-label")),
        (
            ("--data", "OWN", "--label", "Nature", "--text", "Text"),
            of_kind("no-column", column="Nature"),
        ),
        (
            ("--roots", "none.json"),
            of_kind("unreadable-file", saying="none.json"),
        ),
    ],
    ids=["no records", "no codes", "column", "roots"],
)
def test_what_cannot_be_adopted_leaves_nothing(
    archive: Path,
    sealed: Sealed,
    own: Path,
    tmp_path: Path,
    more: tuple[str, ...],
    refusal: of_kind,
) -> None:
    """A message, and neither the folder nor a part of it."""
    before = set(tmp_path.iterdir())
    with pytest.raises(InputError, check=refusal):
        _adopt(archive, sealed, tmp_path / "coder", *[own if one == "OWN" else one for one in more])
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"state"}


def test_two_adoptions_into_one_folder_at_once(
    archive: Path, sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second to end is refused; the first's folder stays whole, and nothing of the second is
    left.
    """
    from tasks.coding import adopt as module

    out, real = tmp_path / "coder", module._fill

    def with_another(*arguments: Any) -> Any:
        monkeypatch.setattr(module, "_fill", real)
        assert _adopt(archive, sealed, out)[0] == 0
        return real(*arguments)

    monkeypatch.setattr(module, "_fill", with_another)
    with pytest.raises(InputError, check=of_kind("adopted-meanwhile")):
        _adopt(archive, sealed, out)
    assert command("code", "--bundle", out, "Employee fell.")
    assert not list(tmp_path.glob(".coder.*"))
    page = (out / "report.html").read_text()
    for heading in ("What is protected", "Accuracy on generated narratives", "Whom to ask"):
        assert heading in page


def test_a_revoked_or_changed_bundle_codes_no_more(
    archive: Path, sealed: Sealed, tmp_path: Path
) -> None:
    """The file of roots is read at each use: it revokes, and no older one brings back; a changed
    file is named.
    """
    roots, folder, signing = tmp_path / "roots.json", tmp_path / "coder", sealed.key
    chain = with_next_root((Root.first(signing.public_key()),), days=9)
    write_roots(roots, sign_newest(chain, signing))
    assert _adopt(archive, sealed, folder, "--roots", roots)[0] == 0
    uses = (
        ("code", "--bundle", folder, "x"),
        ("serve", "--bundle", folder, "--no-key", "--port", free_port()),
    )
    assert invoke(*uses[0])[0] == 0
    with pytest.raises(InputError, check=of_kind("folder-exists")):
        _adopt(archive, sealed, folder)
    licence = folder / sealed.folder.name / "LICENSE"
    content = licence.read_bytes()
    licence.write_bytes(content + b"x")
    for arguments in uses:
        with pytest.raises(UnsoundBundle, check=of_kind("changed-file", file="LICENSE")):
            invoke(*arguments)
    assert invoke("verify", folder)[0] == 1
    licence.write_bytes(content)
    gone = RevokedRelease(
        release_id=sealed.folder.name,
        bundle_digest="0" * 64,
        revoked_on="2026-11-01",
        reason="a wrong code list",
    )
    older = roots.read_bytes()
    write_roots(
        roots,
        sign_newest(with_next_root(sign_newest(chain, signing), revoked=(gone,), days=9), signing),
    )
    for arguments in uses:
        with pytest.raises(
            UnsoundBundle, check=of_kind("revoked-bundle", saying="a wrong code list")
        ):
            invoke(*arguments)
    roots.write_bytes(older)
    with pytest.raises(UnsoundBundle, check=of_kind("older-roots")):
        invoke(*uses[0])
