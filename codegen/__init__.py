"""Emitters and runners: a kernel in, source text and a callable over arrays out.

NumPy (the oracle), Numba (the CPU), CUDA C++ (NVIDIA GPUs); `targets` lists them by name.
"""
