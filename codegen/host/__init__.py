"""Arrays of callers in the host's memory, results in the caller's kind, library calls by NumPy."""
