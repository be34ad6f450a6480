"""Bounded equality saturation in a worker process, and the frozen e-graph that comes back."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eqsat.errors import ArgumentError, RuleError
from eqsat.rule import Rule, applicable
from eqsat.saturate.egglog_text import (
    BINDERS,
    AtomTable,
    constructor,
    declarations,
    names_needed,
    read_atom,
    rule_lines,
    seed,
    signatures,
    subset_points,
    table_for,
)
from eqsat.terms.algebra import MOST_NAMES, Atom, Facts, Term, Universe, post_order

STARTED = 10.0  # seconds in which the worker has begun, on any machine
BUSY = 8.0  # seconds that pass, at the most, in one of a core


class SearchWarning(UserWarning):
    """A search that was cut short; the program is correct, perhaps not the best."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one search: e-nodes, seconds of a core, bytes of memory, rounds of rules.

    Raises ArgumentError for a bound that is no number above 0, and whole but for seconds.
    """

    nodes: int = 50_000
    seconds: float = 20.0
    memory_bytes: int = 1 << 30
    rounds: int = 12

    def __post_init__(self) -> None:
        for name in ("nodes", "seconds", "memory_bytes", "rounds"):
            value, real = getattr(self, name), name == "seconds"
            number = isinstance(value, int | float if real else int)
            if isinstance(value, bool) or not number or not 0 < value < float("inf"):
                word = "a number" if real else "a whole number"
                raise ArgumentError(
                    f"Limits: {name} is {value!r}, not {word} above 0. Give one, or leave it out."
                )


@dataclass(frozen=True, slots=True)
class Class:
    """A reference to an e-class."""

    number: int


@dataclass(frozen=True, slots=True)
class ENode:
    """An operation over e-classes and atoms."""

    op: str
    args: tuple["Class | Atom", ...]

    @property
    def children(self) -> tuple[int, ...]:
        """Numbers of the argument classes."""
        return tuple(arg.number for arg in self.args if isinstance(arg, Class))

    def term(self, children: tuple[Term, ...]) -> Term:
        """The operation over terms of its argument classes, in their order."""
        rest = iter(children)
        return Term(self.op, *(next(rest) if isinstance(a, Class) else a for a in self.args))


@dataclass
class FrozenEGraph:
    """The result of a search: nodes, free indices and dtype of each class; the roots' classes."""

    universe: Universe
    nodes: dict[int, list[ENode]]
    free: dict[int, int]
    dtype: dict[int, str]
    roots: tuple[int, ...]
    class_of: dict[Term, int]
    fired: dict[str, int] = field(default_factory=dict)
    saturated: bool = False
    seconds: float = 0.0
    note: str = ""

    @property
    def size(self) -> int:
        """Number of e-nodes."""
        return sum(len(nodes) for nodes in self.nodes.values())


class SearchWorker:
    """A worker process, started when first used, that ends when it overruns its time on a core."""

    def __init__(self, memory_bytes: int = Limits.memory_bytes) -> None:
        self.memory_bytes = memory_bytes
        self.failures: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def start(self) -> None:
        """Start the process ahead of its first request, so that its imports overlap other work."""
        if self._process is None:
            environment = {
                **os.environ,
                "RAYON_NUM_THREADS": "1",
                "EQSAT_SEARCH_MEMORY_BYTES": str(self.memory_bytes),
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", "eqsat.saturate.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=Path(__file__).resolve().parents[2],
            )

    def ask(self, request: dict[str, Any], seconds: float, names: int) -> dict[str, Any]:
        """The worker's answer, or {"error": why} after a crash or an overrun, or without asking
        where the request has masks of more index names than an e-graph holds.
        """
        if names > MOST_NAMES:
            self.failures.append(f"{names} index names, and an e-graph holds {MOST_NAMES}")
            return {"error": self.failures[-1]}
        self.start()
        assert self._process and self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps({**request, "seconds": seconds}).encode() + b"\n")
            self._process.stdin.flush()
            line = self._read_line(time.monotonic() + STARTED + BUSY * seconds)
        except BrokenPipeError:
            line = b""
        if line:
            answer = json.loads(line)
        else:
            answer = {"error": f"search worker {self._fate(line, seconds)}"}
        if "error" in answer:
            self.close()
            self.failures.append(answer["error"])
        return answer

    def _fate(self, line: bytes | None, seconds: float) -> str:
        """Why there is no answer."""
        assert self._process
        if line is None:
            return f"over {BUSY:g} times its limit of {seconds:g} s, as the machine is busy"
        overran = self._process.wait() == -signal.SIGPROF
        return f"over its limit of {seconds:g} s" if overran else "out of memory, or crashed"

    def _read_line(self, deadline: float) -> bytes | None:
        """A line from the worker; None when the deadline passes first."""
        assert self._process and self._process.stdout
        descriptor = self._process.stdout.fileno()
        parts: list[bytes] = []
        while not parts or not parts[-1].endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            part = os.read(descriptor, 1 << 20)
            if not part:
                return b""
            parts.append(part)
        return b"".join(parts)


