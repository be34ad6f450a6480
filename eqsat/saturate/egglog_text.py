"""Rules, facts and terms as egglog text.

Every operation is a constructor over one sort `E`; reads, renamings and index expressions are
numbers into a table that stays in Python. Facts: `free` (an index mask; refines by intersection),
`dtype` (a conflict stops the search: a rule was unsound) and `finite`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from eqsat.carry_law import CarryLaw
from eqsat.errors import RuleError
from eqsat.graph.index import Affine
from eqsat.named import distinct, nearest
from eqsat.rule import (
    Condition,
    DTypeOf,
    Free,
    MaskOp,
    Node,
    NumberOf,
    PointsIn,
    Rewrite,
    Rule,
    Variable,
)
from eqsat.terms import finite
from eqsat.terms.algebra import (
    CONDITIONS,
    REDUCTIONS,
    SCANS,
    SCATTERS,
    WEIGHTED,
    Atom,
    Read,
    Renaming,
    Term,
    Universe,
    names_of,
    post_order,
)

BINDERS = (*REDUCTIONS, *SCATTERS, *WEIGHTED, "contract", "narrow_contract")
OPAQUE = frozenset({"read", "gather", "position", "reindex"})
# The place of the law among the arguments.
LAW_PLACE = {"weighted_sum": 3, "weighted_contract": 4, "weighted_min": 3}
SCHEDULE = frozenset(
    {"kernel", "untiled", "tile", "stream", "keep", "launch", "stage", "split", "cluster", "share"}
    | {"stream_k", "turn"}
)
SORTS = {
    "Expr": "E", "Indices": "i64", "Count": "i64", "Number": "f64", "Text": "String", "Read": "i64",
    "Place": "i64", "Law": "String",
}  # fmt: skip
MOST_SUBSETS = 12  # names of a set whose subsets are all counted
_PREFIX = "v_"


def constructor(op: str) -> str:
    """The egglog constructor of an operation; egglog has primitives such as sqrt of its own."""
    return f"t_{op}"


@dataclass
class AtomTable:
    """Numbers for the atoms that egglog does not see into; carry laws by name."""

    atoms: list[Read | Renaming | Affine] = field(default_factory=list)
    numbers: dict[Read | Renaming | Affine, int] = field(default_factory=dict)
    laws: dict[str, CarryLaw] = field(default_factory=dict)

    def number(self, atom: Read | Renaming | Affine) -> int:
        """The atom's number, a new one if need be."""
        if atom not in self.numbers:
            self.numbers[atom] = len(self.atoms)
            self.atoms.append(atom)
        return self.numbers[atom]


def table_for(terms: Iterable[Term], rules: Iterable[Rule]) -> AtomTable:
    """An empty table that knows the carry laws of terms and rules."""
    found = [a for term in post_order(terms) for a in term.args if isinstance(a, CarryLaw)]
    stack: list[object] = [
        side for r in rules for one in r.rewrites for side in (one.left, one.right)
    ]
    while stack:
        pattern = stack.pop()
        if isinstance(pattern, CarryLaw):
            found.append(pattern)
        elif isinstance(pattern, Node):
            stack += pattern.args
    return AtomTable(laws={law.name: law for law in distinct(found, "carry laws")})


def read_atom(op: str, place: int, sort: str, value: int | float | str, table: AtomTable) -> Atom:
    """An argument of an operation as an atom, from what egglog has in its place."""
    if place == 0 and op in OPAQUE:
        assert isinstance(value, int)
        return table.atoms[value]
    if LAW_PLACE.get(op) == place:
        return table.laws[str(value)]
    return float(value) if sort == "f64" else value


def _sort_of(arg: object) -> str:
    match arg:
        case Term() | Node():
            return "E"
        case Variable(sort=sort):
            return SORTS[sort]
        case str() | DTypeOf() | CarryLaw():
            return "String"
        case float() | PointsIn() | NumberOf():
            return "f64"
        case int() | Read() | Renaming() | Affine() | Free() | MaskOp():
            return "i64"
    raise RuleError(
        f"{arg!r} cannot be an argument of an operation. Give a pattern, an index set, a number or "
        f"a text."
    )


