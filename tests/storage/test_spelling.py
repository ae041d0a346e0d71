"""Codes in other spellings: matched only with one listed code, counted, and never shown."""

from collections import Counter

import pytest
from refusals import of_kind

from storage.errors import InputError
from storage.spelling import Spellings, human_codes, twins

LISTED = ("0140", "1311", "S72.0", "62.01", "62.0", "62")


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("140", "0140"),
        ("s720", "S72.0"),
        ("s 72-0", "S72.0"),
        ("1311 - Amputations", "1311"),
        ("1311: Amputations", "1311"),
        ("6201", "62.01"),
        ("0062", "62"),
        ("99", None),
    ],
)
def test_a_value_means_one_listed_code_or_none(value: str, code: str | None) -> None:
    """Where two listed codes have the same forms, neither is meant."""
    assert Spellings(LISTED).match(value) == code
    assert Spellings(("1.0", "10", "11")).match("01-0") is None


def test_what_each_form_would_match_is_said_and_no_value_is() -> None:
    """Of values by records: leading zeros, several codes in a cell, a spreadsheet's numbers."""
    said = Spellings(LISTED).described(
        Counter({"140": 10, "1311;0140": 2, "2.36E+05": 3, "PLANTED": 1})
    )
    assert said == (
        "10 of 16 would be on the list with other leading zeros; 2 of 16 would be several listed "
        "codes; "
        "3 are a spreadsheet's numbers with an exponent, whose digits are lost"
    )
    assert Spellings(LISTED).described(Counter({"140": 3})) == (
        "every one of them would be on the list with other leading zeros"
    )


def test_twins_without_a_list_are_told() -> None:
    """By form, with their numbers."""
    assert twins({"S111": 5, "s111": 3, "132": 1}) == [
        "2 codes of 8 records would be 1 codes in another case"
    ]
    assert twins({"111": 5, "132": 3, "111;132": 2}) == [
        "1 codes of 2 records are made of other codes (--set data.ingest.several_codes=first reads "
        "the first, and =each makes a record of each)"
    ]
    names = {"Fall; Burn": 5, "Fall; Cut": 3, "Slip/trip": 2, "Slip": 1}
    assert twins(names)[0].startswith("2 codes of 8 records are made of other codes")
    assert twins({"Slip/trip": 2, "Open wound": 1, "Fall; Burn": 1}) == []
    assert twins({"0140": 1, "140": 1})[0].endswith("with other leading zeros")
    assert twins({"111": 5, "132": 3}) == []


def test_codes_by_people_are_accounted_for() -> None:
    """Every cell is listed, unlisted or missing; another spelling counts where each cell that is
    not listed has one.
    """
    codes, said = human_codes(
        ["1311 - Amputations", "140", "NA", "", "62.01"], LISTED, place="--sample"
    )
    assert codes == ["1311", "0140", "", "", "62.01"]
    assert (
        said
        == "5 rows coded by people: 3 on the list (2 in another spelling), 0 not, 2 without a code"
    )
    given = ["140", "PLANTED", "1311"]
    with pytest.raises(
        InputError, check=of_kind("unlisted-codes", saying=("--sample", "2 of 3", "1 of 2"))
    ) as refused:
        human_codes(given, LISTED, place="--sample")
    assert "PLANTED" not in str(refused.value)
    assert human_codes(given, LISTED, place="--sample", allowed=True)[0] == given
    assert human_codes(["NA"], ("NA", "1"), place="")[0] == ["NA"], (
        "a mark that is a code stays one"
    )