def schedules(limits: Limits, expand: bool) -> list[str]:
    """Rounds of the algebra rules under back-off, then of the distributing rules between them."""

    def rounds(group: str, count: int, matches: int) -> str:
        return (
            f"(run-schedule (let-scheduler bo (back-off :match-limit {matches} :ban-length 5)) "
            f"(repeat {count} (saturate (run facts)) "
            f"(run-with bo {group} :until (<= {limits.nodes} (get-size!)))))"
        )

    algebra = rounds("algebra", limits.rounds, 1000)
    final = "(run-schedule (saturate (run facts)))"
    if not expand:
        return [algebra, final]
    return [algebra, rounds("distribute", 2, 500), algebra, final]


def saturate(
    roots: Iterable[Term],
    universe: Universe,
    rules: Iterable[Rule],
    worker: SearchWorker,
    limits: Limits,
    finite: frozenset[str] = frozenset(),
) -> FrozenEGraph:
    """Grow the e-graph of all programs equal to `roots` under the rules, within the limits.

    A search that crashes or overruns gives the e-graph of the source alone, with a SearchWarning.
    Raises RuleError when facts conflict: a rule is unsound.
    """
    roots = tuple(roots)
    terms = list(post_order(roots))
    rules = applicable(rules, {term.op for term in terms})
    table = table_for(roots, rules)
    ops = signatures(terms, rules)
    seeds, numbers = seed(roots, universe, table, finite)
    masks = [int(t.args[0]) for t in terms if t.op in BINDERS]  # type: ignore[arg-type]
    whole = 0
    for mask in masks:
        whole |= mask
    subsets = [whole] if whole.bit_count() <= 10 else masks
    commands = [
        *declarations(ops, sorted({"algebra", "distribute", *(r.group for r in rules)})),
        *rule_lines(rules),
        *subset_points(subsets, universe),
        *seeds,
    ]
    expand = any(rule.group == "distribute" for rule in rules)
    request = {
        "commands": commands,
        "schedules": schedules(limits, expand),
        "read": [*map(constructor, ops), "free", "dtype", "node"],
    }
    started = time.monotonic()
    answer = worker.ask(request, limits.seconds, names_needed(terms, universe, table))
    if "error" in answer:
        _refuse_unsound(answer["error"])
        warnings.warn(
            f"the search was cut: {answer['error'].rstrip(': ')}; the program is compiled as "
            f"written. Raise its limits (EQSAT_SEARCH_SECONDS for time, EQSAT_SEARCH_MEMORY_MB for "
            f"memory), or compile it in parts.",
            SearchWarning,
            stacklevel=2,
        )
        frozen = as_written(roots, universe)
        frozen.note = answer["error"]
    else:
        frozen = thaw(answer, ops, table, universe, terms, numbers, roots)
        frozen.nodes = _founded(frozen)
        full = sum(len(columns[0]) for columns in answer["columns"].values()) >= limits.nodes
        frozen.saturated = not full and not answer["changed"][-2]
        frozen.fired = _by_rule(answer["fired"], rules)
    frozen.seconds = time.monotonic() - started
    return frozen


