"""A trace with anything changed must fail, and the error names the step."""

import json
from dataclasses import replace

import pytest
from explained import explained

import eqsat.graph.index as index
from eqsat.errors import TraceError
from eqsat.explain.command import main
from eqsat.explain.render import render
from eqsat.explain.replay import replay
from eqsat.explain.steps import Step, Trace, stamped
from eqsat.explain.term_values import agree
from eqsat.graph.dtypes import as_dtype
from eqsat.rule import collect
from eqsat.rules import algebra
from eqsat.terms.algebra import Facts, Read, Term, Universe
from eqsat.terms.matching import Setting

NAMES = ("matrix_chain", "attention", "gram", "stored_gram")


def with_steps(explanation, number, kernel, steps):
    """The explanation with the steps of one trace replaced."""
    segment = explanation.segments[number]
    if kernel is None:
        changed = replace(segment, trace=replace(segment.trace, steps=tuple(steps)))
    else:
        record = segment.kernels[kernel]
        record = replace(record, trace=replace(record.trace, steps=tuple(steps)))
        kernels = (*segment.kernels[:kernel], record, *segment.kernels[kernel + 1 :])
        changed = replace(segment, kernels=kernels)
    segments = (*explanation.segments[:number], changed, *explanation.segments[number + 1 :])
    return replace(explanation, segments=segments)


def traces(explanation):
    for number, segment in enumerate(explanation.segments):
        yield number, None, segment.trace
        for place, kernel in enumerate(segment.kernels):
            yield number, place, kernel.trace


def every_change(name, change):
    """The explanations in which `change(steps, i)` gives other steps for some trace and i."""
    subject = explained(name)
    for number, kernel, trace in traces(subject.explanation):
        for i in range(len(trace.steps)):
            steps = change(list(trace.steps), i)
            if steps is not None and tuple(steps) != trace.steps:
                yield with_steps(subject.explanation, number, kernel, steps)


def dropped(steps, i):
    return [*steps[:i], *steps[i + 1 :]]


def swapped(steps, i):
    if i + 1 == len(steps):
        return None
    return [*steps[:i], steps[i + 1], steps[i], *steps[i + 2 :]]


def repeated(steps, i):
    return [*steps[: i + 1], steps[i], *steps[i + 1 :]]


def turned(steps, i):
    step = steps[i]
    if step.kind in {"cut", "reindex"} or step.rule in {"mul_commute", "add_commute"}:
        return None  # these have no direction
    return [*steps[:i], replace(step, forward=not step.forward), *steps[i + 1 :]]


def renamed(steps, i):
    other = "factor_common" if steps[i].rule != "factor_common" else "merge_sums"
    return [*steps[:i], replace(steps[i], rule=other, kind="rule"), *steps[i + 1 :]]


def misplaced(steps, i):
    return [*steps[:i], replace(steps[i], position=(*steps[i].position, 0)), *steps[i + 1 :]]


def other_result(steps, i):
    step = steps[i]
    after = Term("neg", Term("neg", step.after))
    return [*steps[:i], replace(step, after=after), *steps[i + 1 :]]


def other_kind(steps, i):
    kind = "cut" if steps[i].kind != "cut" else "reindex"
    return [*steps[:i], replace(steps[i], kind=kind), *steps[i + 1 :]]


def other_digest(steps, i):
    return [*steps[:i], replace(steps[i], whole="0" * 16), *steps[i + 1 :]]


CHANGES = (
    *(dropped, swapped, repeated, turned, renamed, misplaced),
    *(other_result, other_kind, other_digest),
)


CUTS = (dropped, swapped, other_kind)  # by default those of the steps that `stored_gram` alone has


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param(
            name,
            change,
            marks=pytest.mark.slow if name == "stored_gram" and change not in CUTS else (),
        )
        for name in NAMES
        for change in CHANGES
    ],
)
def test_any_change_is_caught(name, change):
    subject = explained(name)
    count = 0
    for changed in every_change(name, change):
        with pytest.raises(TraceError, match=r"step|end at another"):
            subject.check(changed)
        count += 1
    assert count or (change is turned and name == "gram")


