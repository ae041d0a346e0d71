"""`autocoder ledger` and `autocoder keys` as a user meets them."""

import json
import re
import stat
from decimal import Decimal
from typing import Any

import pytest
from in_process import invoke
from pseudo_terminal import seen
from refusals import of_kind
from releases import make_plan

from flows.commands import ledger_text as text
from flows.commands.layout import Column, table_lines
from mechanisms.privacy.events import NonPrivateEvent, SwagPpmEvent
from storage.bundle.folder import bundle_digest
from storage.bundle.seal import release_key
from storage.errors import InputError
from storage.ledger import Evaluation, Ledger, Policy
from storage.ledger.budget import Account, Balance
from storage.ledger.policy import Cap
from storage.ledger.recovery import draw_path
from storage.ledger.schema import REVISION
from storage.paths import Workspace

CLAIMED, DRAWN = 4.35, 4.5
"""Epsilon as planned, and of the first release as measured at its draw."""

POLICY = """
name: two populations
populations:
  injuries:
    formal: {epsilon: 8, delta: 0.00001}
    asymptotic-local: {epsilon: 10}
    cohorts: {2024: {asymptotic-local: {epsilon: 5}}}
  fires:
    asymptotic-local: {epsilon: 2.5}
"""


def release_plan(key, **changes):
    event = SwagPpmEvent(
        reweighted=True, snapshots=20, rank=20, sensitivity_draws=500, sensitivity=2.175
    )
    claim = {"epsilon": CLAIMED, "sensitivity": 2.175, "draws": 500, "mc_failure_prob": 1 / 501}
    claim |= {"assumptions": ("SWAG stands for the posterior",), "unprotected_inputs": ("weights",)}
    own: dict[str, Any] = {"release_label": "first | quarter", "cohorts": ("2023", "2024")}
    own |= {
        "data_fingerprint": "f" * 8,
        "records_rounded": 86_214,
        "event": event,
        "code_commit": "abcdef",
        "requester": "=operator",
    }
    return make_plan(key, claim=claim, **(own | changes))


@pytest.fixture
def home(tmp_path):
    """A workspace with a committed release, a reserved one and a non-private evaluation, under the
    policy above.
    """
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    workspace = Workspace(tmp_path / "home").create()
    opened = Ledger.open(
        workspace.ledger_url, policy=Policy.load(policy), key=release_key(workspace)
    )
    committed = opened.reserve(release_plan("a")).release_id or ""
    opened.mark_drawn(committed, draw_digest="d", sensitivity=2.25, epsilon=DRAWN)
    (workspace.bundles / committed).mkdir()
    opened.commit(committed, bundle_digest=bundle_digest(workspace.bundles / committed))
    opened.reserve(release_plan("b", cohorts=("2023",)))
    opened.record(
        Evaluation(
            label="non-private",
            population="injuries",
            data_fingerprint="f",
            requester="operator",
            event=NonPrivateEvent(epochs=3),
            details={"macro_f1": 0.49},
        )
    )
    return workspace.home


def run(*arguments, of="ledger", code=0):
    status, out, err = invoke(of, *arguments)
    assert status == code, out + err
    return out


def listed(home, *options):
    return json.loads(run("show", "--home", home, "--json", *options))["rows"]


def test_list_gives_each_release_once_with_what_it_cost(home):
    """Current states; amounts are text, exact, and not below what was claimed."""
    rows = listed(home)
    kinds = [(row["kind"], row.get("state")) for row in rows]
    assert kinds == [
        ("policy", None),
        ("release", "committed"),
        ("release", "reserved"),
        ("evaluation", None),
    ]
    committed, baseline = rows[1], rows[3]
    assert (committed["mechanism"], committed["guarantee_kind"]) == ("swag-ppm", "asymptotic-local")
    assert (committed["epsilon"], committed["sensitivity"]) == ("4.500000000000", "2.250000000000")
    assert (committed["delta"], committed["delta_text"]) == (None, "O(n^-1/2)")
    assert (committed["data_fingerprint"], committed["code_commit"]) == ("f" * 8, "abcdef")
    assert committed["records_rounded"] == 86_210
    assert Decimal(rows[2]["epsilon"]) >= Decimal(CLAIMED)
    assert (baseline["mechanism"], baseline["epsilon"]) == ("non-private", None)
    assert [row.get("state") for row in listed(home, "--all")][1:4] == [
        "reserved",
        "drawn",
        "committed",
    ]
    assert "committed" in run("show", "--home", home)
    assert "non-private" not in run("show", "--home", home)
    assert "non-private" in run("show", "--home", home, "--all")


