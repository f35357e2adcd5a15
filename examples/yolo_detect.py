"""The last layer of YOLOv5, as `pnnx ... moduleop=models.yolo.Detect` leaves it in a PNNX file: one
operator, whose weights are the convolutions `m.0`, ... and the constants `pnnx_0` to `pnnx_6`.

    import examples.yolo_detect, tinsmith as ts
    net = ts.compile("yolov5s.pnnx.param")
"""

from tinsmith.frontends.pnnx.node import operator

CONSTANTS = ((6, 4), (3, 2), (1, 0))
"""For each of the three scales: which constants hold its grid, and its anchors."""
STRIDES = "pnnx_5"


@operator("models.yolo.Detect")
def detect(node, *features):
    """Boxes [batch, n, 4 + 1 + classes]: centre and size in pixels, then the scores."""
    found = []
    for i, (x, stride) in enumerate(zip(features, node.weight(STRIDES).tolist(), strict=True)):
        grid, anchors = (node.weight(f"pnnx_{c}") for c in CONSTANTS[i])
        y = node.emit("Conv", x, node.weight(f"m.{i}.weight"), node.weight(f"m.{i}.bias"))
        kinds, (high, wide) = grid.shape[1], grid.shape[2:4]
        each = node.size(y, 1) // kinds
        y = node.emit("Reshape", y, node.ints(0, kinds, each, high, wide))
        y = node.emit("Sigmoid", node.emit("Transpose", y, perm=(0, 1, 3, 4, 2)))
        at, size, scores = node.emit("Split", y, node.ints(2, 2, each - 4), axis=4, num_outputs=3)
        at = node.emit("Add", node.emit("Mul", at, node.number(2, y)), grid)
        at = node.emit("Mul", at, node.number(stride, y))
        size = node.emit("Mul", size, node.number(2, y))
        size = node.emit("Mul", node.emit("Mul", size, size), anchors)
        boxes = node.emit("Concat", at, size, scores, axis=4)
        found.append(node.emit("Reshape", boxes, node.ints(0, -1, each)))
    return node.emit("Concat", *found, axis=1)
