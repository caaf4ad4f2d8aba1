"""What the fp8 scales of stored rows mean, as a record that can be compared before rows are reused.

The formats fp8 and fp8_e5m2 carry their own scale for every 32 elements; other engines keep one outside the
rows, for a tensor or a head. Rows made under one set of scales may not be decoded under another, so the
record names the set.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Final, Literal

from .errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

UNCALIBRATED: Final = "uncalibrated 1.0"
"""Artifact id of scales that nobody measured: an engine's default of 1."""

Shape = Literal["block", "head", "layer", "tensor"]
Method = Literal["none", "dynamic", "warm-up", "dataset"]


@dataclass(frozen=True, slots=True)
class ScaleManifest:
    """How codes become values.

    Attributes:
        format: `fp8` or `fp8_e5m2`.
        shape: What shares a scale.
        dtype: Type of the scales.
        convention: `multiply`: value = code * scale.
        method: How the scales were found; `dynamic` is from the very rows, `none` means that they are all 1.
        artifact: Id of the scale set; `UNCALIBRATED` for method `none`, empty for `dynamic`.
        skipped_layers: Layers that are not quantized.
        queries_quantized: Whether the engine quantized queries too.
        backend: What made the rows.
        min_version: Oldest version of it that reads them.
    """

    format: str
    shape: Shape
    dtype: str
    convention: Literal["multiply"]
    method: Method
    artifact: str
    skipped_layers: tuple[int, ...] = ()
    queries_quantized: bool = False
    backend: str = "pionkv"
    min_version: str = "0.1.0"

    def validate(self) -> None:
        """Check the record.

        Raises:
            FormatError: It names no fp8 format, or its artifact contradicts its method.
        """
        if self.format not in ("fp8", "fp8_e5m2"):
            raise FormatError(f"scale manifest: format '{self.format}' is not fp8 or fp8_e5m2")
        if (self.method == "none") != (self.artifact == UNCALIBRATED):
            raise FormatError(f"scale manifest: method '{self.method}' with artifact '{self.artifact}'")
        if (self.method == "dynamic") != (self.artifact == ""):
            raise FormatError(f"scale manifest: method '{self.method}' with artifact '{self.artifact}'")

    def differs(self, other: ScaleManifest) -> tuple[str, object, object] | None:
        """The first field in which rows under `other` could not be decoded here: (field, own, other's)."""
        for field in fields(self):
            own, others = getattr(self, field.name), getattr(other, field.name)
            if own != others:
                return field.name, own, others
        return None

    def as_dict(self) -> dict[str, object]:
        """Plain values, for a manifest."""
        return {**asdict(self), "skipped_layers": list(self.skipped_layers)}

    @classmethod
    def from_dict(cls, record: Mapping[str, object]) -> ScaleManifest:
        """The inverse of `as_dict`.

        Raises:
            FormatError: A field is missing, unknown or contradicts another.
        """
        known = {field.name for field in fields(cls)}
        if set(record) != known:
            raise FormatError(f"scale manifest: fields differ: {', '.join(sorted(set(record) ^ known))}")
        layers = record["skipped_layers"]
        if not isinstance(layers, (list, tuple)):
            raise FormatError("scale manifest: skipped_layers is not a list")
        made = cls(**{**record, "skipped_layers": tuple(layers)})  # type: ignore[arg-type]
        made.validate()
        return made


def own_scales(format_name: str) -> ScaleManifest:
    """The record of this package's own fp8 rows.

    Raises:
        FormatError: The format is not an fp8 format.
    """
    made = ScaleManifest(format_name, "block", "float16", "multiply", "dynamic", "")
    made.validate()
    return made
