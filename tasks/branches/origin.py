"""What a plan was made with, kept beside it: whoever audits or diagnoses the plan does so with the same settings.

Nobody signs it. An audit holds the fit that it comes to against the plan's own, so that other settings are refused.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.durable import write_atomically
from storage.errors import InputError
from tasks.branches.branch import CompareParameters
from tasks.parameters import RELEASED, RetrainParameters
from tasks.releasing.plan import PlannedRelease


class Origin(BaseModel):
    """Settings of the run that planned, and which of its branches the plan releases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameters: RetrainParameters
    compare: CompareParameters = CompareParameters(seeds=1)
    branch: str = RELEASED

    def require_retrain(self, plan: Path) -> None:
        """Refuse what is no posterior of a retrain.

        Raises:
            InputError: it is a formal fit, or a branch of a comparison.
        """
        if self.parameters.formal is not None or self.branch != RELEASED:
            raise InputError(
                f"plan {plan}: it is of branch {self.branch if self.parameters.formal is None else 'formal'}, and "
                "diagnose looks at the posteriors of a retrain by SWAG-PPM"
            )

    def save(self, plan: Path) -> Path:
        """Write it beside its plan; return the file."""
        file = _beside(plan)
        told = self.model_copy(update={"parameters": _from_anywhere(self.parameters)})
        content = json.dumps(told.model_dump(mode="json"), indent=2, ensure_ascii=False)  # fields keep their order
        write_atomically(file, content.encode() + b"\n")
        return file

    @staticmethod
    def of(plan: Path) -> tuple[PlannedRelease, Origin]:
        """A plan and what it was made with.

        The policy of that run is left out: the plan's ledger has one in force.

        Raises:
            InputError: there is no plan, or nothing beside it that this version can read.
        """
        plan = plan.expanduser()
        planned, file = PlannedRelease.load(plan), _beside(plan)
        try:
            origin = Origin.model_validate_json(file.read_bytes())
        except OSError:
            raise InputError(
                f"plan {plan}: {file.name} is not beside it, which says what it was made with (older versions kept "
                "none); give the options of the retrain in place of the plan"
            ) from None
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors(include_input=False)[0]["loc"])
            raise InputError(f"plan {plan}: {file.name} cannot be read: {where}; plan again") from None
        own = origin.parameters
        unruled = own.model_copy(update={"release": own.release.model_copy(update={"policy": None})})
        return planned, origin.model_copy(update={"parameters": unruled})


def _from_anywhere(parameters: RetrainParameters) -> RetrainParameters:
    """With files by whole paths: who reads this works in another folder than who wrote it."""
    data = parameters.data

    def whole(file: str | None) -> str | None:
        return None if file is None else str(Path(file).expanduser().absolute())

    fields = {
        name: one.model_copy(update={"codelist": whole(one.codelist)}) for name, one in data.ingest.fields.items()
    }
    ingest = data.ingest.model_copy(update={"fields": fields}) if fields else data.ingest
    placed = {"source": whole(data.source), "codelist": whole(data.codelist), "ingest": ingest}
    return parameters.model_copy(update={"data": data.model_copy(update=placed)})


def _beside(plan: Path) -> Path:
    return plan.with_suffix(".settings")
