"""Contractions: by threads, by mma.sync, by wgmma; fragments of factors, narrower terms."""
