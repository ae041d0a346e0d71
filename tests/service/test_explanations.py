"""Shares of words are exact for the head's own words and first-order for the encoder; /explain has
limits.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from refusals import of_kind
from starlette.testclient import TestClient

from mechanisms.model import classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.lexicon import Lexicon
from service.app import Settings, create_app
from service.clients import Clients, State
from storage.errors import InputError
from tasks.coding import explain as explanations
from tasks.coding.coder import Coder, read_sensitive
from tasks.coding.explain import explain
from tests.support.thresholds import thresholds_file

TEXT = (
    "İda's ladder slid; the ladders' rung cut, burns and fractures followed, 2nd_burn too: "
    "cut cuts."
)
HEADER = {"X-API-Key": "k"}


def with_words(coder: Coder, tiny_bert: Path, kind: Literal["titles", "hashed"]) -> Coder:
    """The tiny coder with a head that reads words next to the encoder."""
    stems = ("burn", "cut", "fractur", "lacer", "ladder")
    columns = (
        len(stems) if kind == "titles" else 4
    )  # few, so that hashes of several words share one
    said = {
        "burns": "burn",
        "cut": "cut",
        "cuts": "cut",
        "fractures": "fractur",
        "ladder": "ladder",
        "ladders": "ladder",
    }
    table = {word: ((stems.index(stem), 255),) for word, stem in (said | {"burn": "burn"}).items()}
    lexicon = Lexicon(
        kind=kind,
        table=table if kind == "titles" else {},
        vocabulary=stems if kind == "titles" else (),
        columns=columns,
        encoder_scale=0.7,
        word_scale=1.3,
    )
    config = ModelConfig(
        encoder=str(tiny_bert), trainable="head", pooling="mean", max_length=32, lexical=kind
    )
    made = classifier.build(config, num_labels=6, seed=1, lexicon=lexicon)
    made.flat.mul_(20)
    model: Any = made.whole.eval()
    return replace(coder, model=replace(coder.released, model=model))


@pytest.mark.parametrize("kind", ["titles", "hashed"])
def test_words_of_the_head_add_up_exactly(
    coder: Coder, tiny_bert: Path, kind: Literal["titles", "hashed"]
) -> None:
    """Their sum is the part of the logit that the block of words makes, and each is on its own
    word.
    """
    own = with_words(coder, tiny_bert, kind)
    head: Any = own.released.model
    lexicon = head.lexicon
    weights = head.head.weight.detach()[:, 16:]
    exact = (weights - weights.mean(0)) @ (lexicon.word_scale * lexicon.words([TEXT])[0])
    answer = explain(own, TEXT, own.model.codes)
    assert len(exact) == len(answer.reasons) == 6
    for reason, expected in zip(answer.reasons, exact.tolist(), strict=True):
        assert sum(reason.lexical) == pytest.approx(expected, abs=1e-5)
    if kind == "titles":
        said = [TEXT[slice(*place)] for place in answer.words]
        spoke = {word for word, value in zip(said, answer.reasons[0].lexical, strict=True) if value}
        assert spoke == {"ladder", "ladders", "cut", "cuts", "burns", "fractures", "2nd_burn"}


def test_scores_are_those_of_coding(coder: Coder) -> None:
    """At the coder's temperature."""
    warm = replace(coder, thresholds=thresholds_file(temperature=2.0))
    (coding,) = warm.code([TEXT], top_k=6)
    for reason in explain(warm, TEXT, [answer.code for answer in coding.answers]).reasons:
        assert reason.score == pytest.approx(
            {one.code: one.score for one in coding.answers}[reason.code], abs=1e-5
        )


def test_the_encoders_part_is_the_slope_along_the_embeddings(coder: Coder) -> None:
    """All embeddings longer by a hundredth move the logit by a hundredth of the sum
    of the shares.
    """
    texts = "employee fell from a ladder and broke his wrist"
    answer = explain(coder, texts, ["111"])
    model: Any = coder.released.model
    tokens = coder.released.tokenizer(texts, return_tensors="pt")

    def logit(scale: float) -> float:
        handle = model.encoder.get_input_embeddings().register_forward_hook(
            lambda *got: got[2] * scale
        )
        try:
            with torch.no_grad():
                out = model(tokens["input_ids"], tokens["attention_mask"])[0]
        finally:
            handle.remove()
        return float(out[0] - out.mean())

    slope = (logit(1.01) - logit(0.99)) / 0.02
    special = sum_of_special(coder, texts)
    assert sum(answer.reasons[0].encoder) + special == pytest.approx(slope, rel=1e-2, abs=2e-4)
    assert abs(slope) > 0.002, "the bundle's secret noise decides how long it is"


