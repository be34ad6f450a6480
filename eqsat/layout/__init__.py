"""How values lie in memory: the axes that reads walk, merged and split names, prepared factors.

Takes terms and gives terms of the same values, over other names or with factors copied first, and
what matrix operations and copies ask of factors in memory.
"""
