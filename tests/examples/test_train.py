"""Training as one program: the loss curve beside NumPy's, step after step."""

import importlib.util

import numpy as np
import pytest
import train
import train_numpy

import eqsat

DATA = train.synthetic()
needs_digits = pytest.mark.skipif(
    importlib.util.find_spec("sklearn") is None, reason="not installed: scikit-learn"
)


def test_the_command_trains_and_agrees_with_numpy(capsys):
    assert train.main(["--data", "synthetic", "--steps", "80", "--batch", "37"]) == 0
    said = capsys.readouterr().out
    for expected in ("test accuracy", "steps/s", "kernels", "compiled in", "from NumPy"):
        assert expected in said


def test_a_run_learns():
    run = train.train(DATA, steps=80, batch=37)
    assert train.distance(run, DATA, 37, train.Adam()) <= 1e-5
    assert run.losses[-1] < run.losses[0] / 4 and run.accuracy > 0.9
    assert len(run.program.kernels) < run.program.report.operations / 10
    faster = train.Adam(rate=1.1e-3)
    assert train.distance(run, DATA, 37, faster) > train.MAX_DISTANCE, "the check can fail"


def arrays_of(model, batch):
    parameters = train.initial(train.MODELS[model][1])
    moments = {f"{k}_{n}": np.zeros_like(a) for n, a in parameters.items() for k in "mv"}
    images, labels = next(train.batches(DATA, batch, 1))
    given = {"images": images, "labels": labels, "time": np.float32(1)}
    return parameters, given | parameters | moments


def test_the_derivatives_by_hand_are_those_of_the_graph():
    parameters, given = arrays_of("mlp", 16)
    graph = train.step_graph(train.mlp, parameters, 16, train.Adam())
    results = dict(zip(graph, eqsat.evaluate(list(graph.values()), given, np.float64), strict=True))
    wide = {name: array.astype(np.float64) for name, array in parameters.items()}
    loss, slopes = train_numpy.loss_and_slopes(wide, given["images"], given["labels"])
    np.testing.assert_allclose(results["loss"], loss, rtol=1e-12)
    for (
        name,
        slope,
    ) in slopes.items():  # the first moment after one step, with 0.1 as float32 has it
        np.testing.assert_allclose(results[f"m_{name}"], slope * float(np.float32(0.1)), atol=1e-8)


def test_the_transformer_learns_too():
    """By the meaning of the graph: its program takes a minute to compile."""
    parameters, given = arrays_of("transformer", 32)
    graph = train.step_graph(train.transformer, parameters, 32, train.Adam(rate=1e-2))
    losses = []
    for time in range(1, 21):
        values = eqsat.evaluate(list(graph.values()), given | {"time": np.float32(time)})
        results = dict(zip(graph, values, strict=True))
        losses.append(float(results.pop("loss")))
        given |= results
    assert losses[-1] < losses[0] / 2


@needs_digits
@pytest.mark.slow
def test_digits_are_told_apart():
    data = train.digits()
    assert data.images.shape[1] == 64 and len(data.test_labels) == 359
    run = train.train(data, steps=200)
    assert run.accuracy > 0.93
    assert train.distance(run, data, 128, train.Adam()) <= train.MAX_DISTANCE


def test_a_missing_package_is_named_with_the_command(monkeypatch, capsys):
    def missing():
        raise ModuleNotFoundError("No module named 'sklearn'")

    monkeypatch.setattr(train, "digits", missing)
    assert train.main([]) == 2
    assert "pip install -e '.[examples]', or use --data synthetic" in capsys.readouterr().err


def test_a_gpu_that_is_missing_is_told_before_anything_compiles(monkeypatch, capsys):
    monkeypatch.setattr(train, "missing", lambda: "there is no GPU.")
    monkeypatch.setattr(train, "train", None)
    assert train.main(["--data", "synthetic", "--spec", "h200"]) == 2
    assert capsys.readouterr().err == "UnsupportedError: there is no GPU. Or leave --spec out.\n"


@pytest.mark.parametrize("wrong", [["--batch", "0"], ["--model", "cnn"]])
def test_a_wrong_option_is_refused(wrong, capsys):
    with pytest.raises(SystemExit) as stop:
        train.main(wrong)
    assert stop.value.code == 2 and wrong[0] in capsys.readouterr().err
