"""Makes and reads a dossier: a folder from which an officer decides on her own desk, without workspace or ledger.

It holds the plan, its page, the policy in force, the signed head of the ledger and the public key of that signature.
`dossier.json` repeats the page's answers and names the digest of every other file; it is signed with the same key.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, Field, ValidationError

from storage.bundle.seal import workspace_signer
from storage.durable import write_atomically
from storage.errors import InputError
from storage.ledger import Decision, Ledger, Policy, chain, heads
from storage.ledger.content import release_terms
from storage.ledger.decisions import Answer, Matter, sign, signer
from tasks.releasing import approval, plan_page
from tasks.releasing.checked_plan import CheckedPlan, check
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.plan_page import PlanPage, PlanVerdict
from tasks.running.stage import Context

NAME, PLAN, POLICY, HEAD, KEY, PAGE = (
    "dossier.json",
    "plan.json",
    "policy.yaml",
    "ledger-head.json",
    heads.PUBLIC_NAME,
    "plan.html",
)


class Statement(BaseModel, frozen=True, extra="forbid"):
    """Holds what the agency's system said of a plan at some moment, signed."""

    statement: Literal["autocoder dossier"] = "autocoder dossier"
    version: Literal[1] = 1
    digest: str = Field(pattern="^[0-9a-f]{64}$")
    """Of the plan: what a signature covers."""
    stated_at: str
    summary: str
    answers: tuple[tuple[str, PlanVerdict, str, str], ...]
    """Key, verdict, question and answer."""
    files: dict[str, str]
    """SHA-256 by name."""
    key_id: str = Field(pattern="^[0-9a-f]{64}$")
    signature: str = ""


def write(context: Context, page: PlanPage, ledger: Ledger, out: Path, *, key: Path | None = None) -> str:
    """Write the dossier of a plan into a new folder, or into a `.zip`; return the id of the key that signed it.

    Args:
        key: private key that signs; by default that of the machine ($AUTOCODER_SIGNING_KEY) or of the workspace.
    """
    if out.exists():
        raise InputError(f"--out: {out} is there already. Name another folder or .zip.")
    machine_key = os.environ.get("AUTOCODER_SIGNING_KEY")
    key = key or (Path(machine_key) if machine_key else None)
    if key is None:
        key = workspace_signer(context.workspace.private, context.workspace.home).key
    private = heads.load_private_key(key.expanduser())
    head = heads.state_head(*ledger.head(), key=private)
    contents = {
        PLAN: page.planned.model_dump_json(indent=2).encode() + b"\n",
        PAGE: plan_page.html(page).encode(),
        POLICY: yaml.safe_dump(ledger.policy().as_json(), allow_unicode=True, sort_keys=False).encode(),
        HEAD: head.model_dump_json(indent=2).encode() + b"\n",
        KEY: heads.public_pem(private.public_key()),
    }
    stated = Statement(
        digest=page.planned.digest,
        stated_at=head.stated_at,
        summary=page.summary,
        answers=tuple((one.key, one.verdict, one.question, one.text) for one in page.answers),
        files={name: hashlib.sha256(content).hexdigest() for name, content in contents.items()},
        key_id=heads.key_id(private.public_key()),
    )
    stated = stated.model_copy(update={"signature": heads.signature_of(stated, private)})
    contents[NAME] = stated.model_dump_json(indent=2).encode() + b"\n"
    if out.suffix == ".zip":
        with zipfile.ZipFile(out, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(f"{out.stem}/{name}", content)
    else:
        out.mkdir(parents=True)
        for name, content in contents.items():
            write_atomically(out / name, content)
    return stated.key_id


class Dossier:
    """Holds a dossier whose files are those that were signed."""

    def __init__(self, plan: Path) -> None:
        """Reads the dossier of a plan. Whose key signed it, the officer knows from another way, by the key's id.

        Raises:
            InputError: a file is missing or was changed, or another key signed.
        """
        self.folder = plan.expanduser().parent
        try:
            self.stated = Statement.model_validate_json((self.folder / NAME).read_bytes())
            changed = [
                name
                for name in (PLAN, PAGE, POLICY, HEAD, KEY)
                if hashlib.sha256((self.folder / name).read_bytes()).hexdigest() != self.stated.files.get(name)
            ]
        except OSError as error:
            raise InputError(f"dossier: {error.filename}: {error.strerror}. Ask for it again") from None
        except ValidationError:
            raise InputError(f"dossier: {self.folder / NAME} is not a dossier. Ask for it again") from None
        key = heads.load_public_key(self.folder / KEY)
        signed = heads.key_id(key) == self.stated.key_id and heads.is_signed(self.stated, self.stated.signature, key)
        if changed or not signed:
            what = ", ".join(changed) or f"the signature of {NAME}"
            raise InputError(f"dossier {self.folder}: {what} is not as it was signed. Ask for it again")
        heads.read_head(self.folder / HEAD, key=key)
        self.planned = PlannedRelease.load(self.folder / PLAN)
        self.policy = Policy.load(self.folder / POLICY)
        if self.planned.digest != self.stated.digest:
            raise InputError(f"dossier {self.folder}: its plan is of another version of this program. Ask for it again")

    def decide(self, key: Path, answer: Answer, reason: str) -> tuple[str, Decision, Path]:
        """Signs the plan; returns the signer's name in the policy, the decision, and the file to send back.

        Raises:
            InputError: the policy in force does not name this key, or the signer requested the plan.
        """
        plan, digest = self.planned.plan, self.planned.digest
        matter = Matter("release", digest, release_terms(plan), plan.requester)
        private = heads.load_private_key(key)
        decision = sign(private, subject="release", decision=answer, digest=digest, terms=matter.terms, reason=reason)
        name = signer(decision, self.policy.approvals, matter)
        file = self.folder / f"{answer}-{decision.key_id[:16]}.json"
        content = json.loads(chain.canonical(decision.model_dump(mode="json")))
        write_atomically(file, json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
        return name, decision, file


def accept(context: Context, ledger: Ledger, decision: Decision) -> tuple[str, CheckedPlan]:
    """Saves a decision that came back next to the plan that it is about; returns the signer and that plan."""
    for file in sorted((context.workspace.private / "plans").glob("*.json")):
        planned = PlannedRelease.load(file)
        if planned.digest == decision.digest:
            plan = check(planned, ledger)
            return approval.accept_decision(context, plan, decision), plan
    raise InputError(
        f"approval: no plan in {context.home} has the digest {decision.digest[:12]}… that was signed. A plan that was "
        "renewed needs a new dossier; give the plan's workspace (--home)"
    )
