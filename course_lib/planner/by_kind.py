"""Figures by kind, and their sum: what Memory and StepTime share. Standard library only."""

from dataclasses import fields


class ByKind:
    """Base of a frozen dataclass whose fields are parts of one figure, in one unit."""

    @property
    def kinds(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def total(self) -> float:
        return sum(self.kinds.values())
