"""Cluster points two ways, and draw them: k-means (Lloyd) and DBSCAN, in index expressions.

    python examples/clustering.py --output clusters.svg    # iris: pip install -e '.[examples]'

Each round of either is one compiled program over all pairs of points and centres, or of points and
points; nothing of that size is stored where the cost model finds it dearer than computing it.
Exit status: 0, 2 for a run that could not be made.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from clustering_picture import Panel, draw

import eqsat
from eqsat.graph import Tensor
from eqsat.specs import ParallelProcessingUnit

Spec = ParallelProcessingUnit | str | None
MOST_ROUNDS = 200


# --- programs -------------------------------------------------------------------------------------


def distances(a: Tensor, b: Tensor) -> Tensor:
    """out[i, j] = sum_d (a[i, d] - b[j, d])²"""
    return eqsat.compute(
        (a.shape[0], b.shape[0]),
        lambda i, j: eqsat.sum_over(a.shape[1], lambda d: eqsat.square(a[i, d] - b[j, d])),
    )


def lloyd(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest centre of each point, the mean of each centre's points, the sum of distances.

    A centre without points stays where it is.
    """
    apart = distances(points, centres)
    nearest = eqsat.argmin(apart, axis=1)
    k = centres.shape[0]
    count = eqsat.astype(eqsat.bincount(nearest, k), "float32")[:, None]
    mean = eqsat.segment_sum(points, nearest, k) / eqsat.maximum(count, 1.0)
    return nearest, eqsat.where(count > 0.0, mean, centres), eqsat.sum(eqsat.min(apart, axis=1))


def neighbour_counts(points: Tensor, radius: float) -> Tensor:
    """out[i] = how many points, itself included, lie within the radius of point i."""
    near = distances(points, points) <= radius**2
    return eqsat.count_nonzero(near, axis=1)


def spread_labels(points: Tensor, is_core: Tensor, labels: Tensor, radius: float) -> Tensor:
    """out[i] = the least label of a core point within the radius, or the number of points."""
    n = points.shape[0]
    near = distances(points, points) <= radius**2
    return eqsat.compute(
        n,
        lambda i: eqsat.min_over(
            n, lambda j: eqsat.where(eqsat.logical_and(near[i, j], is_core[j]), labels[j], n)
        ),
    )


# --- algorithms -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Means:
    """The cluster of each point, the centres, and the sum of squared distances of each round."""

    labels: np.ndarray
    centres: np.ndarray
    costs: tuple[float, ...]
    program: eqsat.Program


@dataclass(frozen=True)
class Densities:
    """The cluster of each point, -1 for noise, and how many neighbours each has."""

    labels: np.ndarray
    counts: np.ndarray
    programs: tuple[eqsat.Program, ...]


def farthest_first(points: np.ndarray, k: int) -> np.ndarray:
    """k of the points: the first, then always the one farthest from those chosen."""
    chosen = [0]
    while len(chosen) < k:
        apart = ((points[:, None] - points[chosen]) ** 2).sum(-1).min(1)
        chosen.append(int(apart.argmax()))
    return points[chosen].copy()


def k_means(points: np.ndarray, k: int, spec: Spec = None) -> Means:
    """Lloyd's algorithm from `farthest_first`, until no centre moves."""
    inputs = eqsat.input("points", points.shape), eqsat.input("centres", (k, points.shape[1]))
    program = eqsat.compile(lloyd(*inputs), spec, inputs=inputs)
    centres, costs = farthest_first(points, k), []
    for _ in range(MOST_ROUNDS):
        labels, moved, cost = program(points, centres)
        costs.append(float(cost))
        if np.array_equal(moved, centres):
            break
        centres = moved
    return Means(labels, centres, tuple(costs), program)


