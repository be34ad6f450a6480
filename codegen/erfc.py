"""1 - erf(t) as a power of two, for every target: what GELU is made of, with no digits lost."""

# p(t) = log2(erfc(t)) / t by powers of t, from t^0: a minimax fit of erfc(t) as 2^(t p(t)) on
# [0, 4.6] by linear programming; its coefficients were rounded to float32 one by one, the lowest
# first, and the others fitted again. Absolute error 3.5e-8; relative error 5e-3 up to t = 4, 5e-2
# up to 4.6. t p(t) falls for all t >= 0, and for large t each step of Horner's rule is negative, so
# that -inf meets no inf. one_plus_erf in float32 against float64, at two million points of
# [-12, 12] and 20000 magnitudes of either sign: 1.5e-7, below zero 9.0e-8, where 2^x is rounded
# correctly; a unit in the last place of `ex2.approx` is 6e-8 more.
LOG2_ERFC = (
    -1.6279101371765137, -0.9183889031410217, -0.14863784611225128, 0.028654230758547783,
    -0.0012998012825846672, -0.0011262826155871153, 0.00032023544190451503,
    -2.8469883545767516e-05,
)  # fmt: skip