def sorts_of(args: Iterable[object]) -> tuple[str, ...]:
    """The egglog sorts of arguments."""
    return tuple(map(_sort_of, args))


def signatures(terms: Iterable[Term], rules: Iterable[Rule]) -> dict[str, tuple[str, ...]]:
    """Argument sorts of every operation that occurs in the terms or rules."""
    found: dict[str, tuple[str, ...]] = {}

    def walk(pattern: object, name: str) -> None:
        if isinstance(pattern, Node):
            sorts = sorts_of(pattern.args)
            if found.setdefault(pattern.op, sorts) != sorts:
                raise RuleError(
                    f"rule {name}: {pattern.op} is used with arguments {', '.join(sorts)} in "
                    f"{pattern}, elsewhere with {', '.join(found[pattern.op])}. Give it these, in "
                    f"this order."
                )
            for arg in pattern.args:
                walk(arg, name)

    for term in post_order(terms):
        found[term.op] = sorts_of(term.args)
    for rule in rules:
        for one in rule.rewrites:
            walk(one.left, rule.name)
            walk(one.right, rule.name)
    return found


def declarations(ops: Mapping[str, tuple[str, ...]], groups: Iterable[str]) -> list[str]:
    """Sorts, constructors, fact functions and the analysis rules of each operation."""
    lines = ["(sort E)", "(ruleset facts)", *(f"(ruleset {group})" for group in groups)]
    lines += [f"(constructor {constructor(op)} ({' '.join(sorts)}) E)" for op, sorts in ops.items()]
    lines += [
        "(function free (E) i64 :merge (& old new))",
        "(function dtype (E) String :no-merge)",
        "(function atom_free (i64) i64 :no-merge)",
        "(function atom_source (i64) i64 :no-merge)",
        "(function atom_dtype (i64) String :no-merge)",
        "(relation atom_finite (i64))",
        "(relation atom_below (i64))",
        "(function points (i64) i64 :no-merge)",
        "(function node (i64) E :no-merge)",
        "(relation dtype_is (String String))",
        *(f'(dtype_is "{name}" "floating")' for name in finite.FLOATING),
    ]
    algebra = [op for op in ops if op not in SCHEDULE and op != "value"]
    lines += finite.declarations({op: constructor(op) for op in algebra})
    for op in algebra:
        lines += analysis(op, ops[op])
    return lines


def analysis(op: str, sorts: tuple[str, ...]) -> list[str]:
    """The fact rules of one operation."""
    args = [f"x{i}" for i in range(len(sorts))]
    exprs = [a for a, sort in zip(args, sorts, strict=True) if sort == "E"]
    head = f"(= e ({constructor(op)} {' '.join(args)}))"
    conditions = "".join(f" (= f_{a} (free {a}))" for a in exprs)
    union = "0"
    for a in exprs:
        union = f"(| {union} f_{a})" if union != "0" else f"f_{a}"
    if op in BINDERS:
        union = f"(^ {union} (& {union} x0))"
    elif op in SCANS:
        union = f"(| {union} x0)"
    elif op == "reindex":
        conditions += " (= source (atom_source x0)) (= target (atom_free x0))"
        union = f"(| target (^ {union} (& {union} source)))"
    elif op in {"read", "gather", "position"}:
        conditions += " (= own (atom_free x0))"
        union = f"(| own {union})" if exprs else "own"
    lines = [f"(rule ({head}{conditions}) ((set (free e) {union})) :ruleset facts)"]
    lines.append(_dtype_rule(op, head, exprs))
    return [*lines, *finite.rules(op, head, exprs)]


