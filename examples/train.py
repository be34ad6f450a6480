"""Train a classifier of handwritten digits: the whole training step is one compiled program.

    python examples/train.py                 # digits of scikit-learn: pip install -e '.[examples]'
    python examples/train.py --model transformer --steps 300 --spec cpu

The graph of the loss is written with `eqsat.graph`; `eqsat.grad` adds the graph of its derivatives,
and Adam (Kingma and Ba, arXiv:1412.6980) is a few array operations more. Prints the loss, the
accuracy on images that were held back, the time of a step, and the distance of the losses from the
same training in float64 NumPy (mlp). Exit status: 0, 1 where they differ, 2 for a run that could
not be made.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import train_numpy
from rich.console import Console
from rich.table import Table
from train_numpy import Adam

import eqsat
from eqsat.codegen.cuda.run.target import missing
from eqsat.errors import UnsupportedError
from eqsat.graph import Tensor
from eqsat.specs import ParallelProcessingUnit, load

MAX_DISTANCE = 1e-4  # of a loss from that of NumPy, relative
CLASSES = 10
Arrays = dict[str, np.ndarray]
Tensors = Mapping[str, Tensor]
Logits = Callable[[Tensors, Tensor], Tensor]


@dataclass(frozen=True)
class Data:
    """Images as rows of 64 pixels in [0, 1] and their classes, to learn from and to test on."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def digits() -> Data:
    """The 1797 digits of 8 by 8 pixels that scikit-learn ships (UCI, Alpaydin and Kaynak 1998)."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return split(images / 16, labels)


def synthetic(count: int = 400) -> Data:
    """Noisy copies of ten random images."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, CLASSES, count)
    return split(rng.random((CLASSES, 64))[labels] + rng.normal(0, 0.3, (count, 64)), labels)


def split(images: np.ndarray, labels: np.ndarray) -> Data:
    """A fifth, drawn at random, is held back."""
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order].astype(np.float32), labels[order].astype(np.int64)
    kept = len(labels) // 5
    return Data(images[kept:], labels[kept:], images[:kept], labels[:kept])


# --- models ---------------------------------------------------------------------------------------


def mlp(p: Tensors, images: Tensor) -> Tensor:
    """images: (batch, 64). Two layers."""
    hidden = eqsat.relu(images @ p["w1"] + p["b1"])
    return hidden @ p["w2"] + p["b2"]


def transformer(p: Tensors, images: Tensor) -> Tensor:
    """images: (batch, 64). One block of attention and MLP over the 8 rows of an image."""
    x = eqsat.reshape(images, (-1, 8, 8)) @ p["embed"] + p["place"]
    normal = eqsat.layer_norm(x, p["g1"], p["c1"])
    x = x + eqsat.attention(normal @ p["wq"], normal @ p["wk"], normal @ p["wv"]) @ p["wo"]
    normal = eqsat.layer_norm(x, p["g2"], p["c2"])
    x = x + eqsat.gelu(normal @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]
    return eqsat.mean(x, axis=1) @ p["w3"] + p["b3"]


