"""A budget divided before anything is spent, and shown with how many more releases fit while it is."""

import json

import pytest
from in_process import command as run

from storage.errors import InputError
from storage.ledger import Ledger
from tests.storage.ledger.test_ledger_composition import planned, policy


def test_a_cap_is_divided_among_releases():
    answer = json.loads(run("budget", "plan", "--releases", 20, "--cap", 10, "--json"))
    assert (answer["gaussian"], answer["basic"]) == ("2.5052", "0.5")
    assert "ε 2.5052 each, stated at δ 0.000001" in run("budget", "plan", "--releases", 20, "--cap", 10)
    assert json.loads(run("budget", "plan", "--releases", 108, "--cap", 10, "--json"))["gaussian"] >= "1"
    # basic composition has no delta left for 2,000 releases of 1e-6
    assert json.loads(run("budget", "plan", "--releases", 2000, "--cap", 10, "--json"))["basic"] == "0"
    with pytest.raises(InputError, match="--cap"):
        run("budget", "plan", "--releases", 2, "--cap", "nan")


def test_the_budget_says_how_many_more_fit_and_draws_what_is_spent(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = Ledger.open(url, policy=policy())
    ledger.reserve(planned("a"))
    Ledger.open(f"sqlite:///{tmp_path / 'empty.db'}", policy=policy()).put_in_force(requester="o")
    with pytest.raises(InputError, match="nothing is spent"):
        run("ledger", "budget", "--ledger-url", f"sqlite:///{tmp_path / 'empty.db'}", "--plot", tmp_path / "x.png")
    picture = tmp_path / "spent.png"
    shown = run("ledger", "budget", "--home", tmp_path, "--ledger-url", url, "--plot", picture)
    lines = shown.splitlines()
    at = lines.index("2023 (formal): spent ε 0.5556 of 10.0000, at δ 0.001")
    assert lines[at + 1 : at + 4] == [
        "  left ε 9.4444",
        "  at this size about 107 more quarterly releases, 26 years of them",
        "  composition exact, of Gaussian noise (Smith and Thakurta 2022)",
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")
    (account, *_) = json.loads(run("ledger", "budget", "--home", tmp_path, "--ledger-url", url, "--json"))
    assert (account["composition"], account["further_releases"]) in (("gaussian", 107), ("exact", None))
