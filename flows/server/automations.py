"""Creates or updates work pools and automations, by name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import UUID

from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists
from prefect.workers.process import ProcessWorker

from flows.server.client import server
from storage import strict_yaml
from storage.errors import OutOfRange

if TYPE_CHECKING:
    from storage.json_values import Config


_BLOCK = "autocoder-notifications"
_EARLIER = ("zombies", "resume")
"""Rules of earlier versions, which the watch replaces (`flows.server.watch`)."""


def apply_pools(names: Sequence[str]) -> None:
    """Create process work pools. An existing pool, with its type and limit, belongs to the
    organisation and is not changed.
    """
    with server() as client:
        for name in names:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=name, type=ProcessWorker.type))


def apply_rules(file: Path, *, webhook: str | None) -> list[str]:
    """Create or update the automations of a file, and return their names.

    Args:
        webhook: address to which notifications are sent as JSON `{"text": …}`. Without it, rules
            that only notify are omitted.
    """
    applied = []
    with server() as client:
        block = None if webhook is None else _block(webhook)
        for rule in strict_yaml.load(file.read_text(encoding="utf-8")):
            actions = [_action(action, block) for action in rule["actions"]]
            rule["actions"] = [action for action in actions if action is not None]
            if not rule["actions"]:
                continue
            try:
                automation = AutomationCore.model_validate(rule)
            except ValueError:
                raise OutOfRange(
                    f"{file}: rule {rule.get('name')} is not a valid automation. Compare it with "
                    "Prefect's schema.",
                    kind="invalid-automation",
                ) from None
            # The new rule is created first, so that a crash leaves no rule missing.
            earlier = client.read_automations_by_name(automation.name)
            client.create_automation(automation)
            for old in earlier:
                client.delete_automation(old.id)
            applied.append(automation.name)
        for name in _EARLIER:
            for old in client.read_automations_by_name(name):
                client.delete_automation(old.id)
    return applied


def _action(action: Config, block: UUID | None) -> Config | None:
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
        name="autocoder",
        url=webhook,
        method="POST",
        json_data={"text": "{{body}}"},
        headers=None,
        cookies=None,
    )
    return cast(UUID, block.save(_BLOCK, overwrite=True))
