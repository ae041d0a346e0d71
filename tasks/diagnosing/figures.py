"""Draws the figures of the diagnostics page as SVG; shapes and line styles distinguish series without colour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.pages.svg import BLACK, BLUE, GREEN, ORANGE, figure_of, svg

_STYLES = ((BLUE, "-"), (ORANGE, "--"), (GREEN, ":"), (BLACK, "-."))


def running(rounds: Mapping[str, Mapping[str, Any]]) -> str:
    """Draws Delta after each draw, and its extrapolation."""
    figure, axes = figure_of("Largest weighted surprise so far, and extrapolated")
    for (name, one), (colour, style) in zip(rounds.items(), _STYLES, strict=False):
        values = one["running"]
        axes.step(range(1, len(values) + 1), values, where="post", color=colour, linestyle=style, label=name)
        tail = one["tail"]
        if tail is not None:
            low, high = tail["expected"] - tail["low"], tail["high"] - tail["expected"]
            spread = [[max(low, 0)], [max(high, 0)]]
            axes.errorbar(tail["draws"], tail["expected"], yerr=spread, color=colour, marker="D", capsize=4)
    axes.set(xscale="log", xlabel="draws (diamonds: extrapolated, with a 90 % interval)", ylabel="Δ (nats)")
    axes.legend(fontsize=8)
    return svg(figure)


def deltas(rounds: Mapping[str, Mapping[str, Any]]) -> str:
    """Draws Delta_i of all records in order, each round against its cap."""
    figure, axes = figure_of("Weighted surprise of every record against the cap")
    for (name, one), (colour, style) in zip(rounds.items(), _STYLES, strict=False):
        values = one["delta_quantiles"]
        share = [100 * i / (len(values) - 1) for i in range(len(values))]
        axes.plot(share, values, color=colour, linestyle=style, label=name)
        axes.axhline(values[-1], color=colour, linestyle=style, linewidth=0.7, alpha=0.7)
    axes.set(xlabel="records, in per cent, least surprising first", ylabel="Δᵢ (nats); thin lines: the largest")
    axes.legend(fontsize=8)
    return svg(figure)


def weights(rounds: Mapping[str, Mapping[str, Any]]) -> str:
    """Draws the share of records with full weight, by quartile of class size."""
    figure, axes = figure_of("Records that keep their full influence (weight 1), by size of their class")
    shown = {name: one for name, one in rounds.items() if name != "base"}
    for place, ((name, one), (colour, _)) in enumerate(zip(shown.items(), _STYLES, strict=False)):
        at = [q + 0.8 * (place + 0.5) / len(shown) - 0.4 for q in range(4)]
        hatch = ("", "//", "..")[place % 3]
        shares = [100 * v for v in one["share_at_one"]]
        bars = axes.bar(at, shares, width=0.7 / len(shown), color=colour, hatch=hatch, edgecolor="white", label=name)
        axes.bar_label(bars, fmt="%.0f %%", fontsize=7)
    axes.set_xticks(range(4), ["rarest quarter\nof codes", "second", "third", "commonest quarter\nof codes"])
    axes.set(ylabel="records with weight 1 (%)", ylim=(0, 125))  # room for the legend above bars of 100 %
    axes.legend(fontsize=8, loc="upper center", ncols=2)
    return svg(figure)


def coverage(rounds: Mapping[str, Mapping[str, Any]]) -> str:
    """Draws observed against nominal coverage of later SGD iterates."""
    figure, axes = figure_of("Does the posterior cover where training went next?")
    axes.plot([0, 1], [0, 1], color=BLACK, linewidth=0.8, label="as it should be")
    for (name, one), (colour, style) in zip(rounds.items(), _STYLES, strict=False):
        if one["coverage"] is not None:
            nominal = one["coverage"]["nominal"]
            for kind, marker in (("parameters", "o"), ("directions", "^")):
                values = one["coverage"][kind]
                axes.plot(nominal, values, color=colour, linestyle=style, marker=marker, label=f"{name}, {kind}")
    axes.set(xlabel="share that should lie inside", ylabel="share that does", xlim=(0.4, 1), ylim=(0, 1))
    axes.legend(fontsize=7)
    return svg(figure)


def studies(
    checks: Mapping[str, Any], refits: Sequence[tuple[str, float]], epsilon_at: Callable[[float], float]
) -> str:
    """Draws epsilon under other settings, one changed at a time; `epsilon_at` maps a sensitivity to epsilon."""
    figure, axes = figure_of("ε under other settings, one at a time", height=4.2)
    rows = [(f"SWAG scale × {scale:g}", epsilon_at(value)) for scale, value in checks["scales"]]
    rows += [(f"rank K = {rank}", epsilon_at(value)) for rank, value in checks["ranks"]]
    values = checks["rounds"][checks["released_from"]]["running"]
    for count in sorted({max(1, len(values) // 10), max(1, len(values) // 3), len(values)}):
        rows.append((f"draws S = {count}", epsilon_at(values[count - 1])))
    rows += refits
    rows.reverse()
    axes.barh([name for name, _ in rows], [value for _, value in rows], color=BLUE)
    for place, (_, value) in enumerate(rows):
        axes.annotate(f" {value:.2f}", (value, place), va="center", fontsize=8)
    axes.set_xlabel("ε")
    axes.margins(x=0.12)
    axes.tick_params(axis="y", labelsize=8)
    return svg(figure)


def left_out(effects: Mapping[str, Any]) -> str:
    """Draws the log-likelihood of each record's codes, with and without it in training."""
    figure, axes = figure_of("Log-likelihood of a record's codes, with and without it in training", height=4.2)
    order = sorted(range(len(effects["with_mean"])), key=lambda i: effects["with_mean"][i] - effects["without_mean"][i])
    for kind, colour, marker in (("with", BLUE, "o"), ("without", ORANGE, "^")):
        mean, std = [effects[f"{kind}_mean"][i] for i in order], [2 * effects[f"{kind}_std"][i] for i in order]
        axes.errorbar(
            range(len(order)),
            mean,
            yerr=std,
            color=colour,
            marker=marker,
            markersize=4,
            linestyle="none",
            label=f"{kind} the record in training (mean ± 2 standard deviations over draws)",
        )
    axes.set(xlabel="records left out, by how much they move", ylabel="log-likelihood of its codes (nats)")
    axes.legend(fontsize=7, loc="lower left")
    return svg(figure)


def fit_gap(rounds: Mapping[str, Mapping[str, Any]]) -> str:
    """Draws the mean surprise on training and held-out records."""
    figure, axes = figure_of("Average surprise: records trained on, records held out")
    for place, (kind, colour, hatch) in enumerate((("train", BLUE, ""), ("test", ORANGE, "//"))):
        at = [i + 0.4 * place - 0.2 for i in range(len(rounds))]
        values = [-one[f"{kind}_log_likelihood"] for one in rounds.values()]
        label = {"train": "trained on", "test": "held out"}[kind]
        bars = axes.bar(at, values, width=0.36, color=colour, hatch=hatch, edgecolor="white", label=label)
        axes.bar_label(bars, fmt="%.2f", fontsize=8)
    axes.set_xticks(range(len(rounds)), list(rounds))
    axes.set_ylabel("mean −log-likelihood (nats)")
    axes.margins(y=0.15)
    axes.legend(fontsize=8)
    return svg(figure)
