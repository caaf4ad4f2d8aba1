"""What the kernels refuse. Every error carries its numbers, so that a server can word its own reply."""

from __future__ import annotations


class KernelError(ValueError):
    """Base of everything this package raises on purpose."""


class FormatError(KernelError):
    """A layer's description does not fit its format; the text names the format, the dim and the limit."""


class UnknownFormat(FormatError):
    """No format has this name or tag."""


class ShortBuffer(KernelError):
    """A buffer is shorter than the rows it should hold; the text says both sizes."""


class Refused(KernelError):
    """A value cannot be stored; the output buffer holds nothing usable after this.

    Attributes:
        row: Row of the first refused value, counted from the first row of the call.
        element: Its position in the row.
        value: The value.
    """

    def __init__(self, text: str, row: int, element: int, value: float) -> None:
        super().__init__(text)
        self.row = row
        self.element = element
        self.value = value


class NonFinite(Refused):
    """A NaN or an infinity met a format that quantizes."""

    def __init__(self, row: int, element: int, value: float) -> None:
        super().__init__(f"non-finite value at row {row}, element {element}", row, element, value)


class Overflow(Refused):
    """A finite value is larger in magnitude than the format can hold.

    Attributes:
        limit: The largest magnitude the format accepts.
    """

    def __init__(self, row: int, element: int, value: float, limit: float) -> None:
        text = f"value {value:g} at row {row}, element {element} is beyond the format's {limit:g}"
        super().__init__(text, row, element, value)
        self.limit = limit
