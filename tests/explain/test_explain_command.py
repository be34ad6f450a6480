"""The command eqsat-explain, as a user runs it; and the formats."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from explained import explained, gram

import eqsat
from eqsat.cache.store import Cache
from eqsat.errors import ArgumentError, TraceError
from eqsat.explain.command import find_function, main
from eqsat.explain.explanation import RuleRecord, from_json
from eqsat.explain.render import render

pytestmark = pytest.mark.usefixtures("shared_search")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "attention.py"
ATTENTION = f"{EXAMPLE}:naive_attention"

BROKEN = """
import eqsat

x = eqsat.input("x", (4, 4), "float32")

def plain(a=x):
    return a + a

def nothing(): pass
def number(): return 3
def needs(a, b): return a
def fails(): raise ValueError("no such luck")
def deep(n=50): return deep(n - 1) if n else (lambda: 1 / 0)()
def misshapen(): return x + eqsat.input("y", (3, 3), "float32")
constant = 3
"""

LARGE = """
import eqsat

def large():
    return eqsat.input("a", (512, 128), "float32") @ eqsat.input("b", (128, 512), "float32")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eqsat.explain", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "some_program.py"
    path.write_text(BROKEN)
    return path


@pytest.mark.parametrize("spec", ["cpu", pytest.param("h200", marks=pytest.mark.slow)])
def test_text_of_the_example(spec):
    done = run(ATTENTION, "--spec", spec)
    assert done.returncode == 0, done.stderr
    for words in (
        *("naive_attention", f"spec       {spec}", "each one holds", "As written", "As run"),
        *("sum_S a * b  ->  a * sum_S b", "factor_out_of_sum", "at result"),
        *("predicted", " us", "most of it", "kernel k0("),
        *(["carry_softmax"] if spec == "h200" else []),  # a CPU of large caches stores scores
    ):
        assert words in done.stdout, words
    assert "\x1b" not in done.stdout


def test_the_sample_in_the_docs_is_what_is_shown(capsys):
    """Line by line, numbers aside: prices change with the spec."""
    page = (EXAMPLE.parents[1] / "docs" / "explain.md").read_text()
    sample = page.split("begins so")[1].split("```\n")[1]
    assert main([ATTENTION, "--spec", "h200", "--precision", "tf32"]) == 0
    shown = capsys.readouterr().out

    def plain(text):
        return re.sub(r"\s+", " ", re.sub(r"[0-9.]+ us", "us", text)).strip()

    assert plain(shown).startswith(plain(sample))


RULES = """
from eqsat.rule import rewrite, rule

@rule("algebra")
def double(a: "Expr"):
    \"\"\"a + a  ->  2 * a\"\"\"
    yield rewrite(a + a, 2 * a)

@rule("algebra")
def forget(a: "Expr", b: "Expr"):
    \"\"\"a - b  ->  a\"\"\"
    yield rewrite(a - b, a)
"""


def test_rules_of_a_module_are_used_and_an_unsound_one_is_named(program, tmp_path, capsys):
    own = tmp_path / "own_rules.py"
    own.write_text(RULES)
    assert main([f"{program}:plain", "--rules", str(own)]) == 0
    capsys.readouterr()
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import eqsat\ndef lost(a=eqsat.input('a', (64, 64)), b=eqsat.input('b', (64, "
                     "64))):\n    return eqsat.exp(a - b)\n")  # fmt: skip
    assert main([f"{wrong}:lost", "--rules", str(own)]) == 1
    assert "rule forget is unsound" in capsys.readouterr().err
    assert main([f"{program}:plain", "--rules", str(wrong)]) == 2
    assert "defines no rule" in capsys.readouterr().err


def test_json_of_the_example_replays(tmp_path, capsys):
    path = tmp_path / "trace.json"
    assert main([ATTENTION, "--format", "json", "--output", str(path)]) == 0
    assert capsys.readouterr().out == ""
    record = json.loads(path.read_text())
    steps = record["segments"][0]["trace"]["steps"]
    done = run(ATTENTION, "--check", str(path))
    assert done.returncode == 0 and "each one holds" in done.stdout
    assert main([ATTENTION, "--spec", "example_cuda", "--check", str(path)]) == 2
    told = "is of spec cpu, and is checked with example_cuda. Add --spec cpu"
    assert told in capsys.readouterr().err
    for beside in (["--format", "text"], ["--output", str(tmp_path / "other")]):
        assert main([ATTENTION, "--check", str(path), *beside]) == 2
        told = "--check writes no explanation, so that --output and --format mean nothing beside"
        assert told in capsys.readouterr().err
    steps[1]["rule"] = "merge_sums"
    path.write_text(json.dumps(record))
    assert main([ATTENTION, "--check", str(path)]) == 1
    assert f"TraceError: {path}: segment 1, step 2 (merge_sums)" in capsys.readouterr().err


def test_html_is_well_formed_and_loads_nothing(tmp_path):
    path = tmp_path / "page.html"
    assert main([ATTENTION, "--format", "html", "--output", str(path)]) == 0
    page = path.read_text()
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert "http" not in page and "src=" not in page and "<script" not in page
    assert "factor_out_of_sum" in page


def test_html_escapes_what_it_is_given():
    subject = explained("softmax").explanation
    rule = RuleRecord("divide_by_reciprocal", "algebra", "a < b && <b>c</b>", 'a "note"')
    others = tuple(r for r in subject.rules if r.name != rule.name)
    page = render(replace(subject, title="<script>&", rules=(rule, *others)), "html")
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))
    assert "<script" not in page and "<b>" not in page
    assert "a &lt; b &amp;&amp; &lt;b&gt;c" in page


