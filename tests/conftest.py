"""What all tests share: a private cache folder, and one search process for a whole run."""

import gc
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

# The meaning of terms (tests/engine/numeric.py) serves the tests of the rules too.
sys.path.insert(0, str(Path(__file__).parent / "engine"))

ANSWERS = 100  # of a search, that are kept


def pytest_collection_finish() -> None:
    """What is imported stays, and most of what a test makes is gone without the collector."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """EQSAT_CACHE_DIR is a folder of this run, so that no test reads the user's cache."""
    folder = tmp_path_factory.mktemp("eqsat-cache")
    before = os.environ.get("EQSAT_CACHE_DIR")
    os.environ["EQSAT_CACHE_DIR"] = str(folder)
    yield folder
    if before is None:
        del os.environ["EQSAT_CACHE_DIR"]
    else:
        os.environ["EQSAT_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def worker() -> Iterator[object]:
    """A search process: starting one takes 0.3 s. What several tests ask is searched for once."""
    from eqsat.saturate.saturation import SearchWorker

    class Remembering(SearchWorker):
        def __init__(self) -> None:
            super().__init__()
            self._known: dict[str, dict[str, Any]] = {}

        def ask(self, request: dict[str, Any], seconds: float, names: int) -> dict[str, Any]:
            key = json.dumps((request, seconds, names))
            if key not in self._known:
                answer = super().ask(request, seconds, names)
                if "error" in answer:
                    return answer
                self._known[key] = answer
                while len(self._known) > ANSWERS:
                    del self._known[next(iter(self._known))]
            return self._known[key]

    with Remembering() as started:
        yield started


@pytest.fixture
def shared_search(worker: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles and explanations of this test search in the shared process."""
    from eqsat import driver
    from eqsat.explain import account

    for module in (account, driver):
        monkeypatch.setattr(module, "SearchWorker", lambda _: nullcontext(worker))
