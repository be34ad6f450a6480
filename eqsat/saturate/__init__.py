"""Equality saturation: rules, facts and terms as egglog text, run within limits by a worker.

Takes terms and rules, gives a frozen e-graph, and says whether the search was cut short.
"""