def test_shared_values_are_printed_once():
    lines = render(explained("attention").explanation).splitlines()
    written = lines[lines.index("As written") : lines.index("Steps")]
    assert sum("q[" in line for line in written) == 1
    assert sum("exp(" in line for line in written) == 1


def test_the_right_operand_of_a_product_is_in_parentheses():
    after = render(explained("attention").explanation).split("mul_associate", 1)[1]
    changed = [line for line in after.splitlines() if line.startswith("         -> ")]
    assert "* (" in changed[0]


@pytest.mark.slow
def test_a_precision_is_passed_on_and_a_bad_one_refused(tmp_path, capsys):
    assert main([ATTENTION, "--spec", "h200", "--precision", "half"]) == 2
    assert "precision='half' is none. Use one of exact, default" in capsys.readouterr().err
    path = tmp_path / "large.py"
    path.write_text(LARGE)
    found = {}
    for precision in ("exact", "tf32"):
        assert main([f"{path}:large", "--spec", "h200", "--precision", precision]) == 0
        found[precision] = capsys.readouterr().out
    assert "factors_" not in found["exact"] and "precision: tf32." in found["tf32"]
    assert "round_factors_mma" in found["tf32"]


def test_a_format_that_there_is_not():
    with pytest.raises(ArgumentError, match=r"format is 'pdf'; use one of text, json, html"):
        render(explained("softmax").explanation, "pdf")


def test_a_program_explains_itself_also_from_the_cache(tmp_path):
    cache = Cache(tmp_path / "cache")
    first = eqsat.compile(gram(), cache=cache)
    again = eqsat.compile(gram(), cache=cache)
    assert again.report.from_cache
    assert "each one holds" in first.explain()
    trace = from_json(json.loads(again.explain("json")))
    assert trace.notes == ()
    assert trace.segments[0].kernels[0].kernel == again.kernels[0]


ERRORS = {
    "there is no file": ("missing.py:f", "Give the path of a .py file"),
    "there is no module no_such_module": ("no_such_module:f", "module that Python finds"),
    "names no function": ("some_program.py", "Write module:function"),
    "has no function 'plane'": ("{}:plane", "Did you mean plain?"),
    "has no function 'qqqqqq'": ("{}:qqqqqq", "It defines plain, nothing"),
    "is of type int, no function": ("{}:constant", "Name a function"),
    "returned a value of type NoneType": ("{}:nothing", "Return a tensor"),
    "returned a value of type int": ("{}:number", "Return a tensor"),
    "parameters without defaults: a, b": ("{}:needs", 'a=eqsat.input("a"'),
    "calling fails() failed: ValueError: no such luck": ("{}:fails", "Mend it"),
    "ShapeError": ("{}:misshapen", ""),
}


@pytest.mark.parametrize("message", ERRORS)
def test_bad_input_is_named_and_says_what_to_do(message, program, capsys):
    where, advice = ERRORS[message]
    assert main([where.format(program)]) == 2
    error = capsys.readouterr().err
    assert message in error and advice in error
    assert "Traceback" not in error


PLACES = {
    "fails": ["ArgumentError: calling fails() failed: ValueError: no such luck", "in fails"],
    "misshapen": ["ShapeError: add: x float32[4, 4] and y float32[3, 3]", "in misshapen"],
    "deep": ["ZeroDivisionError", "in deep", "in <lambda>", "repeated"],
}


@pytest.mark.parametrize("name", PLACES)
def test_a_program_that_raises_is_shown_with_its_line(name, program, capsys):
    """The lines of the user's files, and none of ours."""
    assert main([f"{program}:{name}"]) == 2
    error = capsys.readouterr().err
    line = next(n for n, text in enumerate(BROKEN.splitlines(), 1) if f"def {name}" in text)
    for words in (*PLACES[name], f'File "{program}", line {line}, in {name}'):
        assert words in error, error
    assert "graph/" not in error and "explain.py" not in error


@pytest.mark.parametrize(
    "text", ["import eqsat\nx = eqsat.input('1', 2)\n", "\nx = 1 / 0\n", "\nimport no_such_one\n"]
)
def test_a_file_that_raises_is_shown_with_its_line(text, tmp_path, capsys):
    path = tmp_path / "file_that_raises.py"
    path.write_text(text)
    assert main([f"{path}:f"]) == 2
    assert f'File "{path}", line 2, in <module>' in capsys.readouterr().err


def test_an_unknown_spec(program, capsys):
    assert main([f"{program}:plain", "--spec", "h2000"]) == 2
    assert "SpecError" in capsys.readouterr().err


def test_a_file_that_cannot_be_written(program, tmp_path, capsys):
    assert main([f"{program}:plain", "--output", str(tmp_path / "no" / "file")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_a_module_on_the_path(program, monkeypatch, capsys):
    monkeypatch.chdir(program.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["some_program:plain"]) == 0
    assert "plain" in capsys.readouterr().out


def test_a_decorated_function_is_unwrapped(program):
    text = program.read_text() + "\njitted = eqsat.jit(plain)\n"
    program.write_text(text)
    function, name = find_function(f"{program}:jitted")
    assert (function.__name__, name) == ("plain", "jitted")


@pytest.mark.parametrize("value", [None, {}, {"format": "eqsat-trace-1"}, [1]])
def test_what_is_no_trace(value):
    with pytest.raises(TraceError, match="trace"):
        from_json(value)