def _refuse_unsound(error: str) -> None:
    if "Illegal merge" in error:
        raise RuleError(
            f"an unsound rule: two terms of different dtype were made equal ({error}). "
            f"Check the guards of the rules added last."
        )
    if error.startswith("EggSmolError"):
        raise RuleError(f"egglog refused the rules: {error}")


def _by_rule(fired: dict[str, int], rules: tuple[Rule, ...]) -> dict[str, int]:
    known = {rule.name for rule in rules}
    counts: dict[str, int] = {}
    for name, count in fired.items():
        rule = name.split("#")[0]
        if rule in known and count:
            counts[rule] = counts.get(rule, 0) + count
    return counts


def thaw(
    answer: dict[str, Any],
    ops: dict[str, tuple[str, ...]],
    table: AtomTable,
    universe: Universe,
    terms: list[Term],
    numbers: dict[Term, int],
    roots: tuple[Term, ...],
) -> FrozenEGraph:
    """The e-graph that a worker's answer describes."""
    found = answer["columns"]
    nodes: dict[int, list[ENode]] = defaultdict(list)
    for op, sorts in ops.items():
        name, (*columns, results) = _computed(op), columns_of(answer, op, sorts)
        args = [
            _arguments(column, op, place, sort, table)
            for place, (sort, column) in enumerate(zip(sorts, columns, strict=True))
        ]
        for result, own in zip(
            results, zip(*args, strict=True) if args else repeat(()), strict=False
        ):
            nodes[result].append(ENode(name, own))
    by_number = dict(zip(*found["node"], strict=True))
    class_of = {term: by_number[numbers[term]] for term in terms}
    return FrozenEGraph(
        universe=universe,
        nodes=dict(nodes),
        free=dict(zip(*found["free"], strict=True)),
        dtype=dict(zip(*found["dtype"], strict=True)),
        roots=tuple(class_of[root] for root in roots),
        class_of=class_of,
    )


def columns_of(answer: dict[str, Any], op: str, sorts: tuple[str, ...]) -> list[list[Any]]:
    """Each argument, and the class, of all rows of an operation in a worker's answer."""
    return answer["columns"].get(constructor(op), [[]] * (len(sorts) + 1))


def _arguments(
    column: list[Any], op: str, place: int, sort: str, table: AtomTable
) -> list["Class | Atom"]:
    """An argument of each row as a class or an atom."""
    if sort == "f64":  # zeros of either sign are equal
        return [read_atom(op, place, sort, value, table) for value in column]
    whole = sort == "E"
    known = {v: Class(v) if whole else read_atom(op, place, sort, v, table) for v in {*column}}
    return [known[value] for value in column]


def _computed(op: str) -> str:
    """The operation that a kernel computes for one of the algebra."""
    return "cast" if op == "rounded" else op


def _founded(frozen: FrozenEGraph) -> dict[int, list[ENode]]:
    """The e-nodes less those that rest on no leaf, or whose class has no facts.

    Back-off applies matches late; egglog 13.2 then leaves rows of classes merged long before.
    """
    kept: dict[int, list[ENode]] = {}
    known = frozen.free.keys() & frozen.dtype.keys()
    waiting = [(c, node) for c in frozen.nodes if c in known for node in frozen.nodes[c]]
    while waiting:
        later = []
        for number, node in waiting:
            if all(child in kept for child in node.children):
                kept.setdefault(number, []).append(node)
            else:
                later.append((number, node))
        if len(later) == len(waiting):
            break
        waiting = later
    return kept


def as_written(roots: tuple[Term, ...], universe: Universe) -> FrozenEGraph:
    """The e-graph that holds the source terms and nothing else."""
    facts = Facts(universe)
    class_of: dict[Term, int] = {}
    nodes: dict[int, list[ENode]] = {}
    for term in post_order(roots):
        number = class_of[term] = len(class_of)
        args = tuple(Class(class_of[a]) if isinstance(a, Term) else a for a in term.args)
        nodes[number] = [ENode(_computed(term.op), args)]
    return FrozenEGraph(
        universe=universe,
        nodes=nodes,
        free={class_of[t]: facts.free(t) for t in class_of},
        dtype={class_of[t]: facts.dtype(t).name for t in class_of},
        roots=tuple(class_of[root] for root in roots),
        class_of=class_of,
    )
