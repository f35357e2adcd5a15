"""ncnn's files: layers as text or numbers (.param), and their weights without names (.bin).

`schema` says what each layer type is told and which weights it has; `param` and `weights` read and
write by it.
"""
