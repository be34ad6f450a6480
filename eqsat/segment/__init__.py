"""From a whole graph to segments: what is settled beforehand, where the graph is cut, what repeats.

Takes a tensor graph, gives pieces that are small enough to search; equal ones are solved once.
"""
