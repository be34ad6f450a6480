"""Functions run on a processing unit with the schedule open, constrained, or refused."""

from dataclasses import replace

import numpy as np
import pytest

import eqsat
from eqsat import specs
from eqsat.errors import SpecError
from eqsat.executor import ExecutionConfig, KernelExecutor

pytestmark = pytest.mark.usefixtures("shared_search")


def double(x):
    return x * 2.0


def test_runs_with_the_schedule_left_open():
    executor = KernelExecutor(ExecutionConfig(processing_unit=specs.cpu()))
    x = np.arange(600, dtype=np.float32)
    np.testing.assert_array_equal(executor.run(double, x), 2 * x)
    np.testing.assert_array_equal(executor.run(double, x[:7]), 2 * x[:7])


def test_a_given_grid_is_kept():
    unit = replace(specs.load("h200"), target="oracle")
    plan = eqsat.driver.plan(double(eqsat.input("x", 4096)), unit, grid_dim=8, block_dim=128)
    (launch,) = plan.parts.launches
    assert (launch.kernel.tiles, launch.kernel.threads) == (8, 128)


def test_an_illegal_block_is_refused_with_the_legal_ones():
    config = ExecutionConfig(replace(specs.load("h200"), target="oracle"), block_dim=100)
    with pytest.raises(SpecError, match=r"block_dim 100 is not legal.*128, 256, 512"):
        KernelExecutor(config).run(double, np.ones(4096, np.float32))


def test_an_illegal_grid_is_refused_with_the_legal_ones():
    config = ExecutionConfig(specs.cpu(), grid_dim=7)
    with pytest.raises(SpecError, match=r"grid_dim 7 is not legal.*its tiles make grids of 1"):
        KernelExecutor(config).run(double, np.ones(64, np.float32))
