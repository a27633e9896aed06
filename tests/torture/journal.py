"""What was done to the cluster, when, and how often."""

import time
from collections import Counter, deque

SHOWN = 40


class Journal:
    def __init__(self):
        self.began = time.monotonic()
        self.counts = Counter()
        self.harmless = Counter()
        self.not_reached = Counter()
        self.left_out = {}
        self.latest = deque(maxlen=SHOWN)

    def tell(self, text):
        self.latest.append(f"{time.strftime('%H:%M:%S')} {time.monotonic() - self.began:7.1f} s  {text}")

    def count(self, kind, harmless=False):
        (self.harmless if harmless else self.counts)[kind] += 1
        self.tell(kind)

    @property
    def faults(self):
        return self.counts.total()

    def story(self):
        return "what was done last:\n" + "\n".join(f"  {line}" for line in self.latest)

    def table(self):
        lines = [self._line(kind) for kind in sorted(self.counts | self.not_reached)]
        lines += [f"{count:11}  {kind} (no fault)" for kind, count in sorted(self.harmless.items())]
        lines += [f"   left out  {kind}: {why}" for kind, why in sorted(self.left_out.items())]
        return "\n".join(lines)

    def _line(self, kind):
        idle = self.not_reached[kind]
        return f"{self.counts[kind]:11}  {kind}" + (f" (armed and not reached: {idle})" if idle else "")
