"""Tables of the papers, each by one command: `python -m studies STUDY --help`.

Results are CSV files in --out. Every row is written when it is measured: a run that was stopped continues with the same
command, and more --seeds add to it. Noise has no seed, so a figure comes out again within its error. All records here
are public or invented: nothing is charged, and nothing may be released.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from mechanisms.errors import MechanismError

FOLDER = "folder with the eight sets of Rosenblatt et al. as CSV, the label (0 or 1) in column `label`"


def numbers(text: str) -> tuple[float, ...]:
    return tuple(int(value) if value.is_integer() else value for value in map(float, text.split(",")))


def names(text: str, choices: Sequence[str], option: str) -> tuple[str, ...]:
    if text == "all":
        return tuple(choices)
    given = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in given if name not in choices]:
        raise MechanismError(f"{option}: `{unknown[0]}` is unknown. Choose from {', '.join(choices)}")
    return given


def parser() -> argparse.ArgumentParser:
    shape = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="python -m studies", description=__doc__, formatter_class=shape)
    studies = top.add_subparsers(dest="study", required=True, metavar="STUDY")

    def add(name: str, said: str, example: str, *, seeds: int | None) -> argparse.ArgumentParser:
        command = studies.add_parser(
            name, help=said, description=f"{said}\n\nExample:\n  python -m studies {example}", formatter_class=shape
        )
        command.add_argument("--out", type=Path, required=True, help="folder for the results; a run continues from it")
        if seeds is not None:
            command.add_argument("--seeds", type=int, default=seeds, help=f"splits and starts, from 0 on ({seeds})")
        return command

    one = add(
        "imbalance",
        "Every system on every set: ranks and figures (Rosenblatt et al. 2025, tables 3 to 9 and 13 to 20).",
        "imbalance --data imblearn --sets mammography --systems bayes-table,gem --epsilons 1 --out results",
        seeds=10,
    )
    one.add_argument("--data", type=Path, required=True, help=FOLDER)
    one.add_argument("--sets", default="all", help="names by comma (all)")
    one.add_argument("--systems", default="all", help="names by comma, such as gem,privbayes,objective (all)")
    one.add_argument("--epsilons", type=numbers, default=(0.05, 0.1, 0.5, 1, 5), help="of one record replaced")
    two = add(
        "oversampling",
        "What SMOTE costs before a private learner (2024, proposition 2, theorem 3, table 2).",
        "oversampling --data imblearn --sets ecoli --out results",
        seeds=5,
    )
    two.add_argument("--data", type=Path, required=True, help=FOLDER)
    two.add_argument("--sets", default="all", help="names by comma (all)")
    three = add(
        "mixture",
        "Two Gaussians in closed form (2024, table 10, proposition 12, figure 4).",
        "mixture --out results",
        seeds=None,
    )
    three.add_argument("--draws", type=int, default=8, help="fits of each private line (8)")
    four = add(
        "images",
        "SAD-DPSGD and other methods on digits (Huang and Xie, tables I and II).",
        "images --models linear --schedules sad,constant --epsilons 8 --seeds 2 --out results",
        seeds=8,
    )
    four.add_argument("--models", default="linear,convolutional,short", help="of linear, convolutional, short")
    four.add_argument("--schedules", default="all", help="names by comma, such as sad,constant,non-private (all)")
    four.add_argument("--epsilons", type=numbers, default=(3, 8, 16), help="for one image added or removed")
    six = add(
        "rmia",
        "A membership attack of others, RMIA, on SWAG-PPM and prior descent: bounds beside claims.",
        "rmia --records osha.csv --codelist oiics201_nature.csv --out results",
        seeds=None,
    )
    six.add_argument("--targets", type=int, default=5, help="fits that are attacked (5)")
    six.add_argument("--references", type=int, default=5, help="further fits that the attacker has (5)")
    five = add(
        "rare-codes",
        "What is learned of classes with few records, on narratives and on thinned tables.",
        "rare-codes --records osha.csv --codelist oiics201_nature.csv --data imblearn --out results",
        seeds=5,
    )
    for command in (five, six):
        command.add_argument("--records", type=Path, help="CSV of narratives")
        command.add_argument("--codelist", type=Path, help="CSV of code and title")
        command.add_argument("--text", default="Final Narrative", help="column of the narrative")
        command.add_argument("--label", default="Nature", help="column of the code")
    five.add_argument("--data", type=Path, help=f"{FOLDER}; without it, only narratives")
    five.add_argument("--epsilons", type=numbers, default=(1, 5))
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    given = parser().parse_args(arguments)
    torch.set_num_threads(1)  # fits are small: more threads wait for each other
    try:
        given.out.mkdir(parents=True, exist_ok=True)
        print(run(given))
    except (MechanismError, OSError) as error:
        print(f"{given.study}: {error}", file=sys.stderr)
        return 1
    return 0


def run(given: argparse.Namespace) -> Path:
    out: Path = given.out
    if given.study == "mixture":
        from studies import mixture

        return mixture.run(out, draws=given.draws)
    if given.study == "images":
        from studies import images

        models = names(given.models, tuple(images.EPOCHS), "--models")
        schedules = names(given.schedules, ("non-private", *images.SCHEDULES), "--schedules")
        return images.run(out, models=models, schedules=schedules, epsilons=given.epsilons, seeds=given.seeds)
    if given.study == "rmia":
        from studies import rmia

        if given.records is None or given.codelist is None:
            raise MechanismError("give --records and --codelist")
        columns, sizes = (given.text, given.label), {"targets": given.targets, "references": given.references}
        return rmia.run(given.records, given.codelist, out, columns=columns, **sizes)
    from studies import imbalance

    if given.study == "rare-codes":
        from studies import rare_codes

        if given.records is None and given.data is None:
            raise MechanismError("give --records and --codelist for narratives, --data for tables, or both")
        said = {"epsilons": given.epsilons, "seeds": given.seeds}
        columns = (given.text, given.label)
        empty = Path()
        records, codelist = given.records, given.codelist or empty
        narratives = rare_codes.text(records, codelist, out, columns=columns, **said) if records else []
        thinned = rare_codes.tables(given.data, out, **said) if given.data else []
        (out / "rare-codes-tables.md").write_text(rare_codes.show(narratives, thinned, given.epsilons))
        if thinned:
            rare_codes.draw(thinned, out / "rare-codes.svg", given.epsilons[0])
        return out / "rare-codes-tables.md"
    sets = names(given.sets, tuple(imbalance.suite()["sets"]), "--sets")
    if given.study == "oversampling":
        from studies import oversampling

        return oversampling.run(given.data, out, sets=sets, seeds=given.seeds)
    systems = names(given.systems, tuple(imbalance.SYSTEMS), "--systems")
    return imbalance.run(given.data, out, sets=sets, systems=systems, epsilons=given.epsilons, seeds=given.seeds)


if __name__ == "__main__":
    sys.exit(main())
