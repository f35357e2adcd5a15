"""ncnn's files: layers as text or numbers (.param), and their weights without names (.bin).

`layers` is the table of the layer types' parameters and weights, `schema` explains its rows;
`param` and `weights` read and write files by it."""
