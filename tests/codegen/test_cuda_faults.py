"""Errors of a device, told with the kernels that were launched."""

import subprocess
import sys

import pytest

import eqsat.graph as eg
from eqsat import driver
from eqsat.codegen.cuda.run.faults import named
from eqsat.specs import load


def error(
    status: int | None, name: str = "CUDADriverError", module: str = "cupy.cuda"
) -> Exception:
    made = type(name, (RuntimeError,), {"__module__": module})("told by CUDA")
    if status is not None:
        made.status = status
    return made


def launches():
    x = eg.input("x", (64, 64), eg.float32)
    return driver.plan([eg.exp(x)], load("h200")).parts.launches


def test_a_kernel_that_faults_is_named_with_its_rules():
    (launch,) = launches()
    told = str(named(error(700), [launch]))
    assert f"{launch.kernel.name} (rules {', '.join(launch.kernel.rules)})" in told
    assert "told by CUDA" in told and "start a new one" in told and "before" not in told
    assert "in one of, or before, " in str(named(error(719), [launch, launch]))


def test_what_leaves_the_context_alone_says_so():
    told = str(named(error(1), launches()))
    assert "refused" in told and "new one" not in told


def test_memory_that_runs_out_has_a_way_out():
    told = str(named(error(None, "OutOfMemoryError"), []))
    assert "too little memory" in told and "out=" in told


@pytest.mark.parametrize("other", [ValueError("no"), error(700, module="other"), error(None)])
def test_other_errors_are_left_as_they_are(other):
    assert named(other, []) is None


FAULT = """
import cupy, numpy, eqsat, eqsat.graph as eg
from eqsat.codegen.cuda.run.launch import Launch
x = eg.input("x", (64, 64), eg.float32)
program = eqsat.compile(eg.exp(x), spec="h200")
good = program(numpy.zeros((64, 64), numpy.float32))
assert (good == 1).all()
Launch.__call__, call = lambda self, p: call(self, [16] * len(p)), Launch.__call__
try:
    program(numpy.zeros((64, 64), numpy.float32))
except eqsat.errors.DeviceError as error:
    print("told:", error)
"""


@pytest.mark.gpu
def test_a_fault_on_the_device_is_told():
    run = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True)
    assert "told: the device stopped" in run.stdout and "rules" in run.stdout, run.stderr
