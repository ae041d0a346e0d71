"""Decisions: a person's signed approval or refusal of one release, or of one change of the policy.

Signatures are ECDSA on P-256 with SHA-256 over the canonical JSON (RFC 8785) of everything except
the signature. The policy assigns keys to persons; a typed name is not a decision. A decision
contains the digest of its subject and the terms that the signer saw, so that the ledger's row can
be compared with them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from storage.errors import Contradiction, InputError, Unknown, Unreadable
from storage.ledger import chain
from storage.ledger.keys import is_signed, key_id, signature_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from storage.ledger.policy import ApprovalRule

Subject = Literal["release", "policy", "override"]
Answer = Literal["approve", "refuse"]
_CLOCKS_DIFFER = timedelta(minutes=5)
"""How far a signer's clock may be ahead of this machine's."""


class Decision(BaseModel):
    """A signed decision."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    statement: Literal["autocoder decision"] = "autocoder decision"
    version: Literal[1] = 1
    subject: Subject
    decision: Answer
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 of the plan or policy that is the subject of the decision."""
    terms: dict[str, str] = Field(default_factory=dict)
    """The subject's terms as the signer saw them, as text; see `release_terms`."""
    reason: str = Field(default="", max_length=2000)
    signed_at: str
    """UTC, ISO 8601, from the signer's clock."""
    key_id: str = Field(pattern="^[0-9a-f]{64}$")
    """SHA-256 of the signer's public key (DER, SubjectPublicKeyInfo), in hexadecimal."""
    signature: str = ""
    """Base64, DER-encoded ECDSA."""

    @property
    def token(self) -> str:
        """The decision as one line of text that can be pasted into a form."""
        return base64.urlsafe_b64encode(
            chain.canonical(self.model_dump(mode="json")).encode()
        ).decode()

    @staticmethod
    def read(text: str) -> Decision:
        content: str | bytes = text
        try:
            if not text.lstrip().startswith("{"):
                content = base64.b64decode("".join(text.split()), altchars=b"-_", validate=True)
            return Decision.model_validate(json.loads(content))
        except (ValueError, RecursionError):
            raise Unreadable(
                "approval: not a whole signed decision. Paste the whole line that "
                "`autocoder approve` printed",
                kind="not-a-decision",
            ) from None


@dataclass(frozen=True)
class Matter:
    """The subject of a decision, with its current digest and terms, and its requester."""

    subject: Subject
    digest: str
    terms: Mapping[str, str]
    requester: str | None


def sign(
    key: EllipticCurvePrivateKey,
    *,
    subject: Subject,
    decision: Answer,
    digest: str,
    terms: Mapping[str, str],
    reason: str = "",
) -> Decision:
    unsigned = Decision(
        subject=subject,
        decision=decision,
        digest=digest,
        terms=dict(terms),
        reason=reason,
        signed_at=chain.now(),
        key_id=key_id(key.public_key()),
    )
    return unsigned.model_copy(update={"signature": signature_of(unsigned, key)})


def approver_of(rule: ApprovalRule, key: str) -> str:
    """The name of the approver with this public key id.

    Raises:
        Unknown: the rule does not list the key.
    """
    keys = rule.keys()
    name = next((name for name, listed in keys.items() if key_id(listed) == key), None)
    if name is None:
        names = ", ".join(sorted(keys)) or "no one"
        raise Unknown(
            f"approval: the policy does not list key {key[:12]}…. Its approvers: {names}",
            kind="not-an-approver",
        )
    return name


def signer(
    decision: Decision, rule: ApprovalRule, matter: Matter, *, moment: datetime | None = None
) -> str:
    """The name of the signer, if the decision is valid under this rule.

    Args:
        matter: the subject. A decision on another digest or other terms is stale, and requesters
            cannot decide on their own requests.
        moment: time to which the rule's age limit applies; now by default.

    Raises:
        InputError: the decision is not valid. The text contains the reason.
    """
    name = approver_of(rule, decision.key_id)
    if not is_signed(decision, decision.signature, rule.keys()[name]):
        raise InputError(f"approval by {name}: invalid signature", kind="invalid-approval")
    if (decision.subject, decision.digest, decision.terms) != (
        matter.subject,
        matter.digest,
        dict(matter.terms),
    ):
        raise InputError(
            f"approval by {name}: signed for something else, or for an earlier version of this. "
            "Sign this version",
            kind="stale-decision",
        )
    if name == matter.requester:
        raise InputError(
            f"approval by {name}: the requester cannot decide. Ask another approver",
            kind="own-request",
        )
    try:
        age = (moment or datetime.now(UTC)) - datetime.fromisoformat(decision.signed_at)
    except (ValueError, TypeError):
        raise Unreadable(
            f"approval by {name}: signed_at is not a time with an offset from UTC",
            kind="approval-without-time",
        ) from None
    if age < -_CLOCKS_DIFFER:
        raise InputError(
            f"approval by {name}: signed in the future. Synchronise the clocks",
            kind="future-approval",
        )
    if rule.valid_days is not None and age > timedelta(days=rule.valid_days):
        raise InputError(
            f"approval by {name}: stale, signed {age.days} days ago. The policy "
            f"allows {rule.valid_days}",
            kind="expired-approval",
        )
    return name


def approvers(
    decisions: Sequence[Decision],
    rule: ApprovalRule,
    matter: Matter,
    *,
    moment: datetime | None = None,
) -> tuple[str, ...]:
    """The names of all approvers, each verified by `signer` and listed once. A refusal raises an
    error.
    """
    names: list[str] = []
    for decision in decisions:
        name = signer(decision, rule, matter, moment=moment)
        if decision.decision != "approve":
            raise InputError(
                f"{name} refused: {decision.reason or 'no reason given'}", kind="approval-refused"
            )
        if name in names:
            raise Contradiction(
                f"approval by {name}: already signed. Each person counts once",
                kind="repeated-approval",
            )
        names.append(name)
    return tuple(names)
