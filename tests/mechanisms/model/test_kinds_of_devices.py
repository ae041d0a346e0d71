"""The kind of a device, and whether there is a card, without waiting for torch where that is
known."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from mechanisms.model import devices
from mechanisms.model.seeding import seeded


@pytest.mark.parametrize(
    ("build", "driver", "possible"),
    [
        ("2.13.0+cpu", True, False),
        ("2.13.0", False, False),
        ("2.13.0+cu126", False, False),
        ("2.13.0+cu126", True, True),
        ("2.13.0+rocm6.4", False, True),
    ],
)
def test_a_card_is_looked_for_where_torch_could_use_one(
    monkeypatch: pytest.MonkeyPatch, build: str, driver: bool, possible: bool
) -> None:
    """A build for processors, and one for CUDA without a driver, need no import; others ask."""

    def load(name: str) -> None:
        if not driver:
            raise OSError(name)

    monkeypatch.setattr(devices, "version", lambda name: build)
    monkeypatch.setattr(devices.ctypes, "CDLL", load)
    monkeypatch.setattr(sys, "platform", "linux")
    assert devices._is_possible() is possible


def test_torch_is_asked_where_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_is_possible", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.has_cuda()
    assert devices.kind_of("auto") == "cuda"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not devices.has_cuda(), "a hidden card is none"
    assert devices.kind_of("auto") == "cpu"


def test_torch_is_not_imported_where_it_could_find_no_card(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(devices, "_is_possible", lambda: False)
    assert not devices.has_cuda()
    assert "torch" not in sys.modules


def test_without_torch_there_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not devices.has_cuda()


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", "cpu:0"])
def test_a_kind_is_the_one_that_torch_knows(name: str) -> None:
    assert devices.kind_of(name) == torch.device(name).type


@pytest.mark.parametrize("name", ["cuda:", "cuda:x", "cuda:-1", ":1", "cpu:0:1"])
def test_what_torch_refuses_has_no_kind(name: str) -> None:
    with pytest.raises(RuntimeError):
        torch.device(name)
    assert devices.kind_of(name) == ""


@pytest.fixture
def chosen_cards(monkeypatch: pytest.MonkeyPatch) -> list[torch.device | int]:
    """A machine that claims two cards; the cards that are made the current one."""
    chosen: list[torch.device | int] = []

    @contextmanager
    def current(card: torch.device | int) -> Iterator[None]:
        chosen.append(card)
        yield

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "device", current)
    return chosen


def test_each_process_has_its_own_card(chosen_cards: list[torch.device | int]) -> None:
    """A third process shares the first card."""
    for number in range(3):
        with devices.own_card(number):
            pass
    assert chosen_cards == [0, 1, 0]


def test_a_seed_touches_only_the_card_of_its_block(
    monkeypatch: pytest.MonkeyPatch, chosen_cards: list[torch.device | int]
) -> None:
    """CUDA starts on every card whose generator is read: on the processor on none, on a card there
    alone.
    """
    read: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", read.append)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, card: None)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: None)
    draws = []
    second = torch.device("cuda", 1)
    for device in (None, torch.device("cpu"), second):
        with seeded(0, "masks", device=device):
            draws.append(torch.rand(3))
    assert read == chosen_cards == [second]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(draws[0], draws[2])
