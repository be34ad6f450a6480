"""What functions of NumPy, torch and JAX are called here, for errors that say what to write."""

from collections.abc import Container
from types import ModuleType

# A name elsewhere -> the one here, or an expression in x (and y) of the same meaning.
ELSEWHERE: dict[str, str] = {
    # NumPy's and torch's names of elementwise functions
    "absolute": "abs", "fabs": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin",
    "arcsinh": "asinh", "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "sgn": "sign",
    "power": "pow", "float_power": "pow", "div": "divide", "true_divide": "divide",
    "sub": "subtract", "mul": "multiply", "neg": "negative", "mod": "remainder",
    "floor_div": "floor_divide", "invert": "bitwise_invert", "bitwise_not": "bitwise_invert",
    "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift",
    "rint": "round", "around": "round", "fix": "trunc", "clamp": "clip", "eq": "equal",
    "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
    "select": "where", "cond": "where", "exp2": "eqsat.pow(2.0, x)",
    "cbrt": "eqsat.sign(x) * eqsat.pow(eqsat.abs(x), 1 / 3)", "erfc": "1 - eqsat.erf(x)",
    "deg2rad": "x * (math.pi / 180)", "radians": "x * (math.pi / 180)",
    "rad2deg": "x * (180 / math.pi)", "degrees": "x * (180 / math.pi)",
    "nan_to_num": "eqsat.where(eqsat.isnan(x), 0.0, x)", "lerp": "x + (y - x) * 0.5",
    "masked_fill": "eqsat.where(x > 0, 0.0, x)", "array_equal": "eqsat.all(x == y)",
    # reductions and prefix sums
    "amax": "max", "amin": "min", "average": "mean", "cumsum": "cumulative_sum",
    "cumprod": "cumulative_prod", "add.reduce": "sum", "multiply.reduce": "prod",
    "maximum.reduce": "max", "minimum.reduce": "min", "logical_and.reduce": "all",
    "logical_or.reduce": "any", "add.accumulate": "cumulative_sum",
    "multiply.accumulate": "cumulative_prod", "ptp": "eqsat.max(x) - eqsat.min(x)",
    "norm": "eqsat.sqrt(eqsat.sum(x * x))", "vector_norm": "eqsat.sqrt(eqsat.sum(x * x))",
    "matrix_norm": "eqsat.sqrt(eqsat.sum(x * x))",
    "nansum": "eqsat.sum(eqsat.where(eqsat.isnan(x), 0.0, x))",
    "cummax": "eqsat.compute(x.size, lambda i: eqsat.max_over(x.size, "
              "lambda j: eqsat.where(j <= i, x[j], x[i])))",
    "maximum.accumulate": "eqsat.compute(x.size, lambda i: eqsat.max_over(x.size, "
                          "lambda j: eqsat.where(j <= i, x[j], x[i])))",
    "cummin": "eqsat.compute(x.size, lambda i: eqsat.min_over(x.size, "
              "lambda j: eqsat.where(j <= i, x[j], x[i])))",
    "percentile": "eqsat.quantile(x, 90 / 100)", "topk": "top_k", "msort": "sort",
    "partition": "top_k", "argpartition": "top_k", "histc": "histogram",
    "digitize": "searchsorted", "bucketize": "searchsorted", "associative_scan": "affine_scan",
    # shapes
    "cat": "concat", "concatenate": "concat", "hstack": "eqsat.concat([x, y], axis=1)",
    "vstack": "eqsat.concat([x, y], axis=0)", "row_stack": "eqsat.concat([x, y], axis=0)",
    "hsplit": "eqsat.split(x, 2, axis=1)", "vsplit": "eqsat.split(x, 2, axis=0)",
    "chunk": "array_split", "tensor_split": "array_split", "unbind": "unstack", "view": "reshape",
    "ravel": "eqsat.reshape(x, -1)", "flatten": "eqsat.reshape(x, -1)", "permute": "permute_dims",
    "transpose": "permute_dims", "swapaxes": "permute_dims", "swapdims": "permute_dims",
    "movedim": "moveaxis", "t": "x.T", "unsqueeze": "expand_dims", "expand": "broadcast_to",
    "repeat_interleave": "repeat", "flipud": "eqsat.flip(x, 0)", "fliplr": "eqsat.flip(x, 1)",
    "diag": "diagonal", "newaxis": "None",
    # elements at positions
    "gather": "take_along_axis", "take_along_dim": "take_along_axis", "index_select": "take",
    "scatter": "scatter_add", "scatter_reduce": "segment_max", "index_add": "scatter_add",
    "add.at": "scatter_add", "maximum.at": "segment_max", "minimum.at": "segment_min",
    # products
    "dot": "matmul", "mm": "matmul", "bmm": "matmul", "mv": "matmul", "vdot": "vecdot",
    "inner": "vecdot", "ger": "outer", "multiply.outer": "outer",
    "linear": "x @ eqsat.matrix_transpose(y)",
    # networks
    "relu6": "eqsat.clip(x, 0, 6)", "hardtanh": "eqsat.clip(x, -1, 1)",
    "leaky_relu": "eqsat.where(x > 0, x, 0.01 * x)", "softplus": "eqsat.logaddexp(x, 0.0)",
    "elu": "eqsat.where(x > 0, x, eqsat.expm1(eqsat.minimum(x, 0.0)))", "swish": "silu",
    "expit": "sigmoid", "logit": "eqsat.log(x / (1 - x))",
    "logsigmoid": "-eqsat.logaddexp(-x, 0.0)", "mse_loss": "eqsat.mean(eqsat.square(x - y))",
    "conv1d": "conv", "conv2d": "conv", "conv3d": "conv", "convolve": "conv",
    "conv_transpose1d": "conv_transpose", "conv_transpose2d": "conv_transpose",
    "max_pool1d": "max_pool", "max_pool2d": "max_pool", "avg_pool1d": "avg_pool",
    "avg_pool2d": "avg_pool", "scaled_dot_product_attention": "attention",
    "dot_product_attention": "attention", "lse": "logsumexp",
    "detach": "stop_gradient", "no_grad": "stop_gradient", "backward": "grad",
    "value_and_grad": "grad",
    # tensors, dtypes and numbers
    "array": "constant", "asarray": "constant", "tensor": "constant", "as_tensor": "constant",
    "from_numpy": "constant", "placeholder": "input", "empty": "zeros",
    "empty_like": "zeros_like", "identity": "eye", "ndarray": "Tensor", "dtype": "DType",
    "cast": "astype", "to": "astype", "bool_": "bool", "half": "float16", "float": "float32",
    "double": "float64", "byte": "uint8", "short": "int16", "int": "int64", "int_": "int64",
    "long": "int64", "uint16": "int32", "uint32": "int64",
    "pi": "math.pi", "inf": "math.inf", "nan": "math.nan", "e": "math.e",
}  # fmt: skip


def written(name: str, public: Container[str]) -> str | None:
    """What to write for a name of NumPy, torch or JAX: `eqsat.` and a name, or an expression."""
    here = name if name in public else ELSEWHERE.get(name)
    return here if here is None or here not in public else f"eqsat.{here}"


def called(name: str, graph: ModuleType, arguments: str) -> str | None:
    """The same for a call: of names those of functions, with the arguments."""
    here = written(name, graph.__all__)
    own = "" if here is None else here.removeprefix("eqsat.")
    if own not in graph.__all__:
        return here
    return f"{here}({arguments})" if callable(getattr(graph, own)) else None