@pytest.mark.parametrize("width", [80, 120, 160])
def test_a_list_keeps_ids_and_amounts_whole_at_every_width(home, width):
    """From a terminal: the same six columns, an id can be copied, no ε is cut or rounded down."""
    released = [row for row in listed(home) if row["kind"] == "release"]
    lines = seen(width, "ledger", "show", "--home", home)
    assert max(map(len, lines[1:])) <= width, "the first line names the ledger's file"
    (header,) = [line.split() for line in lines if line.startswith("release")]
    assert header == ["release", "made", "state", "ε", "kind", "cohorts"]
    for row in released:
        (line,) = (line for line in lines if line.startswith(row["release_id"]))
        assert "estimated" in line
        (amount,) = re.findall(r"(?<!\S)\d+\.\d{1,4}(?!\S)", line.partition("estimated")[0])
        assert 0 <= Decimal(amount) - Decimal(row["epsilon"]) < Decimal("0.0001")
    assert not [line for line in lines if line.startswith("(not shown")]
    (header,) = [
        line.split()
        for line in seen(width, "ledger", "show", "--all", "--home", home)
        if line.lstrip().startswith("row ")
    ]
    assert header == ["row", "what", "made", "state", "ε", "kind"]


@pytest.mark.parametrize("width", [80, 120])
def test_a_budget_in_four_lines_a_cohort(home, width):
    """A heading a population; spent rounded up, left rounded down, how many more fit, and how they
    add up.
    """
    lines = seen(width, "ledger", "show", "--home", home)
    assert "Budget of injuries (policy two populations), one record replaced" in lines
    at = lines.index("2024 (estimated): spent ε 4.5 of 5")
    assert lines[at + 1 : at + 5] == [
        "  left ε 0.5",
        "  about 0 more releases of this size",
        "  composition basic: the releases' epsilons and deltas are added",
        "",
    ]
    assert (
        "budgets not used yet (injuries, each other cohort): estimated ε 10, formal ε 8 (δ 1e-5)"
        in " ".join(lines)
    )


def test_a_release_at_80_columns(home):
    """Six sections in words; nothing is cut; the id in its first line is whole."""
    release = listed(home)[1]["release_id"]
    lines = seen(80, "ledger", "show", release, "--home", home)
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"Release {release}: committed"
    text = " ".join(" ".join(lines).split())
    for part in (
        "mechanism swag-ppm population injuries label first | quarter",
        "about 86210",
        "Guarantee: asymptotic-local",
        "ε 4.5",
        "sensitivity 2.25",
        "Cost 2023 ε",
        "Assumes - SWAG stands for the posterior",
        "Not protected - weights",
        "History",
    ):
        assert part in text, part


def test_amounts_and_cohorts_in_words():
    """Spent is rounded up and what is left down; years that follow one another are a span."""
    assert [
        text.spent(Decimal(value)) for value in ("4.999999", "8.12799501", "5", "1.00000000001")
    ] == [
        "5",
        "8.128",
        "5",
        "1.0001",
    ]
    assert text.spent(None) == "–"
    assert (text.delta(Decimal("0.00001234")), text.delta(Decimal("0.00001"))) == (
        "1.24e-5",
        "1e-5",
    )
    assert (
        text.cohorts(("2019", "2021", "2022", "2023", "2024-Q1", "2025", "2026"))
        == "2019, 2021-2023, 2024-Q1, 2025, 2026"
    )


def test_a_table_breaks_nothing_that_must_stay_whole():
    """Too narrow for its columns, it becomes lines; a wide name is broken and not cut; a pipe has
    no width.
    """
    columns = [
        Column("id", ["0123456789abcdef"]),
        Column("name", ["a very long name of many words"], wraps=True),
    ]
    assert table_lines(columns, None) == [
        "id                name",
        "0123456789abcdef  a very long name of many words",
    ]
    narrow = table_lines(columns, 32)
    assert narrow[1].startswith("0123456789abcdef  a very")
    assert " ".join(line[18:] for line in narrow[1:]) == "a very long name of many words"
    assert table_lines(columns, 20) == [
        "id: 0123456789abcdef",
        "name: a very long name of many words",
    ]


