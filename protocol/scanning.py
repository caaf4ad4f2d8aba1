"""Whole commands at the beginning of some bytes, found by hopping from header to header.

`scan` is written for a compiler: numbers, one loop, no Python objects. Whoever serves compiles it (see
server/compiled.py) and gives it to `batch.use`. As it stands it finds the same, slowly; tests compare both.
"""

from __future__ import annotations

from collections.abc import Sequence

from .intake import CR, LF

ARRAY, BULK, ZERO, NINE = b"*$09"
DIGITS = 5
"""Longer numbers are left to the parser that works by hand."""

COUNT_SHIFT, ALIKE_BIT = 32, 1 << 31
END_MASK = ALIKE_BIT - 1
"""Where the parts of a result are."""


def scan(data: Sequence[int], size: int) -> int:
    """Find the whole, canonical commands that come first: arrays of one bulk string or more.

    Args:
        data: The bytes.
        size: How many there are, below 2 GiB.

    Returns:
        How many commands there are, times 2^32; 2^31 if they all have the name and the number of arguments of
        the first; and where the last of them ends.
    """
    head, end, commands, alike = 0, 0, 0, True
    name, name_length, arity = 0, 0, 0
    while head < size and data[head] == ARRAY:
        head += 1
        arguments, start = 0, head
        while head < size and head - start < DIGITS and ZERO <= data[head] <= NINE:
            arguments = arguments * 10 + (data[head] - ZERO)
            head += 1
        if (
            head == start
            or data[start] == ZERO
            or head + 2 > size
            or data[head] != CR
            or data[head + 1] != LF
        ):
            break
        head += 2
        first, first_length, left = 0, 0, arguments
        while left > 0 and head < size and data[head] == BULK:
            head += 1
            length, start = 0, head
            while head < size and head - start < DIGITS and ZERO <= data[head] <= NINE:
                length = length * 10 + (data[head] - ZERO)
                head += 1
            if head == start or (data[start] == ZERO and head - start > 1):
                break
            body = head + 2
            if body + length + 2 > size or data[head] != CR or data[head + 1] != LF:
                break
            head = body + length
            if data[head] != CR or data[head + 1] != LF:
                break
            head += 2
            if left == arguments:
                first, first_length = body, length
            left -= 1
        if left > 0:
            break
        if commands == 0:
            name, name_length, arity = first, first_length, arguments
        elif arguments != arity or first_length != name_length:
            alike = False
        elif alike:
            for at in range(name_length):
                if data[name + at] != data[first + at]:
                    alike = False
                    break
        commands += 1
        end = head
    return (commands << COUNT_SHIFT) | (ALIKE_BIT if alike else 0) | end
