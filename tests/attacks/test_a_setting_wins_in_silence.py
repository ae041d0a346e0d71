"""Would win: a run under another setting than the one that was read; a check that was not made and
looks made.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import of_kind

from flows.commands.ledger import verify
from flows.commands.profiles import load_profile, parameters
from storage.errors import InputError
from storage.ledger import Ledger
from storage.ledger.checkpoints import state_checkpoint
from storage.ledger.keys import load_private_key, new_keys
from tasks.coding.quality import agreement, read_double_coded

DECLARES = """
a setting that is read is the one that runs; a check that was not made is reported
| keys twice in 16 ways, sections that are none, values that hold themselves; weights that no sample
has; signatures and tails that were not checked
|
"""

PROFILES = {
    "a key twice": "data: {source: a.csv}\nseed: 1\nseed: 2\n",
    "a key twice, deep": "method:\n  fine_tune: {epochs: 3, epochs: 30}\n",
    "a section twice": "data: {source: a.csv}\ndata: {source: b.csv}\n",
    "a key twice, once in quotes": 'seed: 1\n"seed": 2\n',
    "a number and its text": "1: a\n'1': b\n",
    "a list as section": "data: [x]\n",
    "a text as section": "data: x\n",
    "nothing as section": "data:\n",
    "a value that holds itself": "data: &x {ingest: *x}\n",
    "a merged section": "fit: &f {seed: 1}\ndata: {<<: *f}\n",
    "a day that no month has": "data: {source: 2026-02-31}\n",
    "a number of 5,000 digits": f"seed: {'1' * 5000}\n",
    "a tag": "data: !!python/name:os.system\n",
    "endless nesting": "data: " + "[" * 5000 + "\n",
    "a list of everything": "- data\n",
    "two documents": "data: {source: a}\n---\ndata: {source: b}\n",
}


KINDS = dict.fromkeys(PROFILES, "profile-not-yaml") | {
    "a list as section": "data-not-a-section",
    "a text as section": "data-not-a-section",
    "nothing as section": "data-not-a-section",
    "a list of everything": "profile-not-a-mapping",
}


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_that_says_two_things_or_none(tmp_path: Path, name: str) -> None:
    text, kind = PROFILES[name], KINDS[name]
    file = tmp_path / "profile.yaml"
    file.write_text(text)
    with pytest.raises(InputError, check=of_kind(kind)):
        parameters(str(file), ["data.source=x.csv"])


@pytest.mark.parametrize(
    "setting",
    [
        *(
            "data=[x]",
            "data=",
            "data.ingest=[1]",
            "data.ingest.=3",
            "fit={seed: 1, seed: 2}",
            "seed=2026-02-31",
            "=",
        ),
        *("a.b", "data.source.x=1", "seed=.inf", "seed=.nan", "seed={a: &x [*x]}"),
        pytest.param("seed=" + "9" * 5000, id="5,000 digits"),
    ],
)
def test_a_setting_of_that_kind(tmp_path: Path, setting: str) -> None:
    with pytest.raises(InputError):
        parameters("demo", [setting])


YAML = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(content=YAML)
def test_any_profile_is_taken_or_refused(
    tmp_path_factory: pytest.TempPathFactory, content: Any
) -> None:
    import yaml

    file = tmp_path_factory.mktemp("profile") / "p.yaml"
    for whole in (
        content,
        {"data": content},
        {"data": {"ingest": content}},
        {"fit": content},
        {"release": content},
    ):
        file.write_text(yaml.safe_dump(whole), encoding="utf-8")
        try:
            load_profile(str(file))
            parameters(str(file), ["data.source=x.csv"])
        except InputError:
            continue


@pytest.mark.parametrize(
    "weight", ["1e308", "1e400", "nan", "inf", "0", "-1", "0.5", "1e-300", "", "x", "5"]
)
def test_a_weight_that_no_sample_has(tmp_path: Path, weight: str) -> None:
    """Is refused with its row: one over a probability is at least 1 and at most the
    table's rows.
    """
    (tmp_path / "coded.csv").write_text("Text,code\na,1\nb,2\nc,1\nd,2\n")
    (tmp_path / "sample.csv").write_text(
        f"qa_row,qa_weight,human_code\n1,{weight},1\n2,{weight},2\n"
    )
    with pytest.raises(InputError, check=of_kind("changed-sample", row=1)):
        read_double_coded(tmp_path / "coded.csv", tmp_path / "sample.csv")


@given(st.lists(st.sampled_from(["1", "1.0", "2.5", "4", "3.999999"]), min_size=1, max_size=4))
def test_a_weight_that_a_sample_may_have(
    tmp_path_factory: pytest.TempPathFactory, weights: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("qa")
    (folder / "coded.csv").write_text("Text,code\na,1\nb,2\nc,1\nd,2\n")
    rows = "".join(f"{row},{weight},1\n" for row, weight in enumerate(weights, start=1))
    (folder / "sample.csv").write_text("qa_row,qa_weight,human_code\n" + rows)
    agreed = agreement(read_double_coded(folder / "coded.csv", folder / "sample.csv"))
    figures = [
        agreed.share,
        *agreed.share_interval,
        *(agreed.kappa_interval or ()),
        agreed.kappa or 0.0,
    ]
    assert all(map(math.isfinite, figures))


@pytest.mark.parametrize("given_key", [True, False], ids=["with the key", "without it"])
@pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])
def test_signatures_that_were_not_checked(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given_key: bool,
    signed: bool,
) -> None:
    """`ledger verify --json` says so: whether heads were signed and checked, and whether the tail
    was.
    """
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("AUTOCODER_LEDGER_URL", url)
    ledger = Ledger.open(url)
    asked: dict[str, Any] = {"home": tmp_path / "home", "against": None, "as_json": True}
    private, public = new_keys(tmp_path / "keys")
    head = tmp_path / "head.json"
    head.write_text(
        state_checkpoint(
            *ledger.head(), key=load_private_key(private) if signed else None
        ).model_dump_json()
    )
    if given_key and not signed:
        with pytest.raises(InputError, check=of_kind("head-by-another-key")):
            verify(**asked, head=[head], public_key=public)
        return
    verify(**asked, head=[head], public_key=public if given_key else None)
    told = json.loads(capsys.readouterr().out)
    assert told["ok"]
    assert told["signatures_checked"] == (given_key if signed else None)
    assert told["tail_checked"] is True
    verify(**asked, head=None, public_key=None)
    told = json.loads(capsys.readouterr().out)
    assert (told["signatures_checked"], told["tail_checked"]) == (None, False)
