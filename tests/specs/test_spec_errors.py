"""Every way in which a spec file can be wrong has a located message with the next step."""

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

from eqsat import specs
from eqsat.errors import SpecError
from eqsat.specs import load, loads

ROOT = Path(__file__).parent.parent.parent
GOOD = """\
name = "tiny"
target = "cuda"
architecture = "sm_80"
clock_mhz = 1000
launch_latency_us = 5
tile_group = "block"

[[parallel_groups]]
name = "thread"

[[parallel_groups]]
name = "block"
contains = "thread"
size = 256
count = 4

[[memory_domains]]
name = "shared"
size_bytes = 49152
latency_cycles = 30
bandwidth_gb_per_s = 100
shared_across = "block"

[[operations]]
name = "dot"
supported_by = "block"
supported_data_types = [{a = "float32", b = "float32", d = "float32"}]
latency_cycles = 4
throughput_per_cycle = 1
throughput_group = "block"
semantics = "d[] += a[k] * b[k]"
extents = {k = 4}
operand_memory = {a = "shared"}
"""

CASES = [
    ("clock_mhz = 1000", "clock_mhs = 1000", "4: clock_mhs is an unknown key.\n"
     "Did you mean `clock_mhz`"),
    ("clock_mhz = 1000", 'clock_mhz = "1 GHz"', "4: clock_mhz is '1 GHz'; it must be a number"),
    ("clock_mhz = 1000", "clock_mhz = 0", "4: clock_mhz is 0; it must be above 0"),
    ("clock_mhz = 1000", "clock_mhz = inf", "it must be a finite number"),
    ("clock_mhz = 1000", "clock_mhz = true", "clock_mhz is True; it must be a number"),
    ("clock_mhz = 1000\n", "", "clock_mhz is missing. Add `clock_mhz = ...`"),
    ("launch_latency_us = 5", "launch_latency_us = -5", "must not be below 0"),
    ('target = "cuda"', 'target = "cude"', "2: target is 'cude'.\nDid you mean `cuda`"),
    ('"sm_80"', '"sm 80"', "3: architecture is 'sm 80'; it must be 1 to 64 letters"),
    ('tile_group = "block"', 'tile_group = "blok"', "6: tile_group names the unknown group `blok`."
     "\nDid you mean `block`? Known: thread, block"),
    ('name = "tiny"', 'name = "tiny; rm"', "1: name is 'tiny; rm', which is no identifier; "
     "names may reach generated source"),
    ('name = "dot"', 'name = "dot(){}"', "25: operations `dot(){}`, name is 'dot(){}', which"),
    ('name = "dot"', 'name = "d\\u03bft"', "which is no identifier"),
    ('name = "dot"', 'name = ""', "which is no identifier"),
    ('contains = "thread"', 'contains = "tread"', "13: parallel_groups `block`, contains names the"
     " unknown group `tread`"),
    ('contains = "thread"', 'contains = "block"', "which comes later. List the groups innermost"),
    ('name = "block"', 'name = "thread"', "12: parallel_groups `thread`, name is used twice"),
    ("size = 256", "size = 0", "14: parallel_groups `block`, size is 0; it must be above 0"),
    ("size = 256", "size = 2.5", "size is 2.5; it must be a whole number"),
    ("size_bytes = 49152", "size_byte = 49152", "19: memory_domains `shared`, size_byte is an "
     "unknown key.\nDid you mean `size_bytes`"),
    ("size_bytes = 49152", "size_bytes = -1", "19: memory_domains `shared`, size_bytes is -1"),
    ("size_bytes = 49152", 'size_bytes = "48 KiB"', "must be a whole number"),
    ("size_bytes = 49152", "size_bytes = 49152\nmax_per_group_bytes = 49153",
     "max_per_group_bytes is 49153, above size_bytes = 49152"),
    ("size_bytes = 49152", "size_bytes = 49152\nsustained_fraction = 1.5", "must not be above 1"),
    ("size_bytes = 49152", 'size_bytes = 49152\nmanaged = "soft"', "Did you mean `software`"),
    ('shared_across = "block"', 'shared_across = "sm"', "22: memory_domains `shared`, shared_across"
     " names the unknown group `sm`"),
    ('supported_by = "block"', 'supported_by = "warp"', "26: operations `dot`, supported_by names"),
    ('d = "float32"', 'd = "float31"', "27: operations `dot`, supported_data_types row 1 d is "
     "'float31'.\nDid you mean `float32`"),
    (', d = "float32"', "", "supported_data_types lacks operand `d` in one row"),
    ('d = "float32"', 'd = "float32", e = "int8"', "names the unknown operand `e`"),
    ('[{a = "float32", b = "float32", d = "float32"}]', '"float32"', "must be a list of tables"),
    ('[{a = "float32", b = "float32", d = "float32"}]', "[{}]", "row 1 is empty"),
    ("d[] += a[k] * b[k]", "d[] += a[k] * ", "31: operations `dot`, semantics does not parse"),
    ('semantics = "d[] += a[k] * b[k]"', "semantics = 3", "semantics is 3; it must be text"),
    ('semantics = "d[] += a[k] * b[k]"\n', "", "semantics is missing, and so is `implements`"),
    ("extents = {k = 4}", "extents = {}", "32: operations `dot`, extents lacks index `k` of"),
    ("extents = {k = 4}", "extents = {k = 4, j = 1}", "names the unknown index `j`"),
    ("extents = {k = 4}", "extents = {k = -4}", "extents k is -4; it must not be below 0"),
    ("extents = {k = 4}", "extents = 4", "extents is 4; it must be a table, as {m = 16}"),
    ('{a = "shared"}', '{a = "share"}', "33: operations `dot`, operand_memory a names the unknown "
     "memory domain `share`.\nDid you mean `shared`"),
    ('{a = "shared"}', '{c = "shared"}', "operand_memory names the unknown operand `c`"),
    ('{a = "shared"}', '{a = "shared"}\ncontiguous = {c = "k"}',
     "34: operations `dot`, contiguous names the unknown operand `c`"),
    ('{a = "shared"}', '{a = "shared"}\ncontiguous = {d = "k"}',
     "contiguous d names the unknown index `k`.\nKnown: none"),
    ('{a = "shared"}', '{a = "shared"}\ncontiguous = "k"', "contiguous is 'k'; it must be a table"),
    ('{a = "shared"}', '{a = "shared"}\nimplements = {"exp;" = 1}', "implements key is 'exp;'"),
    ('{a = "shared"}', '{a = "shared"}\nimplements = {sqtr = 1}',
     "34: operations `dot`, implements has the unknown key 'sqtr'.\nDid you mean `sqrt`"),
    ('{a = "shared"}', '{a = "shared"}\n[operations.implements]\nadd = 1\nsqtr = 1',
     "36: operations `dot`, implements has the unknown key 'sqtr'"),
    ('{a = "shared"}', '{a = "shared"}\nimplements.add = 1\nimplements.clip = 2',
     "35: operations `dot`, implements has the unknown key 'clip'"),
    ('{a = "shared"}', '{a = "shared"}\n[operations.implements]\nadd = 1\nexp = -1',
     "36: operations `dot`, implements exp is -1; it must be above 0"),
    ('d = "float32"', 'd = "uint32"', "row 1 d is 'uint32'.\nDid you mean `int32`"),
    ("size_bytes = 49152", "size_bytes = 49152\nbank_width_bytes = 4",
     "20: memory_domains `shared`, bank_width_bytes is an unknown key"),
    ('{a = "shared"}', '{a = "shared"}\nasynchronous = 1', "asynchronous is 1; it must be true"),
    ('{a = "shared"}', '{a = "shared"}\ninvocation_name = "a\\nb"', "it must be one line"),
    ('{a = "shared"}', '{a = "shared"}\nnative_implementation = {cud = "x"}',
     "has the unknown key 'cud'.\nDid you mean `cuda`"),
    ('{a = "shared"}', '{a = "shared"}\nnative_implementation = {cpu = "x"}',
     "34: operations `dot`, native_implementation is for target `cpu`, which reads none: cuda and "
     "oracle do.\nRemove it, and name a row of that target's emitter by invocation_name."),
    ('name = "tiny"', 'name = "tiny"\nsources = "me"', "sources is 'me'; it must be a list"),
    ('name = "tiny"', 'name = "tiny"\ndescription = 3', "description is 3; it must be text"),
    ('name = "tiny"', 'name = "tiny', "bad.toml: no valid TOML: Illegal character '\\n'"),
]  # fmt: skip


