"""The command eqsat-explain: how a program as written became the program as run.

    eqsat-explain module_or_file.py:function [--spec h200] [--precision exact|default|tf32|bf16]
                 [--rules module_or_file.py] [--format text|json|html] [--output FILE]
                 [--check TRACE]

The function is called without arguments, so each parameter needs a default, such as
`q=eqsat.input("q", (8, 64), "float32")`; it returns a tensor, or a nesting of tensors. No device is
needed: nothing is built or run.
"""

import argparse
import difflib
import importlib
import importlib.util
import inspect
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from eqsat.driver import default_rules, plan
from eqsat.errors import ArgumentError, EqsatError, TraceError
from eqsat.explain.explanation import AGAIN, FORMAT, Explanation, from_json, is_trace
from eqsat.explain.render import FORMATS, render, text
from eqsat.explain.replay import check
from eqsat.graph.tensor import Tensor
from eqsat.nesting import flatten
from eqsat.planned import Planned
from eqsat.rule import PRECISIONS, Rule, collect

STYLES = {"heading": "bold", "rule": "bold green", "cost": "cyan", "quiet": "dim", "code": ""}
FAILED, WRONG_TRACE = 2, 1
NOTED = 4  # lines of a program that failed, at its beginning and at its end


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0, 1 for a trace that does not hold, 2 for bad input."""
    given = _parser().parse_args(arguments)
    try:
        _run(given)
    except TraceError as error:
        print(f"TraceError: {error}", file=sys.stderr)
        return WRONG_TRACE
    except EqsatError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        print(*getattr(error, "__notes__", ()), sep="", end="", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader has seen enough
        sys.stderr.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="eqsat-explain",
        description="Explain how a function of tensors is compiled: every rewrite step with its "
        "rule, place and predicted cost, checked by a replay; then the kernels.",
    )
    parser.add_argument(
        "function",
        metavar="MODULE:FUNCTION",
        help="a module or a .py file, and a function in it; it is called without arguments "
        "(parameters need defaults, such as eqsat.input(...)) and returns tensors",
    )
    parser.add_argument("--spec", default="cpu", help="a shipped spec or a TOML file (default cpu)")
    parser.add_argument("--precision", help=f"what may be rounded, of {', '.join(PRECISIONS)}")
    parser.add_argument(
        "--rules",
        metavar="MODULE",
        action="append",
        default=[],
        help="a module or a .py file whose rules are used besides the shipped ones; once or more",
    )
    parser.add_argument("--format", choices=FORMATS, help="default: text")
    parser.add_argument("--output", metavar="FILE", help="write there instead of to the terminal")
    parser.add_argument(
        "--check", metavar="TRACE", help="only replay a trace that --format json wrote"
    )
    return parser


def _run(given: argparse.Namespace) -> None:
    if given.check is not None and (given.output is not None or given.format is not None):
        raise ArgumentError(
            "--check writes no explanation, so that --output and --format mean nothing beside it. "
            "Leave them out, or --check."
        )
    function, title = find_function(given.function)
    tensors = call(function, title)
    record = None if given.check is None else _read(given.check)
    with _busy("searching"):
        planned = plan(tensors, given.spec, rules=_rules(given), precision=given.precision)
    if record is not None:
        count = _check(record, given.check, planned)
        print(f"{given.check}: {count} steps lead from {title} to its kernels; each one holds.")
        return
    with _busy("tracing"):
        explanation = planned.explain(title)
    _write(explanation, given.format or "text", given.output)


def _check(record: Any, path: str, planned: Planned) -> int:
    """The number of steps of the trace, all of which hold; TraceError, naming the file, else."""
    spec = planned.search.spec
    try:
        trace = from_json(record)
        if trace.spec != spec.name:
            raise ArgumentError(
                f"{path} is of spec {trace.spec}, and is checked with {spec.name}. Add --spec "
                f"{trace.spec}, or its file."
            )
        return check(trace, planned.segments, planned.search.rules, spec)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _rules(given: argparse.Namespace) -> tuple[Rule, ...] | None:
    """The shipped rules and those of the modules given; None where none are."""
    places: list[str] = given.rules
    own = [collect(vars(_module(place))) for place in places]
    for place, found in zip(places, own, strict=True):
        if not found:
            raise ArgumentError(
                f"{place} defines no rule. Put @rule(group) of eqsat.rule over its functions."
            )
    return (*default_rules(), *(one for found in own for one in found)) if own else None


def find_function(where: str) -> tuple[Callable[..., Any], str]:
    """The function that MODULE:FUNCTION names, and its name. Raises ArgumentError."""
    place, colon, name = where.rpartition(":")
    if not colon or not place or not name:
        raise ArgumentError(
            f"{where!r} names no function. Write module:function, or file.py:function."
        )
    module = _module(place)
    function = getattr(module, name, None)
    if function is None:
        known = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        close = difflib.get_close_matches(name, known, n=1)
        own = [n for n in known if getattr(vars(module)[n], "__module__", "") == module.__name__]
        hint = f"Did you mean {close[0]}?" if close else f"It defines {', '.join(own) or 'none'}."
        raise ArgumentError(f"{place} has no function {name!r}. {hint}")
    if not callable(function):
        raise ArgumentError(
            f"{where} is of type {type(function).__name__}, no function. Name a function that "
            f"returns tensors."
        )
    return inspect.unwrap(function), name


def _module(place: str) -> ModuleType:
    if not place.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return _imported(place, lambda: importlib.import_module(place))
    path = Path(place)
    if not path.is_file():
        raise ArgumentError(f"there is no file {place}. Give the path of a .py file, or a module.")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    loader = spec.loader

    def load() -> ModuleType:
        loader.exec_module(module)
        return module

    return _imported(place, load)


def _imported(place: str, load: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise ArgumentError(
                f"there is no module {place}. Give a module that Python finds from here, or the "
                f"path of a .py file."
            ) from error
        failure = ArgumentError(f"importing {place} failed: {error}. Install it first.")
        raise _noted(failure, error) from error
    except EqsatError as error:
        _noted(error, error)
        raise
    except Exception as error:
        raise _failure(f"importing {place}", error) from error


def _failure(what: str, error: Exception) -> EqsatError:
    message = f"{what} failed: {type(error).__name__}: {error}. Mend it first."
    return _noted(ArgumentError(message), error)


def _noted(failure: EqsatError, error: Exception) -> EqsatError:
    """The failure with a note of the lines that led to the error, those of this package aside."""
    ours = [_is_ours(frame.f_globals) for frame, _ in traceback.walk_tb(error.__traceback__)]
    lines = traceback.extract_tb(error.__traceback__)
    theirs = [line for line, own in zip(lines, ours, strict=True) if not own]
    if theirs:
        few = theirs if len(theirs) <= 2 * NOTED else [*theirs[:NOTED], *theirs[-NOTED:]]
        failure.add_note("".join(traceback.format_list(few)))
    return failure


def _is_ours(names: Mapping[str, Any]) -> bool:
    """Whether a module with these globals is of this package, or of Python's imports."""
    package = str(names.get("__name__")).partition(".")[0]
    return names is globals() or package in ("eqsat", "importlib")


