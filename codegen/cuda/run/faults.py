"""What the errors of a device mean for a program: which kernels ran, and what to do next.

Kernels run while Python goes on, so that the error of one is told by a later call, and by every
call after that.
"""

from collections.abc import Sequence

from eqsat.errors import DeviceError
from eqsat.program import Launch

LOST = frozenset({700, 702, 710, 714, 715, 716, 717, 718, 719})
"""Values of CUresult (CUDA driver API) after which the process's context is of no more use."""


def named(error: Exception, launches: Sequence[Launch]) -> DeviceError | None:
    """The error of a CUDA call while the launches ran, told with their kernels; None for others."""
    status = getattr(error, "status", None)
    if type(error).__name__ == "OutOfMemoryError":
        return DeviceError(
            f"the device has too little memory for the program's outputs and temporaries: {error}. "
            f"Free arrays, pass out=, or call cupy.get_default_memory_pool().free_all_blocks()."
        )
    if not isinstance(status, int) or not type(error).__module__.startswith("cupy"):
        return None
    ran = ", ".join(
        f"{one.kernel.name} (rules {', '.join(one.kernel.rules) or 'none'})" for one in launches
    )
    if status not in LOST:
        return DeviceError(f"CUDA refused a call of the program: {error}. Its kernels: {ran}.")
    one = "in" if len(launches) == 1 else "in one of, or before,"
    return DeviceError(
        f"the device stopped: {error}; {one} {ran}. CUDA calls of this process fail from here on: "
        f"start a new one. With CUDA_LAUNCH_BLOCKING=1 each kernel is waited for, so that the one "
        f"that fails is named; compile without one of its rules (rules=) to go on."
    )
