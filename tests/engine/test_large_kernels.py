"""Programs unrolled over many steps: no kernel grows with them, and bodies far behind are left."""

import numpy as np
import pytest

import eqsat
from eqsat.cache.store import Cache
from eqsat.cut.cuts import MOST_REDUCED, MOST_TERMS, of_size
from eqsat.kernel.ir import Contract, Reduce
from eqsat.schedule import ranking, scheduling
from eqsat.specs import load
from eqsat.terms.algebra import Term

pytestmark = pytest.mark.usefixtures("shared_search")


def relaxed(steps: int, size: int = 31) -> tuple[eqsat.Tensor, eqsat.Tensor]:
    """Means of neighbours, taken again and again: a kernel of all would read ever more of them."""
    u = x = eqsat.input("u", (size, size))
    for _ in range(steps):
        p = eqsat.pad(u, [(1, 1), (1, 1)])
        u = 0.25 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - x)
    return x, u


@pytest.mark.parametrize("spec", ["cpu", "h200"])
def test_steps_of_a_stencil_are_cut(spec: str) -> None:
    _, made = relaxed(4)
    planned = eqsat.compile(made, load(spec), cache=Cache(None))
    assert 1 < len(planned.kernels) <= 4
    assert all(len(list(kernel.statements())) <= 2 * MOST_TERMS for kernel in planned.kernels)


def test_their_answer() -> None:
    x, made = relaxed(4)
    given = np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)
    u = given.astype(np.float64)
    for _ in range(4):
        p = np.pad(u, 1)
        u = 0.25 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] - given)
    program = eqsat.compile(made, load("cpu"), cache=Cache(None))
    np.testing.assert_allclose(program(given), u, rtol=1e-5, atol=1e-5)


def test_steps_of_products_are_cut() -> None:
    """Each of ten steps multiplies twice; all of them in one kernel would be nested."""
    h = eqsat.input("h", (3, 5))
    w, v = eqsat.input("w", (5, 5)), eqsat.input("v", (5, 5))
    for _ in range(10):
        h = eqsat.tanh(h @ w) * eqsat.sigmoid(h @ v)
    program = eqsat.compile(h, load("cpu"), cache=Cache(None))
    for kernel in program.kernels:
        sums = [s for s in kernel.statements() if isinstance(s, Contract | Reduce)]
        assert len(sums) <= MOST_REDUCED


def test_the_size_of_a_kernel_is_what_it_is_made_of() -> None:
    term = Term("literal", 1.0, "float32")
    for _ in range(MOST_TERMS - 1):
        term = Term("exp", term)
    assert of_size({term: "kept", Term("exp", term): "too large"}) == {term: "kept"}
    shared = Term("add", term.children[0], term.children[0])
    assert of_size({shared: "each counted once"})


def test_bodies_far_behind_are_not_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply-adds of a deep product, beside operations of the spec."""
    calls: list[list[ranking.Offer]] = []
    offers = ranking.offers

    def seen(*arguments):
        calls.append(list(offers(*arguments)))
        return iter(calls[-1])

    monkeypatch.setattr(scheduling, "offers", seen)
    a, b = (eqsat.input(n, s, "bfloat16") for n, s in (("a", (256, 8192)), ("b", (8192, 256))))
    eqsat.compile(a @ b, load("h200"), cache=Cache(None))
    least: dict[object, float] = {}
    for one in calls[0]:
        if one.choices[0].parts is None:
            body = one.body.stored
            least[body] = min(least.get(body, np.inf), one.least)
    limit = ranking.FAR * min(least.values())
    far = {body for body, seconds in least.items() if limit < seconds < np.inf}
    parts = {one.body.stored for one in calls[0] if one.choices[0].parts is not None}
    assert far and parts and not far & parts
