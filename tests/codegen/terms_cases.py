"""Kernels that multiply float32 factors whose terms of bfloat16 lie in memory."""

from collections.abc import Iterator

import numpy as np
from cuda_cases import Case, case
from kernel_building import Body, Sample, Tiles
from narrow_cases import DATA
from pipeline_cases import by

from eqsat.graph.dtypes import bfloat16, float32
from eqsat.graph.index import row_major
from eqsat.kernel.ir import Access, Axis, Buffer, Carry, Contract, Kernel, Store
from eqsat.layout.narrow import TERMS, split

COUNT = TERMS["bfloat16"]
ACCURACY = 3e-6


def stored(values: np.ndarray, pitch: int) -> np.ndarray:
    """The terms of float32 values as rows `pitch` apart, NaN between them; those of a value that is
    not finite are the value and zeros.
    """
    terms = np.array(split(values, "bfloat16", COUNT))
    terms[1:, ~np.isfinite(values)] = 0
    room = np.full((*terms.shape[:2], pitch), np.nan, np.float32)
    room[:, :, : values.shape[1]] = terms
    with np.errstate(invalid="ignore"):
        return room.astype(bfloat16.numpy)


def product(
    m: int,
    n: int,
    k: int,
    tiles: Tiles,
    columns: int,
    layout: str = "nn",
    data: str = "normal",
    whole: str = "",
) -> Sample:
    """y[i,j] = sum_l x[i,l] w[l,j], in float32; `layout` as BLAS has it, row-major. `whole`: the
    factor that lies there as float32, and is split as it is read.
    """
    x, w = DATA[data](np.random.default_rng(m + k), (m, k), (k, n))
    with np.errstate(invalid="ignore"):
        answer = x.astype(np.float64) @ w.astype(np.float64)
    b, end, buffers, inputs = Body(bfloat16), Body(), [], {}
    for name, values, names, turned in (
        ("x", x, "il", layout[0] == "t"),
        ("w", w, "lj", layout[1] == "t"),
    ):
        values, names = (values.T, names[::-1]) if turned else (values, names)
        rows, pitch = values.shape[0], -(-values.shape[1] // 8) * 8
        values, extents = np.ascontiguousarray(values), {names[0]: rows, names[1]: pitch}
        order = "i l t" if name == "x" else "l j t"
        if name == whole:
            buffers.append(Buffer(name, (rows, pitch), float32, "input"))
            room = np.full((rows, pitch), np.nan, np.float32)
            room[:, : values.shape[1]] = values
            inputs[name] = room
            b.dtype = float32
            b.load(f"{name}_terms", order[:3], Access(name, row_major((*names,), extents)))
            b.dtype = bfloat16
            continue
        buffers.append(Buffer(name, (COUNT, rows, pitch), bfloat16, "input"))
        inputs[name] = stored(values, pitch)
        address = row_major(("t", *names), {"t": COUNT, **extents})
        b.load(f"{name}_terms", order, Access(name, address))
    contract = Contract(
        "p",
        float32,
        ("i", "j"),
        ("l", "t"),
        "x_terms",
        "w_terms",
        by(columns, held=bool(whole)),
        "bfloat16",
        COUNT,
        "t",
    )
    b.statements.append(contract)
    b.dtype = float32
    b.update("next", "i j", "acc", "sum", "p")
    carry = Carry("acc", float32, ("i", "j"), "sum")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=(carry,))
    y = Buffer("y", (m, n), float32, "output")
    store = Store(Access("y", row_major(("i", "j"), {"i": m, "j": n})), "acc")
    kernel = Kernel(
        "terms",
        (*buffers, y),
        (Axis("i", m, tiles[0]), Axis("j", n, tiles[1])),
        (Axis("t", COUNT, COUNT),),
        (stream, end.phase(store)),
    )
    return Sample(kernel, inputs, {"y": answer}, ACCURACY)


def terms_cases() -> Iterator[Case]:
    """Each layout, partial tiles, several warpgroups and columns, and what is not finite."""
    for layout in ("nn", "tt"):
        sample = product(70, 50, 72, (64, 64, 32), 64, layout)
        yield case(f"terms-{layout}", sample, 128, 2)
    yield case("terms-rows", product(130, 40, 40, (128, 32, 16), 32), 256, 2)
    yield case("terms-columns", product(64, 136, 72, (64, 128, 64), 64), 256, 1)
    yield case("terms-one", product(1, 1, 8, (64, 16, 16), 16), 128, 2)
    for layout, whole in (("nn", "x"), ("tn", "x"), ("nt", "x"), ("nn", "w"), ("tt", "w")):
        rows = (128, 64, 32) if whole == "x" else (64, 128, 32)
        sample = product(140, 136, 72, rows, 64, layout, whole=whole)
        yield case(f"terms-{layout}-of-{whole}", sample, 256, 2)
    yield case("terms-rows-of-x", product(200, 40, 40, (192, 32, 16), 32, whole="x"), 384, 3)
    yield case("terms-beside-x", product(70, 130, 72, (64, 128, 64), 64, whole="x"), 256, 1)
    special = product(70, 50, 72, (64, 64, 32), 64, "nn", "special", "x")
    yield case("terms-special-x", special, 128, 2)
    yield case("terms-special", product(70, 50, 72, (64, 64, 32), 64, "tn", "special"), 128, 2)


def large(whole: str = "") -> Case:
    """The tile that large products are computed with; `whole` as of `product`."""
    sample = product(256, 256, 256, (128, 128, 64), 128, whole=whole)
    return case(f"terms_large_{whole or 'ahead'}", sample, 256, 2)
