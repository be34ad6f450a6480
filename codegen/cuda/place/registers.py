"""How the threads of a kernel with a producer share out the registers of a multiprocessor."""

from .warpgroup_operations import WARPGROUP

REGISTERS_OF_SM = 65536  # of 32 bits, of a multiprocessor
PRODUCER_REGISTERS = (40, 32, 24)  # of which fewer are taken where those who compute need more
CONVERTER_REGISTERS = 80
MOST_REGISTERS = 240  # that setmaxnreg gives a computing thread here
AROUND = 32  # registers that a thread needs besides the result of an instruction
BESIDE = 72  # the same besides all results, what it reads to store them among it


def registers_of(
    threads: int, blocks: int, producing: int = min(PRODUCER_REGISTERS), converting: int = 0
) -> tuple[int, int]:
    """Registers of a thread at launch, and of a computing thread when those that produce have kept
    so many, and so many `converting` ones theirs; `blocks` on an SM.
    """
    whole = threads + WARPGROUP + converting
    launch = min(REGISTERS_OF_SM // (blocks * whole) // 8 * 8, 248)
    spare = launch * whole - producing * WARPGROUP - CONVERTER_REGISTERS * converting
    return launch, min(spare // threads // 8 * 8, MOST_REGISTERS)


def shared_out(threads: int, blocks: int, held: int, converting: int = 0) -> tuple[int, int]:
    """Registers of a producing and of a computing thread that holds so many results: enough for
    both, or else the latter's come first.
    """
    for producing in PRODUCER_REGISTERS:
        _, computing = registers_of(threads, blocks, producing, converting)
        if held + BESIDE <= computing:
            break
    return producing, computing
