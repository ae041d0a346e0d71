"""The certificate of one release: a Markdown page that a review board files, with the spending it stands in."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.durable import write_atomically
from storage.errors import InputError
from storage.ledger.amounts import short
from storage.ledger.ledger import Ledger
from storage.ledger.models import Charge, Row
from storage.ledger.report import BUDGET_COLUMNS, budget_cells, escape, markdown_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CERTIFICATE_NAME, PLOT_NAME = "certificate.md", "spend.png"

_MEANING = {
    "formal": (
        "A finite-sample (ε, δ) guarantee, computed by the accountant from the event below. It holds for every"
        " data set, given the trust model and the source of randomness named here."
    ),
    "asymptotic-local": (
        "**Not a formal guarantee.** ε was estimated on this one data set and holds in the limit of many records;"
        " δ is not quantified. A low ε of this kind can also come from a model that fits its training records"
        " closely. It is never added to a formal guarantee."
    ),
    "none": "Nothing is guaranteed.",
}
_STATE = {
    "reserved": "reserved: the budget is charged, nothing was drawn or left the house",
    "drawn": "drawn: the one draw exists, its bundle is not recorded yet",
    "committed": "committed: the bundle stands and may be handed over",
    "burned": "burned: closed without a bundle; what it spent stays spent",
}


def write_certificate(ledger: Ledger, release_id: str, folder: Path) -> Path:
    """Write `certificate.md` and `spend.png` into a folder and return the former's path."""
    row = ledger.release(release_id)
    text = certificate(ledger, release_id)
    history = ledger.spend_history(row.population or "", row.guarantee_kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / PLOT_NAME, spend_plot({f"{row.population}, {row.guarantee_kind}": history}))
        path = folder / CERTIFICATE_NAME
        write_atomically(path, text.encode())
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from error
    return path


