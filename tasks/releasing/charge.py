"""What a release would be charged, and what its accounts have left: told before there is a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from mechanisms.privacy.events import Claim, GuaranteeKind
from storage.artifacts import ArtifactRef
from storage.ledger import Ledger, Policy, ReleasePlan, budget
from storage.ledger.amounts import short
from storage.ledger.budget import accounts_of
from storage.ledger.journal import journals_of
from storage.ledger.reading import Standing
from storage.ledger.siblings import others_names, siblings
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import ledger_url, privacy_unit
from tasks.releasing.delta import usual_delta
from tasks.releasing.records import known_records
from tasks.running.stage import Context


@dataclass(frozen=True)
class Account:
    """One cohort's budget of a guarantee kind, or that of a population's units; a cap of None: nothing may be spent."""

    cohort: str
    spent: Decimal
    cap: Decimal | None
    delta_left: Decimal | None = None
    """None: there is no cap on it."""
    population: str | None = None
    """Of an earlier release of the same records or units, where that has another name or other cohorts."""

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
    others: tuple[str, ...] = ()
    """Populations of another name that the same records were released under."""
    by_name_alone: bool = False
    """There were releases, and the records are not at hand: which of them share records is not known yet."""
    other_unit: str | None = None
    """What earlier releases of the population protect, where that is something else: it would be refused."""

    @property
    def exceeds(self) -> bool:
        """Whether some account cannot bear it."""
        bears = all(account.bears(self.epsilon, self.delta) for account in self.accounts)
        return self.other_unit is not None or not bears

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
        states: dict[tuple[str, Decimal, Decimal | None, Decimal | None], list[str]] = {}
        for account in self.accounts:
            whose = account.population or self.population
            states.setdefault((whose, account.spent, account.cap, account.delta_left), []).append(account.cohort)
        lines = []
        for (whose, spent, cap, delta_left), cohorts in states.items():
            named = ", ".join(cohorts[:6]) + (f" and {len(cohorts) - 6} more" if len(cohorts) > 6 else "")
            if cap is None:
                lines.append(f"{whose}/{named}: policy {self.policy} grants nothing of this kind")
            else:
                delta = "" if delta_left is None else f", and delta {float(delta_left):g}"
                lines.append(f"{whose}/{named}: {short(cap - spent)} of {short(cap)} left{delta}")
        if self.other_unit is not None:
            lines.append(f"{self.population}: earlier releases protect a {self.other_unit}; these can't be added")
        return lines

    @staticmethod
    def of(
        context: Context,
        parameters: RetrainParameters,
        cohorts: Sequence[str],
        *,
        claim: Claim | None = None,
        dataset: ArtifactRef | None = None,
    ) -> Charge:
        """What these parameters would be charged for records of these cohorts. Creates no ledger.

        Epsilons are told as they were claimed: an account that a policy keeps under replace-one bears more of them.

        Args:
            claim: what is claimed, where it is known.
            dataset: the records, where they were ingested already: releases of them under other names count, too.

        Raises:
            StorageError: the ledger does not answer.
        """
        epsilon = delta = None
        kind: GuaranteeKind = "asymptotic-local"
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
        unit = privacy_unit(parameters.data.ingest)[0] if claim is None else claim.privacy_unit
        fresh = [budget.Account(*one, kind) for one in accounts_of(population, sorted(cohorts), unit)]
        standing = Standing(tuple(fresh), (), None)
        names: tuple[str, ...] = ()
        by_name = False
        policy = given
        if not url.startswith("sqlite:///") or Path(url.removeprefix("sqlite:///")).is_file():
            ledger = Ledger.open(url, policy=given, journals=journals_of(context.workspace))
            policy = ledger.policy()
            fingerprint = ""
            records = None if dataset is None else known_records(context, dataset)
            by_name = records is None and any(line.account.sequence for line in ledger.budget())
            if dataset is not None and records is not None:
                fingerprint = context.store.figures(dataset)["fingerprint"]
                sought = ReleasePlan.model_construct(
                    idempotency_key="", population=population, cohorts=tuple(cohorts), data_fingerprint=fingerprint
                )
                names = others_names(sought, siblings(ledger, sought, records=records))  # of every kind of guarantee
            standing = ledger.standing(
                kind, population, sorted(cohorts), unit, fingerprint=fingerprint, records=records
            )
        accounts = []
        for one in [*standing.own, *standing.others]:
            cap = policy.cap(one.population, one.cohort, kind) if kind in ("formal", "asymptotic-local") else None
            left = None if cap is None or cap.delta is None else cap.delta - one.delta
            most, whose = None if cap is None else cap.epsilon, None if one in standing.own else one.population
            left = left if kind == "formal" else None
            accounts.append(Account(one.cohort, one.epsilon, most, left, whose))
        return Charge(
            population, kind, epsilon, delta, policy.name, tuple(accounts), names, by_name, standing.other_unit
        )
