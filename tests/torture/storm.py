"""Faults at random moments, one after another and one upon another."""

import time

from .faults import FAIL_POINTS, FULL, SERVER, UNWRITABLE

# Chance that the next fault comes at once, before anything has recovered.
AT_ONCE = 0.25
# Seconds that a fault with an end lasts.
LASTS = (0.3, 4)


class Storm:
    def __init__(self, cluster, lake, fail_points, load, journal, dice, scale):
        self.cluster = cluster
        self.lake = lake
        self.fail_points = fail_points
        self.load = load
        self.journal = journal
        self.dice = dice
        self.scale = scale
        self.faults = SERVER + UNWRITABLE + self._possible_faults()
        self.lasting = {}
        self.armed = {}

    def _possible_faults(self):
        possible = []
        if self.lake.unmountable is None:
            possible += FULL
        else:
            self.journal.left_out["lake full"] = self.lake.unmountable
        if self.fail_points is not None:
            possible += FAIL_POINTS
        else:
            self.journal.left_out["fail points"] = "as --without-fail-points says"
        return possible

    def rage(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.strike()
            self.wait_until(min(end, time.monotonic() + self.pause()))

    def cease(self):
        """Nothing fails any more, once what has begun is over."""
        for fault in list(self.lasting):
            self.end(fault)
        self.look_at_fail_points()
        for point, fault in list(self.armed.items()):
            if self.fail_points.disarm(point):
                self.journal.not_reached[fault] += 1
                del self.armed[point]
        self.look_at_fail_points()

    # --- one fault

    def strike(self):
        fault = self.choose()
        if fault.strike(self):
            self.journal.count(fault.name, fault.harmless)
        if fault.end is not None:
            self.lasting[fault] = time.monotonic() + self.dice.uniform(*LASTS)

    def choose(self):
        free = [fault for fault in self.faults if fault not in self.lasting]
        return self.dice.choices(free, [fault.weight for fault in free])[0]

    def end(self, fault):
        del self.lasting[fault]
        fault.end(self)
        self.journal.tell(f"{fault.name}: over")

    def pause(self):
        return 0 if self.dice.random() < AT_ONCE else min(self.dice.expovariate(1 / self.scale.pause), 5)

    def wait_until(self, moment):
        self.load.wait_for(lambda: self.reached(moment), "the next fault")

    def reached(self, moment):
        self.tend()
        return time.monotonic() >= moment

    def tend(self):
        """What happens by itself: fail points are reached, lasting faults end."""
        code = self.cluster.server.poll()
        assert code is None, f"the server ended by itself with {code}"
        self.look_at_fail_points()
        for fault, until in list(self.lasting.items()):
            if time.monotonic() >= until:
                self.end(fault)

    # --- fail points

    def arm(self, point, action):
        """It has not struck before it is reached."""
        if point not in self.armed:
            self.armed[point] = f"{point}: {action}"
            self.fail_points.arm(point, action)
            self.journal.tell(f"{point}: {action} (armed)")
        return False

    def look_at_fail_points(self):
        if not self.armed:
            return
        still = self.fail_points.armed()
        for point in set(self.armed) - still:
            self.journal.count(self.armed.pop(point))
