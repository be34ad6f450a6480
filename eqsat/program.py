"""A compiled program: kernels and library calls in order over buffers, called with arrays."""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, NoReturn, Protocol, cast

import numpy as np

from eqsat.errors import ArgumentError
from eqsat.explain.explanation import Explanation
from eqsat.explain.render import render
from eqsat.graph.dtypes import DType
from eqsat.kernel.ir import Buffer, Kernel
from eqsat.kernel.text import show
from eqsat.library import LibraryCall
from eqsat.nesting import flatten, outline, same_structure, unflatten


@dataclass(frozen=True)
class Argument:
    """An input of the program: the user's name, its buffer, shape and dtype."""

    name: str
    buffer: str
    shape: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class Launch:
    """One kernel, or library call, over program buffers, in the order of its parameters.

    `seconds` is predicted. `followers`: how many launches after it finish what it begins;
    `measured`: what tuning found for them together, if it ran. `alternatives`: other launches that
    compute the same, the next best first. `segment`: the place of what they compute in the program.
    `drawn`: an alternative that was drawn at random, not kept for its price.
    """

    kernel: Kernel | LibraryCall
    buffers: tuple[str, ...]
    seconds: float
    bottleneck: str
    measured: float | None = None
    followers: int = 0
    alternatives: tuple[tuple["Launch", ...], ...] = ()
    segment: int = 0
    drawn: bool = False


class Lane(NamedTuple):
    """Calls of one lane run one after another: a stream, and the number of the stream capture that
    takes them, if one does.
    """

    stream: int = 0
    capture: int = 0


@dataclass(frozen=True)
class Report:
    """What the search did: segments, e-nodes, rules by how often they fired, times, notes."""

    operations: int = 0
    segments: int = 0
    distinct_segments: int = 0
    nodes: int = 0
    saturated: bool = True
    fired: Mapping[str, int] = field(default_factory=dict[str, int])
    search_seconds: float = 0.0
    compile_seconds: float = 0.0
    from_cache: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parts:
    """Everything that a program consists of."""

    arguments: tuple[Argument, ...]
    outputs: tuple[tuple[str, tuple[int, ...], DType], ...]
    buffers: Mapping[str, Buffer]
    constants: Mapping[str, Any]
    launches: tuple[Launch, ...]
    spec: str

    @cached_property
    def once(self) -> tuple[Launch, ...]:
        """The launches that read constants alone, or what others of these make: they run once."""
        made = [(launch, *read_and_written(launch)) for launch in self.launches]
        writers = Counter(name for _, _, written in made for name in written)
        known = {*self.constants}
        kept = {name for name, _, _ in self.outputs} | {n for n, k in writers.items() if k > 1}
        found: list[Launch] = []
        for launch, read, written in made:
            if read <= known and not written & kept:
                found.append(launch)
                known |= written
        return tuple(found)

    @cached_property
    def made_once(self) -> frozenset[str]:
        """The buffers that these launches write."""
        return frozenset(name for launch in self.once for name in read_and_written(launch)[1])

    @cached_property
    def repeated(self) -> tuple[Launch, ...]:
        """The launches of every run."""
        once = {id(launch) for launch in self.once}
        return tuple(launch for launch in self.launches if id(launch) not in once)


def read_and_written(launch: Launch) -> tuple[set[str], set[str]]:
    """The program's buffers that a launch reads, and those that it writes."""
    called = launch.kernel
    names = dict(zip((b.name for b in called.buffers), launch.buffers, strict=True))
    if isinstance(called, Kernel):
        return {names[n] for n in called.read}, {names[n] for n in called.written}
    given = {names[b.name] for b in called.buffers if b.role == "input"}
    return given, {*names.values()} - given