def test_show_tells_all_of_one_release(home):
    """Its newest row and how it came there; an unknown id is an error that names it."""
    release = listed(home)[1]["release_id"]
    shown = json.loads(run("show", release, "--home", home, "--json"))
    assert [row["state"] for row in shown["history"]] == ["reserved", "drawn", "committed"]
    assert [charge["cohort"] for charge in shown["charges"]] == ["2023", "2024", "2023", "2024"]
    assert release in run("show", release, "--home", home)
    with pytest.raises(InputError, check=of_kind("unknown-release", saying="nobody")):
        run("show", "nobody", "--home", home)


def test_budget_of_two_populations(home):
    """Each account beside its cap; cohorts with a cap of their own; `*` for those
    not charged yet.
    """
    lines = json.loads(run("show", "--home", home, "--json"))["budget"]
    found = {
        (line["population"], line["cohort"], line["guarantee_kind"]): (
            line["epsilon_spent"],
            line["epsilon_cap"],
        )
        for line in lines
    }
    local = "asymptotic-local"
    assert found["injuries", "2024", local] == ("4.5", "5")
    assert found["injuries", "2023", local][1] == "10"
    assert Decimal(found["injuries", "2023", local][0]) >= Decimal(CLAIMED) + Decimal(DRAWN)
    assert found["injuries", "*", "formal"] == ("0", "8")
    assert found["fires", "*", local] == ("0", "2.5")
    assert ("fires", "*", "formal") not in found
    assert "fires" in run("show", "--home", home)


def test_a_budget_warns_of_a_cap_on_delta_that_many_records_share():
    """As a release does: delta 1e-3 of 13,000 records is 13 of them in the mean; of 100 records
    nothing is said.
    """
    cap = Cap(epsilon=Decimal(10), delta=Decimal("1e-3"))
    account = Account("injuries", "2023", "formal", rule="basic")
    said = {
        n: "\n".join(text.budget_text([Balance(account, cap)], "p", {"injuries": n}))
        for n in (100, 13_000)
    }
    assert (
        "warning: a guarantee with δ 0.001 for each of about 13,000 records would still allow a "
        "mechanism that reveals 13 of them" in said[13_000]
    )
    assert "warning" not in said[100]


def test_keys_head_and_verify(home, tmp_path):
    """A signed head is made, kept, and holds; a ledger cut behind it is named and exits 1."""
    run("new", "--out", tmp_path / "keys", of="keys")
    private, public = (
        tmp_path / "keys" / "signing-key.pem",
        tmp_path / "keys" / "signing-key.pub.pem",
    )
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    head = tmp_path / "head.json"
    run("export", "head", "--home", home, "--key", private, "--out", head)
    checked = ["verify", "--home", home, "--head", head, "--public-key", public, "--json"]
    assert json.loads(run(*checked))["ok"] is True
    assert "5 rows read" in run("verify", "--home", home)

    import sqlite3

    connection = sqlite3.connect(home / "ledger.db")
    connection.execute("DELETE FROM ledger_row WHERE sequence = 5")
    connection.commit()
    connection.close()
    report = json.loads(run(*checked, code=1))
    assert (report["ok"], [bad["sequence"] for bad in report["bad"]]) == (False, [5])


def test_head_without_a_key_goes_to_standard_output(home):
    """Keys are optional; an unsigned head still shows a cut tail to anyone who kept it."""
    head = json.loads(run("export", "head", "--home", home))
    assert (head["sequence"], head["signature"]) == (5, None)


def test_exports_hold_every_row(home, tmp_path):
    """JSON verifies against the ledger later."""
    run("export", "rows", "--home", home, "--out", tmp_path / "ledger.json")
    assert len(json.loads((tmp_path / "ledger.json").read_text())) == 5
    assert "5 rows read" in run("verify", "--home", home, "--against", tmp_path / "ledger.json")
    with pytest.raises(InputError, check=of_kind("unwritable-export", saying="No such file")):
        run("export", "rows", "--home", home, "--out", tmp_path / "absent" / "x.json")


