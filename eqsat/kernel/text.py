"""The printed form of a kernel, as explain, tests and people read it."""

from eqsat.kernel.ir import (
    IDENTITY,
    Access,
    Axis,
    Contract,
    Kernel,
    Literal,
    Load,
    Map,
    Position,
    Reduce,
    Scan,
    Statement,
    Update,
    operands,
)


def _expression(statement: Statement) -> str:
    match statement:
        case Load(memory=memory):
            where = "" if memory == "registers" else f" -> {memory}"
            return f"load {', else '.join(map(show_access, statement.accesses))}{where}"
        case Literal(value=value):
            return repr(value)
        case Position(expression=expression):
            return f"position {expression}"
        case Map(op="cast", arguments=arguments):
            return f"{statement.dtype.name}({arguments[0]})"
        case Map(op=op, arguments=arguments):
            return f"{op}({', '.join(arguments)})"
        case Reduce(monoid=monoid, over=over, argument=argument):
            return f"{monoid}[{','.join(over)}] {argument}"
        case Scan(monoid=monoid, over=over):
            return f"scan {monoid}[{over}] {', '.join(operands(statement))}"
        case Contract(over=over, left=left, right=right, operation=operation):
            how = f" by {operation}" if operation else ""
            if statement.narrow:
                each = f"{statement.terms} terms of " if statement.terms > 1 else ""
                how = f" in {each}{statement.narrow}{how}"
            return f"contract[{','.join(over)}]({left}, {right}){how}"
        case Update(carry=carry, monoid=monoid, chunk=chunk, scale=scale):
            old = f"{carry} * {scale}" if scale else carry
            return f"{old} + {chunk}" if monoid == "sum" else f"{monoid}({old}, {chunk})"


def show_access(access: Access) -> str:
    """`x[64*i + k] if 0 <= k < 9`"""
    parts = [str(access.address)]
    parts += [f"{c.stride}*{c.value}" for c in access.coordinates]
    when = " and ".join(str(guard) for guard in access.guards)
    return f"{access.buffer}[{' + '.join(parts)}]" + (f" if {when}" if when else "")


def _axis(axis: Axis) -> str:
    return f"{axis.name}:{axis.tile}/{axis.extent}"


def show(kernel: Kernel) -> str:
    """A kernel as text, one line for each statement."""
    buffers = ", ".join(f"{b.name}: {b.dtype.name}{list(b.shape)}" for b in kernel.buffers)
    head = f"kernel {kernel.name}({buffers})"
    grid = " ".join(_axis(axis) for axis in kernel.grid) or "one tile"
    blocks = f"   cluster {kernel.cluster}" if kernel.cluster > 1 else ""
    blocks += f"   copies for {kernel.multicast}" if kernel.multicast > 1 else ""
    blocks += f", the last along {kernel.repeats} twice" if kernel.repeats else ""
    blocks += f"   last tiles in {kernel.stream_k} parts" if kernel.stream_k else ""
    blocks = (f"   threads {kernel.threads}" if kernel.threads > 1 else "") + blocks
    lines = [head, f"  grid {grid}   spec {kernel.spec}{blocks}"]
    if kernel.inner:
        lines.append("  inner " + " ".join(_axis(axis) for axis in kernel.inner))
    for phase in kernel.phases:
        indent = "    "
        for carry in phase.carries:
            pivot = f", law {carry.law} about {carry.pivot}" if carry.law else ""
            lines.append(
                f"    {carry.name}[{','.join(carry.indices)}]: {carry.dtype.name} = "
                f"{IDENTITY[carry.monoid]} of {carry.monoid}{pivot}"
            )
        if phase.stream:
            stages = f" stages {phase.stages}" if phase.stages > 1 else ""
            lines.append(f"    stream {' '.join(_axis(a) for a in phase.stream)}{stages}")
            indent = "        "
        for s in phase.body:
            what = f"{s.name}[{','.join(s.indices)}]: {s.dtype.name}"
            lines.append(f"{indent}{what} = {_expression(s)}")
        for store in phase.stores:
            how = f"{store.monoid}= " if store.monoid else "= "
            where = f" in {store.memory}" if store.memory else ""
            lines.append(f"{indent}store {show_access(store.access)} {how}{store.value}{where}")
    return "\n".join(lines)
