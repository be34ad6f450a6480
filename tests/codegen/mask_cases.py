"""Attention and products whose masks leave chunks out."""

from collections.abc import Iterator
from dataclasses import replace

from cuda_cases import BF16, Case, case
from kernel_building import Sample
from kernel_products import triangle
from pipeline_cases import attention, gemm

from eqsat.kernel.ir import Contract


def by_warps(sample: Sample) -> Sample:
    """The kernel with other operations."""
    phases = [
        replace(
            phase,
            body=tuple(
                replace(s, operation=BF16) if isinstance(s, Contract) else s for s in phase.body
            ),
        )
        for phase in sample.kernel.phases
    ]
    return replace(sample, kernel=replace(sample.kernel, phases=tuple(phases)))


def masked_cases() -> Iterator[Case]:
    """Several chunks, copied ahead or not; the first and the last ones left out, or all but one."""
    for mask in ("causal", "window"):
        for stages in (1, 2, 3):
            sample = by_warps(attention(200, 208, 32, (32, 32), mask))
            yield case(f"flash-{mask}-{stages}", sample, 64, stages)
    for stages in (1, 2):
        sample = by_warps(triangle(gemm(100, 90, 96, (32, 32, 32), 32)))
        yield case(f"triangle-{stages}", sample, 64, stages)
