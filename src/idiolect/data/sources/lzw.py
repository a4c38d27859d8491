"""The Unix `compress` format (.Z), in which some old archives hold their files."""

from idiolect.errors import UserError

_MAGIC = b"\x1f\x9d"
_CLEAR = 256


def decompress(packed: bytes) -> bytes:
    """The content of a .Z file: LZW with codes of 9 bits and more, in blocks of eight codes."""
    if packed[:2] != _MAGIC or len(packed) < 3:
        raise UserError("a file that ends in .Z is not in the format of compress")
    largest_width, has_clear = packed[2] & 0x1F, bool(packed[2] & 0x80)
    table = _fresh_table(has_clear)
    output: list[bytes] = []
    previous = b""
    width, start = 9, 3  # `start`: where the codes of the present width begin
    position = 0  # in bits, from `start`
    while start * 8 + position + width <= len(packed) * 8:
        code = _bits(packed, start * 8 + position, width)
        position += width
        if code == _CLEAR and has_clear:
            start, position, width = _next_block(start, position, width), 0, 9
            table, previous = _fresh_table(has_clear), b""
            continue
        if code > len(table) or (code == len(table) and not previous):
            raise UserError("a file that ends in .Z is damaged")
        entry = table[code] if code < len(table) else previous + previous[:1]
        output.append(entry)
        if previous and len(table) < 1 << largest_width:
            table.append(previous + entry[:1])
            if len(table) == 1 << width and width < largest_width:
                start, position, width = _next_block(start, position, width), 0, width + 1
        previous = entry
    return b"".join(output)


def _fresh_table(has_clear: bool) -> list[bytes]:
    """Single bytes, and a place that the code for clearing takes."""
    return [bytes([i]) for i in range(256)] + [b""] * has_clear


def _bits(packed: bytes, offset: int, width: int) -> int:
    chunk = int.from_bytes(packed[offset // 8 : offset // 8 + 4], "little")
    return chunk >> offset % 8 & (1 << width) - 1


def _next_block(start: int, position: int, width: int) -> int:
    """The first byte after the present block: codes of one width come in eights, that is `width` bytes."""
    bits = 8 * width
    return start + -(-position // bits) * width
