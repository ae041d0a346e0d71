"""The accuracy in README and in the page of the formal release is what the published files have, to
the last digit.
"""

import csv
import importlib
import json
import math
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
README, PAGE = ROOT / "README.md", ROOT / "docs" / "explanation" / "formal-method.md"
FIGURES = {
    name: found
    for file in (ROOT / "docs" / "studies" / "formal").glob("accuracy-*.json")
    for name, found in json.loads(file.read_text(encoding="utf-8"))["figures"].items()
}
EPSILONS = (("ε 0.5", 0.5), ("ε 1", 1), ("ε 5", 5), ("same model, no privacy", None))
LISTS = {
    "NEISS diagnosis": "names of the diagnoses",
    "NEISS diagnosis, no list": "none",
    "NEISS body part": "names of the parts",
    "NEISS body part, no list": "none",
    "SOC 2010, titles": "published titles of the codes",
    "SOC 2010, no list": "none",
}


def row(data: str, epsilon: float | None) -> dict[str, Any]:
    wanted = ("non-private" if epsilon is None else "prior-descent", epsilon)
    (found,) = (
        row for row in FIGURES[data]["rows"] if (row["mechanism"], row["epsilon"]) == wanted
    )
    return found


def scores(data: str, epsilon: float | None) -> list[str]:
    of = row(data, epsilon)
    pairs = zip((of["weighted_f1"], of["macro_f1"]), of["of_seeds"], strict=True)
    return [f"{mean:.3f} ± {spread:.3f}" for mean, spread in pairs]


@pytest.mark.parametrize(("name", "epsilon"), EPSILONS)
def test_readme(name: str, epsilon: float | None) -> None:
    of = row("OSHA nature", epsilon)
    assert f"| {name} | {of['weighted_f1']:.3f} | {of['macro_f1']:.3f} |" in README.read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(("name", "epsilon"), EPSILONS)
def test_the_pages_table(name: str, epsilon: float | None) -> None:
    cells = [
        *scores("OSHA nature", epsilon),
        f"{row('OSHA nature', epsilon)['macro_f1_scikit_default']:.3f}",
    ]
    assert f"| {name} | {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8")


SCORES = ("weighted F1", "macro F1")


@pytest.mark.parametrize("data", LISTS)
def test_other_peoples_data(data: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = [scores(data, epsilon) for epsilon in (1, 5, None)]
    for name, cells in zip(SCORES, zip(*found, strict=True), strict=True):
        assert f"| {LISTS[data]} | {name} | {' | '.join(cells)} |" in page


@pytest.mark.parametrize(
    ("data", "name"), [("OSHA nature", "MiniLM"), ("OSHA nature, mpnet", "mpnet")]
)
def test_encoders(data: str, name: str) -> None:
    found = [row(data, epsilon) for epsilon in (0.5, 1, 5, None)]
    for score, field in zip(SCORES, ("weighted_f1", "macro_f1"), strict=True):
        cells = " | ".join(f"{of[field]:.3f}" for of in found)
        (line,) = (
            x
            for x in PAGE.read_text(encoding="utf-8").splitlines()
            if x.startswith(f"| {name}, ") and f"| {score} |" in x
        )
        assert line.endswith(f"| {score} | {cells} |")


REFERENCE = {
    frozenset(row["models"]): row
    for row in json.loads(
        (ROOT / "docs" / "studies" / "formal" / "reference.json").read_text(encoding="utf-8")
    )["rows"]
}
MODELS = {
    "head": {"head"},
    "head on mpnet": {"head of mpnet"},
    "adapters in all layers, head from titles": {"adapters"},
    "average of head and adapters": {"head", "adapters"},
    "average of all three": {"head", "adapters", "head of mpnet"},
}


@pytest.mark.parametrize("name", MODELS)
def test_models_without_privacy(name: str) -> None:
    found = REFERENCE[frozenset(MODELS[name])]
    cells = [f"{mean:.3f} ± {spread:.3f}" for mean, spread in _pair(found)]
    assert f"| {name} | {' | '.join(cells)} |" in PAGE.read_text(encoding="utf-8")


def _pair(found: dict[str, Any]) -> list[list[float]]:
    return [found["weighted_f1"], found["macro_f1"]]


def test_the_best_of_them_is_readmes_last_row() -> None:
    best = max(REFERENCE.values(), key=lambda found: found["weighted_f1"][0])
    cells = " | ".join(f"{mean:.3f}" for mean, _ in _pair(best))
    assert f"| best model, no privacy | {cells} |" in README.read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "epsilon"), EPSILONS[:3])
def test_the_share_that_privacy_leaves_of_the_best_model(name: str, epsilon: float) -> None:
    """The best in weighted F1 and the best in macro F1 may be different models."""
    of = row("OSHA nature", epsilon)
    shares = []
    for score in ("weighted_f1", "macro_f1"):
        best = max(found[score][0] for found in REFERENCE.values())
        shares.append(f"{100 * of[score] / best:.0f}%")
    assert f"| {name} | {' | '.join(shares)} |" in PAGE.read_text(encoding="utf-8")


