"""Plans and a policy for the drivers: programs that tests run as processes of their own, to race
and to kill.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric import ec

from mechanisms.privacy.events import Claim, SwagPpmEvent
from storage.ledger import Policy, ReleasePlan

CAP = 10
KEY = ec.derive_private_key(20_261_127, ec.SECP256R1())
"""Of the releasing worker, the same in every process."""


def policy(cap: int = CAP) -> Policy:
    """A cap of `cap` for every account."""
    return Policy.parse({"name": "driver", "default": {"asymptotic-local": {"epsilon": cap}}})


def plan(key: str, *, population: str = "injuries", epsilon: float = 1.0) -> ReleasePlan:
    """A release over two cohorts."""
    return ReleasePlan(
        idempotency_key=key,
        release_label=key,
        population=population,
        cohorts=("2023", "2024"),
        data_fingerprint="f",
        records_rounded=100,
        event=SwagPpmEvent(
            reweighted=False, snapshots=2, rank=2, sensitivity_draws=9, sensitivity=epsilon / 2
        ),
        claim=Claim(
            guarantee_kind="asymptotic-local",
            epsilon=epsilon,
            sensitivity=epsilon / 2,
            neighbouring_relation="replace-one",
            accountant="driver",
        ),
        requester="driver",
    )