def _dtype_rule(op: str, head: str, exprs: list[str]) -> str:
    source, condition = "", ""
    if op in CONDITIONS:
        source = '"bool"'
    elif op in {"read", "gather"}:
        condition, source = " (= d (atom_dtype x0))", "d"
    elif op == "position":
        source = '"int64"'
    elif op in {"literal", "cast", "rounded"}:
        source = "x1" if op == "literal" else "x0"
    else:
        last = dict.fromkeys((*WEIGHTED, *SCATTERS), -1)
        carrier = {"where": 1, **last}.get(op, 0)
        condition, source = f" (= d (dtype {exprs[carrier]}))", "d"
    return f"(rule ({head}{condition}) ((set (dtype e) {source})) :ruleset facts)"


def number_text(value: float) -> str:
    """A 64-bit float as egglog reads it."""
    text = repr(float(value))
    return {"nan": "NaN"}.get(text, text)


def atom_text(atom: Atom, table: AtomTable) -> str:
    """An atom as an egglog argument."""
    match atom:
        case str() | CarryLaw():
            return f'"{atom}"'
        case float():
            return number_text(atom)
        case int():
            return str(int(atom))
        case _:
            return str(table.number(atom))


def seed(
    roots: Iterable[Term], universe: Universe, table: AtomTable, finite_buffers: frozenset[str]
) -> tuple[list[str], dict[Term, int]]:
    """Commands that enter terms, one node each, and the facts of their atoms.

    `finite_buffers` are those whose elements are taken to be finite.
    """
    numbers: dict[Term, int] = {}
    lines: list[str] = []
    for term in post_order(roots):
        args = [
            f"(node {numbers[a]})" if isinstance(a, Term) else atom_text(a, table)
            for a in term.args
        ]
        numbers[term] = len(numbers)
        lines.append(f"(set (node {numbers[term]}) ({' '.join([constructor(term.op), *args])}))")
    return [*atom_facts(universe, table, finite_buffers), *lines], numbers


def atom_facts(universe: Universe, table: AtomTable, finite_buffers: frozenset[str]) -> list[str]:
    """The facts of the atoms in a table."""
    lines = []
    for number, atom in enumerate(table.atoms):
        lines.append(f"(set (atom_free {number}) {universe.mask(names_of(atom))})")
        if isinstance(atom, Read):
            lines.append(f'(set (atom_dtype {number}) "{atom.dtype.name}")')
        if isinstance(atom, Renaming):
            lines.append(f"(set (atom_source {number}) {universe.mask(atom.source)})")
        fill = 0 if isinstance(atom, Affine) else atom.fill
        known = not isinstance(atom, Read) or atom.buffer in finite_buffers
        if known and abs(fill) < finite.LARGEST:
            lines.append(f"(atom_finite {number})")
        if known and fill < finite.LARGEST:
            lines.append(f"(atom_below {number})")
    return [*lines, *(f'(bounded "{law}")' for law in table.laws.values() if law.bounded)]


def names_needed(terms: Iterable[Term], universe: Universe, table: AtomTable) -> int:
    """How many of the universe's names, from the first on, masks of terms and atoms may hold."""
    masks = [int(t.args[0]) for t in terms if t.op in BINDERS or t.op in SCANS]  # type: ignore[arg-type]
    names: list[Iterable[str]] = [names_of(atom) for atom in table.atoms]
    names += [a.source for a in table.atoms if isinstance(a, Renaming)]
    return max((mask.bit_length() for mask in (*masks, *map(universe.mask, names))), default=0)


def subset_points(masks: Iterable[int], universe: Universe) -> list[str]:
    """`points` of every subset of the reduced index sets, where a float holds the count; of a set
    that has too many, its own.
    """
    done: set[int] = set()
    for mask in masks:
        done |= {mask} - {0}
        subset = mask if mask.bit_count() <= MOST_SUBSETS else 0
        while subset:
            done.add(subset)
            subset = (subset - 1) & mask
    sizes = {mask: universe.size(mask) for mask in sorted(done)}
    return [f"(set (points {m}) {size})" for m, size in sizes.items() if size <= 1 << 53]


