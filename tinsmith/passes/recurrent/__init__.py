"""Recurrent cells written in primitives: recognised, restacked over time, run as one operator.

`affine` reads a gate's argument as a sum of products with constant weights; `cells` recognises one
step; `chains` follows steps that hand their state on; `build` makes the operator; `stack` is the
pass over unrolled steps, `loops` the one over the bodies of Loop and Scan.
"""