LEAKAGE = json.loads(
    (ROOT / "docs" / "studies" / "results" / "leakage.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("found", LEAKAGE["rows"], ids=lambda found: found["branch"])
def test_the_page_of_audits(found: dict[str, Any]) -> None:
    """Claim, the paper's claim, measurement, its reach, what it exceeds, and the score."""
    claims = [found["claimed"], found["claimed_of_paper"]]
    exceeded = [
        name
        for name, claim in zip(("Δ", "2Δ"), claims, strict=True)
        if claim is not None and found["measured"] > claim
    ]
    nothing = "no claim" if found["claimed"] is None else "nothing"
    cells = [
        found["title"],
        *("–" if claim is None else f"{claim:.2f}" for claim in claims),
        f"{found['measured']:.2f}",
        f"{found['reach']:.2f}",
        " and ".join(exceeded) or nothing,
        f"{found['weighted_f1']:.3f}",
    ]
    page = (ROOT / "docs" / "studies" / "audits.md").read_text(encoding="utf-8")
    assert f"| {' | '.join(cells)} |" in page.replace("**", "")


sys.path.insert(0, str(ROOT / "scripts"))
figures = importlib.import_module("figures")
PARTS = figures.parts()
STUDIES = ROOT / "docs" / "studies"
NOT_FIGURES = {"figures.yaml", "formal/reference.yaml"}


def test_every_published_file_is_of_one_part() -> None:
    named = [name for part in PARTS for name in part.files]
    there = {
        f"studies/{path.relative_to(STUDIES)}"
        for path in STUDIES.rglob("*")
        if path.is_file()
        and path.suffix != ".md"
        and str(path.relative_to(STUDIES)) not in NOT_FIGURES
    }
    assert sorted(named) == sorted(there)


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_page_names_the_commit_of_its_figures(part: Any) -> None:
    """Several commits on one page are each named there, so that no reader takes one for another."""
    assert bool(part.commands) != bool(part.reason)
    assert bool(part.commands) == (part.minutes is not None)
    assert part.needs <= figures.DATA.keys()
    for page in part.pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert part.commit in text or _linked(page, part), f"{page}: {part.commit}"


def _linked(page: str, part: Any) -> bool:
    """A front page may leave the commit to the file of figures, which names it."""
    return page == "README.md" and any(
        part.commit in (ROOT / "docs" / name).read_text(encoding="utf-8") for name in part.files
    )


ROWS = [(part, name) for part in PARTS for name in part.files if name.endswith((".csv", ".svg"))]


@pytest.mark.parametrize(("part", "name"), ROWS, ids=[name for _, name in ROWS])
def test_rows_and_pictures_were_made_at_the_commit_of_their_part(part: Any, name: str) -> None:
    """A study writes its commit into each row and picture; those that were made before it did have
    none.
    """
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    if name.endswith(".csv"):
        rows = list(csv.DictReader(text.splitlines()))
        made_at = {row["commit"] for row in rows if "commit" in row}
    else:
        made_at = set(re.findall(r"<dc:description>([0-9a-f+ ]*)</dc:description>", text))
    assert made_at <= {part.commit}


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(SystemExit, match="mixture"):
        figures._choose(PARTS, "mixtur")


def test_publishing_copies_a_finished_part_and_notes_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, docs = tmp_path / "docs" / "figures.yaml", tmp_path / "docs"
    docs.mkdir()
    entries = [
        {"name": "one", "files": ["one.json"], "made": {"one.json": "printed.txt"}},
        {"name": "two", "files": ["two.csv"]},
    ]
    common = {"pages": [], "commit": "0123abcd", "commands": ["true"], "minutes": 200}
    lines = [
        f"- {name}: {json.dumps(value)}" if name == "name" else f"  {name}: {json.dumps(value)}"
        for entry in entries
        for name, value in {**entry, **common}.items()
    ]
    table.write_text("\n".join(lines).replace('"one"', "one").replace('"two"', "two") + "\n")
    made = tmp_path / "made"
    for name in ("one", "two"):
        (made / name).mkdir(parents=True)
    (made / "commit.txt").write_text("89abcdef" * 5 + "\n")
    (made / "one" / "printed.txt").write_text("{}\n")
    (made / "one" / "done.txt").write_text("12.3 minutes\n")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "TABLE", table)

    figures._publish(figures.parts(), made)

    one, two = figures.parts()
    assert (one.commit, one.minutes) == ("89abcdef", 12)
    assert (two.commit, two.minutes) == ("0123abcd", 200)
    assert (docs / "one.json").read_text() == "{}\n"
    assert not (docs / "two.csv").exists()


def test_the_transformer_without_privacy() -> None:
    """F1 over its splits ± two standard errors, beside the paper's."""
    text = (STUDIES / "results" / "ft-transformer.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    suite = yaml.safe_load((ROOT / "studies" / "suite.yaml").read_text(encoding="utf-8"))
    page = (STUDIES / "rosenblatt.md").read_text(encoding="utf-8")
    for name, published in suite["published"]["f1_without_privacy"].items():
        scores = [float(row["f1"]) for row in rows if row["set"] == name and not row["epsilon"]]
        error = 2 * statistics.stdev(scores) / math.sqrt(len(scores))
        shown = f"{statistics.fmean(scores):.3f} ± {error:.3f}"
        assert f"| {name} | {published[-1]:.2f} | {shown} |" in page
