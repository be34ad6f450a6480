"""Writes the calls of routines for products: BLAS, our own, and that for windows that slide."""

from collections.abc import Mapping

from eqsat.codegen.cpu import gemm
from eqsat.graph.index import free_names
from eqsat.kernel.ir import Contract, Load
from eqsat.price.slid import WINDOWED

from .plan import Sink
from .scope import Scope, affine, hoist, product, total
from .write import Writer


class RoutineCalls(Writer):
    """What a contraction is where a routine computes it."""

    def library_call(self, sink: Sink, contract: Contract, call: gemm.Call, scope: Scope) -> None:
        """One call on whole tiles, each operand from the first point of its indices."""
        if contract.name in self.values.windows:
            self.windowed_call(contract, call, scope)
            return
        sizes = {i: self.values.size(i) for i in self.values.axes}
        corner = Scope(scope, scope.lines)
        corner.offsets.update({i: "0" for i in (*call.m, *call.n, *call.k)})
        parts = []
        for name, rows, columns in (
            (contract.left, call.m, call.k),
            (contract.right, call.k, call.n),
            (contract.name, call.m, call.n),
        ):
            array, position, strides = self.operand(name, corner)
            matrix = gemm.matrix(strides, rows, columns, sizes)
            assert matrix is not None, f"{name} is no matrix"
            parts.append((matrix, array, hoist(scope, position, self.names)))
        (a, *left), (b, *right), (c, *output) = parts
        m, n, k = (product(*(self.length(i, scope) for i in g)) for g in (call.m, call.n, call.k))
        beta = self.constant(1 if sink.into else 0, contract.dtype)
        arguments = [
            a.transposed, b.transposed, m, n, k, *left, a.row_stride, *right, b.row_stride,
            beta, *output, c.row_stride,
        ]  # fmt: skip
        routine = "gemm"
        if self.values.routine(contract) == WINDOWED:
            routine = f"multiply_{contract.dtype.name}"
            self.constants[f'product_routine("{contract.dtype.name}")'] = routine
        scope.lines.append(f"{routine}({', '.join(map(str, arguments))})")
        self.home[self.plan.stored[contract.name]] = scope

    def windowed_call(self, contract: Contract, call: gemm.Call, scope: Scope) -> None:
        """One call on windows that lie place by place: columns are their run, in whole lines."""
        sizes, windows = self.values.sizes()[0], self.values.windows[contract.name]
        corner = Scope(scope, scope.lines)
        places = (axis.name for axis in windows.axes)
        corner.offsets.update(dict.fromkeys((*call.m, *call.n, *call.k, *places), "0"))
        m, k = (product(*(self.length(i, scope) for i in own)) for own in (call.m, call.k))
        array, position, strides = self.operand(contract.left, corner)
        matrix = gemm.matrix(strides, call.m, call.k, sizes)
        assert matrix is not None, f"{contract.left} is no matrix"
        once = self.function if self.is_fixed(contract.left, call) else scope
        position = hoist(scope, position, self.names)
        rows = [matrix.transposed, m, k, array, position, matrix.row_stride]
        packed = hoist(once, f"pack_left({', '.join(map(str, rows))})", self.names, "packed")
        array, position, _ = self.operand(contract.right, corner)
        factors = [packed, array, hoist(scope, position, self.names)]
        terms = ", ".join(str(windows.terms[index]) for index in call.k)
        table = self.constants.setdefault(f"beginnings({terms})", f"TERMS{len(self.constants)}")
        run = str(windows.run(sizes))
        if not all(map(self.values.whole, call.n)):
            last = [
                f"{step} * ({self.length(i, scope)} - 1)" for i, step in windows.columns.items()
            ]
            run = f"quotient({total(last)} + {windows.per_line}, {windows.per_line})"
            run = f"{windows.per_line} * {run}"
        array, position, strides = self.operand(contract.name, corner)
        row = strides[call.m[-1]] if call.m else 0
        output = [array, hoist(scope, position, self.names), row]
        routine = f"windowed_{contract.dtype.name}"
        self.constants[f'windowed_routine("{contract.dtype.name}")'] = routine
        arguments = [m, run, k, *factors, table, *output]
        scope.lines.append(f"{routine}({', '.join(map(str, arguments))})")
        self.home[self.plan.stored[contract.name]] = scope

    def is_fixed(self, name: str, call: gemm.Call) -> bool:
        """Whether a factor that is read where it lies is the same for all calls."""
        load = self.values.defined[name]
        if not isinstance(load, Load) or not self.values.pointwise(name):
            return False
        names = free_names(load.access.address)
        return not names & {*call.loops} and all(self.values.axes[i].count == 1 for i in names)

    def operand(self, name: str, scope: Scope) -> tuple[str, str, Mapping[str, int]]:
        """Array, position and strides of a matrix in memory."""
        value = self.values.defined[name]
        if name in self.plan.in_place:
            access = self.plan.in_place[name].access
        elif isinstance(value, Load) and self.values.pointwise(name):
            access = value.access
        else:
            kept = self.plan.stored[name]
            return (
                self.array(kept),
                self.position(kept, scope),
                self.steps(kept),
            )
        strides = self.values.strides(access.address, value.indices)
        address = affine(access.address, scope, self.values.extents, self.names)
        known = {i: stride or 0 for i, stride in strides.items()}
        return self.buffers[access.buffer], address, known
