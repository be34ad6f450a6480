"""The shape of the source tree: imports point one way, files stay small and plainly named.

`violations(root)` reads the files with ast and imports nothing; the second half of this file
shows on a made-up tree that it catches each fault.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import eqsat
from eqsat.graph.elsewhere import ELSEWHERE

ROOT = Path(__file__).resolve().parent.parent
# A package may import those of a lower level, and itself.
LEVELS = {"specs": 0, "graph": 0, "eqsat": 1, "rules": 2, "codegen": 3, "bench": 5}
# The files that wire the others together stand above what they wire.
WIRING = {"eqsat", "eqsat.driver", "eqsat.executor", "eqsat.explain.command", "eqsat.jitted"}
WIRING_LEVEL = 4
# The folders of a package, each importing from those before it alone; "" is what lies beside them.
FOLDERS = {
    "eqsat": (
        *("kernel", "terms", "layout", "lower", "encode", "price", "saturate", "schedule", "cut"),
        *("segment", "cache", "explain"),
    ),
    "eqsat.codegen.cuda": ("prelude", "place", "copy", "values", "products", "", "run"),
}
LEAVES = {"eqsat.errors", "eqsat.settings"}  # all may import them; they import one another alone
# Slow or optional, hence imported where they are used.
LOCAL_IMPORTS = {
    *("egglog", "numba", "cupy", "cupyx", "cuda", "scipy", "networkx", "rich"),
    *("ml_dtypes", "threadpoolctl", "safetensors", "tokenizers", "torch"),
}
MAX_LINES = 500
MAX_DOCSTRING_LINES = 5
FORBIDDEN_NAME = re.compile(r"(^|_)(utils?|misc|helpers?|new)(_|$)|[a-z_]2(_|$)")


@dataclass(frozen=True)
class Module:
    """One source file: its dotted name as installed, and the package (top folder) it is in."""

    path: Path
    name: str
    package: str

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def level(self) -> int:
        return WIRING_LEVEL if self.wires else LEVELS[self.package]

    @property
    def wires(self) -> bool:
        """What `python -m` runs wires as the command beside it does."""
        return self.name in WIRING or self.name.replace(".__main__", ".command") in WIRING


@dataclass(frozen=True)
class Import:
    """One imported module, `name` being absolute; `is_local` inside a function."""

    name: str
    line: int
    is_local: bool
    is_star: bool = False
    dots: int = 0


def read_modules(root: Path) -> dict[str, Module]:
    modules = {}
    for package in LEVELS:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts if package == "eqsat" else ("eqsat", *parts)
            name = ".".join(parts).removesuffix(".__init__")
            modules[name] = Module(path, name, package)
    return modules


def read_imports(module: Module, known: set[str]) -> Iterator[Import]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    local = {
        id(inner)
        for outer in ast.walk(module.tree)
        if isinstance(outer, functions)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, id(node) in local)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(module, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                name = full if full in known or base == "eqsat" else base
                star = alias.name == "*"
                yield Import(name, node.lineno, id(node) in local, star, node.level)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    above = node.level - module.is_package
    parts = parts[: len(parts) - above]
    return ".".join([*parts, *([node.module] if node.module else [])])


def violations(root: Path) -> list[str]:
    """One line for each fault in the source tree at `root`: file, line where known, what."""
    modules = read_modules(root)
    found = []
    graph: dict[str, set[str]] = {}
    for module in modules.values():
        imports = list(read_imports(module, set(modules)))
        graph[module.name] = {i.name for i in imports if i.name in modules}
        where = module.path.relative_to(root)
        for item in imports:
            found += [f"{where}:{item.line}: {fault}" for fault in _faults(module, item, modules)]
        if module.is_package:
            found += [f"{where}: {fault}" for fault in _docstring_faults(module)]
    found += list(_mutual(modules, graph))
    found += list(_file_faults(root))
    return found


def _faults(module: Module, item: Import, modules: dict[str, Module]) -> Iterator[str]:
    top = item.name.split(".")[0]
    if item.is_star:
        yield f"star import of {item.name}"
    if item.is_local and top not in LOCAL_IMPORTS:
        yield f"function-local import of {item.name}; only slow or optional ones may be local"
    if top in LEVELS and top != "eqsat":
        yield f"import of {item.name}; its installed name is eqsat.{item.name}"
        return
    if module.name in LEAVES and top == "eqsat" and item.name not in LEAVES:
        yield f"import of {item.name} by a module that all may import"
        return
    target = modules.get(item.name)
    if top != "eqsat" or item.name in LEAVES | {"eqsat.__version__"}:
        if item.dots and module.package != "eqsat":
            yield f"relative import of {item.name} crosses packages"
        return
    if target is None or target.name == "eqsat":
        yield f"import of {item.name}, which is no module; import it from where it is defined"
        return
    if item.dots and target.package != module.package:
        yield f"relative import of {item.name} crosses packages"
    crosses = target.package != module.package or target.wires
    if crosses and target.level >= module.level and not (module.wires and target.wires):
        yield f"backward import of {item.name} ({_order()})"
    for package, folders in FOLDERS.items():
        here, there = (_place(name, package) for name in (module.name, target.name))
        if here is not None and there is not None and there > here:
            yield f"backward import of {item.name} (folders of {package}: {', '.join(folders)})"


def _place(name: str, package: str) -> int | None:
    """Where a module's folder stands among those of the package, if it is in one."""
    if not name.startswith(f"{package}."):
        return None
    *inside, _ = name.removeprefix(f"{package}.").split(".")
    folder = inside[0] if inside else ""
    return FOLDERS[package].index(folder) if folder in FOLDERS[package] else None


