"""Plans the release of a branch, and saves the run's settings next to the plan.

An audit of the plan uses these settings. The file is not signed, so an audit compares its own fit
with the plan's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from storage.durable import write_atomically
from storage.errors import Missing, Unreadable
from tasks.branches.branch import ComparisonSettings, model_for
from tasks.branches.experiment import Outcome, Study
from tasks.fitting.candidate import Candidate
from tasks.method import RELEASE_BRANCH, first_fault
from tasks.parameters import RetrainParameters
from tasks.releasing.plan import PlannedRelease


def plan_release(study: Study, outcome: Outcome) -> PlannedRelease:
    """Plans the release of one outcome. The same records, method and label always give the same
    plan.
    """
    candidate = Candidate(
        dataset=study.dataset,
        prepared=study.prepared,
        fitted=outcome.fitted,
        mechanism=outcome.mechanism.model_dump(mode="json"),
        is_sampled=outcome.mechanism.draws,
        model=model_for(outcome.branch, study.parameters),
        seed=outcome.seed,
    )
    return PlannedRelease.of_candidate(
        study.context,
        candidate,
        study.parameters,
        delta=outcome.claim.delta,
        prefect_run_id=study.context.run.id,
    )


class Origin(BaseModel, frozen=True, extra="forbid"):
    """The settings of the run that made a plan, and the branch that the plan releases."""

    parameters: RetrainParameters
    terms: ComparisonSettings = ComparisonSettings()
    branch: str = RELEASE_BRANCH

    def save(self, plan: Path) -> Path:
        """Writes the settings next to their plan and returns the file."""
        file = _settings_file(plan)
        portable = self.model_copy(update={"parameters": _with_absolute_paths(self.parameters)})
        content = json.dumps(
            portable.model_dump(mode="json"), indent=2, ensure_ascii=False
        )  # fields keep their order
        write_atomically(file, content.encode() + b"\n")
        return file

    @staticmethod
    def of(plan: Path) -> tuple[PlannedRelease, Origin]:
        """Loads a plan and its settings, except the policy: the plan's ledger contains the current
        one.
        """
        plan = plan.expanduser()
        planned, file = PlannedRelease.load(plan), _settings_file(plan)
        try:
            origin = Origin.model_validate_json(file.read_bytes())
        except OSError:
            raise Missing(
                f"plan {plan}: {file.name}, which contains its settings, is missing "
                "from its folder. Run `autocoder train` again to write both",
                kind="no-settings",
            ) from None
        except ValidationError as error:
            raise Unreadable(
                f"{first_fault(error, file.name)}. Plan again", kind="damaged-settings"
            ) from None
        release = origin.parameters.release.model_copy(update={"policy": None})
        parameters = origin.parameters.model_copy(update={"release": release})
        return planned, origin.model_copy(update={"parameters": parameters})


def _with_absolute_paths(parameters: RetrainParameters) -> RetrainParameters:
    data = parameters.data

    def absolute(file: str | None) -> str | None:
        return None if file is None else str(Path(file).expanduser().absolute())

    sources = tuple(str(file.absolute()) for file in data.sources)
    placed: dict[str, Any] = {"source": sources, "codelist": absolute(data.codelist)}
    placed["examples"] = absolute(data.examples)
    placed["labels"] = {column: absolute(file) for column, file in data.labels.items()}
    return parameters.model_copy(update={"data": data.model_copy(update=placed)})


def _settings_file(plan: Path) -> Path:
    return plan.with_suffix(".settings")
