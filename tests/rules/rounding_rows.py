"""Rows of the laws of rules/roundings.py, as `algebra_rows` has them."""

from algebra_rows import Miss, Row, row
from scatter_rows import ROWS
from terms import Terms

from eqsat.encode.roundings import BINARY, EXTREMES, UNARY
from eqsat.terms.algebra import Term

__all__ = ["ROWS"]


@row
def round_by_cast(t: Terms) -> Row:
    a = t.read("a", "i")
    return Row(
        ((Term("rounded", "bfloat16", a), t.cast("bfloat16", a)),),
        (Miss(Term("rounded", "bfloat16", a), t.cast("float16", a), wrong=False),),
    )


@row
def keep_bits(t: Terms) -> Row:
    a, b, c = Term("abs", t.read("a", "i")), t.read("b", "i"), t.read("c", "i", "bool")
    wide = t.read("d", "i", "float64")

    def through(narrow: str, x: Term) -> Term:
        return t.cast("float32", Term("rounded", narrow, x))

    kept = through("bfloat16", a)
    mask = t.mask("i")
    pairs = [(Term(op, kept), Term(op, a)) for op in UNARY]
    for op in BINARY:
        pairs += [(Term(op, kept, b), Term(op, a, b)), (Term(op, b, kept), Term(op, b, a))]
    pairs += [(Term("where", c, kept, b), Term("where", c, a, b))]
    pairs += [(Term("where", c, b, kept), Term("where", c, b, a))]
    pairs += [(Term(op, mask, kept), Term(op, mask, a)) for op in ("reduce_sum", *EXTREMES)]
    pairs += [(Term("exp", through("float16", a)), Term("exp", a))]
    asked = t.cast("float32", t.cast("bfloat16", a))
    return Row(
        tuple(pairs),
        (
            Miss(kept, a),
            Miss(Term("exp", asked), Term("exp", a)),
            Miss(Term("less", kept, a), Term("less", a, a)),
            Miss(Term("equal", kept, a), Term("equal", a, a)),
            Miss(Term("floor", through("bfloat16", b)), Term("floor", b), wrong=False),
            Miss(t.cast("int32", kept), t.cast("int32", a), wrong=False),
            Miss(
                Term("exp", through("float16", wide)),
                Term("exp", t.cast("float32", wide)),
                wrong=False,
            ),
        ),
    )
