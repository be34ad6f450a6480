"""What the cache must tell apart besides the program: the code that made an entry."""

import hashlib
import importlib
import sys
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("egglog", "numpy", "numba", "scipy")


@lru_cache(maxsize=1)
def code_digest() -> str:
    """sha256 over the project's sources and the versions of the libraries it compiles with."""
    digest = hashlib.sha256(sys.version.encode())
    for library in LIBRARIES:
        digest.update(f"{library} {version(library)}\n".encode())
    packages = ("eqsat", "eqsat.graph", "eqsat.rules", "eqsat.codegen", "eqsat.specs")
    folders = [Path(str(importlib.import_module(package).__file__)).parent for package in packages]
    for file in sorted({file for folder in folders for file in _sources(folder)}):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def _sources(folder: Path) -> list[Path]:
    return [*folder.rglob("*.py"), *folder.rglob("*.toml")]