class Backend(Protocol):
    """What runs kernels: device arrays, and a function over them for a list of launches."""

    @property
    def device(self) -> str:
        """What the kernels run on, as text that tells devices apart."""
        ...

    @property
    def cold_bytes(self) -> int:
        """So many bytes read and written drive what was there before out of the caches; 0 for a
        device whose kernels are measured with what they left there.
        """
        ...

    def timer(self, run: Any, sets: Sequence[Mapping[str, Any]]) -> Callable[[], float]:
        """What measures, each time that it is called, the seconds of one call of a prepared
        function over some sets of arrays in turn.
        """
        ...

    def receive(self, value: Any, argument: Argument) -> Any:
        """A device array for an argument; ArgumentError if it does not match."""
        ...

    def constant(self, value: Any) -> Any:
        """A device array of a constant."""
        ...

    def wait(self) -> None:
        """Return when what was launched has ended."""
        ...

    def copy(self, array: Any) -> Any:
        """Another device array of the same values."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Any:
        """An uninitialised device array."""
        ...

    def result(
        self, shape: tuple[int, ...], dtype: DType, like: Any
    ) -> tuple[Any, Callable[[], Any]]:
        """An uninitialised device array for a result, and what gives it, once it is written, as
        the kind of array that the caller passed.
        """
        ...

    def output(self, value: Any, shape: tuple[int, ...], dtype: DType) -> Any:
        """A caller's output array as a device array to be written; ArgumentError if unusable."""
        ...

    def host(self, array: Any, dtype: DType) -> np.ndarray:
        """The values of a device array on the host."""
        ...

    def overlap(self, a: Any, b: Any) -> bool:
        """Whether two device arrays may share memory."""
        ...

    def calling(
        self, launches: Sequence[Launch], values: Sequence[Any]
    ) -> AbstractContextManager[Lane]:
        """Within it the launches may run on a caller's values; errors of the device are
        DeviceErrors that name what was launched.
        """
        ...

    def build(self, kernels: Sequence[Kernel]) -> None:
        """Compile kernels that will be prepared one after another, if that can be done at once."""
        ...

    def prepare(self, launches: Sequence[Launch]) -> Any:
        """A function of {buffer name: device array} that runs the launches in order."""
        ...

    def source(self, kernel: Kernel) -> str:
        """The emitted source of a kernel."""
        ...

    def ptx(self, kernel: Kernel) -> str:
        """The PTX of a kernel; UnsupportedError where the target has none."""
        ...

    def sass(self, kernel: Kernel) -> str:
        """The machine code of a kernel; UnsupportedError where the target or tool is missing."""
        ...


Explainer = Callable[[str, Sequence[Launch]], Explanation]


