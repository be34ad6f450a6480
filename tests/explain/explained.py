"""Programs that are explained in the tests, each planned and traced once."""

from dataclasses import dataclass
from functools import cache

import eqsat
from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.explain.explanation import Explanation
from eqsat.explain.replay import check
from eqsat.graph import Tensor
from eqsat.planned import Planned


def given(name: str, *shape: int) -> Tensor:
    return eqsat.input(name, shape, "float32")


def matrix_chain() -> Tensor:
    return (given("A", 64, 48) @ given("B", 48, 80)) @ given("v", 80)


def softmax() -> Tensor:
    return eqsat.softmax(given("x", 64, 96), axis=-1)


def attention() -> Tensor:
    q, k, v = (given(name, 2, 3, 64, 32) for name in "qkv")
    scores = q @ eqsat.permute_dims(k, (0, 1, 3, 2)) * 0.125
    weights = eqsat.exp(scores - eqsat.max(scores, axis=-1, keepdims=True))
    return weights / eqsat.sum(weights, axis=-1, keepdims=True) @ v


def rms_norm_product() -> Tensor:
    return eqsat.rms_norm(given("x", 64, 96), given("g", 96)) @ given("W", 96, 32)


def two_products() -> Tensor:
    x = given("x", 64, 48)
    return x @ given("W1", 48, 32) + x @ given("W2", 48, 32)


def gelu_mlp() -> Tensor:
    hidden = given("x", 64, 48) @ given("W", 48, 96) + given("b", 96)
    return eqsat.gelu(hidden) @ given("U", 96, 48)


def gram() -> Tensor:
    x = eqsat.exp(given("x", 24, 16))
    return x @ eqsat.permute_dims(x, (1, 0))


def stored_gram() -> Tensor:
    product = eqsat.exp(given("A", 1024, 1024) @ given("B", 1024, 1024))
    return product @ eqsat.permute_dims(product, (1, 0))


def joined() -> tuple[Tensor, Tensor]:
    x = given("x", 64, 48)
    return x @ given("W", 48, 32), x @ given("U", 48, 32)


def shared_weights() -> tuple[Tensor, Tensor]:
    """The weights lie in memory, in 16 bits."""
    shapes = {"x": (2048, 1024), "W": (1024, 2048), "A": (2048, 256), "B": (2048, 256)}
    narrow = (eqsat.input(name, shape, "bfloat16") for name, shape in shapes.items())
    x, w, a, b = (eqsat.astype(one, eqsat.float32) for one in narrow)
    weights = eqsat.softmax(x @ w, axis=-1)
    first, second = weights @ a, eqsat.permute_dims(weights, (1, 0)) @ b
    return eqsat.astype(first, eqsat.bfloat16), eqsat.astype(second, eqsat.bfloat16)


def grown() -> Tensor:
    """A transposed convolution, of which padding leaves a part: each element is stored there."""
    y = eqsat.conv_transpose(given("x", 2, 8, 9, 7), given("w", 8, 6, 4, 4), stride=2, padding=1)
    return eqsat.relu(y + given("b", 6, 1, 1)) + given("r", *y.shape)


def padded() -> Tensor:
    """The second convolution has windows beyond the edges of what the first one leaves."""
    x = eqsat.input("x", (8, 16, 14, 14), "bfloat16")
    for name in ("w", "v"):
        x = eqsat.relu(eqsat.conv(x, eqsat.input(name, (16, 16, 3, 3), "bfloat16"), padding=1))
    return x


def pooled() -> Tensor:
    """What the pool leaves lies in memory in 16 bits, and is read in windows."""
    x = eqsat.input("x", (64, 1, 32, 32), "bfloat16")
    x = eqsat.max_pool(eqsat.conv(x, eqsat.input("w", (6, 1, 5, 5), "bfloat16")), 2)
    return eqsat.conv(x, eqsat.input("v", (16, 6, 5, 5), "bfloat16"))


def layers() -> Tensor:
    x = given("x", 32, 48)
    for number in range(3):
        hidden = x @ given(f"W{number}", 48, 96) + given(f"b{number}", 96)
        x = x + eqsat.gelu(hidden) @ given(f"U{number}", 96, 48) + given(f"c{number}", 48)
    return x


def transformer_layer() -> Tensor:
    batch, length, wide, heads = 2, 32, 48, 4
    x = given("x", batch, length, wide)

    def linear(x: Tensor, name: str, m: int, n: int) -> Tensor:
        return x @ given(f"W{name}", m, n) + given(f"b{name}", n)

    def split(x: Tensor) -> Tensor:
        cut = eqsat.reshape(x, (batch, length, heads, wide // heads))
        return eqsat.permute_dims(cut, (0, 2, 1, 3))

    q, k, v = (split(linear(x, name, wide, wide)) for name in "qkv")
    weights = eqsat.softmax(q @ eqsat.permute_dims(k, (0, 1, 3, 2)) * 0.25, axis=-1)
    mixed = eqsat.reshape(eqsat.permute_dims(weights @ v, (0, 2, 1, 3)), (batch, length, wide))
    x = eqsat.layer_norm(x + linear(mixed, "o", wide, wide), given("g", wide), given("h", wide))
    hidden = eqsat.gelu(linear(x, "1", wide, 4 * wide))
    x = x + linear(hidden, "2", 4 * wide, wide)
    return eqsat.layer_norm(x, given("r", wide), given("s", wide))


PROGRAMS = {
    f.__name__: f
    for f in (
        *(matrix_chain, softmax, attention, rms_norm_product, two_products, gelu_mlp),
        *(gram, stored_gram, joined, layers),
    )
}


@dataclass(frozen=True)
class Explained:
    planned: Planned
    explanation: Explanation

    def check(self, explanation: Explanation | None = None) -> int:
        search = self.planned.search
        given = explanation or self.explanation
        return check(given, self.planned.segments, search.rules, search.spec)


def explained(name: str, spec: str = "cpu") -> Explained:
    return _explained(name, spec)


@cache
def _explained(name: str, spec: str) -> Explained:
    planned = plan(globals()[name](), spec, cache=Cache(None))
    return Explained(planned, planned.explain(name))