class RuleText:
    """One rewrite as an egglog rule."""

    def __init__(self, one: Rewrite) -> None:
        self.one = one
        self.bindings: dict[str, str] = {}

    def pattern(self, pattern: object) -> str:
        match pattern:
            case Variable(name=name):
                return _PREFIX + name
            case Node(op=op, args=args):
                return f"({' '.join([constructor(op), *(self.pattern(a) for a in args)])})"
            case Free(of=of):
                own = of.name if isinstance(of, Variable) else of.op
                return self._bind(f"free_{own}", f"(free {self.pattern(of)})")
            case DTypeOf(of=of):
                return self._bind(f"dtype_{of.name}", f"(dtype {self.pattern(of)})")
            case PointsIn(mask=mask):
                return f"(to-f64 {self._bind('points_', f'(points {self.pattern(mask)})')})"
            case NumberOf(op=op, left=left, right=right):
                return f"({op} {self.pattern(left)} {self.pattern(right)})"
            case MaskOp(op="-", left=left, right=right):
                a, b = self.pattern(left), self.pattern(right)
                return f"(^ {a} (& {a} {b}))"
            case MaskOp(op=op, left=left, right=right):
                return f"({op} {self.pattern(left)} {self.pattern(right)})"
            case str() | CarryLaw():
                return f'"{pattern}"'
            case float():
                return number_text(pattern)
            case int():
                return str(pattern)
        raise RuleError(f"{pattern!r} cannot stand in a rule")

    def _bind(self, name: str, expression: str) -> str:
        for known, text in self.bindings.items():
            if text == expression:
                return known
        while name in self.bindings:
            name += "_"
        self.bindings[name] = expression
        return name

    def condition(self, condition: Condition) -> str:
        args = condition.args
        match condition.kind:
            case "disjoint":
                return f"(= (& {self.pattern(args[0])} {self.pattern(args[1])}) 0)"
            case "overlap":
                return f"(!= (& {self.pattern(args[0])} {self.pattern(args[1])}) 0)"
            case "differ":
                return f"(!= {self.pattern(args[0])} {self.pattern(args[1])})"
            case "nonempty":
                return f"(!= {self.pattern(args[0])} 0)"
            case kind if kind in finite.FACTS:
                return f"({kind} {self.pattern(args[0])})"
            case "dtype_in":
                of = args[0]
                assert isinstance(of, Variable)
                names = args[1]
                assert isinstance(names, tuple)
                return f'(dtype_is {self.pattern(DTypeOf(of))} "{dtype_set_name(names)}")'
            case "fact":
                return f"({args[0]} {' '.join(self.pattern(a) for a in args[1:])})"
        raise RuleError(
            f"no fact is named {condition.kind}. {nearest(condition.kind, finite.FACTS)}"
        )

    def text(self, group: str, name: str) -> str:
        left = self.pattern(self.one.left)
        conditions = [self.condition(c) for c in self.one.conditions]
        right = self.pattern(self.one.right)
        binds = [f"(= {name} {text})" for name, text in self.bindings.items()]
        query = " ".join([f"(= e {left})", *binds, *conditions])
        return f'(rule ({query}) ((union e {right})) :ruleset {group} :name "{name}")'


def dtype_set_name(names: tuple[str, ...]) -> str:
    """The name of a set of dtypes in the relation `dtype_is`."""
    return "|".join(names)


def rule_lines(rules: Iterable[Rule]) -> list[str]:
    """Each rewrite of each rule; further rewrites of a rule are named `name#2`, `name#3`..."""
    lines: list[str] = []
    sets: set[tuple[str, ...]] = set()
    for rule in rules:
        for number, one in enumerate(rule.rewrites, 1):
            name = rule.name if number == 1 else f"{rule.name}#{number}"
            lines.append(RuleText(one).text(rule.group, name))
            for condition in one.conditions:
                if condition.kind == "dtype_in":
                    sets.add(condition.args[1])  # type: ignore[arg-type]
    facts = [f'(dtype_is "{d}" "{dtype_set_name(names)}")' for names in sorted(sets) for d in names]
    return facts + lines
