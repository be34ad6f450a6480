"""Random kernels of warpgroups: sizes, tiles, layouts, threads and stages that nobody chose."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from converted_cases import cached, scaled_weights
from cuda_cases import Case, case
from cuda_emulation import COMPILER, SCHEDULES, Emulator
from kernel_building import Sample, arrays, check
from pipeline_cases import (
    OPERATIONS,
    attention,
    batched,
    biased,
    convolution,
    gemm,
    scaled,
    swiglu,
)

from eqsat.codegen.cuda.emit import emit
from eqsat.errors import UnsupportedError
from eqsat.graph.dtypes import (
    bfloat16,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    int8,
    uint8,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine"),
]
KERNELS = 40
LIMIT = 232448  # bytes of shared memory of a block
COLUMNS = (8, 16, 24, 32, 40, 48, 64, 80, 96, 128)


def random_sample(random: Random) -> Sample:
    """A sample of any family; legal strides, everything else as it comes."""
    columns = random.choice(COLUMNS)
    tiles = (
        random.choice((16, 32, 64, 128, 192)),
        columns * random.choice((1, 2, 3)),
        random.choice((16, 32, 48, 64, 80, 128)),
    )
    m, n, k = random.randint(1, 200), random.randint(1, 200), 8 * random.randint(1, 25)
    rounded = 8 * random.randint(1, 25)
    families = ("gemm", "gemm", "scaled", "swiglu", "biased", "batched", "attention", "")
    match random.choice((*families, "converted", "cached")):
        case "gemm":
            dtype = random.choice((bfloat16, bfloat16, float16, float32, int8))
            if dtype in (float32, int8):
                columns = random.choice((8, 16, 32, 64))
                tiles = (tiles[0], columns * 2, tiles[2])
                return gemm(m, n, 2 * k, tiles, columns, "nt", dtype)
            layout = random.choice(("nt", "nn", "tn", "tt"))
            m, n = rounded if layout[0] == "t" else m, rounded if layout[1] == "n" else n
            out = random.choice((None, bfloat16)) if dtype == bfloat16 else None
            return gemm(m, n, k, tiles, columns, layout, dtype, out)
        case "scaled":
            side, memory = random.choice(("left", "right")), random.choice(("registers", "shared"))
            return scaled(m, n, k, tiles, columns, side, memory)
        case "swiglu":
            return swiglu(m, rounded, k, tiles, columns)
        case "biased":
            return biased(m, rounded, k, tiles, columns)
        case "batched":
            return batched(m, n, k, tiles, columns)
        case "converted":
            kept = random.choice((float8_e4m3fn, float8_e5m2, int8, uint8))
            size, across = (m, n, 2 * k), random.choice((False, True))
            size = (m, 2 * rounded, k) if across else size
            along, dtype = random.choice(("", "j", "l")), random.choice((bfloat16, float16))
            return scaled_weights(size, tiles, columns, kept, across, along, dtype)
        case "cached":
            d, keys = random.choice((16, 32, 48, 64, 128)), random.choice((16, 32, 48, 64, 80))
            kept, mask = random.choice((float8_e4m3fn, int8)), random.choice(("", "causal"))
            return cached(m, n, d, (tiles[0], keys), kept, mask)
        case "attention":
            mask = random.choice(("", "added", "causal", "window"))
            n = max(n, m) if mask == "window" else n  # no row without a key
            d, keys = random.choice((16, 32, 48, 64, 128)), random.choice((16, 32, 48, 64, 80))
            return attention(m, n, d, (tiles[0], keys), mask)
    shape = (random.randint(1, 14), random.randint(1, 14), 8 * random.randint(1, 8), rounded)
    cut = (random.randint(1, 8), random.choice((1, 2, 4, 5, 8, 16)), random.choice((16, 32, 64)))
    step, stored = random.choice((1, 1, 2)), random.choice((float32, bfloat16))
    return convolution(shape, cut, columns, step, stored, random.choice((0, 0, 2)))


def random_cases(seed: int) -> list[Case]:
    """Those that the target takes and whose tiles fit."""
    random, found = Random(seed), []
    while len(found) < KERNELS:
        sample = random_sample(random)
        one = case(
            f"random_{len(found)}",
            sample,
            random.choice((128, 128, 256, 384)),
            random.randint(1, 4),
        )
        order = {"band": random.choice((1, 2, 3, 8)), "uneven": random.random() < 0.2}
        one = replace(one, kernel=replace(one.kernel, **order))
        try:
            if emit(one.kernel, OPERATIONS).shared_bytes <= LIMIT:
                found.append(one)
        except UnsupportedError:
            continue
    return found


@pytest.mark.parametrize("seed", range(3))
def test_random_kernels_give_their_answers(seed, tmp_path):
    with np.errstate(all="ignore"):
        cases = random_cases(seed)
    kernels = [c.kernel for c in cases]
    emulator = Emulator(kernels, [emit(k, OPERATIONS) for k in kernels], tmp_path)
    for number, c in enumerate(cases):
        for blocks, schedule in ((1, 0), (1, 2), (3, SCHEDULES - 1)):
            found = arrays(c.sample)
            emulator.run(number, found, blocks, schedule)
            check(c.sample, found)