def call(function: Callable[..., Any], name: str) -> Any:
    """What the function returns when called without arguments. Raises ArgumentError."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in kinds
    ]
    if missing:
        first = missing[0]
        raise ArgumentError(
            f"{name} has parameters without defaults: {', '.join(missing)}. Give each a default, "
            f'such as {first}=eqsat.input("{first}", (8, 64), "float32").'
        )
    try:
        result = function()
    except EqsatError as error:
        _noted(error, error)
        raise
    except Exception as error:
        raise _failure(f"calling {name}()", error) from error
    leaves = flatten(result)
    wrong = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
    if wrong or not leaves:
        what = f"a value of type {type(wrong[0]).__name__}" if wrong else "nothing"
        raise ArgumentError(
            f"{name}() returned {what}. Return a tensor, or tuples, lists or dicts of tensors."
        )
    return result


def _read(path: str) -> Any:
    """The JSON value of a trace. ArgumentError for a file that holds none."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"cannot read {path}: {error.strerror}. Give a trace file.") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} is no JSON: {error}. {AGAIN}") from error
    if not is_trace(value):
        raise ArgumentError(f"{path} is no trace of format {FORMAT}. {AGAIN}")
    return value


def _busy(what: str) -> AbstractContextManager[Any]:
    """A spinner on the terminal while something takes long."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(f"{what} ...")


def _write(explanation: Explanation, format: str, output: str | None) -> None:
    if output is not None:
        try:
            Path(output).write_text(render(explanation, format), encoding="utf-8")
        except OSError as error:
            raise ArgumentError(
                f"cannot write {output}: {error.strerror}. Give a path that can be written."
            ) from error
    elif format == "text" and sys.stdout.isatty():
        _print_rich(explanation)
    else:
        print(render(explanation, format))


def _print_rich(explanation: Explanation) -> None:
    from rich.console import Console
    from rich.markup import escape

    def style(kind: str, words: str) -> str:
        look = STYLES.get(kind, "")
        return f"[{look}]{escape(words)}[/]" if look and words else escape(words)

    Console(highlight=False, soft_wrap=True).print(text(explanation, style))
