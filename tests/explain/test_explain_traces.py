"""Traces of real programs: found, complete, replayed, and the same after a JSON round trip."""

import json
from dataclasses import replace

import pytest
from explained import PROGRAMS, explained

from eqsat.cache.store import Cache
from eqsat.driver import plan
from eqsat.explain.explanation import from_json, to_json
from eqsat.explain.render import render

SLOW = pytest.mark.slow
SELDOM = ("gelu_mlp", "two_products", "joined")  # on the CPU: the layers of `layers` are like them


def rules_of(name: str, spec: str = "cpu") -> set[str]:
    explanation = explained(name, spec).explanation
    return {step.rule for segment in explanation.segments for step in segment.trace.steps}


@pytest.mark.parametrize(
    "name, spec",
    [
        *(pytest.param(name, "cpu", marks=SLOW if name in SELDOM else ()) for name in PROGRAMS),
        ("joined", "h200"),
        ("padded", "h200"),
        pytest.param("pooled", "h200", marks=SLOW),
        *(pytest.param(name, "h200", marks=SLOW) for name in ("attention", "stored_gram")),
        ("softmax", "a100"),
    ],
)
def test_every_step_is_found_and_holds(name, spec):
    subject = explained(name, spec)
    assert subject.explanation.notes == ()
    assert subject.check() > 0


@pytest.mark.slow
def test_every_step_to_weights_that_lie_in_memory_in_16_bits():
    subject = explained("shared_weights", "h200")
    assert subject.explanation.notes == ()
    assert any(
        b.dtype.name == "bfloat16"
        for b in subject.planned.parts.buffers.values()
        if b.role == "temporary"
    )
    assert subject.check() > 50


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["cpu", "h200"])
def test_every_step_of_a_transformer_layer(spec):
    subject = explained("transformer_layer", spec)
    assert subject.explanation.notes == ()
    assert subject.check() > 50


@pytest.mark.parametrize(
    ("name", "spec"),
    [("attention", "cpu"), ("stored_gram", "cpu"), ("layers", "cpu"), ("grown", "example_cuda")],
)
def test_a_trace_survives_json(name, spec):
    subject = explained(name, spec)
    text = json.dumps(to_json(subject.explanation), allow_nan=False)
    restored = from_json(json.loads(text))
    assert restored == subject.explanation
    assert subject.check(restored) == subject.check()


def test_a_buffer_that_a_kernel_stores_in_pieces_is_shown_once():
    subject = explained("softmax").explanation
    (segment,) = subject.segments
    kernel = replace(segment.kernels[0], stored=segment.kernels[0].stored * 3)
    changed = replace(segment, kernels=(kernel, *segment.kernels[1:]))
    shown = render(replace(subject, segments=(changed,)))
    assert " stores     result\n" in shown and "result, result" not in shown


@pytest.mark.parametrize("spec", ["cpu", pytest.param("h200", marks=SLOW)])
def test_attention_needs_its_five_laws(spec):
    laws = {"mul_commute", "mul_associate", "factor_out_of_sum", "carry_softmax"}
    assert laws | {"divide_by_positive"} <= rules_of("attention", spec)


def test_the_law_of_attention_is_used_twice():
    steps = explained("attention").explanation.segments[0].trace.steps
    # with a factor, and with r = 1: the sum of the weights
    assert {s.variant for s in steps if s.rule == "carry_softmax"} == {1, 2}


def test_the_laws_of_the_others():
    assert {"nest_sums", "mul_associate"} <= rules_of("matrix_chain")
    assert {"add_sums", "factor_common"} <= rules_of("two_products", "h200")
    assert "carry_softmax" in rules_of("softmax")


def test_a_reindexing_is_a_step_of_its_own():
    steps = explained("gram").explanation.segments[0].trace.steps
    assert [step.kind for step in steps] == ["reindex"]


def test_a_value_that_is_stored_is_cut_off():
    explanation = explained("stored_gram").explanation
    (segment,) = explanation.segments
    assert [step.kind for step in segment.trace.steps] == ["cut", "cut", "reindex"]
    assert len(segment.kernels) == 2
    (_, once), (_, twice), _ = segment.costs
    assert twice < once < segment.costs[0][0]
    assert segment.costs[-1][1] == pytest.approx(explanation.seconds, rel=0.5)


def test_kernels_start_unfused_and_end_as_they_run():
    subject = explained("matrix_chain")
    (segment,) = subject.explanation.segments
    launched = [launch.kernel for launch in subject.planned.parts.launches]
    assert [kernel.kernel for kernel in segment.kernels] == launched
    for kernel in segment.kernels:
        rules = [step.rule for step in kernel.trace.steps]
        assert "inline" in rules and "contract" in rules
        assert {"tile", "keep"} & set(rules[-4:])


def test_equal_segments_are_explained_once():
    subject = explained("layers")
    places = [segment.places for segment in subject.explanation.segments]
    count = len(subject.planned.segments)
    assert sorted(place for own in places for place in own) == list(range(count))
    assert 1 < len(places) < count
    launches = sum(len(s.places) * len(s.kernels) for s in subject.explanation.segments)
    assert launches == len(subject.planned.parts.launches)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW if name in SELDOM else ()) for name in PROGRAMS]
)
def test_costs_are_known_and_end_at_the_kernel(name):
    for segment in explained(name).explanation.segments:
        assert len(segment.costs) == len(segment.trace.steps)
        for kernel in segment.kernels:
            assert len(kernel.costs) == len(kernel.trace.steps)
            assert kernel.costs[-1][1] == pytest.approx(kernel.seconds)
            assert dict(kernel.parts)[kernel.bottleneck] > 0


@pytest.mark.slow
def test_the_kernel_that_was_measured_to_be_the_fastest_is_explained():
    planned = plan(PROGRAMS["gelu_mlp"](), "h200", cache=Cache(None), candidates=3)
    launch, *others = planned.parts.launches
    kernel = launch.alternatives[-1][0].kernel
    explanation = planned.explain("tuned", [replace(launch, kernel=kernel), *others])
    assert explanation.notes == ()
    assert explanation.segments[0].kernels[0].kernel == kernel
    unknown = replace(kernel, threads=kernel.threads + 1)
    (note,) = planned.explain("unknown", [replace(launch, kernel=unknown), *others]).notes
    assert "found another kernel than runs" in note
