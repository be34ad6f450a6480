"""What all tests share: a private cache folder, and one search process for a whole run."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

# The meaning of terms (tests/engine/numeric.py) serves the tests of the rules too.
sys.path.insert(0, str(Path(__file__).parent / "engine"))


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
    """A search process: starting one takes 0.3 s."""
    from eqsat.saturate import SearchWorker

    with SearchWorker() as started:
        yield started


@pytest.fixture
def shared_search(worker: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles and explanations of this test search in the shared process."""
    from eqsat import account, driver

    for module in (account, driver):
        monkeypatch.setattr(module, "SearchWorker", lambda _: nullcontext(worker))