def initial(shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
    """Random matrices, scaled by their fan-in; vectors of 0; gains (g...) of 1."""
    rng = np.random.default_rng(2)
    arrays = {}
    for name, shape in shapes.items():
        if len(shape) == 2:
            arrays[name] = rng.normal(0, shape[0] ** -0.5, shape)
        else:
            arrays[name] = np.full(shape, float(name.startswith("g")))
    return {name: array.astype(np.float32) for name, array in arrays.items()}


WIDTH = 32
MODELS: dict[str, tuple[Logits, dict[str, tuple[int, ...]]]] = {
    "mlp": (mlp, {"w1": (64, 128), "b1": (128,), "w2": (128, CLASSES), "b2": (CLASSES,)}),
    "transformer": (
        transformer,
        {
            **{"embed": (8, WIDTH), "place": (8, WIDTH), "g1": (WIDTH,), "c1": (WIDTH,)},
            **{name: (WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo")},
            **{"g2": (WIDTH,), "c2": (WIDTH,), "w1": (WIDTH, 2 * WIDTH), "b1": (2 * WIDTH,)},
            **{"w2": (2 * WIDTH, WIDTH), "b2": (WIDTH,), "w3": (WIDTH, CLASSES), "b3": (CLASSES,)},
        },
    ),
}


# --- programs -------------------------------------------------------------------------------------


def step_graph(logits: Logits, parameters: Arrays, batch: int, adam: Adam) -> dict[str, Tensor]:
    """The loss, and every parameter and moment after one step of Adam, by name.

    Inputs: images, labels, the parameters, their first and second moments (m_..., v_...), and the
    step's number as `time`, counted from 1.
    """
    images = eqsat.input("images", (batch, 64))
    labels = eqsat.input("labels", (batch,), "int64")
    now = eqsat.input("time", ())
    tensors = {name: eqsat.input(name, a.shape) for name, a in parameters.items()}
    loss = eqsat.cross_entropy(logits(tensors, images), labels)
    slopes = eqsat.grad(loss, list(tensors.values()))
    # 1 - beta**time, which float32 would round to 4 digits
    weight1, weight2 = (-eqsat.expm1(now * log(beta)) for beta in (adam.beta1, adam.beta2))
    results = {"loss": loss}
    for (name, x), slope in zip(tensors.items(), slopes, strict=True):
        m = eqsat.input(f"m_{name}", x.shape) * adam.beta1 + slope * (1 - adam.beta1)
        v = eqsat.input(f"v_{name}", x.shape) * adam.beta2 + eqsat.square(slope) * (1 - adam.beta2)
        mean, spread = m / weight1, eqsat.sqrt(v / weight2)
        results[name] = x - adam.rate * mean / (spread + adam.epsilon)
        results[f"m_{name}"], results[f"v_{name}"] = m, v
    return results


def predictor(
    logits: Logits, parameters: Arrays, count: int, spec: ParallelProcessingUnit | str | None
) -> eqsat.Program:
    """The program that gives the class of each of `count` images."""
    tensors = {name: eqsat.input(name, a.shape) for name, a in parameters.items()}
    scores = logits(tensors, eqsat.input("images", (count, 64)))
    return eqsat.compile(eqsat.argmax(scores, axis=-1), spec)


def batches(data: Data, size: int, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """`steps` batches drawn without repetition, from one shuffle of the data after the other."""
    rng = np.random.default_rng(3)
    order = rng.permutation(len(data.labels))
    for _ in range(steps):
        if len(order) < size:
            order = rng.permutation(len(data.labels))
        chosen, order = order[:size], order[size:]
        yield data.images[chosen], data.labels[chosen]


@dataclass(frozen=True)
class Run:
    """What a training run gave: the loss of each step, seconds of a step, the test accuracy."""

    losses: np.ndarray
    seconds: float
    accuracy: float
    parameters: Arrays
    program: eqsat.Program


def train(
    data: Data,
    model: str = "mlp",
    steps: int = 300,
    batch: int = 128,
    spec: ParallelProcessingUnit | str | None = None,
) -> Run:
    """Compile the step, and take `steps` of them."""
    logits, shapes = MODELS[model]
    parameters = initial(shapes)
    program = eqsat.compile(step_graph(logits, parameters, batch, Adam()), spec)
    state = dict(parameters)
    for name, array in parameters.items():
        state[f"m_{name}"], state[f"v_{name}"] = np.zeros_like(array), np.zeros_like(array)
    losses, spent = [], []
    for number, (images, labels) in enumerate(batches(data, batch, steps), 1):
        started = time.perf_counter()
        results = program(images=images, labels=labels, time=np.float32(number), **state)
        spent.append(time.perf_counter() - started)
        losses.append(float(results.pop("loss")))
        state = results
    parameters = {name: state[name] for name in parameters}
    predict = predictor(logits, parameters, len(data.test_labels), spec)
    hits = predict(images=data.test_images, **parameters) == data.test_labels
    return Run(np.array(losses), float(np.median(spent)), float(hits.mean()), parameters, program)


def distance(run: Run, data: Data, batch: int, adam: Adam) -> float:
    """The largest relative distance of a loss of the run from that of NumPy (mlp)."""
    parameters = initial(MODELS["mlp"][1])
    losses = train_numpy.losses(parameters, batches(data, batch, len(run.losses)), adam)
    return float(np.max(np.abs(run.losses - losses) / np.abs(losses)))


# --- the command ----------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _check_device(options.spec)
        data = digits() if options.data == "digits" else synthetic()
        run = train(data, options.model, options.steps, options.batch, spec=options.spec)
    except ModuleNotFoundError as error:
        print(
            f"{error}. Install it with pip install -e '.[examples]', or use --data synthetic.",
            file=sys.stderr,
        )
        return 2
    except eqsat.EqsatError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return _report(run, data, options)


def _check_device(spec: str | None) -> None:
    """Raise UnsupportedError for a GPU's spec where CUDA cannot run, before anything compiles."""
    if spec not in (None, "cpu") and load(spec).target == "cuda" and (why := missing()):
        raise UnsupportedError(f"{why} Or leave --spec out.")


def _report(run: Run, data: Data, options: argparse.Namespace) -> int:
    report = run.program.report
    rows = {
        "losses": ", ".join(f"{x:.4f}" for x in run.losses[:: max(len(run.losses) // 6, 1)]),
        "test accuracy": f"{run.accuracy:.2%} of {len(data.test_labels)} images",
        "step": f"{run.seconds * 1e3:.3f} ms, {1 / run.seconds:.0f} steps/s",
        "program": f"{report.operations} operations, {len(run.program.kernels)} kernels",
        "compiled in": f"{report.compile_seconds:.1f} s, search {report.search_seconds:.1f} s",
    }
    apart = 0.0
    if options.model == "mlp":
        apart = distance(run, data, options.batch, Adam())
        rows["from NumPy"] = f"{apart:.1e} at most, relative, over {len(run.losses)} losses"
    table = Table(f"{options.model} on {options.data}", "", show_edge=False)
    for name, text in rows.items():
        table.add_row(name, text)
    Console().print(table)
    return 0 if apart <= MAX_DISTANCE else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="train.py", description=__doc__.split("\n")[0])
    add: Any = parser.add_argument
    add("--model", choices=sorted(MODELS), default="mlp")
    add("--data", choices=("digits", "synthetic"), default="digits")
    add("--steps", type=_positive, default=300, help="training steps (default 300)")
    add("--batch", type=_positive, default=128, help="images in a batch (default 128)")
    add("--spec", help="a shipped spec's name or a TOML file; default: this machine's CPU")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
