"""Attention of one new token to a cache of keys and values that lies in pages, as servers keep it.

    python examples/paged_attention.py            # on this machine's CPU, checked against NumPy
    eqsat-explain examples/paged_attention.py:attend --spec h200

A table says in which pages the tokens of each sequence lie. The program gathers whole sequences,
compares positions with lengths and takes a softmax; compiled, kernels read each page where it lies,
and no gathered keys and values are stored. On a large GPU it is one kernel, without scores either.
Exit status: 0, 1 for a wrong answer.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence

import numpy as np

import eqsat
from eqsat.graph import Tensor

SEQUENCES, HEADS, GROUPS, SIZE = 64, 32, 8, 128  # several heads read the keys of one group
PAGES, ROWS, MOST = 32768, 16, 512  # pages in all, tokens of each, pages of a sequence


def inputs(
    sequences: int = SEQUENCES, pages: int = PAGES, most: int = MOST, dtype: str = "bfloat16"
) -> dict[str, Tensor]:
    """q[sequence, head, d]; k and v[page, row, group, d]; the pages and length of each sequence."""
    cache = (pages, ROWS, GROUPS, SIZE)
    return {
        "q": eqsat.input("q", (sequences, HEADS, SIZE), dtype),
        "k": eqsat.input("k", cache, dtype),
        "v": eqsat.input("v", cache, dtype),
        "table": eqsat.input("table", (sequences, most), "int32"),
        "lengths": eqsat.input("lengths", (sequences,), "int32"),
    }


DECODE = inputs()


def attend(
    q: Tensor = DECODE["q"],
    k: Tensor = DECODE["k"],
    v: Tensor = DECODE["v"],
    table: Tensor = DECODE["table"],
    lengths: Tensor = DECODE["lengths"],
) -> Tensor:
    """out[sequence, head, d] = softmax(q k^T / sqrt(d)) v over the first `lengths` tokens."""
    sequences, heads, size = q.shape
    _, rows, groups, _ = k.shape
    tokens = table.shape[1] * rows

    def gathered(cache: Tensor) -> Tensor:
        """[sequence, group, token, d]"""
        pages = eqsat.take(cache, table, axis=0)
        return eqsat.permute_dims(
            eqsat.reshape(pages, (sequences, tokens, groups, size)), (0, 2, 1, 3)
        )

    keys = eqsat.permute_dims(gathered(k), (0, 1, 3, 2))
    grouped = eqsat.reshape(q, (sequences, groups, heads // groups, size))
    scores = eqsat.astype(grouped @ keys, "float32") * size**-0.5
    inside = eqsat.arange(tokens) < lengths[:, None, None, None]
    weights = eqsat.softmax(eqsat.where(inside, scores, -np.inf), axis=-1)
    return eqsat.reshape(eqsat.astype(weights, q.dtype) @ gathered(v), q.shape)


def draw(tensors: Mapping[str, Tensor], seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays for them; pages that no sequence owns, and rows beyond its length, are large."""
    rng = np.random.default_rng(seed)
    arrays = {
        name: (rng.standard_normal(tensors[name].shape)).astype(tensors[name].dtype.numpy)
        for name in ("q", "k", "v")
    }
    sequences, most = tensors["table"].shape
    pages, rows = tensors["k"].shape[:2]
    table = rng.permutation(pages)[: sequences * most].reshape(sequences, most).astype(np.int32)
    lengths = rng.integers(1, most * rows + 1, sequences, dtype=np.int32)
    owned = np.zeros((pages, rows), bool)
    for own, length in zip(table, lengths, strict=True):
        owned[own] = (np.arange(most * rows) < length).reshape(most, rows)
    for name in ("k", "v"):
        arrays[name][~owned] = 1000
    return arrays | {"table": table, "lengths": lengths}


def expected(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The answer in float64, one sequence after the other."""
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    groups = k.shape[2]
    result = np.empty(q.shape)
    for n, (table, length) in enumerate(zip(arrays["table"], arrays["lengths"], strict=True)):
        keys, values = (cache[table].reshape(-1, *cache.shape[2:])[:length] for cache in (k, v))
        grouped = q[n].reshape(groups, -1, q.shape[2])
        scores = np.einsum("grd,tgd->grt", grouped, keys) * q.shape[2] ** -0.5
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        result[n] = np.einsum("grt,tgd->grd", weights, values).reshape(q.shape[1:])
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    argparse.ArgumentParser(
        prog="paged_attention.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(arguments)
    tensors = inputs(sequences=8, pages=600, most=64)
    program = eqsat.compile([attend(**tensors)], inputs=list(tensors.values()))
    arrays = draw(tensors)
    (answer,) = program(*arrays.values())
    error = float(np.abs(np.asarray(answer, np.float64) - expected(arrays)).max())
    print(f"kernels: {len(program.kernels)}; largest error {error:.1e}")
    return 0 if error < 1e-2 else 1  # NaN fails


if __name__ == "__main__":
    sys.exit(main())
