"""Kernels as Numba source: compiled, kept on disk, run by threads that are bound to cores.

Takes a kernel of the IR, gives a callable over NumPy arrays; `products` and `math` are what the
generated loops call.
"""
