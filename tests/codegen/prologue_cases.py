"""Products whose left factor is computed from copied tiles on its way into registers."""

from collections.abc import Iterator

import numpy as np
from cuda_cases import Case, case
from kernel_building import Body, Sample, at, buffers, wide
from pipeline_cases import by, integers

from eqsat.graph.dtypes import DType, bfloat16, float16, float32
from eqsat.kernel.ir import Axis, Buffer, Carry, Kernel, Store

NUMPY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
}


def prologue(
    op: str,
    size: tuple[int, int, int],
    tiles: tuple[int, int, int],
    columns: int,
    dtype: DType = bfloat16,
    down: str = "n",
    widened: bool = True,
    summed: bool = False,
) -> Sample:
    """y[i,j] = sum_l op(x[i,l], s[l]) w[j,l] with op on 16-bit values, rounded to that; x[l,i] with
    `down` "t"; `widened`: computed in float32 and rounded. `summed`: also z[i] = sum_l x[i,l]^2.
    """
    m, n, k = size
    x, w, s = buffers(dtype, x=(m, k) if down == "n" else (k, m), w=(n, k), s=(k,))
    y, z = Buffer("y", (m, n), float32, "output"), Buffer("z", (m,), float32, "output")
    b, end = Body(dtype), Body()
    b.load("a", "i l", at(x, *("il" if down == "n" else "li")), memory="shared")
    b.load("f", "l j", at(w, "j", "l"))
    b.load("by_k", "l", at(s, "l"), memory="registers")
    if widened:
        b.map("wide_a", "i l", "cast", "a", dtype=float32)
        b.map("wide_s", "l", "cast", "by_k", dtype=float32)
        b.map("exact", "i l", op, "wide_a", "wide_s", dtype=float32)
        b.map("made", "i l", "cast", "exact")
    else:
        b.map("made", "i l", op, "a", "by_k")
    b.dtype = float32
    carries = [Carry("acc", float32, ("i", "j"), "sum")]
    if summed:
        b.map("again", "i l", "cast", "a")
        b.map("power", "i l", "square", "again")
        b.reduce("part", "i", "sum", "l", "power")
        b.update("more", "i", "powers", "sum", "part")
        carries.append(Carry("powers", float32, ("i",), "sum"))
    b.contract("p", "i j", "l", "made", "f", by(columns, dtype=dtype, held=True))
    b.update("next", "i j", "acc", "sum", "p")
    stream = b.phase(stream=(Axis("l", k, tiles[2]),), carries=tuple(carries))
    grid = (Axis("i", m, tiles[0]), Axis("j", n, tiles[1]))
    stores = [Store(at(y, "i", "j"), "acc"), *([Store(at(z, "i"), "powers")] if summed else [])]
    p, q, u = integers((m, k), (n, k), (k,), dtype=dtype)
    made = NUMPY[op](wide(p), wide(u)).astype(dtype.numpy)
    answers = {"y": wide(made) @ wide(q).T}
    if summed:
        answers["z"] = np.square(wide(p)).sum(axis=1)
    given = p if down == "n" else np.ascontiguousarray(p.T)
    kernel = Kernel(
        "prologue", (x, w, s, y, *([z] if summed else [])), grid, (), (stream, end.phase(*stores))
    )
    return Sample(kernel, {"x": given, "w": q, "s": u}, answers, 1e-6)


def prologue_cases() -> Iterator[Case]:
    for op in NUMPY:
        dtype = float16 if op in ("add", "minimum") else bfloat16
        sample = prologue(op, (72, 56, 192), (64, 32, 64), 32, dtype, widened=op != "sub")
        yield case(f"prologue-{op}", sample, 128, 3)
    for down in "nt":
        sample = prologue("mul", (136, 40, 128), (128, 32, 32), 32, down=down, summed=True)
        yield case(f"prologue-{down}-beside", sample, 256, 2)
    sample = prologue("mul", (200, 48, 128), (128, 32, 64), 32)
    yield case("prologue-two-fragments", sample, 128, 3)
    sample = prologue("mul", (72, 40, 200), (64, 32, 64), 32)  # no whole chunks: element by element
    yield case("prologue-partial", sample, 128, 3)
