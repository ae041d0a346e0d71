"""Generates synthetic injury narratives in the layout of OSHA's Severe Injury Reports, for trying
the pipeline.

The injuries are invented: job, activity, incident, object, body part and outcome are drawn from
word lists. The difficulties of real records are also simulated: a long tail of codes, misspellings,
narratives that omit the injury or mention a second one, and wrong codes. A seed gives the same file
on every machine.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NotRequired, TypedDict

from storage import strict_yaml

DemoCode = TypedDict(
    "DemoCode",
    {"code": str, "title": str, "from": list[str], "part": str, "outcome": list[str]},
)
"""A code, the kinds of incident that cause it, and the outcomes that narratives describe."""


class DemoEvent(TypedDict):
    title: str
    thing: list[str]
    incident: list[str]
    floor: NotRequired[list[str]]


class Vocabulary(TypedDict):
    """The words in `demo_vocabulary.yaml`."""

    codes: list[DemoCode]
    events: dict[str, DemoEvent]
    parts: dict[str, list[str]]
    goods: list[str]
    place: list[str]
    jobs: list[str]
    vague: list[str]
    activities: list[str]
    subjects: list[str]
    aftermath: list[str]
    sentences: list[str]


HEADER = (
    "EventDate",
    "State",
    "City",
    "Primary NAICS",
    "Hospitalized",
    "Amputation",
    "Final Narrative",
    "Nature",
    "NatureTitle",
    "Part of Body Title",
    "EventTitle",
    "SourceTitle",
    "Establishment",
)

FIRST_DAY, DAYS = date(2021, 1, 1), 3 * 365
VAGUE, BESIDE, MISLABELLED, MISSPELT = 0.02, 0.03, 0.02, 0.015
"""Rates of narratives without the injury, with a second injury, and with a wrong code, and of
misspelt words.
"""
_TAIL_SHIFT, _TAIL_POWER = 9.0, 3.1
"""The size of the r-th code is proportional to (r + shift)^-power. This gives a Gini coefficient of
0.6 for the 46 codes, as in Chew et al., figure 2.
"""

_STATES = (
    "OHIO",
    "TEXAS",
    "FLORIDA",
    "GEORGIA",
    "COLORADO",
    "ILLINOIS",
    "NEW YORK",
    "PENNSYLVANIA",
    "MISSOURI",
)
_CITIES = (
    "FAIRHAVEN",
    "MILL CREEK",
    "EASTBROOK",
    "NORTHFIELD",
    "CEDAR POINT",
    "GRANTVILLE",
    "LAKEMONT",
    "STONEBRIDGE",
)
_PRONOUNS = (
    ("he", "him", "his"),
    ("she", "her", "her"),
    ("the employee", "the employee", "the employee's"),
)


@dataclass(frozen=True)
class DemoData:
    csv: Path
    codelist: Path


def write_demo_data(
    folder: Path,
    *,
    records: int = 1800,
    seed: int,
    progress: Callable[[int, int], None] | None = None,
) -> DemoData:
    """Writes `injuries.csv` and `codelist.csv` to a folder; replaces existing files."""
    words = _words()
    folder.mkdir(parents=True, exist_ok=True)
    written = DemoData(folder / "injuries.csv", folder / "codelist.csv")
    with written.codelist.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("code", "title"))
        lines.writerows(sorted((code["code"], code["title"]) for code in words["codes"]))
    with written.csv.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(HEADER)
        for done, record in enumerate(_records(words, records, random.Random(seed)), start=1):
            lines.writerow(record)
            if progress is not None and (done % 1000 == 0 or done == records):
                progress(done, records)
    return written


def narratives(records: int, *, seed: int) -> list[str]:
    """Only the texts. A seed gives the same texts on every machine."""
    column = HEADER.index("Final Narrative")
    return [str(record[column]) for record in _records(_words(), records, random.Random(seed))]


@cache
def _words() -> Vocabulary:
    return strict_yaml.load(
        Path(__file__).with_name("demo_vocabulary.yaml").read_text(encoding="utf-8")
    )


def _sizes(records: int, codes: int) -> list[int]:
    weights = [(rank + _TAIL_SHIFT) ** -_TAIL_POWER for rank in range(1, codes + 1)]
    least = min(4, records // codes)
    rest = records - least * codes
    ends = [round(rest * total / sum(weights)) for total in accumulate(weights)]
    return [least + end - start for start, end in zip([0, *ends], ends, strict=False)]


def _records(
    words: Vocabulary, records: int, rng: random.Random
) -> Iterator[tuple[str | int, ...]]:
    order = [
        place
        for place, size in enumerate(_sizes(records, len(words["codes"])))
        for _ in range(size)
    ]
    rng.shuffle(order)
    establishments = max(records // 3, 1)
    for n, place in enumerate(order):
        code = words["codes"][place]
        event = rng.choice(code["from"])
        text, part, thing = _narrative(words, code, event, rng)
        label = _mistaken(words, code, rng) if rng.random() < MISLABELLED else code
        day = FIRST_DAY + timedelta(days=n * DAYS // len(order))
        yield (
            f"{day.month}/{day.day}/{day.year}",
            rng.choice(_STATES),
            rng.choice(_CITIES),
            f"{rng.randrange(110000, 930000)}",
            int(rng.random() < 0.8),
            int(code["code"] == "1311"),
            text,
            label["code"],
            label["title"],
            part.capitalize(),
            words["events"][event]["title"],
            thing.capitalize(),
            f"E{int(establishments * rng.random() ** 2):07}",
        )


def _mistaken(words: Vocabulary, code: DemoCode, rng: random.Random) -> DemoCode:
    near = [
        candidate
        for candidate in words["codes"]
        if candidate is not code and set(candidate["from"]) & set(code["from"])
    ]
    return rng.choice(near or words["codes"])


def _narrative(
    words: Vocabulary, code: DemoCode, event_name: str, rng: random.Random
) -> tuple[str, str, str]:
    event = words["events"][event_name]
    he, him, his = rng.choice(_PRONOUNS)
    part, thing = rng.choice(words["parts"][code["part"]]), rng.choice(event["thing"])
    fill: dict[str, str] = {
        "he": he,
        "him": him,
        "his": his,
        "part": part,
        "thing": thing,
        "floor": rng.choice(event.get("floor", ["the floor"])),
        "feet": f"{rng.randrange(3, 30)}",
        "hours": f"{rng.randrange(2, 9)}",
        "degrees": f"{rng.randrange(88, 110)}",
        "goods": rng.choice(words["goods"]),
        "place": rng.choice(words["place"]),
        "job": rng.choice(words["jobs"]),
        "time": (
            f"{rng.randrange(1, 12)}:{rng.randrange(0, 60):02} "
            f"{rng.choice(('a.m.', 'p.m.', 'AM', 'PM'))}"
        ),
        "day": rng.choice(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")),
    }
    luck = rng.random()
    outcome = rng.choice(words["vague"] if luck < VAGUE else code["outcome"])
    if VAGUE <= luck < VAGUE + BESIDE:
        second_injury = rng.choice(_mistaken(words, code, rng)["outcome"])
        outcome = (
            f"{outcome} and possibly {second_injury}"
            if rng.random() < 0.5
            else f"{second_injury} and {outcome}"
        )
    for name, pattern in (
        ("outcome", outcome),
        ("incident", rng.choice(event["incident"])),
        ("activity", rng.choice(words["activities"])),
        ("subject", rng.choice(words["subjects"])),
        ("aftermath", rng.choice(words["aftermath"])),
    ):
        fill[name] = _filled(pattern, fill)
    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", _filled(rng.choice(words["sentences"]), fill))
    text = " ".join(
        _misspelt(word, rng) if rng.random() < MISSPELT else word for word in text.split(" ")
    )
    if rng.random() < 0.02:
        text = text.replace(". ", ".\n", 1)
    return text, part, thing


def _filled(pattern: str, fill: dict[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        word = fill[match[1].lower()]
        return word[0].upper() + word[1:] if match[1][0].isupper() else word

    return re.sub(r"\{(\w+)\}", value, pattern)


def _misspelt(word: str, rng: random.Random) -> str:
    if len(word) < 4 or not word.isalpha():
        return word
    n = rng.randrange(1, len(word) - 2)
    kind = rng.randrange(3)
    if kind == 0:
        return word[:n] + word[n + 1] + word[n] + word[n + 2 :]
    return word[:n] + (word[n + 1 :] if kind == 1 else word[n] + word[n:])
