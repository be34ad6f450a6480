"""eqsat-bench: list the rows, run some of them, make tables of committed results.

Exit status: 0; 1 where an answer of ours was wrong or a row failed; 2 for a run that cannot be
made.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from eqsat.bench import table
from eqsat.bench.case import GROUPS, SCALES, Case, described, instance
from eqsat.bench.cases import CASES, select
from eqsat.bench.contender import Device
from eqsat.bench.cuda import Cuda
from eqsat.bench.drawn import faulty
from eqsat.bench.environment import command_line, environment
from eqsat.bench.host import Host
from eqsat.bench.peer_functions import PEERS
from eqsat.bench.race import Plan, Record, finite, is_wrong, run_case
from eqsat.errors import EqsatError
from eqsat.named import nearest
from eqsat.rule import PRECISIONS
from eqsat.specs import ParallelProcessingUnit, cpu, from_device, load

SCHEMA = "eqsat-bench/1"
FILE_WIDTH = 160  # columns, where the output is no terminal
THREADS_OF_A_CORE = 4  # at most


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    width = None if sys.stdout.isatty() else FILE_WIDTH
    console = Console(width=width, soft_wrap=False)
    try:
        return int(options.action(options, console))
    except (EqsatError, UsageError, OSError) as error:
        print(f"eqsat-bench: {error}", file=sys.stderr)
        return 2


class UsageError(Exception):
    """An argument that means nothing, with the good ones."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="eqsat-bench", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="list | run | table")
    listing = commands.add_parser("list", help="the rows")
    listing.add_argument("--cases", default="*", help="names, groups or patterns, by commas")
    listing.add_argument("--scale", choices=SCALES, default="full")
    listing.set_defaults(action=_list)
    running = commands.add_parser("run", help="run rows beside their peers")
    running.add_argument("--cases", default=None, help="default: all rows of the spec's target")
    running.add_argument("--peers", default=",".join(PEERS), help="of " + ", ".join(PEERS))
    running.add_argument("--spec", default="cpu", help="a spec's name or file, cpu, or device")
    running.add_argument("--scale", choices=SCALES, default="full")
    running.add_argument("--rounds", type=_whole(1), default=30)
    threads = _whole(1, THREADS_OF_A_CORE * (os.cpu_count() or 1))
    running.add_argument("--threads", type=threads, help="of all sides, on the CPU")
    rounding = f"what may be rounded, of {', '.join(PRECISIONS)}"
    running.add_argument("--precision", choices=PRECISIONS, default="default", help=rounding)
    whole = {"type": _whole(1), "metavar": "K"}
    tune = "measure the K best kernels of each region, and use the fastest"
    running.add_argument("--tune", default=1, help=tune, **whole)
    candidates = "time the K best kernels as well, and the program without each family of rules"
    running.add_argument("--candidates", default=0, help=candidates, **whole)
    random = "race N random legal candidates of each launch against the best predicted"
    running.add_argument("--random", default=0, help=random, type=_whole(1), metavar="N")
    running.add_argument("--seed", type=_whole(0), default=0, help="of --random")
    running.add_argument("--best", default=8, help="so many for --random to beat", **whole)
    running.add_argument("--json", type=Path, help="where to write the results")
    running.add_argument("--commit", help="the commit, where git cannot be asked")
    running.set_defaults(action=_run)
    tables = commands.add_parser("table", help="Markdown of results")
    tables.add_argument("files", nargs="+", type=Path)
    tables.set_defaults(action=_table)
    return parser


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """What reads a whole number; `high`: what this machine's cores allow."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no whole number; give one of at least {low}"
            ) from error
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} is below {low}")
        if high is not None and value > high:
            raise argparse.ArgumentTypeError(
                f"{value} is above {high}, {THREADS_OF_A_CORE} for each of this machine's "
                f"{os.cpu_count()} cores; give fewer"
            )
        return value

    return whole


# --- list ---


def _list(options: argparse.Namespace, console: Console) -> int:
    shown = Table("case", "group", "for", "inputs", "peers")
    for case in _selected(options.cases):
        whole = instance(case, case.sizes[options.scale])
        inputs = described(whole.inputs)
        few = dict(list(inputs.items())[:4])
        text = " ".join(f"{name} {kind}" for name, kind in few.items())
        more = f" and {len(inputs) - len(few)} more" if len(inputs) > len(few) else ""
        shown.add_row(case.name, case.group, case.target, text + more, ", ".join(case.peers))
    console.print(shown)
    return 0


def _selected(patterns: str) -> list[Case]:
    try:
        return select(patterns)
    except KeyError as error:
        name = error.args[0].strip()
        hint = nearest(name, [*(case.name for case in CASES), *GROUPS])
        meant = f"{hint} " if hint.startswith("Did") else ""
        raise UsageError(
            f"no row or group matches {name!r}. {meant}`eqsat-bench list` shows them all."
        ) from error


# --- run ---


def _run(options: argparse.Namespace, console: Console) -> int:
    peers = tuple(name.strip() for name in options.peers.split(",") if name.strip())
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        raise UsageError(f"no peer {', '.join(unknown)}; the peers are {', '.join(PEERS)}.")
    if options.random and options.tune > 1:
        raise UsageError("--random races what prediction found; leave --tune out.")
    if options.json is not None:
        _check_writable(options.json)
    if options.threads:
        os.environ["EQSAT_NUM_THREADS"] = str(options.threads)
    spec = _spec(options.spec)
    own = [case for case in CASES if case.target == spec.target]
    cases = own if options.cases is None else _selected(options.cases)
    _check_scale(cases, options.scale, spec)
    device: Device = Cuda(spec) if spec.target == "cuda" else Host(spec)
    plan = Plan(
        options.scale, peers, options.rounds, options.candidates, options.tune, options.precision,
        options.random, options.seed, options.best,
    )  # fmt: skip
    run = {
        "schema": SCHEMA,
        "environment": environment(spec, device, options.commit),
        "settings": {"command": command_line(), "rounds": plan.rounds, "scale": plan.scale,
                     "peers": list(peers), "candidates": plan.candidates, "tune": plan.tune,
                     "precision": plan.precision, "random": plan.drawn, "seed": plan.seed,
                     "best": plan.best},
        "results": [],
    }  # fmt: skip
    _race(cases, plan, spec, device, run, options.json, console)
    console.print(table.rich_table(run["results"], f"{spec.name}, {plan.rounds} rounds"))
    for record in run["results"]:
        if record.get("variants"):
            console.print(table.variants_table(record))
    if any(record.get("random") for record in run["results"]):
        console.print(table.random_table(run["results"]))
    return _report_faults(run["results"], console)


def _check_writable(path: Path) -> None:
    """Raise UsageError where results cannot go; what lies there stays."""
    existed = os.path.lexists(path)
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}. Give --json a file in a folder that "
            f"exists and can be written."
        ) from error


def _check_scale(cases: Sequence[Case], scale: str, spec: ParallelProcessingUnit) -> None:
    """Raise UsageError for rows whose full extents take a GPU, where none runs them."""
    large = [case.name for case in cases if case.target == "cuda" != spec.target]
    if scale == "full" and large:
        raise UsageError(
            f"{', '.join(large)}: at the full scale rows for GPUs take hours on target "
            f"{spec.target!r} of spec {spec.name}. Add --scale small, or --spec device where "
            f"there is a GPU."
        )


def _spec(name: str) -> ParallelProcessingUnit:
    if name == "cpu":
        return cpu()
    return from_device() if name == "device" else load(name)


def _race(
    cases: Sequence[Case],
    plan: Plan,
    spec: ParallelProcessingUnit,
    device: Device,
    run: dict[str, Any],
    path: Path | None,
    console: Console,
) -> None:
    """Every row; the results so far are written after each, so that none is lost."""
    lost = ""
    for number, case in enumerate(cases, 1):
        where = f"[{number}/{len(cases)}] {case.name}"

        def say(what: str, where: str = where) -> None:
            if console.is_terminal:
                console.print(f"{where}: {what}", highlight=False, markup=False)

        if lost:
            record: Record = {
                "case": case.name, "group": case.group, "scale": plan.scale, "status": "not run",
                "message": lost, "contenders": [], "floor_ms": None, "floor_bound": "-",
            }  # fmt: skip
        else:
            record = finite(run_case(case, plan, spec, device, say))
            lost = _lost(device, case)
        run["results"].append(record)
        if path is not None:
            path.write_text(json.dumps(run, indent=1) + "\n", encoding="utf-8")
        print(where, *table.row(record)[1:], sep="  ", flush=True)


def _lost(device: Device, case: Case) -> str:
    """Why no further row can run; empty while the device works."""
    try:
        device.release()
    except Exception as error:  # the driver's own error, of any class
        return f"the device failed in {case.name}: {error}"
    return ""


def _report_faults(records: Sequence[Record], console: Console) -> int:
    for record in records:
        if record["status"] != "ok":
            style = "bold yellow" if record["status"] == "unsupported" else "bold red"
            text = f"{record['case']}: {record['status'].upper()}, no time: {record['message']}"
            console.print(text, style=style, markup=False)
        raced = faulty(record.get("random", {}))
        for entry in (*record["contenders"], *record.get("variants", ()), *raced):
            if entry["status"] != "ok" and entry["name"] != "eqsat":
                why = entry.get("message") or f"error {entry['error']}"
                text = f"{record['case']}: {entry['name']} {entry['status']}: {why}"
                console.print(text, style="yellow", markup=False)
    return int(any(is_wrong(record) for record in records))


# --- table ---


def _table(options: argparse.Namespace, console: Console) -> int:
    runs = []
    for path in options.files:
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(
                f"cannot read {path}: {error.strerror}. Give a file that run --json wrote."
            ) from error
        except ValueError:
            run = None  # no JSON
        if not isinstance(run, dict) or run.get("schema") != SCHEMA:
            raise UsageError(
                f"{path} is no result of this version; its schema must be {SCHEMA}. Give a file "
                f"that run --json wrote."
            )
        runs.append(run)
    print(table.markdown(runs), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
