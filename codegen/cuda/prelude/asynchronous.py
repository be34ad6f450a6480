"""Device functions of sm_90: barriers that count bytes, copies of boxes by the tensor memory
accelerator both ways, warpgroup synchronisation. As text; a kernel gets those that it names.

Source: PTX ISA, mbarrier, cp.async.bulk.tensor, stmatrix, wgmma, setmaxnreg.
"""

from .math import DEVICE

MOST_DIMENSIONS = 5  # of a tensor map
LEAST_PIXEL_DIMENSIONS = 3  # of one through which runs of pixels go

ASYNC_FUNCTIONS: dict[str, str] = {
    "TensorMap": """
struct alignas(64) TensorMap {
    unsigned long long words[16];
};""",
    "prefetch_map": f"""
{DEVICE} void prefetch_map(const TensorMap& map) {{
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}}""",
    "shared_address": f"""
{DEVICE} unsigned shared_address(const void* place) {{
    return unsigned(__cvta_generic_to_shared(place));
}}""",
    "barrier_init": f"""
{DEVICE} void barrier_init(unsigned long long* barrier, unsigned arrivals) {{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals) : "memory");
}}""",
    "barriers_ready": f"""
{DEVICE} void barriers_ready() {{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}}""",
    "barrier_expect": f"""
{DEVICE} void barrier_expect(unsigned long long* barrier, unsigned bytes) {{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::
                     "r"(shared_address(barrier)), "r"(bytes) : "memory");
}}""",
    "barrier_arrive": f"""
{DEVICE} void barrier_arrive(unsigned long long* barrier, bool present) {{
    asm volatile("{{\\n"  // without a branch, which would take the first chunk out of its loop
                 ".reg .pred p;\\n"
                 "setp.ne.b32 p, %1, 0;\\n"
                 "@p mbarrier.arrive.shared::cta.b64 _, [%0];\\n"
                 "}}" ::"r"(shared_address(barrier)), "r"(int(present)) : "memory");
}}""",
    "barrier_wait": f"""
{DEVICE} void barrier_wait(unsigned long long* barrier, unsigned parity) {{
    asm volatile("{{\\n"
                 ".reg .pred done;\\n"
                 "AGAIN:\\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
                 "@done bra DONE;\\n"
                 "bra AGAIN;\\n"
                 "DONE:\\n"
                 "}}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}}""",
    "barrier_arrive_in": f"""
{DEVICE} void barrier_arrive_in(unsigned long long* barrier, int rank, bool present) {{
    asm volatile("{{\\n"
                 ".reg .pred p;\\n"
                 ".reg .b32 there;\\n"
                 "setp.ne.b32 p, %2, 0;\\n"
                 "@p mapa.shared::cluster.u32 there, %0, %1;\\n"
                 "@p mbarrier.arrive.shared::cluster.b64 _, [there];\\n"
                 "}}" ::"r"(shared_address(barrier)), "r"(rank), "r"(int(present)) : "memory");
}}""",
    "shared_written": f"""
{DEVICE} void shared_written() {{  // what this thread wrote is there for the accelerator
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}}""",
    "store_matrices": f"""
{DEVICE} void store_matrices(void* row, unsigned a, unsigned b, unsigned c, unsigned d) {{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {{%1, %2, %3, %4}};" ::
                     "r"(shared_address(row)), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}}""",
    "boxes_commit": f"""
{DEVICE} void boxes_commit() {{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}}""",
    "boxes_read": f"""
{DEVICE} void boxes_read() {{  // those that this thread has had copied
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}}""",
    "boxes_stored": f"""
{DEVICE} void boxes_stored() {{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}}""",
    "fewer_registers": f"""
template <int Count>
{DEVICE} void fewer_registers() {{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}}""",
    "more_registers": f"""
template <int Count>
{DEVICE} void more_registers() {{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}}""",
    "products_begin": f"""
{DEVICE} void products_begin() {{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}}""",
    "products_commit": f"""
{DEVICE} void products_commit() {{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}}""",
    "products_wait": f"""
template <int Pending>
{DEVICE} void products_wait() {{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}}""",
    "matrix_descriptor": f"""
{DEVICE} unsigned long long matrix_descriptor(const void* place, int leading, int stride,
                                               int swizzle) {{
    const unsigned from = shared_address(place);
    return (unsigned long long)((from & 0x3ffffu) >> 4) |
           (unsigned long long)(leading >> 4) << 16 | (unsigned long long)(stride >> 4) << 32 |
           (unsigned long long)swizzle << 62;
}}""",
}


