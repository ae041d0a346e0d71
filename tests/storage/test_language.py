"""The language of narratives is told by their commonest words, and where it is not sure, none is
named.
"""

import pytest

from storage.narrative_look import language_of

ENGLISH = (
    "Employee fell from a ladder and broke a wrist",
    "Cook burned a hand with hot oil no 12",
    "Worker cut a finger on a saw",
)


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (ENGLISH, "english"),
        (("While he was lifting a box, the worker strained his back",), "english"),
        (("Le salarié est tombé de l'échelle et la main du cuisinier a été brûlée",), "french"),
        (("Der Arbeiter ist von der Leiter gefallen und hat sich die Hand verletzt",), "german"),
        (("O trabalhador caiu da escada e quebrou o pulso no pátio em que estava",), "portuguese"),
        (("111 132 1311 0140 1522",), None),
        (("ladder", "saw", "oil"), None),
    ],
)
def test_the_language_of_texts(texts: tuple[str, ...], language: str | None) -> None:
    """Short reports that hardly have an article among them too."""
    assert language_of(texts * 60) == language
    few = " ".join(texts[0].split()[:5])
    assert language_of((few,)) is None, "too few words"
