"""Registers a training run with given parameters as a deployment of the Prefect server, manually or
by the calendar.
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
from storage.errors import InputError
from tasks.catalogue import CATALOGUE

if TYPE_CHECKING:
    from prefect import Flow

    from tasks.parameters import RetrainParameters

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_PULL = {"prefect.deployments.steps.set_working_directory": {"directory": "/"}}
"""Nothing is pulled, as in deployments/prefect.yaml: workers have this package installed."""


def check_name(name: str) -> None:
    """Refuse names that the server could not keep, and those of the delivered deployments, which
    would be lost.
    """
    delivered = [
        deployment["name"]
        for deployment in yaml.safe_load((CATALOGUE / "prefect.yaml").read_text())["deployments"]
    ]
    if not _NAME.fullmatch(name):
        raise InputError(
            f"--deploy: {name!r} is no name. Give letters A to Z, digits, `.`, `_` and `-`, 64 "
            "at most."
        )
    if name in delivered:
        raise InputError(
            f"--deploy: {name} is a delivered deployment, which `autocoder deploy` resets. Give "
            "another."
        )


_FIELDS = 5
"""Minute, hour, day, month, weekday: of six the library takes the first for seconds or the last for
a year.
"""


def schedule_of(cron: str | None, time_zone: str = "UTC") -> CronSchedule | None:
    """Returns the schedule of a cron line; refuses a line that is none, one of six fields, and an
    unknown time zone.
    """
    if cron is None:
        return None
    if time_zone not in available_timezones():
        raise InputError(
            f"--time-zone: {time_zone!r} is not known. Give one such as UTC or Europe/Paris."
        )
    try:
        schedule = (
            CronSchedule(cron=cron, timezone=time_zone) if len(cron.split()) == _FIELDS else None
        )
    except ValueError:
        schedule = None
    if schedule is None:
        raise InputError(
            f"--cron: {cron!r} is not a cron line of five fields. Give minute, hour, day, month "
            "and weekday: "
            '"0 6 1 */3 *".'
        )
    try:
        comes = next_runs(schedule, 1)
    except ValueError:  # the library looks some years ahead
        comes = []
    if not comes:
        raise InputError(f"--cron: {cron!r} names a day that never comes. Give one that does.")
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
    """Returns the parameters with absolute paths of records and code lists, since a worker has
    another folder.
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
    """Create or replace the deployment `retrain/NAME`, with the form of its kind of release; return
    its name.
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
            raise InputError(
                f"--deploy: the server has no work pool {pool}. Run `autocoder deploy` first."
            ) from None
        client.create_deployment(
            client.create_flow(flow),
            name=name,
            description=f"Registered by `autocoder train --deploy`; its claim is {kind}.",
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
