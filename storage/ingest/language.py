"""Tells the language of narratives by their commonest words."""

import re
from collections import Counter
from collections.abc import Iterable

_WORDS = {
    "english": "the of and to was were with from his her he she while when a an on in at by for",
    "french": "le la les des une dans et est sur avec du en au il par sa son a été",
    "german": "der die das und mit ein eine wurde auf beim sich dem den im von ist er",
    "spanish": "el la los las una del con por se su al en y un mientras cuando que",
    "italian": "il lo di che della nel una con per si al da un è gli la mentre",
    "portuguese": "o a os um uma do da com na no foi ao e de em quando que seu",
    "dutch": "de het een van met zijn werd op aan toen en in is bij door hij",
    "swedish": "och en ett att på med av till från den som när han hon sig var",
    "danish": "og en et at på med af til fra den som da han hun sig var blev",
    "finnish": "ja oli on kun hän että sekä kanssa mutta joka myös ei",
}
_FEWEST, _SHARE, _AHEAD = 100, 0.08, 1.4


def language_of(texts: Iterable[str]) -> str | None:
    """Returns the language as Snowball names it; None where the words are few, or of no language known here."""
    words = Counter(word for text in texts for word in re.findall(r"\w+", text.lower()))
    scores = sorted(((sum(words[word] for word in own.split()), name) for name, own in _WORDS.items()), reverse=True)
    (most, name), (second, _) = scores[:2]
    sure = words.total() >= _FEWEST and most >= _SHARE * words.total() and most >= _AHEAD * second
    return name if sure else None
