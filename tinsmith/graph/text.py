"""The text form of a graph: `format_graph` prints it, `parse_graph` reads it back.

    graph resnet file "resnet.onnx" (x: float32[N,3,224,224]) {
      w = const float32[64,3,7,7]
      axes = const int64[2] = [2, 3]
      y = Conv(x, w, -, stride=(2, 2)) : float32[N,64,112,112] @conv1 from "Conv" "conv1"
      a, b = Split(y, axis=1) : float32[N,32,112,112], float32[N,32,112,112]
      return a, b
    }

Attributes with default values are left out. `-` is an absent input; `@name` is the node's name, if
it is not that of the first output; `from` is its origin, if that is not the node itself. Constants
of more than `max_inline` elements are found by name among the weights (`graph_weights`); `key`
gives that name if it differs, as in nested graphs. Holders have types such as
`sequence(float32[N,3])` or `optional(sequence(int64[*]))`. If the text states more of an output's
type than follows from the inputs, a Declared node checks that in the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from tinsmith.errors import GraphSyntaxError, TinsmithError, suggest
from tinsmith.graph.core import Graph, Node, Value
from tinsmith.graph.origin import Origin
from tinsmith.graph.printer import format_graph, graph_weights, weights_in
from tinsmith.graph.types import HOLDERS, Dim, Holder, Type, compatible, dtype_of

__all__ = ["format_graph", "graph_weights", "parse_graph", "weights_in"]

LONGEST = 1000
"""The most characters of a number; longer ones are refused. Estimated."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
      |(?P<string>"(?:[^"\\\n]|\\.)*")
      |(?P<number>-?\d+\.?\d*(?:[eE][-+]?\d+)?)
      |(?P<name>[A-Za-z_?/.][\w/.?]*(?::[\w/.?]+)*)
      |(?P<punct>[-(){}\[\],:=@*])""",
    re.VERBOSE,
)


class _Parser:
    """Reads the text form of a graph by recursive descent: each method reads one construct from
    token `i` on, and raises GraphSyntaxError where it is not there. `env` has values by name."""

    def __init__(self, text: str, weights: Mapping[str, Any] | None) -> None:
        self.text, self.weights = text, weights or {}
        self.tokens: list[tuple[str, str, int]] = []
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self.error(f"unexpected character {text[at]!r}", at)
            kind = match.lastgroup or ""
            if kind != "space":
                self.tokens.append((kind, match.group(), at))
            at = match.end()
        self.tokens.append(("end", "the end of the text", len(text)))
        self.i = 0
        self.symbols: set[Dim] = set()
        """The names of sizes in the graph that is being read."""

    def error(self, message: str, at: int) -> GraphSyntaxError:
        line, start = self.text.count("\n", 0, at) + 1, self.text.rfind("\n", 0, at) + 1
        return GraphSyntaxError(f"line {line}, column {at - start + 1}: {message}")

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        raise self.error(message, self.tokens[self.i][2] if at is None else at)

    def peek(self, *texts: str) -> bool:
        kind, text, _ = self.tokens[self.i]
        return kind in ("name", "punct") and text in texts

    def accept(self, *texts: str) -> bool:
        if self.peek(*texts):
            self.i += 1
            return True
        return False

    def expect(self, *texts: str) -> None:
        if not self.accept(*texts):
            wanted = " or ".join(repr(t) for t in texts)
            self.fail(f"expected {wanted}, found {self.tokens[self.i][1]!r}")

    def listed(self, end: str) -> Iterator[None]:
        """Yield where each item of a list begins, for the caller to read it. Reads the commas
        between items, and the punctuation `end`."""
        following = False
        while not self.accept(end):
            if following:
                self.expect(",")
            following = True
            yield

    def is_name(self) -> bool:
        return self.tokens[self.i][0] in ("name", "string")

    def name(self) -> str:
        kind, text, at = self.tokens[self.i]
        if not self.is_name():
            self.fail(f"expected a name, found {text!r}")
        self.i += 1
        try:
            return json.loads(text) if kind == "string" else text
        except json.JSONDecodeError as error:
            self.fail(f"the string {text} is not JSON: {error.msg}", at)

    def type(self) -> Type:
        at = self.tokens[self.i][2]
        kind = self.name()
        if kind in HOLDERS and self.accept("("):
            item = self.type()
            self.expect(")")
            return HOLDERS[kind](item)
        try:
            dtype = dtype_of(kind)
        except (TypeError, AttributeError):
            self.fail(f"{kind!r} is not an element type", at)
        self.expect("[")
        if self.accept("*"):
            self.expect("]")
            return Type(dtype, None)
        from tinsmith.ops import reserve

        dims: list[Dim] = []
        for _ in self.listed("]"):
            dims.append(self.name() if self.is_name() else self.dim())
            reserve(str(dims[-1]))
        return Type(dtype, tuple(dims))

    def dim(self) -> int:
        at, number = self.tokens[self.i][2], self.number()
        if not isinstance(number, int) or not 0 <= number < 1 << 63:
            self.fail(f"a dimension cannot be {number}", at)
        return number

    def number(self) -> int | float:
        kind, text, _ = self.tokens[self.i]
        if kind == "punct" and text == "-":
            self.i += 1
            return -self.number()
        if kind == "name" and text in ("inf", "nan"):
            self.i += 1
            return float(text)
        if kind != "number":
            self.fail(f"expected a number, found {text!r}")
        if len(text) > LONGEST:
            self.fail(f"the number has {len(text)} digits")
        self.i += 1
        return int(text) if re.fullmatch(r"-?\d+", text) else float(text)

    def value(self) -> Any:
        if self.tokens[self.i][0] == "string":
            return self.name()
        for word, meaning in (("none", None), ("true", True), ("false", False)):
            if self.accept(word):
                return meaning
        if self.peek("graph"):
            return self.graph()
        if self.accept("const"):
            type = self.type()
            self.expect("=")
            return self.array(type)
        if self.accept("("):
            items: list[Any] = []
            while not self.accept(")"):
                items.append(self.value())
                if not self.peek(")"):
                    self.expect(",")
            return tuple(items)
        return self.number()

    def array(self, type: Type) -> np.ndarray:
        at = self.tokens[self.i][2]
        self.expect("[")
        items = [self.value() for _ in self.listed("]")]
        if not type.is_static or len(items) != type.size:
            self.fail(f"{type} cannot hold {len(items)} elements", at)
        array = np.empty(type.size, type.dtype)
        try:
            for i, x in enumerate(items):
                array[i] = complex(*x) if type.dtype.kind == "c" else x
            return array.reshape(type.dims)
        except (TypeError, ValueError, OverflowError) as error:
            self.fail(f"{type} cannot hold these elements: {error}", at)

    def graph(self) -> Graph:
        self.expect("graph")
        name = "" if self.peek("(", "file") else self.name()
        g = Graph(name, self.name() if self.accept("file") else "")
        env: dict[str, Value] = {}
        around, self.symbols = self.symbols, set[Dim]()
        self.expect("(")
        for _ in self.listed(")"):
            at = self.i
            key = self.name()
            self.expect(":")
            value = g.input(key, self.type())
            self.symbols.update(d for d in value.shape or () if isinstance(d, str))
            self.define(env, key, value, at)
        self.expect("{")
        if self.accept("meta"):
            g.meta = self.json()
        while not self.accept("return"):
            self.statement(g, env)
        g.outputs = [self.use(env) for _ in self.listed("}")]
        self.symbols = around
        return g

    def json(self) -> Any:
        at = self.tokens[self.i][2]
        try:
            value, end = json.JSONDecoder().raw_decode(self.text, at)
        except ValueError as error:
            self.fail(f"the metadata is not JSON: {error}", at)
        while self.tokens[self.i][2] < end:
            self.i += 1
        return value

    def define(self, env: dict[str, Value], name: str, value: Value, at: int) -> None:
        if name in env:
            self.fail(f"{name!r} is defined twice", self.tokens[at][2])
        env[name] = value

    def use(self, env: dict[str, Value]) -> Value:
        at = self.tokens[self.i][2]
        name = self.name()
        if name not in env:
            self.fail(f"{name!r} is not defined above", at)
        return env[name]

    def statement(self, g: Graph, env: dict[str, Value]) -> None:
        at = self.i
        names = [self.name() for _ in self.listed("=")]
        if self.accept("const"):
            if len(names) != 1:
                self.fail("a constant has one name", self.tokens[at][2])
            self.define(env, names[0], self.constant(g, names[0]), at)
            return
        for name, v in zip(names, self.node(g, env, names), strict=True):
            self.define(env, name, v, at)

    def constant(self, g: Graph, name: str) -> Value:
        at, type = self.tokens[self.i][2], self.type()
        if self.accept("="):
            return g.const(self.array(type), name)
        key = self.name() if self.accept("key") else name
        if key not in self.weights:
            self.fail(f"the constant {key!r} is not among the given `weights` (graph_weights)", at)
        array = np.asanyarray(self.weights[key])
        if Type(array.dtype, array.shape) != type:
            self.fail(
                f"the weights hold {array.dtype}{list(array.shape)} for {key!r}, not {type}", at
            )
        return g.const(array, name)

    def node(self, g: Graph, env: dict[str, Value], names: list[str]) -> list[Value]:
        """Read a node of the text, from its operator on, and add it to `g`; returns the values that
        stand for its outputs. `env` has values by name, `names` are those of the outputs. Raises
        GraphSyntaxError."""
        from tinsmith.ops import OPS

        at = self.tokens[self.i][2]
        kind = self.name()
        op = OPS.get(kind)
        if op is None:
            raise self.error(f"there is no operator {kind!r}.{suggest(kind, OPS)}", at)
        inputs, attrs = self.arguments(env)
        types: list[Type] = []
        if self.accept(":"):
            types.append(self.type())
            while self.accept(","):
                types.append(self.type())
        node_name = self.name() if self.accept("@") else names[0] if names else kind
        origin = Origin(g.file, node_name, kind)
        if self.accept("from"):
            of, called = self.name(), self.name()
            file = self.name() if self.tokens[self.i][0] == "string" and not self.defines() else ""
            origin = Origin(file or g.file, called, of)
        try:
            node = g.add(op, *inputs, name=node_name, origin=origin, outputs=names, **attrs)
        except TinsmithError as error:
            self.fail(str(error), at)
        if len(node.outputs) != len(names):
            self.fail(f"{kind} has {len(node.outputs)} outputs, {len(names)} are named", at)
        for v, t in zip(node.outputs, types, strict=False):
            if not compatible(v.type, t):
                self.fail(f"{v.name!r} is {v.type}, not {t}", at)
        return self.stated(node, types)

    def stated(self, node: Node, types: list[Type]) -> list[Value]:
        """Give the outputs of `node` the types that the text states: `types`, for the first outputs
        or all. Returns the values that later statements read as the outputs. Sizes take the names
        that the text gives them (`renamed`). If the text states more than the type rule infers, the
        output is read through a `Declared` node, which checks that in the run."""
        from tinsmith.ops.declared import claim, declare

        names: dict[Dim, Dim] = {}
        values = list(node.outputs)
        for i, t in enumerate(types):
            v = values[i]
            v.type = self.renamed(v.type, t, names)
            if shape := claim(v.type, t):
                values[i] = declare(v, shape, node.origin)
        for v in (*node.outputs, *values):
            self.symbols.update(d for d in v.shape or () if isinstance(d, str))
        return values

    def renamed(self, type: Type, stated: Type, names: dict[Dim, Dim]) -> Type:
        """The inferred `type` with the names that the text gives to its sizes: float32[?1,3],
        stated as float32[N,3], is float32[N,3]. A name that another size of the graph has already
        is not given again. `names` collects inferred size -> name, for the node's other outputs.
        Symbols inside holders mean nothing, so those of the text are taken."""
        if isinstance(type, Holder) and isinstance(stated, Holder):
            return type.__class__(self.renamed(type.item, stated.item, {}))
        if type.shape is None or stated.shape is None:
            return type.like(shape=None)
        dims: list[Dim] = []
        for a, b in zip(type.shape, stated.shape, strict=True):
            if isinstance(b, str) and b not in self.symbols and b not in names.values():
                if not isinstance(a, str) or a in self.symbols or a in names:
                    a = b
                names[a] = b
            dims.append(names.get(a, a))
        return type.like(shape=tuple(dims))

    def defines(self) -> bool:
        """Whether the string at token `i` is the name of an output, with which the next statement
        begins (`=` or `,` follows), not the file name that may end `from "Conv" "conv1" "a.onnx"`.
        """
        following = self.tokens[self.i + 1]
        return following[0] == "punct" and following[1] in "=,"

    def arguments(self, env: dict[str, Value]) -> tuple[list[Value | None], dict[str, Any]]:
        inputs: list[Value | None] = []
        attrs: dict[str, Any] = {}
        self.expect("(")
        for _ in self.listed(")"):
            if self.is_name() and self.tokens[self.i + 1][:2] == ("punct", "="):
                key = self.name()
                self.expect("=")
                attrs[key] = self.value()
            elif self.accept("-"):
                inputs.append(None)
            else:
                inputs.append(self.use(env))
        return inputs, attrs


def parse_graph(text: str, weights: Mapping[str, Any] | None = None) -> Graph:
    """The graph whose text `format_graph` printed. `weights` holds the constants that the text
    leaves out, as `graph_weights` gives them: key -> array. Raises GraphSyntaxError, with line and
    column."""
    parser = _Parser(text, weights)
    try:
        graph = parser.graph()
    except RecursionError:
        parser.fail("the text is nested too deeply")
    if parser.tokens[parser.i][0] != "end":
        parser.fail(f"expected the end of the text, found {parser.tokens[parser.i][1]!r}")
    return graph
