"""The search once more, instrumented: every rule that fires leaves a row that says so.

Each operation is mirrored by a constructor `W_op` over a sort `W` that is never unioned, so that a
`W` value is one term for good. `wit` gives each class a term; a rule gives terms to what it builds,
and records its number with the left and the right term in `rw`.
"""

from collections.abc import Iterable, Mapping, Sequence

from eqsat.rule import Node, Rewrite, Rule, Variable, variables_of
from eqsat.saturate.egglog_text import AtomTable, RuleText, atom_text, dtype_set_name, read_atom
from eqsat.terms.algebra import Atom, Term


class _WitnessRule(RuleText):
    """One rewrite as an egglog rule that records itself."""

    def witness(self, pattern: object) -> str:
        """The mirrored pattern over the witnesses of its variables."""
        match pattern:
            case Variable(name=name, sort="Expr"):
                return f"w_{name}"
            case Node(op=op, args=args):
                return f"({' '.join([f'W_{op}', *(self.witness(a) for a in args)])})"
        return self.pattern(pattern)

    def recorded(self, group: str, number: int) -> str:
        """The instrumented rule."""
        one = self.one
        left, right = self.pattern(one.left), self.pattern(one.right)
        conditions = [self.condition(c) for c in one.conditions]
        exprs = {
            v.name for side in (one.left, one.right) for v in variables_of(side) if v.sort == "Expr"
        }
        witnesses = [f"(= w_{name} (wit {self.pattern(Variable(name))}))" for name in sorted(exprs)]
        built = [
            f"(set (wit {self.pattern(node)}) {self.witness(node)})" for node in _nodes(one.right)
        ]
        binds = [f"(= {name} {text})" for name, text in self.bindings.items()]
        query = " ".join([f"(= e {left})", *binds, *conditions, *witnesses])
        row = f"(rw {number} {self.witness(one.left)} {self.witness(one.right)})"
        return f"(rule ({query}) ((union e {right}) {' '.join(built)} {row}) :ruleset {group})"


def _nodes(pattern: object) -> list[Node]:
    """The operations of a pattern, inner ones first."""
    if not isinstance(pattern, Node):
        return []
    return [*(node for arg in pattern.args for node in _nodes(arg)), pattern]


def witness_declarations(ops: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The mirrored operations and the tables."""
    lines = ["(sort W)"]
    for op, sorts in ops.items():
        mirrored = " ".join("W" if sort == "E" else sort for sort in sorts)
        lines.append(f"(constructor W_{op} ({mirrored}) W)")
    return [
        *lines,
        "(function wit (E) W :merge old)",
        "(function wnode (i64) W :no-merge)",
        "(relation rw (i64 W W))",
    ]


def witness_rules(rules: Iterable[Rule]) -> tuple[list[str], list[tuple[Rule, int, Rewrite]]]:
    """Instrumented rules; and what each number in `rw` stands for: rule, variant from 1."""
    known: list[tuple[Rule, int, Rewrite]] = []
    lines: list[str] = []
    sets: set[tuple[str, ...]] = set()
    for rule in rules:
        for variant, one in enumerate(rule.rewrites, 1):
            lines.append(_WitnessRule(one).recorded(rule.group, len(known)))
            known.append((rule, variant, one))
            for condition in one.conditions:
                if condition.kind == "dtype_in":
                    sets.add(condition.args[1])  # type: ignore[arg-type]
    facts = [f'(dtype_is "{d}" "{dtype_set_name(names)}")' for names in sorted(sets) for d in names]
    return facts + lines, known


def witness_seeds(numbers: Mapping[Term, int], table: AtomTable) -> list[str]:
    """The witnesses of seeded terms: the terms themselves."""
    lines = []
    for term, number in numbers.items():
        args = [
            f"(wnode {numbers[a]})" if isinstance(a, Term) else atom_text(a, table)
            for a in term.args
        ]
        lines.append(f"(set (wnode {number}) ({' '.join([f'W_{term.op}', *args])}))")
        lines.append(f"(set (wit (node {number})) (wnode {number}))")
    return lines


def witness_terms(
    rows: Mapping[str, Sequence[Sequence[object]]],
    ops: Mapping[str, tuple[str, ...]],
    table: AtomTable,
) -> dict[int, Term]:
    """The term of each `W` value in a worker's answer."""
    made = {values[-1]: (op, values[:-1]) for op in ops for values in rows.get(f"W_{op}", ())}
    terms: dict[int, Term] = {}
    stack = list(made)
    while stack:
        number = stack[-1]
        op, values = made[number]  # type: ignore[index]
        below = [v for v, sort in zip(values, ops[op], strict=True) if sort == "E"]
        missing = [v for v in below if v not in terms]
        if number not in terms and missing:
            stack += missing  # type: ignore[arg-type]
            continue
        stack.pop()
        args = [
            _argument(op, i, sort, v, terms, table)
            for i, (v, sort) in enumerate(zip(values, ops[op], strict=True))
        ]
        terms[number] = Term(op, *args)  # type: ignore[index]
    return terms


def _argument(
    op: str, place: int, sort: str, value: object, terms: Mapping[int, Term], table: AtomTable
) -> Term | Atom:
    if sort == "E":
        return terms[value]  # type: ignore[index]
    return read_atom(op, place, sort, value, table)  # type: ignore[arg-type]
