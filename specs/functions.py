"""The functions that a row of an operation may implement: what the compiler asks a spec's price of.

A spec imports no graph: a test compares ELEMENTWISE with the graph's op table.
"""

ELEMENTWISE = (
    *("neg", "abs", "sign", "square", "exp", "expm1", "log", "log1p", "log2", "sqrt", "rsqrt"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "erf", "floor", "ceil"),
    *("trunc", "round", "reciprocal", "logical_not", "bitwise_invert", "isnan", "isfinite"),
    *("isinf", "add", "sub", "mul", "div", "floor_divide", "remainder", "pow", "maximum"),
    *("minimum", "atan2", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
    *("shift_left", "shift_right", "where", "cast"),
)
"""The elementwise ops of the graph."""

IN_KERNELS = ("fma", "exp_difference", "one_plus_erf")
"""What kernels have besides: a multiply-add of a sum of products, exp(a - b), 1 + erf(a)."""

COMBINING = tuple(
    f"scatter_{monoid}{where}" for where in ("", "_in_group") for monoid in ("sum", "max", "min")
)
"""A value combined with what lies at a computed place, in memory or in that of a tile's group."""

ORDERING = (
    *("compare_sort", "compare_argsort", "select", "select_kept", "select_parts"),
    *("radix_sort", "radix_element"),
)
"""Library calls on whole rows."""

FUNCTIONS = (*ELEMENTWISE, *IN_KERNELS, *COMBINING, *ORDERING)
