"""What a release would be charged, and what its accounts have left: told before there is a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from mechanisms.privacy.events import Claim
from storage.ledger import Ledger, Policy
from storage.ledger.amounts import short
from storage.ledger.journal import journals_of
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import ledger_url
from tasks.releasing.delta import usual_delta
from tasks.running.stage import Context


@dataclass(frozen=True)
class Account:
    """One cohort's budget of a guarantee kind; a cap of None: nothing may be spent."""

    cohort: str
    spent: Decimal
    cap: Decimal | None
    delta_left: Decimal | None = None
    """None: there is no cap on it."""

    @property
    def left(self) -> Decimal:
        """What may still be spent."""
        return Decimal(0) if self.cap is None else self.cap - self.spent

    def bears(self, epsilon: float | None, delta: float | None) -> bool:
        """Whether it has as much left, of delta too; of an epsilon that is not known yet, whether it has any."""
        enough = self.left > 0 and self.left >= Decimal(str(epsilon or 0))
        return enough and (delta is None or self.delta_left is None or self.delta_left >= Decimal(str(delta)))


@dataclass(frozen=True)
class Charge:
    """Of one release, to each of its cohorts."""

    population: str
    guarantee_kind: str
    epsilon: float | None
    """None: it is known when it is measured."""
    delta: float | None
    policy: str
    accounts: tuple[Account, ...]

    @property
    def exceeds(self) -> bool:
        """Whether some account cannot bear it."""
        return not all(account.bears(self.epsilon, self.delta) for account in self.accounts)

    @property
    def line(self) -> str:
        """What is charged to each cohort."""
        if self.epsilon is None:
            return f"epsilon as measured: twice Delta, known after the fits ({self.guarantee_kind})"
        delta = "" if self.delta is None else f", delta {self.delta:g}"
        return f"epsilon {self.epsilon:.4g}{delta} ({self.guarantee_kind})"

    @property
    def budget(self) -> list[str]:
        """What the accounts have, those of equal state together."""
        states: dict[tuple[Decimal, Decimal | None, Decimal | None], list[str]] = {}
        for account in self.accounts:
            states.setdefault((account.spent, account.cap, account.delta_left), []).append(account.cohort)
        lines = []
        for (spent, cap, delta_left), cohorts in states.items():
            named = ", ".join(cohorts[:6]) + (f" and {len(cohorts) - 6} more" if len(cohorts) > 6 else "")
            if cap is None:
                lines.append(f"{self.population}/{named}: policy {self.policy} grants nothing of this kind")
            else:
                delta = "" if delta_left is None else f", and delta {float(delta_left):g}"
                lines.append(f"{self.population}/{named}: {short(cap - spent)} of {short(cap)} left{delta}")
        return lines

    @staticmethod
    def of(
        context: Context, parameters: RetrainParameters, cohorts: Sequence[str], *, claim: Claim | None = None
    ) -> Charge:
        """What these parameters would be charged for records of these cohorts. Creates no ledger.

        Args:
            claim: what is claimed, where it is known.

        Raises:
            StorageError: the ledger does not answer.
        """
        epsilon = delta = None
        kind = "asymptotic-local"
        if parameters.formal is not None:
            kind, epsilon, delta = "formal", parameters.formal.target_epsilon, parameters.formal.delta
            delta = usual_delta(context, parameters) if delta is None else delta
        elif claim is not None:
            kind, epsilon, delta = claim.guarantee_kind, claim.epsilon, claim.delta
        elif parameters.pseudo_posterior.target_epsilon is not None:
            epsilon = parameters.pseudo_posterior.target_epsilon
        population, wanted = parameters.data.population, parameters.release
        given = Policy.load(Path(wanted.policy).expanduser() if wanted.policy else None)
        url = ledger_url(context, wanted)
        spent: dict[str, Decimal] = {}
        deltas: dict[str, Decimal] = {}
        policy = given
        if not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).is_file():
            ledger = Ledger.open(url, policy=given, journals=journals_of(context.workspace))
            policy = ledger.policy()
            own = [line.account for line in ledger.budget() if line.account.population == population]
            spent = {one.cohort: one.epsilon for one in own if one.guarantee_kind == kind}
            deltas = {one.cohort: one.delta for one in own if one.guarantee_kind == kind}
        accounts = []
        for cohort in cohorts:
            cap = policy.cap(population, cohort, kind) if kind in ("formal", "asymptotic-local") else None
            left = None if cap is None or cap.delta is None else cap.delta - deltas.get(cohort, Decimal(0))
            most = None if cap is None else cap.epsilon
            accounts.append(Account(cohort, spent.get(cohort, Decimal(0)), most, left if kind == "formal" else None))
        return Charge(population, kind, epsilon, delta, policy.name, tuple(accounts))
