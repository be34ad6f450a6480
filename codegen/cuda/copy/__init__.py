"""Tiles in shared memory: their layout, and how threads or the memory accelerator copy them."""