def test_the_good_spec_is_good() -> None:
    assert loads(GOOD).operation("dot").extents["k"] == 4


@pytest.mark.parametrize(("good", "bad", "message"), CASES, ids=[case[1][:40] for case in CASES])
def test_located_message(good: str, bad: str, message: str) -> None:
    assert good in GOOD
    with pytest.raises(SpecError) as caught:
        loads(GOOD.replace(good, bad, 1), origin="bad.toml")
    shown = re.sub(r"\n +", "\n", str(caught.value))
    assert message in shown
    assert "bad.toml" in shown.splitlines()[0]


def test_all_problems_come_in_one_report() -> None:
    text = GOOD.replace("clock_mhz", "tick").replace("size = 256", "size = 0")
    with pytest.raises(SpecError) as caught:
        loads(text, origin="bad.toml")
    lines = str(caught.value).splitlines()
    assert lines[0] == "3 problems in bad.toml:"
    assert sum(line.startswith("  bad.toml") for line in lines) == 3


def test_sections_must_be_lists_of_tables() -> None:
    with pytest.raises(SpecError, match=r"operations is no list of tables. Head each with \[\[op"):
        loads(GOOD.replace("[[operations]]", "[operations]"))
    head = GOOD.split("[[parallel_groups]]")[0]
    with pytest.raises(SpecError, match=r"parallel_groups is empty. Add at least one"):
        loads(head)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count = 256", "count = 0", "`thread`, count is 0: so many run at once"),
        ("size = 16 ", "size = 2 ", "`block`, size makes for 64 threads; tiles have 128 at least"),
        ('"thread"', '"strand"', "parallel_groups has no `thread`, of which `block` holds many"),
    ],
)
def test_tiles_that_share_a_processor_are_of_threads(old: str, new: str, message: str) -> None:
    text = (ROOT / "specs" / "example_cuda.toml").read_text()
    assert old in text
    with pytest.raises(SpecError) as caught:
        loads(text.replace(old, new))
    assert message in str(caught.value).replace("\n", " ")


