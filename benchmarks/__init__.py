"""Side-by-side measurements. Modules that start with `_` run under other environments' Pythons.

`python -m benchmarks.setup`    virtual environments for the exporter and for the peer engines
`python -m benchmarks.models`   the nineteen models, their inputs and reference outputs
`python -m benchmarks.panel`    every engine on every model, taking turns
`python -m benchmarks.startup`  from a fresh process to the first result
"""