class Program:
    """A compiled program. Call it with arrays by position or name; see `arguments`.

    Takes NumPy arrays, CuPy arrays on a GPU program, or any DLPack array; results come back as the
    kind of the first array argument. `out=` takes an array, or one for each output; an input of
    that name goes by position. Arrays that are not C-contiguous are copied first. Tensors of torch
    are taken on torch's current stream, others on CuPy's; a stream capture takes a program that was
    called before, which must live as long as the graph. Raises ArgumentError for arrays that do not
    match, and DeviceError where a device fails; what fails after a call that gives device arrays, a
    later one tells.
    """

    def __init__(
        self,
        parts: Parts,
        backend: Backend,
        structure: Any,
        report: Report,
        explainer: Explainer,
    ) -> None:
        self.parts = parts
        self.report = report
        self._explainer = explainer
        self._backend = backend
        self._structure = structure
        self._single = not isinstance(structure, Mapping | list | tuple)
        self._names = tuple(argument.name for argument in parts.arguments)
        self._run = backend.prepare(parts.repeated)
        self._constants: dict[str, Any] | None = None
        self._workspaces: defaultdict[Lane, list[dict[str, Any]]] = defaultdict(list)
        self._lock = threading.Lock()

    @property
    def arguments(self) -> tuple[Argument, ...]:
        """The inputs, in the order of positional arguments."""
        return self.parts.arguments

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels in launch order, without calls of libraries."""
        return tuple(k for k in self._launched() if isinstance(k, Kernel))

    @property
    def calls(self) -> tuple[LibraryCall, ...]:
        """The calls of libraries in launch order."""
        return tuple(k for k in self._launched() if isinstance(k, LibraryCall))

    def _launched(self) -> Iterator[Kernel | LibraryCall]:
        return (launch.kernel for launch in self.parts.launches)

    @property
    def cost(self) -> float:
        """Predicted seconds of one run; what reads constants alone is computed before the first."""
        return sum(launch.seconds for launch in self.parts.repeated)

    def source(self) -> str:
        """The emitted source of every distinct kernel."""
        return self._each(self._backend.source)

    def ptx(self) -> str:
        """The PTX of every distinct kernel; UnsupportedError on a target that has none."""
        return self._each(self._backend.ptx)

    def sass(self) -> str:
        """The machine code of every distinct kernel, where nvdisasm is installed."""
        return self._each(self._backend.sass)

    def _each(self, show_one: Callable[[Kernel], str]) -> str:
        distinct = {kernel.fingerprint: kernel for kernel in self._launched()}
        return "\n\n".join(
            one.show() if isinstance(one, LibraryCall) else show_one(one)
            for one in distinct.values()
        )

    def explain(self, format: str = "text", title: str = "program") -> str:
        """How the program as written became the program as run, as text, json or html.

        Rewrite steps with rule, place and predicted cost, replayed by an independent checker; then
        the kernels. Searches once more, which takes about as long as the first time.
        """
        return render(self._explainer(title, self.parts.launches), format)

    def describe(self) -> str:
        """The kernels as text, with predicted time and bottleneck."""
        parts: list[str] = []
        for launch in self.parts.launches:
            where = ", ".join(launch.buffers)
            one = launch.kernel
            parts.append(
                f"{one.show() if isinstance(one, LibraryCall) else show(one)}\n"
                f"    buffers {where}\n"
                f"    rules {', '.join(one.rules) or 'none'}\n"
                f"    predicted {launch.seconds * 1e6:.1f} us, mostly {launch.bottleneck}"
                + "\n    run once, as it reads constants alone"
                * (launch in self.parts.once)
            )
        return "\n".join(parts)

    def __call__(self, /, *args: Any, out: Any = None, **named: Any) -> Any:
        values = self._bind(args, named)
        with self._backend.calling(self.parts.launches, values) as lane:
            return self._call(values, out, lane)

    def __reduce__(self) -> NoReturn:
        raise ArgumentError(
            "a program holds code and memory of this process, and is neither pickled nor copied. "
            "Compile its graph again where it is needed, which is quick: the cache has its kernels."
        )

    def _call(self, values: Sequence[Any], out: Any, lane: Lane) -> Any:
        if self._constants is None:
            self._constants = self._settled()
        arrays, like, receive = dict(self._constants), None, self._backend.receive
        for argument, value in zip(self.parts.arguments, values, strict=True):
            arrays[argument.buffer] = receive(value, argument)
            if like is None and hasattr(value, "shape"):
                like = value
        results, given = self._results(out, like)
        if out is not None:
            self._refuse_aliases(results, arrays)
        for (buffer, _, _), result in zip(self.parts.outputs, results, strict=True):
            arrays[buffer] = result
        workspace = self._borrow(lane)
        try:
            self._run({**workspace, **arrays})
        finally:
            with self._lock:
                self._workspaces[lane].append(workspace)
        if out is not None:
            return out
        leaves = [give() for give in given]
        return leaves[0] if self._single else unflatten(self._structure, leaves)

    def _settled(self) -> dict[str, Any]:
        """The constants, and what launches make of them alone."""
        parts, backend = self.parts, self._backend
        found = {name: backend.constant(value) for name, value in parts.constants.items()}
        if parts.once:
            used = {name for launch in parts.once for name in launch.buffers}
            room = workspace(parts, backend, used)
            backend.prepare(parts.once)({**room, **found})
            backend.wait()
            found |= {name: room[name] for name in parts.made_once}
        return found

    def _bind(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Sequence[Any]:
        names = self._names
        if not named and len(args) == len(names):
            return args
        if not args and len(named) == len(names) and all(name in named for name in names):
            return [named[name] for name in names]
        if len(args) > len(names):
            raise ArgumentError(
                f"the program takes {len(names)} arrays ({', '.join(names)}); got {len(args)}. "
                f"Drop the surplus ones."
            )
        values = dict(zip(names, args, strict=False))
        for name, value in named.items():
            if name not in names:
                raise ArgumentError(
                    f"the program has no input {name!r}; its inputs are {', '.join(names)}."
                )
            if name in values:
                raise ArgumentError(f"input {name!r} is given by position and by name; drop one.")
            values[name] = value
        missing = [name for name in names if name not in values]
        if missing:
            taken = " Pass input 'out' by position: out= says where results go."
            raise ArgumentError(
                f"missing {', '.join(missing)}; the program's inputs are {', '.join(names)}."
                f"{taken if 'out' in missing else ''}"
            )
        return [values[name] for name in names]

    def _results(self, out: Any, like: Any) -> tuple[list[Any], list[Callable[[], Any]]]:
        """Device arrays for the outputs, and what gives them to the caller unless they are his."""
        outputs = self.parts.outputs
        if out is None:
            made = [self._backend.result(shape, dtype, like) for _, shape, dtype in outputs]
            return [array for array, _ in made], [give for _, give in made]
        given = flatten(out)
        if not same_structure(out, self._structure):
            wanted, step = "one array by itself", "Pass the array alone"
            if not self._single:
                wanted = f"{len(outputs)} arrays as the program gives them, "
                wanted, step = wanted + outline(self._structure), "Pass one for each dot"
            found = f"a value of type {type(out).__name__}"
            if isinstance(out, Mapping | list | tuple):
                found = f"{len(given)} as {outline(cast(Any, out))}"
            raise ArgumentError(f"out= needs {wanted}; got {found}. {step}.")
        return [
            self._backend.output(value, shape, dtype)
            for value, (_, shape, dtype) in zip(given, outputs, strict=True)
        ], []

    def _refuse_aliases(self, results: Sequence[Any], arrays: Mapping[str, Any]) -> None:
        """An output over an input would be read after it is written, one over another lost."""
        for number, result in enumerate(results):
            if any(self._backend.overlap(result, other) for other in results[:number]):
                raise ArgumentError(
                    f"out= number {number} shares memory with one before it, which would be "
                    f"overwritten. Pass arrays that lie apart."
                )
        for argument in self.parts.arguments:
            if any(self._backend.overlap(result, arrays[argument.buffer]) for result in results):
                raise ArgumentError(
                    f"out= shares memory with input {argument.name!r}, which kernels still read "
                    f"while they write. Pass another array, or copy the input."
                )

    def _borrow(self, lane: Lane) -> dict[str, Any]:
        """Temporaries for one run; kept for the next of its lane, one set for each concurrent
        caller. A capture, which may not allocate, takes what another lane has left for good.
        """
        with self._lock:
            idle = [one for one in self._workspaces if not one.capture] if lane.capture else []
            for owner in (lane, *idle):
                if free := self._workspaces[owner]:
                    return free.pop()
        used = {name for launch in self.parts.repeated for name in launch.buffers}
        return workspace(self.parts, self._backend, used - self.parts.made_once)


def workspace(parts: Parts, backend: Backend, used: Collection[str]) -> dict[str, Any]:
    """Arrays for those of the program's temporaries that are `used`, zero where kernels ask so."""
    made: dict[str, Any] = {}
    for name, buffer in parts.buffers.items():
        if name in used and buffer.role == "zeroed":
            made[name] = backend.constant(np.zeros(buffer.shape, buffer.dtype.numpy))
        elif name in used and buffer.role == "temporary":
            made[name] = backend.empty(buffer.shape, buffer.dtype)
    return made