def test_deep_nesting_is_a_spec_error() -> None:
    with pytest.raises(SpecError):
        loads("x = " + "[" * 5000 + "]" * 5000)


def test_unknown_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"No such file(?s:.*)Did you mean `h200`"):
        load("h20")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"no UTF-8 text"):
        load(binary)
    with pytest.raises(SpecError, match=r"Is a directory"):
        load(tmp_path)


def test_a_file_wins_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load(path).name == load(str(path)).name == "tiny"


def test_a_misspelt_key_is_one_problem() -> None:
    with pytest.raises(SpecError) as caught:
        loads(GOOD.replace("clock_mhz", "clock_mhs"), origin="bad.toml")
    assert str(caught.value).startswith("bad.toml:4: clock_mhs is an unknown key")


GUIDE = (ROOT / "docs" / "specs.md").read_text()


def my_gpu() -> str:
    """The spec that the guide's steps make: each line of a diff follows the one before it."""
    text = (ROOT / "specs" / "example_cuda.toml").read_text()
    for diff in (block.split("```")[0] for block in GUIDE.split("```diff\n")[1:]):
        lines = [line[3:] for line in diff.splitlines() if line[3:]]
        at = len(text) if all(line.startswith("+") for line in lines) else 0
        for mark, line in ((line[0], f"{line[1:]}\n") for line in lines):
            if mark != "+":
                at = text.index(f"\n{line}", max(at - 1, 0)) + 1
            old, added = ("" if mark == "+" else line), ("" if mark == "-" else line)
            text = text[:at] + added + text[at + len(old) :]
            at += len(added)
    return text


def test_the_report_in_the_docs() -> None:
    text = my_gpu().replace("count = 4 ", "count = 0.5 ").replace("b[k,n]", "b[k,n", 1)
    with pytest.raises(SpecError) as caught:
        loads(text, origin="my_gpu.toml")
    shown = [line.strip() for line in str(caught.value).splitlines()]
    documented = [line.strip() for line in GUIDE.splitlines()]
    first = documented.index(f"SpecError: {shown[0]}")
    assert documented[first + 1 : first + len(shown)] == shown[1:]


def test_the_steps_in_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_gpu.toml").write_text(my_gpu())
    [source] = [block.split("```")[0] for block in GUIDE.split("\n   ```python\n")[1:]]
    names: dict[str, Any] = {"specs": specs}
    exec(textwrap.dedent(source), names)
    assert names["fastest"].name == "matrix_multiply_half"
    assert names["mine"].memory("dram").bandwidth_gb_per_s == 900
    assert names["mine"].memory("shared").limit_per_group_bytes == 99 * 1024
