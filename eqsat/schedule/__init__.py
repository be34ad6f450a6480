"""The second search: one region's kernels as terms of a small e-graph, and the cheapest that fit.

Takes a form, gives bodies under schedules, ranked by price. What a region may be written as instead
(parts of reductions, merged names, whole rows, stored factors) is offered here too.
"""