def _order() -> str:
    return "the order is specs, graph < eqsat < rules < codegen < driver < bench"


def _docstring_faults(module: Module) -> Iterator[str]:
    docstring = ast.get_docstring(module.tree)
    if not docstring:
        yield "no package docstring; say what it takes, gives and guarantees"
    elif len(docstring.splitlines()) > MAX_DOCSTRING_LINES:
        yield f"package docstring of more than {MAX_DOCSTRING_LINES} lines"


def _mutual(modules: dict[str, Module], graph: dict[str, set[str]]) -> Iterator[str]:
    """Each set of modules of one package that import one another, in a circle of any length."""
    reach = {name: set(graph[name]) for name in graph}
    for middle in graph:
        for name in graph:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    circles = {
        frozenset(other for other in reach[name] if name in reach[other])
        for name in graph
        if name in reach[name]
    }
    for circle in circles:
        if len({modules[name].package for name in circle}) == 1:  # otherwise one is backward
            yield "mutual import: " + ", ".join(sorted(circle))


def _file_faults(root: Path) -> Iterator[str]:
    for folder in [*LEVELS, "tests", "examples"]:
        for path in sorted((root / folder).rglob("*.py")):
            where = path.relative_to(root)
            for part in (*where.parts[:-1], where.stem):
                if FORBIDDEN_NAME.search(part):
                    yield f"{where}: the name {part!r} says nothing; name the one idea of the file"
            count = len(path.read_text(encoding="utf-8").splitlines())
            if count > MAX_LINES:
                yield f"{where}: {count} lines, more than {MAX_LINES}; one idea per file"


# --- the project itself ---------------------------------------------------------------------


def test_the_source_tree_keeps_its_shape():
    found = violations(ROOT)
    assert not found, "\n".join(["", *found])


def test_every_package_is_installed():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for package in LEVELS
        for path in (ROOT / package).rglob("__init__.py")
    }
    names = {folder.replace("/", ".") for folder in folders}
    names = {name if name.split(".")[0] == "eqsat" else f"eqsat.{name}" for name in names}
    assert set(table["packages"]) == names
    assert set(table["package-dir"].values()) == set(LEVELS)


def test_no_module_hides_a_package_or_a_public_name():
    """`import eqsat.x` sets the attribute `x`, whatever `eqsat.x` was before; and what other
    libraries have under that name gets a hint only where no module has it.
    """
    stems = {path.stem for path in (ROOT / "eqsat").iterdir()}
    assert not stems & (LEVELS.keys() - {"eqsat"})
    assert not stems & {*dir(eqsat), *ELSEWHERE}


