"""Which ways to compute the values of a kernel are worth combining."""

from eqsat.saturate.saturation import Class, ENode
from eqsat.schedule.bodies import _placed
from eqsat.specs import load

SPEC = load("h200")
SHARED, REGISTERS, WAITED = (
    "wgmma_m64n64k16_bf16_ss",
    "wgmma_m64n64k16_bf16_rs",
    "mma_m16n8k16_bf16",
)


def product(op: str, left: int, right: int, operation: str) -> ENode:
    return ENode(op, (1, Class(left), Class(right), operation))


def products(op: str, left: int, right: int) -> list[ENode]:
    """A product by each operation, and by none."""
    return [product(op, left, right, name) for name in (SHARED, REGISTERS, "")]


def cast(dtype: str, number: int) -> ENode:
    return ENode("cast", (dtype, Class(number)))


def names(ways: list[ENode]) -> list[object]:
    return [way.args[3] for way in ways]


def test_computed_factors_of_operations_that_are_started_lie_in_registers() -> None:
    """They are no way too many: of many products, combinations are cut short."""
    options = {
        1: [ENode("read", ("x",))],
        2: [cast("float32", 1)],  # read as it lies
        3: [cast("bfloat16", 5)],
        4: products("contract", 2, 2),
        5: [ENode("exp", (Class(4),))],
        6: [cast("float32", 3)],  # rounded
        7: products("contract", 6, 2),
        8: products("weighted_contract", 5, 2),
        9: products("contract", 6, 6),
        10: [product("contract", 6, 2, WAITED)],
    }
    kept = _placed(options, SPEC)
    assert names(kept[4]) == [SHARED, REGISTERS, ""]
    assert names(kept[7]) == names(kept[8]) == [REGISTERS, ""]
    assert names(kept[9]) == [""], "one factor lies in registers"
    assert names(kept[10]) == [WAITED]
    assert all(kept[number] == options[number] for number in (1, 2, 3, 5, 6))
