"""ncnn's files: layers as text or binary (.param), and their weights without names (.bin).

`layers` is the table of layer types, by which `param` and `weights` read and write files; `schema`
explains its rows. `pair` reads both files of a model."""