def sum_of_special(coder: Coder, text: str) -> float:
    tokens = coder.released.tokenizer(text, return_tensors="pt")
    logits, embedded = explanations._forward(coder.released.model, tokens, None)
    (slope,) = torch.autograd.grad(logits[0] - logits.mean(), embedded)
    shares = (slope * embedded).sum(-1)[0].detach()
    return float(shares[0] + shares[-1])


def test_a_narrative_longer_than_the_encoder_reads(coder: Coder) -> None:
    """The rest gets no share, and the answer says where it begins."""
    answer = explain(coder, "ladder " * 100, ["111"])
    assert 0 < answer.read < 700
    beyond = [
        value
        for (start, _), value in zip(answer.words, answer.reasons[0].encoder, strict=True)
        if start > answer.read
    ]
    assert beyond
    assert not any(beyond)


@pytest.fixture(scope="module")
def client(coder: Coder) -> Iterator[TestClient]:
    settings = Settings(state=State(Clients.of({"tests": "k"})), sensitive=("1972",))
    with TestClient(create_app(coder, settings)) as made:
        yield made


def test_the_code_list_is_the_bundles(client: TestClient, coder: Coder) -> None:
    """With titles and the operator's sensitive codes; only for clients with a key."""
    assert client.get("/codes").status_code == 401
    answer = client.get("/codes", headers=HEADER).json()
    assert [one["code"] for one in answer["codes"]] == list(coder.model.codes)
    assert answer["sensitive"] == ["1972"]


def test_explanations_are_bounded_as_codes_are(client: TestClient) -> None:
    """Key, length, known codes, nothing quoted."""
    body = {"narrative": "zebrafinch fell", "codes": ["111", "132"]}
    assert client.post("/explain", json=body).status_code == 401
    for wrong in (
        {"narrative": "zebrafinch" * 3000},
        {"codes": []},
        {"codes": ["zebrafinch"]},
        {"narrative": " "},
    ):
        refused = client.post("/explain", json=body | wrong, headers=HEADER)
        assert refused.status_code == 422
        assert "zebrafinch" not in refused.text
    answer = client.post("/explain", json=body, headers=HEADER)
    assert answer.status_code == 200
    assert answer.json()["words"] == [[0, 10], [11, 15]]


def test_no_more_than_eight_wait(coder: Coder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ninth is refused at once, while the first is at work."""
    gate, begun = threading.Event(), threading.Event()

    def slow(*_: Any) -> Any:
        begun.set()
        assert gate.wait(60)
        return explain(coder, "fell", ["111"])

    monkeypatch.setattr("tasks.coding.explain.explain", slow)
    body = {"narrative": "fell", "codes": ["111"]}
    statuses: list[int] = []
    with TestClient(create_app(coder, Settings())) as client:
        threads = [
            threading.Thread(
                target=lambda: statuses.append(client.post("/explain", json=body).status_code)
            )
            for _ in range(9)
        ]
        for thread in threads:
            thread.start()
        assert begun.wait(60)
        while not statuses:  # the one that is refused
            threads[0].join(0.05)
        assert statuses == [503]
        gate.set()
        for thread in threads:
            thread.join()
    assert sorted(statuses) == [200] * 8 + [503]


@pytest.mark.parametrize("row", ["9999", ""])
def test_sensitive_codes_are_the_bundles(coder: Coder, tmp_path: Path, row: str) -> None:
    """A code that the list lacks is refused by its row."""
    (tmp_path / "sensitive.csv").write_text("code,why\n1972,x\n111,y\n")
    assert read_sensitive(tmp_path / "sensitive.csv", coder) == ("1972", "111")
    (tmp_path / "sensitive.csv").write_text(f"code,why\n1972,x\n{row},y\n")
    with pytest.raises(InputError, check=of_kind("unknown-sensitive-code", row=2)):
        read_sensitive(tmp_path / "sensitive.csv", coder)
