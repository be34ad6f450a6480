"""Cubins by NVRTC, loaded kernels, launches replayed as CUDA graphs, library calls, faults."""
