"""From a segment of a tensor graph to terms: names that dimensions share, then one term a tensor.

Besides, what is known beforehand: bounds that decide integers, masks that fill with finite numbers,
roundings that nobody asked for.
"""
