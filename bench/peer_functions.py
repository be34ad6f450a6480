"""A row as a function of its peers' arrays."""

import importlib.metadata
import importlib.util
from collections.abc import Callable
from typing import Any

from eqsat.bench.case import Case
from eqsat.bench.contender import MissingPeerError
from eqsat.bench.vocabulary import TorchVocabulary

PEERS = ("numpy", "torch", "inductor")


def require_peer(name: str, case: Case) -> None:
    """MissingPeerError unless the row has that peer and its library is installed."""
    if name not in case.peers:
        raise MissingPeerError(f"the row has no {name} form")
    library = "numpy" if name == "numpy" else "torch"
    if importlib.util.find_spec(library) is None:
        raise MissingPeerError(f"{library} is not installed")


def torch_function(case: Case, compiled: bool) -> Callable[..., Any]:
    """The row in torch, eager or compiled with max-autotune (CUDA graphs are left to us)."""
    import torch

    precision = "high" if case.options.get("precision") == "tf32" else "highest"
    torch.set_float32_matmul_precision(precision)
    vocabulary = TorchVocabulary(compiled)

    def run(*arrays: Any) -> Any:
        return case.function(vocabulary, *arrays)

    if not compiled:
        return run
    torch.compiler.reset()  # every row starts with an empty cache of compiled code
    return torch.compile(run, mode="max-autotune-no-cudagraphs", dynamic=False)


def versions(*names: str) -> dict[str, str]:
    """Versions of the distributions that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
