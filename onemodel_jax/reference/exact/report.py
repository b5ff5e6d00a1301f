"""The report of check_vjp: verdicts, the smallest counterexample, what was assumed."""

from collections.abc import Mapping
from dataclasses import dataclass

from onemodel_jax.reference.exact.evidence import Evidence


@dataclass(frozen=True)
class Report:
    """What check_vjp found.

    Attributes:
      name: of the function.
      signature: its floating inputs and outputs.
      expectation: what was claimed of the VJP.
      points: how many, and in which field.
      evidence: law to evidence, in the order in which they were checked.
      missing: laws that were asked for but not run, for size.
      notes: assumptions, e.g. which functions are opaque.
    """

    name: str
    signature: str
    expectation: str
    points: str
    evidence: Mapping[str, Evidence]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if every law that was checked held."""
        return all(self.evidence.values())

    @property
    def failures(self) -> tuple[str, ...]:
        """Names of the laws that failed."""
        return tuple(law for law, found in self.evidence.items() if not found)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        verdict = "ok" if self.ok else "FAILS"
        lines = [f"check_vjp {self.name}{self.signature}: {verdict}"]
        lines.append(f"  expectation: {self.expectation}; points: {self.points}")
        for law, found in self.evidence.items():
            outcome = f"holds ({found.cases} equalities)" if found else "FAILS"
            lines.append(f"  {law:<24}{outcome}")
        lines += [f"  {law:<24}not run: too large" for law in self.missing]
        lines += [f"  note: {note}" for note in self.notes]
        for found in self.evidence.values():
            if not found:
                lines += ["counterexample to " + str(found).replace(": FAILS", "")]
        return "\n".join(lines)
