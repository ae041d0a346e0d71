"""Decides whether a release also reports its model's accuracy, and draws the table for it.

The table is a noisy count of the held-out records at the released model. Each record is in one set
only, so the table costs nothing if each record pays either for the model or for the table
(`mechanisms.privacy.accuracy_table`). If this cannot be shown, there is no table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mechanisms.privacy.events import Event, ParallelEvent
from mechanisms.privacy.gaussian_cost import gaussian_rate
from storage.code_levels import groups
from storage.codelist import Code
from storage.datasets import load_codes
from storage.ingest import IngestConfig
from tasks.bundle.untold import Untold, untold_by_kind

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.privacy.accuracy_table import AccuracyTable
    from tasks.fitting.candidate import Candidate
    from tasks.fitting.ingest import IngestFigures
    from tasks.parameters import RetrainParameters
    from tasks.running.stage import Context


def untold_by_settings(parameters: RetrainParameters) -> Untold | None:
    """Returns why no accuracy on the held-out records will be reported, as far as it is
    known before any record is read.
    """
    if parameters.method.guarantee_kind != "formal":
        return "no noise"
    return None if parameters.data.ingest.sampling == "per-record" else "coupled"


def parallel_event(
    training: Event, *, facts: IngestFigures, ingest: IngestConfig, codes: list[Code]
) -> tuple[Event, Untold | None]:
    """Returns the event of a release on both sets, at the cost of the training alone. If no
    accuracy on the held-out records is reported, returns the training's event and the reason.

    Args:
        facts: figures of the records' ingest.
    """
    from mechanisms.privacy.accuracy_table import events_of
    from mechanisms.privacy.stated_accuracy import could_state

    why = untold_by_kind(training, sampling=facts["sampling"])
    if why is not None:
        return training, why
    rate = gaussian_rate(training)
    assert rate is not None
    evaluation = events_of(rate)
    if not could_state(facts["test"], groups=len(groups(codes)[0]), events=evaluation):
        return training, "few"
    split: Literal["unit", "record"] = "unit" if ingest.split_by_unit else "record"
    return ParallelEvent(training=training, evaluation=evaluation, split=split), None


@dataclass(frozen=True)
class Answers:
    """A model's private scores of the held-out records, and the other inputs of the table."""

    logits: Tensor
    """float32 [n, codes]."""
    labels: Tensor
    codes: list[Code]

    @staticmethod
    def of(context: Context, candidate: Candidate, theta: Tensor) -> Answers:
        """Computes the scores of the released model."""
        from tasks.fitting.model_inputs import load_inputs

        inputs, labels = load_inputs(context.store.open(candidate.prepared), "test")
        logits = candidate.classifier(context, theta).predict(inputs)
        return Answers(logits, labels, load_codes(context.store.open(candidate.dataset)))

    def draw(self, event: ParallelEvent) -> AccuracyTable:
        """Draws the table with the operating system's entropy. A second call draws again."""
        from mechanisms.privacy import accuracy_table
        from mechanisms.privacy.noise import SecretStream, new_key

        names, group_of = groups(self.codes)
        return accuracy_table.draw(
            self.logits,
            self.labels,
            group_of,
            groups=len(names),
            events=event.evaluation,
            stream=SecretStream(new_key()),
        )
