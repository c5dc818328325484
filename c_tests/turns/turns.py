#!/usr/bin/env python3
"""Many host threads on the adversarial schedule: the same seed gives the same run.

    python3 c_tests/turns/turns.py PROGRAM

A run is what its trace says, an operation a line, and what the program prints. What else the
machine does must not matter: some runs have one processor, or compete with others for two.
"""

import os
import subprocess
import sys
import tempfile
import unittest

PROGRAM = ""
RUNS = 20
SEEDS = (0, 3, 17)
# So many seeds must give so many different runs.
OTHER_SEEDS = range(100, 112)


def run(seed, prepare=None, rounds=40):
    """The trace and the output of a run."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace")
        options = f"memory=64MiB,schedule=adversarial:{seed},trace={path}"
        environment = dict(os.environ, TCUDA_BACKEND="sim", TCUDA_SIM=options)
        ended = subprocess.run([PROGRAM, str(rounds)], env=environment, capture_output=True,
                               timeout=100, check=True, preexec_fn=prepare)
        with open(path, "rb") as file:
            return file.read(), ended.stdout


def on_one_processor():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class TurnsTest(unittest.TestCase):
    def test_the_same_seed_is_the_same_run(self):
        for seed in SEEDS:
            first = run(seed)
            threads = {line.split(b'"thread":')[1].split(b",")[0] for line in first[0].splitlines()}
            self.assertGreaterEqual(len(threads), 6)
            for _ in range(RUNS - 1):
                self.assertEqual(run(seed), first, f"seed {seed}")

    def test_other_seeds_are_other_runs(self):
        runs = {run(seed) for seed in OTHER_SEEDS}
        self.assertGreaterEqual(len(runs), len(OTHER_SEEDS) - 1)
        self.assertGreaterEqual(len({printed for _, printed in runs}), len(OTHER_SEEDS) // 2)

    def test_one_processor_is_enough(self):
        self.assertEqual(run(5), run(5, on_one_processor))

    def test_a_busy_machine_changes_nothing(self):
        first = run(6)
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
        try:
            for _ in range(3):
                self.assertEqual(run(6), first)
        finally:
            for process in busy:
                process.kill()
                process.wait()


if __name__ == "__main__":
    PROGRAM = sys.argv[1]
    unittest.main(argv=sys.argv[:1])
