"""Tiles of 16-bit elements that lie as boxes, read into registers as fragments of a left factor.

A left factor that is computed from a copied tile has each lane's elements where the instruction
wants them: two neighbours along k, in rows 8 apart. ldmatrix brings exactly these, four matrices
of 8 x 8 at a time; of a tile with rows contiguous, turned about. So a chunk takes one instruction
where single elements take eight, and lanes of a quarter meet in no bank.
"""

from dataclasses import dataclass

from eqsat.kernel.ir import Load

from ..copy.box_tile import BoxTile
from ..place.block import Block
from ..place.distribution import WARP, Factor
from ..place.placement import Matrix
from ..place.tile import Point
from ..prelude.functions import load_matrix_name
from ..prelude.math import cast, widen

ALONG_K = (Factor("thread", 4, 1), Factor("register", 2))
ALONG_ROWS = (Factor("thread", 4, WARP), Factor("register", 2), Factor("thread", 8, 4))


@dataclass(frozen=True)
class Fragments:
    """A load whose points a thread holds as fragments of 16 rows and 16 points of k."""

    block: Block
    load: Load
    tile: BoxTile
    row: str
    k: str

    @property
    def array(self) -> str:
        """`f_x[j][r]`: elements 2 j and 2 j + 1 along k of the thread's row r."""
        return f"f_{self.block.names.of(self.load.name)}"

    def declare(self) -> None:
        """Read the whole tile of the chunk at hand."""
        block, steps = self.block, self.block.distribution.registers(self.k) // 4
        _read_fragments(block, self.array, steps, (self.tile, self.row, self.k))
        block.readers[self.load.name] = self.read

    def read(self, point: Point) -> str:
        """The element at one of the thread's points, as a register value."""
        row, k = (f"({point.register[i]})" for i in (self.row, self.k))
        register = f"{self.array}[{k} / 4][{row} / 2][{k} / 2 % 2 * 2 + {row} % 2]"
        text = widen(self.tile.dtype, f"half_of({register}, {k} % 2)")
        return cast(self.tile.dtype, self.load.dtype, text)


def fragment_place(block: Block, tile: BoxTile, row: str, k: str) -> str:
    """Where this lane's 16 bytes of its matrix of fragment `block` at `step` begin: matrix q holds
    rows 8 (q % 2), k of the half q / 2.
    """
    d = block.distribution
    thread = f"int({block.thread})"
    inside, matrix = f"{thread} % 8", f"{thread} / 8 % 4"
    by_row = tile.order[-1] == k  # else the lane's unit lies along the rows
    warps = [(f, w) for f, w in d.weighted(row, "thread") if f.stride >= WARP]
    first = block.register_offset(d, row, f"(block * 2 + {matrix} % 2)")
    at_row = f"({block.thread_offset(warps)} + {first}{f' + {inside}' if by_row else ''})"
    at_k = f"(step * 16 + {matrix} / 2 * 8{'' if by_row else f' + {inside}'})"
    at = {i: block.index("base", i) for i in tile.order} | {row: at_row, k: at_k}
    origin = {**block.frame.origin, row: "0", k: "0"}
    return tile.offset(Point(at, dict.fromkeys(at, "0"), origin))


def read_left(block: Block, matrix: Matrix, target: str) -> bool:
    """Declare `target[step][block]` and read a product's left factor of 16-bit elements into it, a
    tile that lies there; False, and nothing, where ldmatrix cannot.
    """
    tile, d = block.tiles.get(matrix.left), block.distribution
    rows = [i for i in matrix.rows if d.padded(i) > 1]
    if not isinstance(tile, BoxTile) or tile.dtype.itemsize != 2 or len(rows) != 1:
        return False
    (row,), k = rows, matrix.k
    held = [i for i in tile.order if tile.extents[i] > 1]
    if {*held} != {row, k} or d.factors[row][-len(ALONG_ROWS) :] != ALONG_ROWS:
        return False
    steps = -(-d.padded(k) // matrix.operation.k)
    _read_fragments(block, target, steps, (tile, row, k))
    return True


def _read_fragments(
    block: Block, target: str, steps: int, source: tuple[BoxTile, str, str]
) -> None:
    """Declare `target[step][block]` and read a tile into it whose rows and k are the indices."""
    (tile, row, k), out = source, block.out
    blocks = block.distribution.registers(row) // 2
    out.line(f"unsigned {target}[{steps}][{blocks}][4];")
    out.line("#pragma unroll")
    with out.block(f"for (int step = 0; step < {steps}; ++step)"):
        out.line("#pragma unroll")
        with out.block(f"for (int block = 0; block < {blocks}; ++block)"):
            function = load_matrix_name(4, tile.order[-1] == row)
            place = f"{tile.pointer} + {fragment_place(block, tile, row, k)}"
            out.line(f"{function}({target}[step][block], {place});")


def find_fragments(block: Block, load: Load, matrix: Matrix) -> Fragments | None:
    """How a load reads as fragments, if it does, for a product whose left factor is made of it."""
    tile, d = block.tiles[load.name], block.distribution
    held = [i for i in load.indices if d.padded(i) > 1]
    if not isinstance(tile, BoxTile) or tile.dtype.itemsize != 2 or load.fill:
        return None
    rows = [i for i in held if i in matrix.rows]
    if len(rows) != 1 or {*held} != {rows[0], matrix.k}:
        return None
    row, k = rows[0], matrix.k
    if tile.order[-1] not in (row, k) or d.factors[k][1:] != ALONG_K or d.registers(k) % 4:
        return None
    if d.factors[row][-len(ALONG_ROWS) :] != ALONG_ROWS:
        return None
    return Fragments(block, load, tile, row, k)
