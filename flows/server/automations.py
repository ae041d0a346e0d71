"""Work pools and automations, applied by name: what is there already is brought up to date."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import yaml
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.workers.process import ProcessWorker

from flows.server.client import server
from storage.errors import InputError

_BLOCK = "autocoder-notifications"


OF_THE_WORKER = ("command", "env", "working_dir")
"""Job variables that no run may set: a worker's environment says where records, ledger and keys are."""


def apply_pools(pools: Mapping[str, int | None]) -> None:
    """Create process work pools, or bring those that are there up to date.

    Raises:
        StorageError: the server does not answer, or refuses us.
    """
    template = _job_template()
    with server() as client:
        for name, limit in pools.items():
            pool = WorkPoolCreate(
                name=name, type=ProcessWorker.type, base_job_template=template, concurrency_limit=limit
            )
            try:
                client.create_work_pool(pool)
            except ObjectAlreadyExists:
                # One of another type is the house's own (docs/scale.md), and so is a limit that none is stated for.
                if client.read_work_pool(name).type == ProcessWorker.type:
                    update = WorkPoolUpdate(base_job_template=template)
                    if limit is not None:
                        update.concurrency_limit = limit
                    client.update_work_pool(name, update)


def _job_template() -> dict[str, Any]:
    """That of a process, without the variables that are the worker's.

    `env` has no place in it at all: Prefect adds what a run asks for to one that is there, even to an empty one.
    """
    template = copy.deepcopy(ProcessWorker.get_default_base_job_template())
    for name in OF_THE_WORKER:
        template["variables"]["properties"].pop(name, None)
        template["job_configuration"][name] = None
    del template["job_configuration"]["env"]
    return template


def apply_rules(file: Path, *, webhook: str | None) -> list[str]:
    """Create or update the automations of a file; return the names of those applied.

    Args:
        webhook: where notifications go, as JSON `{"text": …}`; without it rules that only notify are left out.

    Raises:
        InputError: a rule is none, or names a deployment that is not there.
        StorageError: the server does not answer, or refuses us.
    """
    applied = []
    with server() as client:
        block = None if webhook is None else _block(webhook)
        for rule in yaml.safe_load(file.read_text(encoding="utf-8")):
            actions = [_action(client, action, block) for action in rule["actions"]]
            rule["actions"] = [action for action in actions if action is not None]
            if not rule["actions"]:
                continue
            try:
                automation = AutomationCore.model_validate(rule)
            except ValueError:
                raise InputError(f"{file}: rule {rule.get('name')} is no automation") from None
            # The new one first: whatever dies in between, no rule is missing.
            earlier = client.read_automations_by_name(automation.name)
            client.create_automation(automation)
            for old in earlier:
                client.delete_automation(old.id)
            applied.append(automation.name)
    return applied


def _action(client: SyncPrefectClient, action: dict[str, Any], block: UUID | None) -> dict[str, Any] | None:
    if "run" in action:
        try:
            deployment = client.read_deployment_by_name(action["run"])
        except ObjectNotFound:
            raise InputError(f"automation: no deployment {action['run']}") from None
        return {"type": "run-deployment", "source": "selected", "deployment_id": str(deployment.id)}
    if "notify" in action:
        if block is None:
            return None
        return {
            "type": "send-notification",
            "block_document_id": str(block),
            "subject": "autocoder",
            "body": action["notify"],
        }
    return action


def _block(webhook: str) -> UUID:
    block = CustomWebhookNotificationBlock(
        name="autocoder", url=webhook, method="POST", json_data={"text": "{{body}}"}, headers=None, cookies=None
    )
    return cast(UUID, block.save(_BLOCK, overwrite=True))
