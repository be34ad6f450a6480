"""Kernels as CUDA C++, and programs of them on the GPU at hand.

`emit` writes a kernel from its phases and statements; it places values (`place`), copies tiles
(`copy`), computes values (`values`) and products (`products`), and calls device functions
(`prelude`). `run` compiles, loads and launches.
"""