def test_every_module_of_the_engine_has_its_place_in_the_design():
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    missing = []
    for path in sorted((ROOT / "eqsat").rglob("[!_]*.py")):
        folder = f"`{path.parent.relative_to(ROOT).as_posix()}/`"
        beside = folder == "`eqsat/`" and re.search(rf"`(eqsat/)?{path.name}`", text)
        if not beside and not any(folder in row and f"`{path.name}`" in row for row in rows):
            missing.append(path.relative_to(ROOT).as_posix())
    assert not missing, f"no row of docs/design.md names {', '.join(missing)}"


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/design.md"])
def test_the_guides_name_the_files_that_wire(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    wiring = WIRING - {"eqsat"}
    paths = {"eqsat/__init__.py", *(f"{name.replace('.', '/')}.py" for name in wiring)}
    assert all(f"`{path}`" in text for path in paths)


# --- each fault is caught -------------------------------------------------------------------

CLEAN = {
    "specs/__init__.py": '"""Specs."""\n',
    "specs/model.py": "from eqsat.errors import SpecError\n",
    "graph/__init__.py": '"""Graph."""\nfrom eqsat.graph.tensor import Tensor\n',
    "graph/tensor.py": "import numpy\nfrom .shape import Shape\n",
    "graph/shape.py": "from eqsat.settings import Settings\n",
    "eqsat/__init__.py": '"""Top."""\n',
    "eqsat/errors.py": "",
    "eqsat/settings.py": "from .errors import SettingsError\n",
    "eqsat/cache/__init__.py": '"""Cache."""\n',
    "eqsat/cache/store.py": "from eqsat import __version__\nfrom eqsat.kernel.ir import Kernel\n",
    "eqsat/kernel/__init__.py": '"""Kernels."""\n',
    "eqsat/kernel/ir.py": "from eqsat.specs import model\nfrom eqsat.graph import Tensor\n",
    "eqsat/search.py": "from .kernel import ir\ndef f():\n    import egglog.bindings\n",
    "eqsat/driver.py": "from eqsat.rules.algebra import x\nimport eqsat.codegen.cpu_target\n",
    "eqsat/explain/__init__.py": '"""Explain."""\n',
    "eqsat/explain/command.py": "from eqsat.driver import compile\n",
    "eqsat/explain/__main__.py": "from eqsat.explain.command import main\n",
    "rules/__init__.py": '"""Rules."""\n',
    "rules/algebra.py": "from eqsat.kernel.ir import Kernel\n",
    "codegen/__init__.py": '"""Code."""\n',
    "codegen/cpu_target.py": "from eqsat.rules import algebra\ndef f():\n    import numba\n",
    "bench/__init__.py": '"""One\ntwo\nthree\nfour\nfive"""\n',
    "bench/run.py": "from eqsat.driver import compile\nfrom eqsat.codegen.cpu_target import f\n",
}

FAULTS = {
    "graph imports the engine": ("graph/a.py", "import eqsat.kernel.ir", "backward import"),
    "graph imports specs": ("graph/a.py", "from eqsat.specs import model", "backward import"),
    "specs imports graph": ("specs/a.py", "from eqsat.graph.tensor import T", "backward import"),
    "engine imports rules": ("eqsat/a.py", "from eqsat.rules.algebra import x", "backward import"),
    "engine imports rules, dotted": ("eqsat/a.py", "import eqsat.rules.algebra", "backward"),
    "engine imports the driver": ("eqsat/a.py", "from eqsat.driver import compile", "backward"),
    "rules import code": ("rules/a.py", "from eqsat.codegen import cpu_target", "backward"),
    "code imports bench": ("codegen/a.py", "from eqsat.bench.run import main", "backward import"),
    "code imports the driver": ("codegen/a.py", "from eqsat import driver", "backward import"),
    "the driver imports bench": ("eqsat/driver.py", "import eqsat.bench.run", "backward import"),
    "for types alone": (
        "graph/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from eqsat.kernel.ir import K",
        "backward import",
    ),
    "a folder imports a later one": (
        "eqsat/kernel/a.py",
        "from eqsat.cache.store import Cache",
        "backward import of eqsat.cache.store (folders of eqsat: kernel, terms",
    ),
    "for types alone, a later one": (
        "eqsat/kernel/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..cache import store",
        "backward import of eqsat.cache.store (folders",
    ),
    "the lazy face": ("rules/a.py", "from eqsat import compile", "which is no module"),
    "the face itself": ("rules/a.py", "import eqsat", "which is no module"),
    "a missing module": ("rules/a.py", "import eqsat.kernel.irs", "which is no module"),
    "a folder's bare name": ("rules/a.py", "from graph.tensor import T", "installed name"),
    "relative, across": ("rules/a.py", "from ..kernel.ir import K", "crosses packages"),
    "relative, to a leaf": ("rules/a.py", "from ..errors import E", "crosses packages"),
    "relative, down": ("eqsat/a.py", "from .graph import Tensor", "crosses packages"),
    "two by two": ("graph/shape.py", "from .tensor import Tensor", "mutual import: eqsat.graph.sh"),
    "through the package": ("graph/shape.py", "from eqsat.graph import Tensor", "mutual import"),
    "a leaf": ("eqsat/settings.py", "from eqsat.specs import model", "that all may import"),
    "star": ("rules/a.py", "from eqsat.kernel.ir import *", "star import of eqsat.kernel.ir"),
    "star of another": ("rules/a.py", "from math import *", "star import of math"),
    "local": ("rules/a.py", "def f():\n    import json", "function-local import of json"),
    "local in a method": (
        "rules/a.py",
        "class A:\n    async def f(self):\n        if 1:\n            from json import loads",
        "function-local import of json",
    ),
    "local of our own": ("eqsat/a.py", "def f():\n    from eqsat import kernel", "function-local"),
    "too long": ("rules/a.py", "x = 1\n" * 501, "501 lines, more than 500"),
    "a long test": ("tests/test_a.py", "x = 1\n" * 501, "501 lines, more than 500"),
    "util": ("rules/tile_utils.py", "", "'tile_utils' says nothing"),
    "helper": ("codegen/helper.py", "", "'helper' says nothing"),
    "misc": ("eqsat/misc_passes.py", "", "'misc_passes' says nothing"),
    "new": ("rules/new.py", "", "'new' says nothing"),
    "a number": ("rules/algebra2.py", "", "'algebra2' says nothing"),
    "a folder": ("rules/util/__init__.py", '"""Doc."""', "'util' says nothing"),
    "no docstring": ("rules/__init__.py", "", "no package docstring"),
    "a long docstring": ("rules/__init__.py", '"""1\n2\n3\n4\n5\n6"""', "more than 5 lines"),
}


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_clean_tree_has_no_fault(tmp_path):
    assert violations(write_tree(tmp_path, CLEAN)) == []


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_caught(tmp_path, name):
    path, text, expected = FAULTS[name]
    found = violations(write_tree(tmp_path, CLEAN | {path: text}))
    assert len(found) == 1 and expected in found[0], found
    assert found[0].startswith(path) or "mutual import" in found[0]
