"""Lookups, derived rates and counterfactual edits."""

import pytest

from eqsat.errors import SpecError
from eqsat.specs import FrozenTable, OperationSemantics, ParallelOperation, dumps, load, loads

UNIT = load("example_cuda")


def axpy(name: str = "axpy") -> ParallelOperation:
    return ParallelOperation(
        name=name,
        supported_by="thread",
        supported_data_types=(FrozenTable({"a": "float32", "b": "float32", "d": "float32"}),),
        latency_cycles=4,
        throughput_per_cycle=32,
        throughput_group="block",
        semantics=OperationSemantics.parse("d[i] += a[] * b[i]"),
        extents=FrozenTable({"i": 2}),
    )


def test_lookups_suggest() -> None:
    assert UNIT.group("warp").size == 32
    assert UNIT.memory("shared").size_bytes == 49152
    with pytest.raises(SpecError, match=r"no parallel group `wrap`.\nDid you mean `warp`"):
        UNIT.group("wrap")
    with pytest.raises(SpecError, match=r"no memory domain `sharde`.\nDid you mean `shared`"):
        UNIT.memory("sharde")
    with pytest.raises(SpecError, match=r"no operation `vector_ad`.\nDid you mean `vector_add`"):
        UNIT.operation("vector_ad")
    with pytest.raises(SpecError, match=r"warp does not contain block"):
        UNIT.members("warp", "block")


def test_matrix_operation_by_dtype() -> None:
    (operation,) = UNIT.contractions("bfloat16")
    assert operation.name == "matrix_multiply"
    assert UNIT.contractions("bfloat16", "float32") == (operation,)
    assert UNIT.contractions("bfloat16", "bfloat16") == ()
    assert UNIT.contractions("float16") == ()
    assert operation.updates_per_invocation == 16 * 8 * 16
    assert UNIT.updates_per_s(operation) == 0.25 * 2048 * 4 * 1e9


def test_elementwise_rates() -> None:
    rows = {operation.name: slots for operation, slots in UNIT.elementwise("exp", "float32")}
    assert rows == {"arithmetic": 6, "special": 1}
    assert UNIT.elementwise_elements_per_s("exp", "float32") == pytest.approx(4e9 * 64 / 6)
    with pytest.raises(SpecError, match=r"no operation that implements `thanh`(?s:.*)`tanh`"):
        UNIT.elementwise("thanh", "float32")
    with pytest.raises(SpecError, match=r"implements `exp` for .*, not for tfloat32.\nAdd a row"):
        UNIT.elementwise("exp", "tfloat32")


def test_operation_edits() -> None:
    less = UNIT.without_operation("vector_add")
    assert not less.has_operation("vector_add")
    assert less.with_operation(UNIT.operation("vector_add")).has_operation("vector_add")
    more = UNIT.with_operation(axpy())
    assert loads(dumps(more)) == more
    assert len(more.with_operation(axpy()).operations) == len(more.operations)
    slow = UNIT.replace_operation("matrix_multiply", throughput_per_cycle=0.125)
    assert slow.operation("matrix_multiply").throughput_per_cycle == 0.125
    with pytest.raises(SpecError, match=r"no operation `gemm`"):
        UNIT.without_operation("gemm")


def test_memory_and_group_edits() -> None:
    assert UNIT.replace_memory("shared", size_bytes=1024).memory("shared").size_bytes == 1024
    assert UNIT.replace_group("block", count=8).processors == 8
    with pytest.raises(SpecError, match=r"no field `size`.\nDid you mean `size_bytes`"):
        UNIT.replace_memory("shared", size=1024)
    with pytest.raises(SpecError, match=r"size_bytes is 0; it must be above 0"):
        UNIT.replace_memory("shared", size_bytes=0)


def test_fingerprint_follows_content() -> None:
    same = UNIT.replace_memory("dram", bandwidth_gb_per_s=100)
    assert same == UNIT
    assert same.fingerprint == UNIT.fingerprint
    assert UNIT.replace_memory("dram", bandwidth_gb_per_s=101).fingerprint != UNIT.fingerprint
    assert UNIT.without_operation("special").fingerprint != UNIT.fingerprint


def test_classes_refuse_what_files_refuse() -> None:
    with pytest.raises(SpecError, match=r"ParallelOperation 'a b': name is 'a b', which is no"):
        axpy("a b")
    with pytest.raises(SpecError, match=r"example_cuda: operations `axpy`, supported_by names"):
        UNIT.with_operation(axpy()).without_operation("axpy").with_operation(
            ParallelOperation(**{**vars(axpy()), "supported_by": "lane"})
        )


def test_a_source_for_a_target_that_reads_none_is_refused() -> None:
    with pytest.raises(SpecError, match=r"spec example_cuda: operations `special`, native_impleme"):
        UNIT.replace_operation("special", native_implementation={"cpu": "def special(): ..."})


def test_frozen_table() -> None:
    table = FrozenTable({"m": 16, "n": 8})
    assert table == {"n": 8, "m": 16}
    assert hash(table) == hash(FrozenTable([("n", 8), ("m", 16)]))
    assert repr(table) == "FrozenTable({'m': 16, 'n': 8})"
    with pytest.raises(AttributeError, match=r"does not change"):
        table._values = {}


def test_awkward_texts_round_trip() -> None:
    for text in ("a\tb", "it's", "'''", "two\nlines", "two\nlines'", "\x7f\x01", "\\n", '"q"',
                 "\ncarriage\r\n", "π", "#"):  # fmt: skip
        operation = UNIT.operation("vector_add")
        changed = UNIT.replace_operation(
            operation.name, native_implementation={"cuda": text}, description=text
        )
        assert loads(dumps(changed)) == changed
