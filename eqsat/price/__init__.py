"""The cost model: predicted seconds of a kernel form under tile choices, from the spec alone.

`pricer` puts it together; each other file prices one thing that kernels do. No device number stands
here: rates, sizes and latencies are the spec's.
"""