def test_the_error_names_the_step():
    subject = explained("attention")
    steps = list(subject.explanation.segments[0].trace.steps)
    changed = with_steps(subject.explanation, 0, None, renamed(steps, 2))
    with pytest.raises(TraceError, match=r"segment 1, step 3 \(factor_common\)"):
        subject.check(changed)
    unknown = [replace(steps[0], rule="no_such_rule"), *steps[1:]]
    with pytest.raises(TraceError, match=r"step 1 \(no_such_rule\): there is no rule"):
        subject.check(with_steps(subject.explanation, 0, None, unknown))


def test_a_trace_of_another_program_is_refused():
    with pytest.raises(TraceError, match=r"starts from another term|other indices"):
        explained("softmax").check(explained("matrix_chain").explanation)


def test_another_kernel_is_refused():
    subject = explained("softmax")
    (segment,) = subject.explanation.segments
    kernel = segment.kernels[0]
    other = replace(kernel.kernel, threads=kernel.kernel.threads + 1)
    changed = replace(segment, kernels=(replace(kernel, kernel=other), *segment.kernels[1:]))
    with pytest.raises(TraceError, match="not the kernel that runs"):
        subject.check(replace(subject.explanation, segments=(changed,)))


# --- a file that is checked -----------------------------------------------------------------------

PROGRAM = """
import eqsat

def softmax():
    return eqsat.softmax(eqsat.input("x", (64, 96), "float32"), axis=-1)

def other():
    return eqsat.exp(eqsat.input("x", (4, 4), "float32"))
"""
FILES = {
    "no JSON": ("{", "is no JSON"),
    "another kind": ('{"format": "eqsat-bench/1"}', "is no trace of format eqsat-trace-1"),
}


def checked(folder, text, *options, function="softmax"):
    """The exit status of a check, and the file."""
    path, program = folder / "trace.json", folder / "checked_program.py"
    path.write_text(text)
    program.write_text(PROGRAM)
    return main([f"{program}:{function}", *options, "--check", str(path)]), path


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_holds_no_trace_is_bad_input(name, tmp_path, capsys):
    text, message = FILES[name]
    status, path = checked(tmp_path, text)
    said = capsys.readouterr().err
    assert status == 2 and f"ArgumentError: {path} {message}" in said and "Write it anew" in said


def test_a_trace_of_another_spec_is_bad_input_and_of_another_program_does_not_hold(
    tmp_path, capsys
):
    text = render(explained("softmax").explanation, "json")
    status, path = checked(tmp_path, text, "--spec", "example_cuda", function="other")
    said = capsys.readouterr().err
    assert status == 2 and f"{path} is of spec cpu, and is checked with example_cuda" in said
    status, path = checked(tmp_path, text, function="other")
    said = capsys.readouterr().err
    assert status == 1 and f"TraceError: {path}: segment 1 " in said
    assert "Check it with its own program. Write it anew" in said


def test_a_damaged_trace_is_named(tmp_path, capsys):
    value = json.loads(render(explained("softmax").explanation, "json"))
    del value["terms"][1:]
    status, path = checked(tmp_path, json.dumps(value), function="other")
    assert status == 1 and f"TraceError: {path}: a damaged trace" in capsys.readouterr().err


def under_another_name(value) -> None:
    value["segments"][0]["kernels"][0]["stored"][0]["names"][0] = "unheard"


def endless(value) -> None:
    value["operations"] = float("inf")


def nowhere(value) -> None:
    value["segments"][0]["kernels"][0]["stored"][0]["offset"] = None


@pytest.mark.parametrize("change", [under_another_name, endless, nowhere])
def test_values_of_other_kinds_are_damage(change, tmp_path, capsys):
    value = json.loads(render(explained("softmax").explanation, "json"))
    change(value)
    status, path = checked(tmp_path, json.dumps(value), function="softmax")
    assert status == 1 and f"TraceError: {path}: " in capsys.readouterr().err


# --- guards: one step, right but for its guard ----------------------------------------------------


def term(buffer: str, dtype: str, extents: dict[str, int], *names: str) -> Term:
    read = Read(buffer, as_dtype(dtype), index.row_major(names, extents))
    return Term("read", read)


def one_step(before: Term, after: Term, rule: str, variant: int = 1) -> Trace:
    step = Step("rule", (0,), before, after, rule, variant)
    source, target = Term("program", before), Term("program", after)
    return stamped(Trace("a trace", source, target, (step,)))


