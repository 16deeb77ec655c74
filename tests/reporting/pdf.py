"""What a browser printed: the text of each page. Reads the PDF files of chromium, no others."""

from __future__ import annotations

import re
import zlib

_OBJECT = re.compile(rb"(\d+) 0 obj\s(.*?)\sendobj", re.S)
_STREAM = re.compile(rb"stream\r?\n(.*)endstream", re.S)
_DRAWN = re.compile(rb"/F(\d+) [\d.]+ Tf|<([0-9A-Fa-f]+)> Tj|/X(\d+) Do|\bET\b")


def pages(data: bytes) -> list[str]:
    """Text in the order it is drawn, one line for each piece of it."""
    objects = {int(number): body for number, body in _OBJECT.findall(data)}
    fonts = {
        number: _letters(_stream(objects[int(found[1])]))
        for number, body in objects.items()
        if (found := re.search(rb"/ToUnicode (\d+) 0 R", body))
    }
    contents = [
        re.search(rb"/Contents (\d+) 0 R", body)
        for body in objects.values()
        if re.search(rb"/Type /Page\b", body)
    ]
    return [_text(_stream(objects[int(found[1])]), fonts, objects) for found in contents if found]


def _stream(body: bytes) -> bytes:
    found = _STREAM.search(body)
    assert found is not None
    return zlib.decompress(found[1]) if b"/FlateDecode" in body else found[1]


def _letters(table: bytes) -> dict[int, str]:
    """Number of a glyph -> its text."""
    found: dict[int, str] = {}
    for block in re.findall(rb"beginbfchar(.*?)endbfchar", table, re.S):
        for glyph, text in re.findall(rb"<(\w+)> <(\w+)>", block):
            found[int(glyph, 16)] = bytes.fromhex(text.decode()).decode("utf-16-be")
    for block in re.findall(rb"beginbfrange(.*?)endbfrange", table, re.S):
        for first, last, text in re.findall(rb"<(\w+)> <(\w+)> <(\w+)>", block):
            for glyph in range(int(first, 16), int(last, 16) + 1):
                found[glyph] = chr(int(text, 16) + glyph - int(first, 16))
    return found


def _text(stream: bytes, fonts: dict[int, dict[int, str]], objects: dict[int, bytes]) -> str:
    font, said = {}, ""
    for name, glyphs, other in _DRAWN.findall(stream):
        if name:
            font = fonts[int(name)]
        elif glyphs:
            numbers = [int(glyphs[i : i + 4], 16) for i in range(0, len(glyphs), 4)]
            said += "".join(font.get(number, "?") for number in numbers)
        elif other and b"/Subtype /Form" in objects[int(other)]:  # parts that are see-through
            said += _text(_stream(objects[int(other)]), fonts, objects)
        elif not other:
            said += "\n"
    return said
