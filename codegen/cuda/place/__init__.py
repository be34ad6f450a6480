"""Where each value lives: registers or shared memory, which thread has which points, and why.

`block` is the text of one kernel under construction, which all that emit code write to.
"""
