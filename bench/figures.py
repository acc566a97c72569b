"""The one line a figure is printed as, for people and for scripts."""


def figure(name: str, value: float | str, unit: str, goal: float | str, met: bool) -> None:
    """Print what was measured, what it should have been, and whether it is; a benchmark never fails."""
    verdict = "met" if met else "short"
    print(f"FIGURE {word(name)} {number(value)} {word(unit)} goal {number(goal)} {verdict}", flush=True)


def noted(name: str, value: float | str, unit: str) -> None:
    """Print what was measured and has no goal."""
    print(f"FIGURE {word(name)} {number(value)} {word(unit)} goal none", flush=True)


def skipped(name: str, reason: str) -> None:
    """Print why there is nothing to compare with: a peer not installed, a machine that cannot do it."""
    print(f"FIGURE {word(name)} - skipped {' '.join(reason.split())}", flush=True)


def number(value: float | str) -> str:
    """Write a number without an exponent, with no more digits than a measurement has: four."""
    if not isinstance(value, float):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:.0f}"
    rounded = float(f"{value:.4g}")
    return f"{rounded:.10f}".rstrip("0").rstrip(".")


def word(text: str) -> str:
    """Refuse what would shift the fields of the line."""
    if not text or text.split() != [text]:
        raise ValueError(f"not one word: {text!r}")
    return text
