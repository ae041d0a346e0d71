"""The prose linter finds misstatements of privacy and broken links, and nothing else."""

from pathlib import Path

import check_prose
import pytest


@pytest.mark.parametrize(
    "sentence",
    [
        "Delta is the probability that the limit fails.",
        "δ is the chance that\na record is disclosed outright.",
        "The released model is fully anonymous.",
        "A narrative can never be reconstructed.",
        "The bundle holds no information about any record.",
        "The audit proves that the model is private.",
    ],
)
def test_a_misstatement_is_found(sentence: str) -> None:
    assert len(list(check_prose.misstatements(Path("page.md"), sentence))) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "δ is not the probability that this factor is exceeded.",
        "Adding one record changes any probability by at most a factor of e^ε, plus δ.",
        "An audit can contradict the claim. It cannot prove it.",
    ],
)
def test_a_true_sentence_passes(sentence: str) -> None:
    assert list(check_prose.misstatements(Path("page.md"), sentence)) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# Other\n")
    page.write_text("[here](other.md#top), [there](gone.md), [outside](https://example.org/x)\n")
    assert [fault.split("link to ")[1] for fault in check_prose.broken_links(page)] == [
        "gone.md is broken."
    ]