def dbscan(points: np.ndarray, radius: float, least: int, spec: Spec = None) -> Densities:
    """Ester et al. 1996: points with `least` neighbours or more are core; those that core points
    link share a cluster; a point near a core point joins its cluster; the others are noise."""
    n = len(points)
    x, core = eqsat.input("points", points.shape), eqsat.input("core", (n,), "bool")
    given = eqsat.input("labels", (n,), "int64")
    count = eqsat.compile(neighbour_counts(x, radius), spec)
    spread = eqsat.compile(spread_labels(x, core, given, radius), spec, inputs=(x, core, given))
    counts = count(points)
    labels = np.arange(n)
    for _ in range(n):
        found = spread(points, counts >= least, labels)
        if np.array_equal(found, labels):
            break
        labels = found
    names = np.unique(labels[labels < n])
    numbered = np.where(labels < n, np.searchsorted(names, labels), -1)
    return Densities(numbered, counts, (count, spread))


# --- the command ----------------------------------------------------------------------------------


def iris() -> tuple[np.ndarray, tuple[str, ...]]:
    """The 150 irises that scikit-learn ships (Fisher 1936): four lengths in cm, and their names."""
    from sklearn.datasets import load_iris

    data = load_iris()
    return data.data.astype(np.float32), tuple(data.feature_names)


def synthetic(count: int = 120) -> tuple[np.ndarray, tuple[str, ...]]:
    """Three clouds in the plane, and a few points between them."""
    rng = np.random.default_rng(4)
    middle = np.array([[0, 0], [4, 1], [1, 5]])[np.arange(count) % 3]
    points = middle + rng.normal(0, 0.35, (count, 2))
    return np.concatenate([points, [[2, 2.6], [-2, 4]]]).astype(np.float32), ("x", "y")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = _parser().parse_args(arguments)
    wrong = unwritable(options.output) if options.output else ""
    if wrong:
        print(
            f"cannot write {options.output}: {wrong}. Give --output a file in a folder that exists "
            f"and can be written.",
            file=sys.stderr,
        )
        return 2
    try:
        points, names = iris() if options.data == "iris" else synthetic()
        means = k_means(points, options.clusters, options.spec)
        densities = dbscan(points, options.radius, options.neighbours, options.spec)
    except ModuleNotFoundError as error:
        print(
            f"{error}. Install it with pip install -e '.[examples]', or use --data synthetic.",
            file=sys.stderr,
        )
        return 2
    except eqsat.EqsatError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    noise = int((densities.labels < 0).sum())
    first = (
        f"k-means: {options.clusters} clusters of {np.bincount(means.labels).tolist()} points, "
        f"{len(means.costs)} rounds"
    )
    second = (
        f"DBSCAN: {densities.labels.max() + 1} clusters and {noise} points of noise, "
        f"radius {options.radius:g}, {options.neighbours} neighbours"
    )
    for text, programs in ((first, [means.program]), (second, densities.programs)):
        print(f"{text}; kernels: {', '.join(str(len(p.kernels)) for p in programs)}")
    if options.output:
        shown = points[:, -2:]
        axes = names[-2:]
        panels = (
            Panel(first, shown, means.labels, axes, means.centres[:, -2:]),
            Panel(second, shown, densities.labels, axes),
        )
        options.output.write_text(draw(panels), encoding="utf-8")
        print(f"drawn in {options.output}")
    return 0


def unwritable(path: Path) -> str:
    """Why nothing can be written there; empty where it can. What lies there stays."""
    existed = os.path.lexists(path)
    try:
        path.open("a").close()
        if not existed:
            path.unlink()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="clustering.py", description=__doc__.split("\n")[0])
    add: Any = parser.add_argument
    add("--data", choices=("iris", "synthetic"), default="iris")
    add("--clusters", type=_positive, default=3, help="clusters of k-means (default 3)")
    # Irises are measured in tenths: a squared radius of 0.255 has no pair exactly on it.
    add("--radius", type=float, default=0.505, help="radius of DBSCAN (default 0.505)")
    add("--neighbours", type=_positive, default=5, help="neighbours of a core point (default 5)")
    add("--output", type=Path, help="where to draw the clusters, as SVG")
    add("--spec", help="a shipped spec's name or a TOML file; default: this machine's CPU")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
