"""Which misses are worth publishing."""

from collections import OrderedDict

MOST_NAMES = 65_536
"""Names whose misses are remembered; beyond it the one that was missed longest ago is forgotten."""


class Admission:
    """Counts the misses of each name and admits it when it has been missed often enough."""

    def __init__(self, threshold: int) -> None:
        """Start with no misses.

        Args:
            threshold: Misses at which a name is admitted; 1 admits at once.
        """
        self.threshold = threshold
        self._misses: OrderedDict[str, int] = OrderedDict()

    def admits(self, name: str) -> bool:
        """Count a miss of this name; whether it was enough."""
        if self.threshold == 1:
            return True
        misses = self._misses.pop(name, 0) + 1
        self._misses[name] = misses
        if len(self._misses) > MOST_NAMES:
            self._misses.popitem(last=False)
        return misses >= self.threshold

    def forget(self, name: str) -> None:
        """The name was published: its misses count from 0 again."""
        self._misses.pop(name, None)
