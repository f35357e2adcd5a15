"""A small linker: relocatable ELF objects -> one loadable shared library.

`link` merges x86-64 or AArch64 objects as LLVM writes them (`pic`, `small`), resolves symbols
between them, and writes a library for `dlopen`. There are no imports: an undefined symbol is an
error. Constants, code and data have segments of their own, so that no page is both writable and
executable. Unwind tables are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import field

from tinsmith.codegen.relocate import ABSOLUTE, GOT, RELATIVE, apply
from tinsmith.errors import CodegenError
from tinsmith.records import dataclass

_PAGE = 0x10000  # the largest page of any system: addresses and file offsets agree modulo this
_HEADER = 64 + 5 * 56  # bytes of the ELF header and five program headers
_ZEROS = 16 << 20  # the largest section without contents
_WRITE, _ALLOC, _EXEC = 1, 2, 4  # flags of sections
_SYMTAB, _RELA, _NOBITS, _UNWIND = 2, 4, 8, 0x70000001  # types of sections
_ABS, _COMMON = 0xFFF1, 0xFFF2  # special section indices


@dataclass
class _Section:
    """A section that a process loads: code or data. `address` and `place` (offset in the file) are
    set when it is put into the library."""

    name: str
    flags: int
    data: bytes
    align: int
    address: int = 0
    place: int = 0


@dataclass
class _Symbol:
    """An entry of an object's symbol table. `bind` is 0 for local symbols; `section` is the number
    of its section, 0 if the object does not define it; `value` is the offset in that section."""

    name: str
    kind: int
    bind: int
    hidden: bool
    section: int
    value: int
    size: int


@dataclass
class _Relocation:
    """A place, at `offset` in section number `section`, into which the address of the object's
    symbol number `symbol` plus `addend` goes, in the way of `kind` (see `relocate.py`)."""

    section: int
    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass
class _Object:
    """The parts of a relocatable ELF object that are linked. `index` is its number among the
    objects, for errors; `machine` and `flags` are from its header; `sections` are by their numbers
    there."""

    index: int
    machine: int
    flags: int
    sections: dict[int, _Section] = field(default_factory=dict)
    symbols: list[_Symbol] = field(default_factory=list)
    relocations: list[_Relocation] = field(default_factory=list)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _read(data: bytes, index: int) -> _Object:
    if data[:6] != b"\x7fELF\2\1" or data[16:18] != b"\1\0":
        raise CodegenError(f"object {index} is not a relocatable 64-bit ELF object")
    try:
        return _parse(data, index)
    except (struct.error, ValueError, IndexError) as error:
        raise CodegenError(f"object {index} is a damaged ELF object: {error}") from None


def _parse(data: bytes, index: int) -> _Object:
    """Read the sections that are loaded (not unwind tables), their relocations and all symbols.
    Raises ValueError, IndexError or struct.error for damaged data."""
    unpack = struct.unpack_from
    obj = _Object(index, unpack("<H", data, 18)[0], unpack("<I", data, 48)[0])
    (table,) = unpack("<Q", data, 40)
    step, count, names = unpack("<HHH", data, 58)
    heads = [unpack("<IIQQQQIIQQ", data, table + i * step) for i in range(count)]
    for i, (name, kind, flags, _, offset, size, _, _, align, _) in enumerate(heads):
        label = _text(data, heads[names][4] + name)
        if not flags & _ALLOC or kind == _UNWIND or label == ".eh_frame":
            continue
        if kind == _NOBITS and size > _ZEROS:
            raise ValueError(f"section {label} wants {size} bytes")
        body = bytes(size) if kind == _NOBITS else data[offset : offset + size]
        if len(body) != size:
            raise ValueError(f"section {label} is cut off")
        obj.sections[i] = _Section(label, flags, body, max(1, align))
    for head in heads:
        if head[1] == _SYMTAB:
            strings = heads[head[6]][4]
            for at in range(head[4], head[4] + head[5], 24):
                name, info, other, section, value, size = unpack("<IBBHQQ", data, at)
                label = _text(data, strings + name)
                obj.symbols.append(
                    _Symbol(label, info & 15, info >> 4, other & 3 != 0, section, value, size)
                )
        elif head[1] == _RELA and head[7] in obj.sections:
            for at in range(head[4], head[4] + head[5], 24):
                offset, info, addend = unpack("<QQq", data, at)
                obj.relocations.append(
                    _Relocation(head[7], offset, info & 0xFFFFFFFF, info >> 32, addend)
                )
    return obj


# ---- symbols


class _Names:
    """The global symbols of all objects: `defined` has (object, symbol) by name, the first of equal
    definitions. Raises CodegenError for undefined ones, and for two different definitions of
    one."""

    def __init__(self, objects: Sequence[_Object]) -> None:
        self.defined: dict[str, tuple[_Object, _Symbol]] = {}
        for obj in objects:
            for s in obj.symbols:
                if s.bind and s.section:
                    self._define(obj, s)
        missing = {
            s.name
            for obj in objects
            for s in obj.symbols
            if s.bind and not s.section and s.name and s.name not in self.defined
        }
        if missing:
            raise CodegenError(
                f"nothing defines what generated code needs: {', '.join(sorted(missing))}."
                " An operation without native code on this target was emitted."
            )

    def _define(self, obj: _Object, s: _Symbol) -> None:
        if s.section == _COMMON:
            raise CodegenError(f"{s.name} is a common symbol, which cannot be linked")
        first, symbol = self.defined.setdefault(s.name, (obj, s))
        if first is not obj and _content(first, symbol) != _content(obj, s):
            raise CodegenError(
                f"the function {s.name} is defined twice with different contents, by objects "
                f"{first.index} and {obj.index}"
            )

    def address(self, obj: _Object, symbol: int) -> int:
        s = obj.symbols[symbol]
        if s.bind and s.name in self.defined:
            obj, s = self.defined[s.name]
        if s.section == _ABS:
            return s.value
        if s.section not in obj.sections:
            raise CodegenError(f"code refers to {s.name or 'a section'}, which is not loaded")
        return obj.sections[s.section].address + s.value


def _content(obj: _Object, s: _Symbol) -> object:
    """What is equal for two definitions of one name, s of `obj`, that are the same code: the
    symbol's bytes, and its relocations, each with the name to which it refers (for local constants:
    the bytes of their section)."""
    if s.section not in obj.sections:
        return s.value
    end = s.value + s.size
    refers = []
    for r in obj.relocations:
        if r.section == s.section and s.value <= r.offset < end:
            to = obj.symbols[r.symbol]
            section = obj.sections.get(to.section)
            named: object = to.name
            if not to.bind and section is not None and not section.flags & _EXEC:
                named = (section.name, section.data, to.value)
            refers.append((r.offset - s.value, r.kind, named, r.addend))
    return obj.sections[s.section].data[s.value : end], refers


# ---- layout


class _Image:
    """The library file while it is written: `data` so far, and `segments`. `gap` is the address of
    the next byte minus its file offset; it grows by a page from segment to segment."""

    def __init__(self) -> None:
        self.data = bytearray(_HEADER)
        self.gap = 0
        self.segments: list[tuple[int, int, int]] = [(4, 0, 0)]  # rights, start, end in the file

    @property
    def address(self) -> int:
        return len(self.data) + self.gap

    def align(self, to: int) -> None:
        self.data += bytes(-len(self.data) % to)

    def segment(self, rights: int) -> None:
        """End the last segment and start one with these rights (bits: 4 read, 2 write, 1 execute):
        in memory on a page of its own, in the file right behind the last."""
        self.close()
        self.align(64)
        self.gap += _PAGE
        self.segments.append((rights, len(self.data), 0))

    def close(self) -> None:
        rights, start, _ = self.segments[-1]
        self.segments[-1] = (rights, start, len(self.data))

    def reserve(self, size: int) -> tuple[int, int]:
        """Add `size` zeros, aligned to 8 bytes: (file offset, address)."""
        self.align(8)
        at = len(self.data), self.address
        self.data += bytes(size)
        return at

    def add(self, section: _Section) -> None:
        if section.align > _PAGE or section.align & (section.align - 1):
            raise CodegenError(f"section {section.name} wants an alignment of {section.align}")
        self.align(section.align)
        section.place, section.address = len(self.data), self.address
        self.data += section.data


def _hash(name: str) -> int:
    h = 0
    for c in name.encode():
        h = (h << 4) + c
        high = h & 0xF0000000
        h = (h ^ high >> 24) & ~high & 0xFFFFFFFF
    return h


def _hash_table(names: Sequence[str]) -> bytes:
    """The System V hash table of symbols 1, 2, ... of these names."""
    count = max(1, len(names))
    buckets, chain = [0] * count, [0] * (len(names) + 1)
    for i, name in enumerate(names, 1):
        slot = _hash(name) % count
        chain[i], buckets[slot] = buckets[slot], i
    return struct.pack(f"<{2 + count + len(chain)}I", count, len(chain), *buckets, *chain)


def link(objects: Sequence[bytes], soname: str = "libtinsmith.so") -> bytes:
    """The bytes of one shared library, of the name `soname`, that exports every global function of
    the objects.

    Equal objects, and equal definitions of one symbol, are taken once. Raises CodegenError for
    undefined symbols (it names all), contradicting definitions, and damaged objects.
    """
    if not objects:
        raise CodegenError("there are no objects to link")
    parsed = [_read(data, i) for i, data in enumerate(dict.fromkeys(map(bytes, objects)))]
    machine = parsed[0].machine
    if machine not in RELATIVE or any(o.machine != machine for o in parsed):
        raise CodegenError("the objects are not all for x86-64, nor all for AArch64")
    try:
        return _Link(parsed, _Names(parsed), soname).write()
    except (struct.error, LookupError, OverflowError) as error:
        raise CodegenError(f"one of the objects is a damaged ELF object: {error}") from None


class _Link:
    """Writes the library of some objects: lays out read-only data, code and writable data in three
    segments, resolves relocations, and adds the tables that the system's loader reads."""

    def __init__(self, objects: list[_Object], names: _Names, soname: str) -> None:
        self.objects, self.names = objects, names
        self.machine = objects[0].machine
        self.exported = sorted(
            n for n, (_, s) in names.defined.items() if not s.hidden and s.section != _ABS
        )
        self.image = _Image()
        strings = bytearray(b"\0")
        self.at: dict[str, int] = {}
        for name in (*self.exported, soname):
            self.at[name] = len(strings)
            strings += name.encode() + b"\0"
        self.strings, self.soname = bytes(strings), soname

    def write(self) -> bytes:
        image = self.image
        tables = _hash_table(self.exported)
        hashes = image.reserve(len(tables))
        symbols = image.reserve(24 * (len(self.exported) + 1))
        strings = image.reserve(len(self.strings))
        groups: tuple[list[_Section], ...] = ([], [], [])
        for obj in self.objects:
            for s in obj.sections.values():
                groups[1 if s.flags & _EXEC else 2 if s.flags & _WRITE else 0].append(s)
        for s in groups[0]:
            image.add(s)
        image.segment(5)
        for s in groups[1]:
            image.add(s)
        image.segment(6)
        wanted = {self._target(o, r): 0 for o, r in self._all() if r.kind in GOT[self.machine]}
        words = sum(r.kind == ABSOLUTE[self.machine] for _, r in self._all()) + len(wanted)
        relocations = image.reserve(24 * words)
        got = image.reserve(8 * len(wanted))
        entries = [(14, self.at[self.soname]), (4, hashes[1]), (5, strings[1]), (6, symbols[1]),
                   (10, len(self.strings)), (11, 24)]  # fmt: skip
        if words:
            entries += [(7, relocations[1]), (8, 24 * words), (9, 24)]
        entries.append((0, 0))
        dynamic = image.reserve(16 * len(entries))
        for s in groups[2]:
            image.add(s)
        image.close()

        image.data[hashes[0] : hashes[0] + len(tables)] = tables
        image.data[strings[0] : strings[0] + len(self.strings)] = self.strings
        for i, pair in enumerate(entries):
            struct.pack_into("<QQ", image.data, dynamic[0] + 16 * i, *pair)
        self._write_symbols(symbols[0])
        self._relocate(wanted, got, relocations[0])
        self._write_header(dynamic, 16 * len(entries))
        return bytes(image.data)

    def _all(self) -> Iterator[tuple[_Object, _Relocation]]:
        for obj in self.objects:
            for r in obj.relocations:
                yield obj, r

    def _target(self, obj: _Object, r: _Relocation) -> tuple[int, str | int]:
        """A key for the symbol to which relocation r of `obj` refers: relocations of equal keys
        share a word of the global offset table."""
        s = obj.symbols[r.symbol]
        return (-1, s.name) if s.bind else (obj.index, r.symbol)

    def _relocate(
        self, wanted: dict[tuple[int, str | int], int], got: tuple[int, int], table: int
    ) -> None:
        image, machine = self.image, self.machine
        slots = {target: i for i, target in enumerate(wanted)}
        done: set[int] = set()
        dynamic: list[tuple[int, int]] = []
        for obj, r in self._all():
            section = obj.sections[r.section]
            at, place = section.place + r.offset, section.address + r.offset
            address = self.names.address(obj, r.symbol)
            if r.kind == ABSOLUTE[machine]:
                dynamic.append((place, address + r.addend))
                continue
            if r.kind in GOT[machine]:
                slot = slots[self._target(obj, r)]
                if slot not in done:
                    done.add(slot)
                    dynamic.append((got[1] + 8 * slot, address))
                address = got[1] + 8 * slot
            apply(machine, r.kind, image.data, at, place, address + r.addend)
        for i, (place, value) in enumerate(dynamic):
            struct.pack_into("<QQq", image.data, table + 24 * i, place, RELATIVE[machine], value)

    def _write_symbols(self, at: int) -> None:
        for i, name in enumerate(self.exported, 1):
            obj, s = self.names.defined[name]
            address = obj.sections[s.section].address + s.value
            struct.pack_into(
                "<IBBHQQ", self.image.data, at + 24 * i,
                self.at[name], 0x10 | s.kind, 0, 1, address, s.size,
            )  # fmt: skip

    def _write_header(self, dynamic: tuple[int, int], size: int) -> None:
        data = self.image.data
        rows = []
        for k, (rights, start, end) in enumerate(self.image.segments):
            rows.append((1, rights, start, start + k * _PAGE, end - start, _PAGE))
        rows.append((2, 6, *dynamic, size, 8))
        rows.append((0x6474E551, 6, 0, 0, 0, 16))  # the stack is not executable
        struct.pack_into(
            "<16sHHIQQQIHHHHHH", data, 0, b"\x7fELF\2\1\1", 3, self.machine, 1, 0, 64, 0,
            self.objects[0].flags, 64, 56, len(rows), 64, 0, 0,
        )  # fmt: skip
        for i, (kind, rights, offset, address, length, align) in enumerate(rows):
            struct.pack_into(
                "<IIQQQQQQ", data, 64 + 56 * i,
                kind, rights, offset, address, address, length, length, align,
            )  # fmt: skip