def certificate(ledger: Ledger, release_id: str) -> str:
    """Return the certificate of a release as Markdown, with the picture of the spending beside it."""
    row, history = ledger.release(release_id), ledger.history(release_id)
    rules = dict.fromkeys(charge.composition for charge in ledger.charges(release_id))
    lines = [line for line in ledger.budget() if line.account.population == row.population]
    parts = [
        f"# Release certificate: {escape(row.label)}",
        f"Release `{row.release_id}`, {_STATE[row.state]}.",
        f"## Guarantee: {row.guarantee_kind}",
        _MEANING[row.guarantee_kind],
        _fields(_guarantee(row)),
        f"Measured beside the claim: {escape(row.details['audit']['line'])}." if "audit" in row.details else "",
        _list("It rests on", row.assumptions),
        _list("Computed from the records and not protected", row.unprotected_inputs),
        "## Records",
        _fields(
            {
                "population": row.population,
                "cohorts": ", ".join(row.cohorts),
                "records (rounded)": row.records_rounded,
                "data fingerprint": row.data_fingerprint,
            }
        ),
        "## Mechanism",
        f"`{row.mechanism}`; what was done, enough to compute the cost again:",
        f"```json\n{json.dumps(row.event, indent=1, ensure_ascii=False, sort_keys=True)}\n```",
        "## Budget",
        f"Composition within an account: {', '.join(rules)}. What this release charged:",
        _charges(history),
        "All accounts of the population today:",
        markdown_table(BUDGET_COLUMNS, budget_cells(lines)),
        f"![ε spent over time, one line a cohort]({PLOT_NAME})",
        "## Provenance",
        _fields(_provenance(row)),
        "## History",
        markdown_table(
            ("row", "at (UTC)", "kind", "state", "reason", "hash"),
            [(str(r.sequence), r.recorded_at[:19], r.kind, r.state, r.reason, r.hash) for r in history],
        ),
        f"Row {row.sequence} has the hash `{row.hash}`. `autocoder ledger verify` with a head exported at or after"
        " that row proves that nobody changed it since.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _guarantee(row: Row) -> dict[str, Any]:
    return {
        "ε": row.epsilon,
        "δ": row.delta if row.delta is not None else row.delta_text or "not quantified",
        "sensitivity Δ": row.sensitivity,
        "ε under add/remove": row.epsilon_add_remove,
        "draws behind the maximum": row.draws,
        "probability that a fresh draw exceeds it": row.mc_failure_prob,
        "neighbouring relation": row.neighbouring_relation,
        "privacy unit": f"{row.privacy_unit}; records a unit contributes at most: {row.max_records_per_unit}",
        "accountant": row.accountant,
        "trust model": row.trust_model,
        "source of randomness": row.randomness_source,
        "floating point": row.floating_point_caveat,
    }


def _provenance(row: Row) -> dict[str, Any]:
    tree = {True: "with uncommitted changes", False: "clean", None: "unknown"}[row.code_dirty]
    return {
        "requester": row.requester,
        "approvals": ", ".join(row.approvals) or "none; the policy in force demands none",
        "code commit": f"{row.code_commit} ({tree})",
        "lock file": row.lock_digest,
        "parameters": row.parameters_digest,
        **{f"artifact {name}": value for name, value in sorted(row.artifact_digests.items())},
        "draw": row.draw_digest,
        "bundle": row.bundle_digest,
        "policy": row.policy_digest,
        "Prefect run": row.prefect_run_id,
        "supersedes": row.supersedes,
    }


def _fields(fields: dict[str, Any]) -> str:
    rows = [
        (name, short(value) if isinstance(value, Decimal) else str(value))
        for name, value in fields.items()
        if value not in (None, "")
    ]
    return markdown_table(("", ""), rows)


def _list(title: str, items: Sequence[str]) -> str:
    return f"{title}:\n\n" + "\n".join(f"- {escape(item)}" for item in items) if items else ""


def _charges(history: Sequence[Row]) -> str:
    rows = [
        (
            str(row.sequence), charge.account, charge.neighbouring_relation, short(charge.epsilon_before),
            short(charge.epsilon), short(charge.epsilon_after), short(charge.epsilon_cap),
            *((short(charge.delta), short(charge.delta_after), short(charge.delta_cap))
              if charge.delta_cap is not None else ("–", "–", "–")),
        )
        for row in history for charge in row.charges
    ]  # fmt: skip
    header = ("row", "cohort", "account under", "ε before", "ε charged", "ε after", "ε cap")
    return markdown_table((*header, "δ charged", "δ after", "δ cap"), rows)


def spend_plot(histories: Mapping[str, Sequence[tuple[str, Charge]]]) -> bytes:
    """Return a PNG of ε spent over time, a panel a population and kind, a step line a cohort, with the caps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 3.6 * max(1, len(histories))), layout="constrained")
    for axes, (title, points) in zip(
        figure.subplots(max(1, len(histories)), squeeze=False).flat, histories.items(), strict=False
    ):
        _draw(axes, title, points)
    output = io.BytesIO()
    FigureCanvasAgg(figure).print_png(output)
    return output.getvalue()


def _draw(axes: Axes, title: str, history: Sequence[tuple[str, Charge]]) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num

    cohorts = sorted({charge.cohort for _, charge in history})
    for index, cohort in enumerate(cohorts):
        mine = [(time, charge) for time, charge in history if charge.cohort == cohort]
        at = [float(date2num(datetime.fromisoformat(time))) for time, _ in mine]
        # Drawn from zero at its first charge; cohorts often coincide, so each has its own dash and width.
        style = ("-", "--", "-.", ":")[index % 4]
        axes.step(
            [at[0], *at],
            [0.0, *(float(charge.epsilon_after) for _, charge in mine)],
            where="post", marker="o", markersize=3, linestyle=style, label=cohort,
            linewidth=1.0 + 0.6 * ((len(cohorts) - index) % 4),
        )  # fmt: skip
    for cap in sorted({charge.epsilon_cap for _, charge in history}):
        axes.axhline(float(cap), color="black", linewidth=0.8)
        axes.annotate(
            f"cap {short(cap)}",
            (0.0, float(cap)),
            xycoords=("axes fraction", "data"),
            xytext=(4, 3),
            textcoords="offset points",
        )
    axes.set_ylim(0.0, 1.12 * axes.get_ylim()[1])
    axes.set_ylabel("ε spent (nats)")
    axes.set_xlabel("time (UTC)")
    axes.set_title(title)
    locator = AutoDateLocator()
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    if cohorts:
        axes.legend(title="cohort", fontsize="small", loc="lower right")
