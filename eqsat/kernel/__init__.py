"""The kernel IR: grid axes, phases, tile values; its text, and what is read off kernels alone.

`ir` defines it; pieces that are read as one array, neighbours of a stencil, chunks that masks leave
idle, and the order of tiles are described here for all that price, build and emit kernels.
"""
