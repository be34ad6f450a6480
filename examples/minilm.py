"""Compile and run MiniLM-L6, a sentence encoder with its trained weights: `make demo`.

Prints how alike some sentences are, the error against a float64 NumPy reference, what the compiler
did, and its speed beside NumPy and torch. Exit status: 0, 1 for a wrong answer, 2 for a run that
could not be made.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import minilm_model as model
import minilm_peers as peers
import minilm_report as report
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from threadpoolctl import threadpool_limits

import eqsat
from eqsat.codegen.cuda.run.target import missing
from eqsat.errors import UnsupportedError
from eqsat.specs import ParallelProcessingUnit, cpu, from_device, load

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None

MAX_ERROR = 1e-4
MAX_SPREAD = 1.5
LONGEST = model.Config.positions  # tokens
SHOWN = 6  # sentences in the table
FILE_WIDTH = 110  # columns, where the output is no terminal
SENTENCES = (
    "A cat is asleep on the warm windowsill.",
    "The kitten naps in the sun by the window.",
    "Central banks raised interest rates again to slow inflation.",
    "Borrowing became dearer after the monetary policy meeting.",
    "To make bread, mix flour, water, salt and yeast, and let the dough rise for two hours.",
    "How do I bake a loaf at home?",
    "The telescope recorded light that left its galaxy twelve billion years ago, when the universe "
    "was young; astronomers now compare it with simulations of the first stars.",
    "Trains to the coast are delayed because a tree has fallen on the line.",
    "She tuned the violin, closed her eyes and began to play.",
    "A compiler may rewrite a program in any way that keeps its meaning.",
)


@dataclass(frozen=True)
class Device:
    """Where the program runs: its spec, how arrays get there and back, how to wait for it."""

    spec: ParallelProcessingUnit
    send: Callable[[np.ndarray], Any] = np.asarray
    fetch: Callable[[Any], np.ndarray] = np.asarray
    wait: Callable[[], None] = lambda: None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = _parser().parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console.width = FILE_WIDTH
    try:
        with threadpool_limits(eqsat.Settings.from_environment().num_threads):
            return _run(options, console)
    except (eqsat.EqsatError, ModuleNotFoundError) as error:
        Console(stderr=True).print(f"{type(error).__name__}: {error}", markup=False)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="minilm.py", description=__doc__)
    add = parser.add_argument
    add("--batch", type=_positive, default=8, help="sentences in a batch (default 8)")
    tokens = f"tokens of each (default 128, at most {LONGEST})"
    add("--length", type=_length, default=128, help=tokens)
    add("--spec", help="a shipped spec's name or a TOML file; default: the GPU, else this CPU")
    add("--weights", choices=("constants", "inputs"), default="constants",
        help="how the program gets its weights (default constants)")  # fmt: skip
    add("--rounds", type=_positive, default=9, help="timed rounds (default 9)")
    add("--torch-compile", action="store_true", help="time torch.compile too (slow to start)")
    add("--profile", action="store_true", help="predicted and measured time of each kernel")
    add("--kernels", action="store_true", help="print every distinct kernel")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _length(text: str) -> int:
    value = _positive(text)
    if value > LONGEST:
        raise argparse.ArgumentTypeError(
            f"{text} is above {LONGEST}, the positions that the model was trained with"
        )
    return value


def _run(options: argparse.Namespace, console: Console) -> int:
    device = _device(options.spec)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=4) as progress:

        def step(what: str, function: Callable[[], Any]) -> Any:
            task = progress.add_task(what, total=None)
            value = function()
            progress.update(task, total=1, completed=1)
            return value

        config, weights = step("Read weights", model.trained)
        texts = [SENTENCES[i % len(SENTENCES)] for i in range(options.batch)]
        ids, mask = step("Tokenise", lambda: model.tokenise(texts, options.length))
        started = time.perf_counter()
        fixed = options.weights == "constants"
        output, inputs = step(
            "Build the graph", lambda: model.build(config, weights, *ids.shape, fixed)
        )
        built = time.perf_counter() - started
        program = step(
            f"Compile for {device.spec.name}",
            lambda: eqsat.compile(output, device.spec, inputs=inputs),
        )
        started_in = time.perf_counter() - started
        encode = peers.numpy_encoder(config, weights, np.float64)
        reference = step("Compute the float64 reference", lambda: encode(ids, mask))

    given = dict(zip((a.name for a in program.arguments), (ids, mask), strict=False))
    if not fixed:
        given |= {name.replace(".", "_"): value for name, value in weights.items()}
    ours = _contender(program, given, device)
    contenders = [ours, *_peers(options, config, weights, ids, mask)]
    errors = {one.name: one.error(reference) for one in contenders}
    shown = min(SHOWN, options.batch)
    vectors = ours.host(ours.run())[:shown]
    console.print(report.similarity_table(texts[:shown], vectors))
    console.print(_summary(program, device.spec, errors[ours.name], built, started_in))
    if not errors[ours.name] <= MAX_ERROR:  # NaN too
        console.print(
            f"Wrong answer: the max error {errors[ours.name]:.1e} is above {MAX_ERROR:.0e}.",
            style="bold red",
        )
        return 1
    _print_speed(options, console, contenders, errors, program)
    if options.profile:
        rows = report.profile(program, device.spec, given, device.wait, options.rounds)
        console.print(report.profile_table(rows))
    if options.kernels:
        console.print(program.describe(), markup=False, highlight=False, soft_wrap=True)
    return 0


def _device(name: str | None) -> Device:
    """The spec asked for, else that of the GPU at hand, else this machine's CPU.

    Raises UnsupportedError for a GPU's spec where CUDA cannot run.
    """
    if name is not None and name != "cpu":
        spec = load(name)
    elif name is None and not missing():
        spec = from_device()
    else:
        spec = cpu()
    if spec.target != "cuda":
        return Device(spec)
    why = missing()
    if why:
        raise UnsupportedError(f"{why} Or pass --spec cpu.")
    import cupy

    return Device(spec, cupy.asarray, cupy.asnumpy, cupy.cuda.Device().synchronize)


def _contender(
    program: eqsat.Program, given: dict[str, np.ndarray], device: Device
) -> report.Contender:
    arrays = {name: device.send(value) for name, value in given.items()}

    def run() -> Any:
        result = program(**arrays)
        device.wait()
        return result

    return report.Contender("eqsat", run, device.fetch)


def _peers(
    options: argparse.Namespace,
    config: model.Config,
    weights: model.Weights,
    ids: np.ndarray,
    mask: np.ndarray,
) -> list[report.Contender]:
    plain = peers.numpy_encoder(config, weights, np.float32)
    found = [report.Contender("NumPy", lambda: plain(ids, mask))]
    if peers.has_torch():
        threads = eqsat.Settings.from_environment().num_threads
        eager = peers.torch_encoder(config, weights, threads)
        found.append(report.Contender("torch eager, CPU", lambda: eager(ids, mask)))
        if options.torch_compile:
            fused = peers.torch_encoder(config, weights, threads, compiled=True)
            found.append(report.Contender("torch.compile, CPU", lambda: fused(ids, mask)))
    return found


def _summary(
    program: eqsat.Program, spec: ParallelProcessingUnit, error: float, built: float, ready: float
) -> Table:
    found = program.report
    distinct = len({kernel.fingerprint for kernel in program.kernels})
    fired = sorted(found.fired.items(), key=lambda item: -item[1])
    state = "saturated" if found.saturated else "cut by its limits"
    table = Table(show_header=False, title=f"MiniLM-L6 on {spec.name}")
    table.add_row("max error", f"{error:.1e} against float64 NumPy; allowed {MAX_ERROR:.0e}")
    table.add_row("operations", f"{found.operations} before")
    table.add_row("kernels", f"{len(program.kernels)} after, {distinct} distinct")
    table.add_row(
        "search",
        f"{found.distinct_segments} distinct pieces of {found.segments}, {found.nodes} e-nodes, "
        f"{state}",
    )
    table.add_row("rules fired", ", ".join(f"{name} {count}" for name, count in fired) or "none")
    if found.from_cache:
        table.add_row("cache", f"everything came from the cache: warm start {ready:.2f} s")
    else:
        table.add_row("cache", f"filled by this run: cold start {ready:.2f} s")
    code = found.compile_seconds - found.search_seconds
    table.add_row(
        "start",
        f"graph {built:.2f} s, search {found.search_seconds:.2f} s, code {code:.2f} s",
    )
    if not found.from_cache and resource is not None:
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        peak_mb = peak / (1e6 if sys.platform == "darwin" else 976.6)  # bytes there, else KiB
        table.add_row("search memory", f"{peak_mb:.0f} MB at most")
    for note in found.notes:
        table.add_row("note", note)
    return table


def _print_speed(
    options: argparse.Namespace,
    console: Console,
    contenders: Sequence[report.Contender],
    errors: dict[str, float],
    program: eqsat.Program,
) -> None:
    """Time all that gave the right answer; those that did not are named."""
    right = [one for one in contenders if errors[one.name] <= MAX_ERROR]
    for one in contenders:
        if one not in right:
            console.print(f"{one.name}: max error {errors[one.name]:.1e}, hence not timed.")
    with Progress(console=console, auto_refresh=False) as progress:  # no thread beside the clock
        task = progress.add_task(f"Measure {options.rounds} rounds", total=options.rounds)

        def after_round() -> None:
            progress.advance(task)
            progress.refresh()

        timings = report.interleave(right, options.rounds, after_round)
    base = "NumPy" if "NumPy" in timings else "eqsat"
    console.print(report.speed_table(timings, errors, base))
    measured = timings["eqsat"].median
    ratio = measured / program.cost if program.cost else math.inf
    console.print(
        f"eqsat: predicted {program.cost * 1e3:.1f} ms, measured {measured * 1e3:.1f} ms "
        f"({ratio:.2f} of predicted)"
    )
    spread = max(timing.spread for timing in timings.values())
    if spread > MAX_SPREAD:
        console.print(
            f"The slowest round took {spread:.1f} times the fastest: the machine has other work, "
            f"and these times say little.",
            style="bold yellow",
        )


if __name__ == "__main__":
    sys.exit(main())
