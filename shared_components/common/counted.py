"""Write a number with its noun: 1 frame, 2 frames, 1,234 frames."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1: "1 video", "3 labelled frames"."""
    return f"{number:,} {noun if number == 1 else noun + 's'}"
