"""Tensor expressions over named indices, and the kernel normal form that they take.

`algebra` interns the terms; `form` says which loop each reduction lives in. Matching of rules,
facts such as `finite`, and carries, scans and scatters as terms build on both.
"""
