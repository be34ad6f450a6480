"""Index expressions: what parses, what it means, what is refused and how."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eqsat.errors import SpecError
from eqsat.specs import AffineIndex, Apply, Number, OperationSemantics, Read


def test_matrix_multiply() -> None:
    semantics = OperationSemantics.parse("d[m,n] += a[m,k]*b[k,n]")
    assert str(semantics) == "d[m,n] += a[m,k] * b[k,n]"
    assert semantics.update == "+="
    assert semantics.operands == ("a", "b")
    assert semantics.index_names == ("m", "n", "k")
    assert semantics.reduced_index_names == ("k",)
    assert semantics.contraction == semantics.reads
    assert [index.name for index in semantics.reads[1].indices] == ["k", "n"]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("d[] max= a[i]", "d[] max= a[i]"),
        ("d[i]=alpha[]*a[i]-2", "d[i] = alpha[] * a[i] - 2"),
        ("d[i] += a[2*i+j-1] * b[j]", "d[i] += a[2*i + j - 1] * b[j]"),
        ("d[i] += a[-j + i] * b[j*2]", "d[i] += a[-j + i] * b[2*j]"),
        ("d[i] = maximum(-a[i], 0) / (b[i] + 1.5)", "d[i] = maximum(-a[i], 0) / (b[i] + 1.5)"),
        ("d[i] = a[i] - (b[i] - c[i])", "d[i] = a[i] - (b[i] - c[i])"),
        ("d[i] = fma(a[i], b[i], c[i])", "d[i] = fma(a[i], b[i], c[i])"),
        ("d[i] = a[i, 0]", "d[i] = a[i,0]"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    semantics = OperationSemantics.parse(text)
    assert str(semantics) == canonical
    assert OperationSemantics.parse(canonical) == semantics


@pytest.mark.parametrize(
    "text",
    [
        "d[m,n] = a[m] * b[n]",  # no sum
        "d[m,n] += a[m,k] + b[k,n]",  # no product
        "d[m] += a[m,k] * a[m,k]",  # one operand twice
        "d[i] += a[i + j] * b[j]",  # a composite index
        "d[i] += a[i,k,k] * b[k]",  # a diagonal
        "d[] += a[k] * b[k]",  # no rows, no columns
        "d[m] += a[m,k] * b[k]",  # no columns
        "d[m,n] += a[m,k] * b[m,k]",  # both factors have the rows, neither the columns
        "d[m,n] += a[k,n] * b[k,n]",
        "d[m,n,o] += a[m,k] * b[k,n]",  # neither factor has `o`
        "d[m,n] += a[m,k] * b[l,n]",  # two sums, each of one factor
        "d[m,n,o,p] += a[m,n] * b[o,p]",  # no sum
        "d[b,m,n] += a[b,m,k] * b[b,k,n]",  # a batch
        "d[] += a[m,k] * b[m,k]",
    ],
)
def test_what_is_no_contraction(text: str) -> None:
    assert OperationSemantics.parse(text).contraction is None


@pytest.mark.parametrize("text", ["d[i,j] += a[l,i] * b[j,l]", "d[n,m] += a[m,k] * b[n,k]"])
def test_a_contraction_in_any_order_of_indices(text: str) -> None:
    semantics = OperationSemantics.parse(text)
    assert semantics.contraction == semantics.reads


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 1: got `end of text` where an operand belongs"),
        ("d[m,n] a[m,n]", "where an update belongs.*Use one of = "),
        ("d[m] = a[m", "got `end of text` where `,` belongs"),
        ("d[m] = a", "operand `a` has no indices.*`a\\[\\]` for a scalar"),
        ("d[m] = a[m] b[m]", "surplus `b`"),
        ("d[m] = a[m] + d[m]", "output `d` is read on the right"),
        ("d[m] = a[m,k]", "index `k` is read but `=` does not fold it away"),
        ("d[2*m] = a[m]", "output `d\\[2\\*m\\]` has a composite or repeated index"),
        ("d[m,m] = a[m]", "composite or repeated index"),
        ("d[m] += a[m,k] * a[k]", "`a` is read with 2 and with 1 indices"),
        ("d[m] = thanh(a[m])", "unknown function `thanh`.\nDid you mean `tanh`"),
        ("d[m] = exp(a[m], a[m])", "`exp` got 2 arguments.\nIt takes 1"),
        ("d[m] = a[m*n]", "product of two indices"),
        ("d[m] = a[1.5]", "got `1.5` in an index"),
        ("d[m] = a[m]; import os", "column 12: unexpected ';'"),
        ("d[m] = __import__('os')", 'unexpected "\'"'),
        ("d[m] = 1e999 * a[m]", "no finite float64"),
        ("d[m] = " + "(" * 99 + "a[m]" + ")" * 99, "nested deeper than 32"),
        ("d[m] = a[m]" + " + a[m]" * 99, "at most 500 are read"),
    ],
)
def test_refused_text(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"(?s){message}"):
        OperationSemantics.parse(text)


_index = st.builds(
    AffineIndex,
    st.dictionaries(st.sampled_from("ijk"), st.integers(-3, 3).filter(bool), max_size=2).map(
        lambda terms: tuple(terms.items())
    ),
    st.integers(-4, 4),
)
_leaf = st.builds(
    lambda operand, index: Read(operand, (index,)), st.sampled_from("abc"), _index
) | st.builds(Number, st.floats(0, 1e6, allow_nan=False))
_expression = st.recursive(
    _leaf,
    lambda inner: (
        st.builds(
            lambda function, pair: Apply(function, pair),
            st.sampled_from(["add", "sub", "mul", "div", "maximum"]),
            st.tuples(inner, inner),
        )
        | st.builds(lambda x: Apply("neg", (x,)), inner)
    ),
    max_leaves=6,
)


@given(_expression)
def test_text_round_trip(expression: Apply | Read | Number) -> None:
    semantics = OperationSemantics(Read("d", ()), "+=", expression)
    assert OperationSemantics.parse(str(semantics)) == semantics


@given(st.text(alphabet="dab[]ijk,+-*/=()max 012.;'_", max_size=40))
def test_any_text_parses_or_is_a_spec_error(text: str) -> None:
    try:
        semantics = OperationSemantics.parse(text)
    except SpecError:
        return
    assert OperationSemantics.parse(str(semantics)) == semantics
