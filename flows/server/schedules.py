"""Registers a training run with its parameters as a deployment of the Prefect server, started
manually or by a schedule.
"""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import available_timezones

import yaml
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound

from flows import deployed
from flows.server import heartbeats
from flows.server.client import server
from flows.server.form import WorkerSettings, form_of
from storage.errors import Contradiction, Missing, OutOfRange, Unknown
from tasks.catalogue import CATALOGUE

if TYPE_CHECKING:
    from prefect import Flow

    from tasks.parameters import RetrainParameters

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PULL = {"prefect.deployments.steps.set_working_directory": {"directory": "/"}}
"""Nothing is pulled, as in deployments/prefect.yaml, because workers have this
package installed.
"""


def check_name(name: str) -> None:
    """Refuse names that the server could not store, and names of the delivered
    deployments, which would be replaced.
    """
    delivered = [
        deployment["name"]
        for deployment in yaml.safe_load((CATALOGUE / "prefect.yaml").read_text())["deployments"]
    ]
    if not _NAME.fullmatch(name):
        raise OutOfRange(
            f"--deploy: {name!r} is not a valid name. Use letters A to Z, digits, "
            "`.`, `_` and `-`, at most 64 of them.",
            kind="deployment-name",
        )
    if name in delivered:
        raise Contradiction(
            f"--deploy: {name} is a delivered deployment, which `autocoder "
            "deploy` resets. Choose another name.",
            kind="delivered-deployment",
        )


_FIELDS = 5
"""Minute, hour, day, month, weekday. With six fields the library reads the first as
seconds or the last as a year.
"""


def schedule_of(cron: str | None, time_zone: str = "UTC") -> CronSchedule | None:
    """Returns the schedule of a cron line. Refuses an invalid line, a line of six
    fields, and an unknown time zone.
    """
    if cron is None:
        return None
    if time_zone not in available_timezones():
        raise Unknown(
            f"--time-zone: unknown time zone {time_zone!r}. Use one such as UTC or Europe/Paris.",
            kind="unknown-time-zone",
        )
    try:
        schedule = (
            CronSchedule(cron=cron, timezone=time_zone) if len(cron.split()) == _FIELDS else None
        )
    except ValueError:
        schedule = None
    if schedule is None:
        raise OutOfRange(
            f"--cron: {cron!r} is not a cron line of five fields. Specify minute, "
            'hour, day, month and weekday: "0 6 1 */3 *".',
            kind="cron-form",
        )
    try:
        comes = next_runs(schedule, 1)
    except ValueError:  # the library looks ahead some years
        comes = []
    if not comes:
        raise OutOfRange(
            f"--cron: {cron!r} specifies a day that never comes. Use another one.",
            kind="cron-never",
        )
    return schedule


def next_runs(schedule: CronSchedule, number: int = 3) -> list[datetime]:
    """Returns the next times at which a schedule runs, in its time zone."""
    from prefect.server.schemas import schedules

    return [
        *asyncio.run(
            schedules.CronSchedule(cron=schedule.cron, timezone=schedule.timezone).get_dates(number)
        )
    ]


def with_absolute_paths(parameters: RetrainParameters) -> RetrainParameters:
    """Returns the parameters with absolute paths of records and code lists, because a worker has
    another working directory.
    """
    values = parameters.model_dump(mode="json", exclude_unset=True)
    data = values["data"]
    for name in ("source", "codelist", "examples"):
        if files := data.get(name):
            several = [files] if isinstance(files, str) else files
            paths = [str(Path(file).expanduser().resolve()) for file in several]
            data[name] = paths[0] if isinstance(files, str) else paths
    return type(parameters).model_validate(values)


def register_retrain(
    name: str,
    parameters: RetrainParameters,
    worker: WorkerSettings,
    *,
    schedule: CronSchedule | None,
    pool: str,
) -> str:
    """Create or replace the deployment `retrain/NAME` with the form for its kind of
    release, and return its name.
    """
    form = form_of(parameters, worker)
    kind = form.FLOW
    flow: Flow[Any, Any] = getattr(deployed, kind)
    values = {"parameters": form.model_dump(mode="json")}
    schedules = (
        [] if schedule is None else [DeploymentScheduleCreate(schedule=schedule, slug="own")]
    )
    with server() as client:
        try:
            client.read_work_pool(pool)
        except ObjectNotFound:
            raise Missing(
                f"--deploy: the server has no work pool {pool}. Run `autocoder deploy` first.",
                kind="no-work-pool",
            ) from None
        client.create_deployment(
            client.create_flow(flow),
            name=name,
            description=f"Registered by `autocoder train --deploy`. Its claim is {kind}.",
            entrypoint=f"flows.deployed.{kind}",
            path="/",
            pull_steps=[_PULL],
            work_pool_name=pool,
            work_queue_name="default",
            job_variables=heartbeats.TOLD,
            tags=["retrain"],
            parameters=values,
            parameter_openapi_schema=flow.parameters.model_dump(mode="json", exclude_unset=True),
            enforce_parameter_schema=True,
            concurrency_limit=1,
            concurrency_options=ConcurrencyOptions(
                collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
            ),
            schedules=schedules,
        )
    return f"{flow.name}/{name}"
