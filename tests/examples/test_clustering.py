"""k-means and DBSCAN against NumPy, and the picture."""

import importlib.util
import xml.etree.ElementTree as ElementTree

import clustering
import numpy as np
import pytest

import eqsat

POINTS, _ = clustering.synthetic()
needs_iris = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="not installed: scikit-learn"
)


def squares(a, b):
    return ((a[:, None].astype(np.float64) - b) ** 2).sum(-1)


def lloyd_in_numpy(points, centres):
    """Rounds until no centre moves: labels, centres, costs."""
    costs = []
    while True:
        apart = squares(points, centres)
        labels = apart.argmin(1)
        costs.append(apart.min(1).sum())
        moved = np.array(
            [points[labels == c].mean(0) if (labels == c).any() else centres[c]
             for c in range(len(centres))]
        )  # fmt: skip
        if np.allclose(moved, centres, rtol=0, atol=1e-6):
            return labels, centres, costs
        centres = moved


def dbscan_in_numpy(points, radius, least):
    """Counts, and labels by a flood from each core point in order."""
    near = squares(points, points.astype(np.float64)) <= radius**2
    counts = near.sum(1)
    core = counts >= least
    labels = np.full(len(points), -1)
    for start in np.flatnonzero(core):
        if labels[start] >= 0:
            continue
        number, pending = labels.max() + 1, [start]
        while pending:
            at = pending.pop()
            if labels[at] < 0:
                labels[at] = number
                pending += np.flatnonzero(near[at]).tolist() if core[at] else []
    return counts, labels


def check(points, k, radius, least):
    means = clustering.k_means(points, k)
    labels, centres, costs = lloyd_in_numpy(points, clustering.farthest_first(points, k))
    np.testing.assert_array_equal(means.labels, labels)
    np.testing.assert_allclose(means.centres, centres, rtol=1e-5)
    np.testing.assert_allclose(means.costs, costs, rtol=1e-5)
    assert all(np.diff(means.costs) <= 0)
    densities = clustering.dbscan(points, radius, least)
    counts, labels = dbscan_in_numpy(points, radius, least)
    np.testing.assert_array_equal(densities.counts, counts)
    np.testing.assert_array_equal(densities.labels, labels)
    return means, densities


def test_clouds_are_found():
    means, densities = check(POINTS, 3, 0.505, 4)
    assert sorted(np.bincount(means.labels)) >= [40, 40, 40]
    assert densities.labels.max() == 2 and densities.labels[-2:].tolist() == [-1, -1]
    assert len(densities.programs[0].kernels) == 1  # no matrix of pairs is stored


def test_a_centre_without_points_stays():
    x, c = eqsat.input("x", (3, 1)), eqsat.input("c", (2, 1))
    arrays = {"x": np.float32([[0], [1], [2]]), "c": np.float32([[1], [50]])}
    labels, moved, cost = eqsat.evaluate(clustering.lloyd(x, c), arrays)
    assert labels.tolist() == [0, 0, 0] and moved.tolist() == [[1], [50]] and cost == 2


@needs_iris
@pytest.mark.slow
def test_irises():
    points, names = clustering.iris()
    assert points.shape == (150, 4) and len(names) == 4
    _, densities = check(points, 3, 0.505, 5)
    assert densities.labels.max() == 1 and 10 < (densities.labels < 0).sum() < 20
    assert set(densities.labels[:50]) <= {0, -1} and set(densities.labels[50:]) <= {1, -1}


def test_the_command_draws(tmp_path, capsys):
    path = tmp_path / "clusters.svg"
    assert clustering.main(["--data", "synthetic", "--output", str(path)]) == 0
    said = capsys.readouterr().out
    assert "k-means: 3 clusters" in said and "DBSCAN" in said and "kernels: " in said
    drawn = ElementTree.parse(path).getroot()
    circles = [e for e in drawn.iter() if e.tag.endswith("circle")]
    assert len(circles) == 2 * len(POINTS)
    for circle in circles:
        assert 0 <= float(circle.get("cx")) <= 520 and 0 <= float(circle.get("cy")) <= 420
    assert len({circle.get("fill") for circle in circles}) >= 4  # three clusters and noise


def test_a_picture_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(clustering, "k_means", None)
    path = tmp_path / "no" / "clusters.svg"
    assert clustering.main(["--data", "synthetic", "--output", str(path)]) == 2
    said = capsys.readouterr().err
    assert f"cannot write {path}: No such file or directory. Give --output a file" in said


def test_a_missing_package_is_named_with_the_command(monkeypatch, capsys):
    def missing():
        raise ModuleNotFoundError("No module named 'sklearn'")

    monkeypatch.setattr(clustering, "iris", missing)
    assert clustering.main([]) == 2
    assert "pip install -e '.[examples]', or use --data synthetic" in capsys.readouterr().err
