"""How long a run would take and what it writes: rough rates of each kind of stage, corrected by what was timed here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from mechanisms.model import encoders
from tasks.parameters import RetrainParameters
from tasks.running import timings

DEVICES = ("cpu", "cuda")
_ENCODE_PER_SECOND = {"cpu": 70.0, "cuda": 4000.0}
_TRAIN_PER_SECOND = {"cpu": 13.0, "cuda": 900.0}
"""Narratives a second for a 23-million-parameter encoder; scaled by size. Rough: printed as such."""
_HEAD_STEPS_PER_SECOND = 3000.0
_PRODUCTS_PER_SECOND = 2e10
_SIDE_BY_SIDE = 5.0
"""Times as many reruns of a linear head a second, where they are one product, as one by one (benchmarks/audit.py)."""
_LABELS, _BATCH = 100, 8
_OF_HEADS = ("fine-tune", "SWAG", "risks", "sensitivity")
"""Kinds whose times tell something of others; encoding, at another rate by threads and load, does not."""
_START = 15.0
"""Seconds of imports and of Prefect."""


@dataclass(frozen=True)
class Estimate:
    """What a run would take, roughly."""

    records: int
    train: int
    parameters: int
    disk_bytes: int
    stages: Mapping[str, float]
    """Seconds of one stage of each kind, by the rough rates."""
    counts: Mapping[str, int]
    """Stages of each kind in a retrain."""
    timed: Mapping[str, float]
    """What stages of these kinds took in this workspace, as a multiple of the rough rates."""

    @property
    def seconds(self) -> float:
        """Of a whole retrain."""
        return _START + sum(self.of_kind(kind) * count for kind, count in self.counts.items())

    @property
    def measured(self) -> bool:
        """Whether stages were timed in this workspace."""
        return bool(set(self.timed) & set(self.stages))

    def of_kind(self, kind: str) -> float:
        """Seconds of one stage; a kind that was never timed is as much slower as those that were."""
        usual = sorted(self.timed[known] for known in _OF_HEADS if known in self.timed)
        return self.stages[kind] * self.timed.get(kind, usual[len(usual) // 2] if usual else 1.0)

    def of_labels(self, labels: Iterable[str]) -> float:
        """Seconds of these stages together, by their labels."""
        return _START + sum(self.of_kind(kind) for kind in map(timings.kind_of, labels) if kind in self.stages)

    def with_fits(self, epochs: Mapping[str, float]) -> Estimate:
        """With the fits of branches that are one fit each: how often each passes over its records, by name."""
        fits = {name: passes * self.stages["epoch"] for name, passes in epochs.items()}
        return replace(self, stages=dict(self.stages) | fits)

    def with_studies(self, *, draws: int, refits: int) -> Estimate:
        """With the stages of diagnostics: passes over so many draws in all, and so many refits of one round."""
        studies = {
            "diagnostics": draws * self.stages["draw"],
            "leave one out": refits * (self.stages["fine-tune"] + self.stages["SWAG"]),
        }
        return replace(self, stages=dict(self.stages) | studies)

    def with_trials(
        self, labels: Mapping[str, str], *, trials: int, draws: int, batched: Collection[str] = ()
    ) -> Estimate:
        """With the stages of an audit's reruns, each rerun with so many draws for risks and for Delta.

        Args:
            labels: with the branch that each reruns: one fit, where `with_fits` has it, else all rounds.
            batched: branches whose reruns are made side by side.
        """
        rounds = max(self.counts["fine-tune"], 1)
        fits = rounds * (self.stages["fine-tune"] + self.stages["SWAG"] + self.stages["draw"] * draws)
        reruns = {
            label: trials * self.stages.get(branch, fits) / (_SIDE_BY_SIDE if branch in batched else 1)
            for label, branch in labels.items()
        }
        return replace(self, stages=dict(self.stages) | reruns)

    @staticmethod
    def of(
        parameters: RetrainParameters,
        *,
        rows: int,
        features: int | None,
        device: str,
        timed: Mapping[str, float],
        sampled: Mapping[str, int] | None = None,
    ) -> Estimate:
        """Of a retrain of so many rows.

        Args:
            sampled: records by split, once every row was read; a holdout is neither encoded nor trained on.
        """
        ingest, fit, config = parameters.data.ingest, parameters.fit, parameters.pseudo_posterior
        if sampled is None:
            records = rows if ingest.cap_per_code is None else min(rows, _LABELS * ingest.cap_per_code)
            train = max(int(records * (1 - ingest.test_share)), 1)
        else:
            records, train = sampled["train"] + sampled["test"], sampled["train"]
        formal = parameters.formal is not None
        rounds = 0 if formal else len(parameters.rounds)
        none = parameters.model.pooling == "none"
        size, width = (0, features or 1) if none else encoders.shape(parameters.model.encoder)
        scale = size / 23e6
        if parameters.model.trainable == "head":
            trained = width * _LABELS
            stages = {
                "features": records / _ENCODE_PER_SECOND[device] * scale,
                "fine-tune": fit.adamw.steps(train) / _HEAD_STEPS_PER_SECOND,
                "SWAG": fit.sgd.steps(train) / _HEAD_STEPS_PER_SECOND,
                "draw": train * trained / _PRODUCTS_PER_SECOND,
                "epoch": train / _BATCH / _HEAD_STEPS_PER_SECOND,
            }
            disk = records * width * 4
        else:
            trained = size if parameters.model.trainable == "full" else size // 100
            stages = {
                "features": 0.0,
                "fine-tune": train * scale * fit.adamw.epochs / _TRAIN_PER_SECOND[device],
                "SWAG": train * scale * fit.sgd.epochs / _TRAIN_PER_SECOND[device],
                "draw": train * scale / _ENCODE_PER_SECOND[device],
                "epoch": train * scale / _TRAIN_PER_SECOND[device],
            }
            disk = 0
        stages |= {
            "risks": config.risk_draws * stages["draw"],
            "sensitivity": config.sensitivity_draws * stages["draw"],
        }
        counts = {"features": 1, "fine-tune": rounds, "SWAG": rounds, "risks": int(not formal)}
        counts["sensitivity"] = max(rounds - 1, 0)
        disk += rounds * trained * 4 * (fit.swag.rank + 3) + trained * 16 + size * 4
        return Estimate(records, train, trained, int(disk), stages, counts, timed)
