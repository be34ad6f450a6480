"""eqsat: an e-graph superoptimizing tensor compiler.

Takes tensor programs written with the array API's names, gives compiled programs for a spec.
Public names load on first use, so that `import eqsat` stays light.
"""

import difflib
import importlib
import importlib.util
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

_HERE = Path(__file__).resolve().parent
if (_HERE.parent / "pyproject.toml").is_file() and (_HERE.parent / "graph").is_dir():
    # Imported from inside the source tree: resolve eqsat.graph and the others to their siblings.
    __path__ = [str(_HERE), str(_HERE.parent)]

# Public name -> the module that defines it. Any other public name comes from eqsat.graph.
_PUBLIC = {
    "compile": "eqsat.driver",
    "jit": "eqsat.jitted",
    "ExecutionConfig": "eqsat.executor",
    "KernelExecutor": "eqsat.executor",
    "Program": "eqsat.program",
    "Cache": "eqsat.cache.store",
    "Limits": "eqsat.saturate.saturation",
    "Settings": "eqsat.settings",
    "EqsatError": "eqsat.errors",
}


def __getattr__(name: str) -> Any:
    """The public attribute `name`, imported on first use and then kept."""
    if name.startswith("_"):
        raise AttributeError(f"module 'eqsat' has no attribute {name!r}")
    if name in _PUBLIC:
        value = getattr(importlib.import_module(_PUBLIC[name]), name)
    elif _is_submodule(name):
        value = importlib.import_module(f"eqsat.{name}")
    else:
        value = _from_graph(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    graph = importlib.import_module("eqsat.graph")
    return sorted({"__version__", *_PUBLIC, *getattr(graph, "__all__", ())})


def _is_submodule(name: str) -> bool:
    spec = importlib.util.find_spec(f"eqsat.{name}")
    return spec is not None and spec.origin is not None  # a folder without code has no origin


def _from_graph(name: str) -> Any:
    graph = importlib.import_module("eqsat.graph")
    names = [*_PUBLIC, *getattr(graph, "__all__", ())]
    if name in names:
        return getattr(graph, name)
    hint = _hint(name, names)
    raise AttributeError(f"module 'eqsat' has no attribute {name!r}{hint}")


def _hint(name: str, names: list[str]) -> str:
    """What to write for a name of another library, or one that is nearly one here or there."""
    elsewhere = importlib.import_module("eqsat.graph.elsewhere")
    if here := elsewhere.written(name, names):
        return f"; write {here}"
    close = difflib.get_close_matches(name, [*names, *elsewhere.ELSEWHERE], n=1, cutoff=0.8)
    if not close:
        return ""
    meant = repr(close[0]) if close[0] in names else elsewhere.written(close[0], names)
    return f"; did you mean {meant}?"
