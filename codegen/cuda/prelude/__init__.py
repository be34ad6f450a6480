"""C++ text: expressions of every elementwise op, and the device functions that kernels call."""