def store_box_name(dimensions: int) -> str:
    """The device function that copies a box of so many dimensions from shared memory."""
    return f"store_box_{dimensions}d"


def copy_box_name(dimensions: int, shared: bool = False, pixels: bool = False) -> str:
    """The device function that copies a box of so many dimensions to shared memory; shared: to the
    same place of each block of the cluster, and counted by each block's barrier there; a run of
    pixels: after the coordinates of the first, where in its window each of them reads.
    """
    return f"copy_{'pixels' if pixels else 'box'}{'_to_all' if shared else ''}_{dimensions}d"


def _copy_box(dimensions: int, shared: bool, pixels: bool) -> str:
    places = dimensions - 2 if pixels else 0
    numbers = [f"c{i}" for i in range(dimensions)]
    where = ", ".join(f"int {c}" for c in numbers) + "".join(f", int o{i}" for i in range(places))
    at = ", ".join(f"%{3 + i}" for i in range(dimensions))
    operands = "".join(f', "r"({c})' for c in numbers)
    operands += "".join(f', "h"((unsigned short)o{i})' for i in range(places))
    kind, blocks, after, mode = "", "", "", ""
    if pixels:
        mode = ".im2col"
        after = f", {{{', '.join(f'%{3 + dimensions + i}' for i in range(places))}}}"
    if shared:
        kind, blocks = ".multicast::cluster", "template <int Blocks>\n"
        after += f", %{3 + dimensions + places}"
        operands += ', "h"((unsigned short)((1 << Blocks) - 1))'
    return f"""
{blocks}{DEVICE} void {copy_box_name(dimensions, shared, pixels)}(void* target,
        const TensorMap& map, unsigned long long* barrier, {where}) {{
    asm volatile(
        "cp.async.bulk.tensor.{dimensions}d.shared::cluster.global{mode}"
        ".mbarrier::complete_tx::bytes"
        "{kind} [%0], [%1, {{{at}}}], [%2]{after};" ::"r"(shared_address(target)), "l"(&map),
        "r"(shared_address(barrier)){operands} : "memory");
}}"""


ASYNC_FUNCTIONS.update(
    {
        copy_box_name(n, shared, pixels): _copy_box(n, shared, pixels)
        for pixels in (False, True)
        for n in range(LEAST_PIXEL_DIMENSIONS if pixels else 1, MOST_DIMENSIONS + 1)
        for shared in (False, True)
    }
)


def _store_box(dimensions: int) -> str:
    where = ", ".join(f"int c{i}" for i in range(dimensions))
    at = ", ".join(f"%{2 + i}" for i in range(dimensions))
    operands = "".join(f', "r"(c{i})' for i in range(dimensions))
    return f"""
{DEVICE} void {store_box_name(dimensions)}(const void* source, const TensorMap& map, {where}) {{
    asm volatile(
        "cp.async.bulk.tensor.{dimensions}d.global.shared::cta.bulk_group [%0, {{{at}}}], [%1];" ::
            "l"(&map), "r"(shared_address(source)){operands} : "memory");
}}"""


ASYNC_FUNCTIONS.update({store_box_name(n): _store_box(n) for n in range(1, MOST_DIMENSIONS + 1)})