def replayed(trace: Trace, universe: Universe, finite: frozenset[str]) -> None:
    rules = collect(vars(algebra))
    replay(trace, trace.source, trace.target, rules, Setting(Facts(universe), finite))


def indices(**extents: int) -> Universe:
    return Universe(list(extents), dict(extents))


def test_a_free_index_is_not_taken_out_of_its_sum():
    universe = indices(i=4, j=5)
    for names, holds in ((("i",), True), (("i", "j"), False)):
        a = term("a", "float32", universe.extents, *names)
        b = term("b", "float32", universe.extents, "j")
        mask = universe.mask(["j"])
        before = Term("reduce_sum", mask, Term("mul", a, b))
        after = Term("mul", a, Term("reduce_sum", mask, b))
        trace = one_step(before, after, "factor_out_of_sum")
        if holds:
            replayed(trace, universe, frozenset())
        else:
            with pytest.raises(TraceError, match=r"guard disjoint\(S, free\(a\)\) does not hold"):
                replayed(trace, universe, frozenset())


def test_a_dtype_that_the_law_does_not_hold_for():
    universe = indices(i=4, j=5)
    a = term("a", "float16", universe.extents, "i")
    b = term("b", "float16", universe.extents, "j")
    mask = universe.mask(["j"])
    before = Term("reduce_sum", mask, Term("mul", a, b))
    after = Term("mul", a, Term("reduce_sum", mask, b))
    with pytest.raises(TraceError, match=r"guard dtype_in\(a, float32 or"):
        replayed(one_step(before, after, "factor_out_of_sum"), universe, frozenset())


def test_what_may_be_infinite_is_not_factored():
    universe = indices(i=4)
    a, b, c = (term(name, "float32", universe.extents, "i") for name in "abc")
    before = Term("add", Term("mul", a, b), Term("mul", a, c))
    after = Term("mul", a, Term("add", b, c))
    trace = one_step(before, after, "factor_common")
    replayed(trace, universe, frozenset("abc"))
    with pytest.raises(TraceError, match=r"guard finite\(c\) does not hold"):
        replayed(trace, universe, frozenset("ab"))


# --- the numbers ----------------------------------------------------------------------------------


def test_ends_that_differ_in_value_are_told_apart():
    universe = indices(i=4, j=5)
    a = term("a", "float32", universe.extents, "i", "j")
    b = term("b", "float32", universe.extents, "j")
    mask = universe.mask(["j"])
    whole = Term("reduce_sum", mask, Term("mul", a, b))
    turned_round = Term("reduce_sum", mask, Term("mul", b, a))
    captured = Term("mul", a, Term("reduce_sum", mask, b))
    assert agree([whole], [turned_round], universe) is True
    assert agree([whole], [captured], universe) is False


def test_values_that_cost_too_much_are_left_alone():
    universe = indices(i=1 << 12, j=1 << 12)
    a = term("a", "float32", universe.extents, "i", "j")
    whole = Term("reduce_sum", universe.mask(["i", "j"]), a)
    assert agree([whole], [whole], universe) is None


def elsewhere(one):
    return replace(one, at=index.add(one.at, index.const(1)))


def wider(one):
    first, *others = one.guards
    return replace(one, guards=(replace(first, upper=first.upper + 1), *others))


def unguarded(one):
    return replace(one, guards=one.guards[1:])


def doubled(one):
    return replace(one, term=Term("add", one.term, one.term))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (elsewhere, "in places that are not its own"),
        (wider, "in places that are not its own"),
        (unguarded, "in places that are not its own"),
        (doubled, "another value in y0 than its trace"),
    ],
)
def test_a_value_is_stored_in_its_own_places(change, said):
    subject = explained("grown", "example_cuda")
    (segment,) = subject.explanation.segments
    *before, kernel = segment.kernels
    (one,) = kernel.stored
    assert one.at is not None and subject.check() > 0
    changed = replace(kernel, stored=(change(one),))
    segment = replace(segment, kernels=(*before, changed))
    with pytest.raises(TraceError, match=said):
        subject.check(replace(subject.explanation, segments=(segment,)))
