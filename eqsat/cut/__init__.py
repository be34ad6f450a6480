"""Where kernels begin and end: which values of a frozen e-graph touch memory, by price.

Takes an e-graph, gives plans of kernels; joins those that share what they read, and keeps the plan
that is best as scheduled.
"""