def test_a_page_of_a_release(home, tmp_path):
    """What was claimed and what it isn't, the arithmetic, the persons, the hashes."""
    release = listed(home)[1]["release_id"]
    run("export", "page", "--release", release, "--home", home, "--out", tmp_path / "release.md")
    text = (tmp_path / "release.md").read_text()
    for part in (
        release,
        "NOT a formal guarantee",
        "| ε | 4.5 |",
        "O(n^-1/2)",
        "2.25",
        "86210",
        "SWAG stands for the posterior",
        "weights",
        "first \\| quarter",
        "| 2024 |",
        "=operator",
        "abcdef",
        listed(home)[1]["hash"],
    ):
        assert part in text, part


def test_recover_says_and_only_with_apply_does(home):
    """A drawn release whose draw is gone: named, left alone, and burned when asked to."""
    opened = Ledger.open(Workspace(home).ledger_url, key=release_key(Workspace(home)))
    release = listed(home)[2]["release_id"]
    opened.mark_drawn(release, draw_digest="lost")
    found = json.loads(run("recover", "--home", home, "--json", code=1))
    assert [(f["release_id"], f["step"], f["done"]) for f in found] == [(release, "burn", False)]
    assert not draw_path(Workspace(home), release).exists()
    assert "burn" in run("recover", "--home", home, code=1)
    assert opened.release(release).state == "drawn"
    run("recover", "--home", home, "--apply")
    assert opened.release(release).state == "burned"
    assert "nothing to recover" in run("recover", "--home", home)


def test_recover_burns_by_hand_only_with_apply(home):
    """--burn alone is an error, since nothing would happen."""
    release = listed(home)[2]["release_id"]
    with pytest.raises(InputError, check=of_kind("burn-without-apply")):
        run("recover", "--home", home, "--burn", release)
    run("recover", "--home", home, "--burn", release, "--apply")
    assert Ledger.open(Workspace(home).ledger_url).release(release).state == "burned"


def test_a_policy_change_is_recorded(home, tmp_path):
    """The new caps hold, the row says who and why, the spending stays."""
    policy = tmp_path / "wider.yaml"
    policy.write_text(
        POLICY.replace("epsilon: 10", "epsilon: 12").replace("two populations", "wider")
    )
    run(
        "change-policy",
        "--home",
        home,
        "--policy",
        policy,
        "--requester",
        "officer",
        "--reason",
        "board 12",
    )
    *_, row = [one for one in listed(home, "--all") if one["kind"] != "evaluation"]
    assert (row["kind"], row["requester"], row["reason"], row["policy"]["name"]) == (
        "policy",
        "officer",
        "board 12",
        "wider",
    )
    lines = json.loads(run("show", "--home", home, "--json"))["budget"]
    caps = {
        (line["population"], line["cohort"], line["guarantee_kind"]): line["epsilon_cap"]
        for line in lines
    }
    assert caps["injuries", "2023", "asymptotic-local"] == "12"


@pytest.mark.parametrize("command", ["show", "show x", "verify", "export rows", "recover"])
def test_reading_where_there_is_no_ledger_makes_none(tmp_path, command):
    """A mistyped folder is named, not filled with an empty ledger."""
    home = tmp_path / "home"
    home.mkdir()
    with pytest.raises(InputError, check=of_kind("no-ledger")):
        run(*command.split(), "--home", home)
    assert list(home.iterdir()) == []


def test_a_copy_has_every_row(home, tmp_path):
    """Of the chain, and of the measurements; it takes the place of an earlier copy."""
    copy = tmp_path / "ledger.db"
    for _ in range(2):
        run("export", "copy", "--home", home, "--out", copy)
    here, there = (Ledger.open(Workspace(folder).ledger_url) for folder in (home, tmp_path))
    assert (there.head(), there.measurements()) == (here.head(), here.measurements())
    with pytest.raises(InputError, check=of_kind("no-copy")):
        run("export", "copy", "--home", home)
    with pytest.raises(InputError, check=of_kind("no-copy-folder")):
        run("export", "copy", "--home", home, "--out", tmp_path / "absent" / "ledger.db")


def test_migrate_makes_the_tables(tmp_path):
    """On SQLite the same command works, and has no roles to give rights to."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    assert run("migrate", "--url", url) == f"ledger schema {REVISION}\n"
    assert Ledger.open(url).rows() == []
    with pytest.raises(InputError, check=of_kind("roles-in-sqlite")):
        run("migrate", "--url", url, "--app-role", "pipeline")
