#!/usr/bin/env python3
"""scripts/ci/shrink.py on programs with a race, of one host thread and of several, and on the same
programs without it.

    python3 c_tests/shrink/shrink.py SCRIPT PROGRAM THREADED_PROGRAM
"""

import os
import subprocess
import sys
import unittest

SCRIPT = PROGRAM = THREADED = ""


class ShrinkTest(unittest.TestCase):
    def shrink(self, *arguments):
        return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True,
                              check=False)

    def test_a_race_shrinks_to_the_operation_that_must_be_late(self):
        ended = self.shrink("--seeds", "0-99", "--", PROGRAM)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        self.assertRegex(ended.stdout, r"Seed \d+ fails: exit status 1")
        lines = ended.stdout.splitlines()
        self.assertRegex(lines[1], r"^1 operation must be late")
        # The fill of the first stream's input, and the copy that should have waited for it.
        self.assertRegex(lines[2], r"(fill|kernel) on stream 0")
        self.assertRegex(lines[3], r"overtaken by #\d+ copy on stream 1, reads 4096 bytes")
        self.assertRegex(lines[-1], r"TCUDA_SIM=schedule=adversarial:\d+,late=\d+ .*racy")

    def test_threads_of_the_host_run_the_same_way_each_time(self):
        ended = self.shrink("--seeds", "0-99", "--", THREADED)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        lines = ended.stdout.splitlines()
        self.assertRegex(lines[1], r"^1 operation must be late")
        # Streams are numbered in the order of their first use.
        self.assertRegex(lines[2], r"(fill|kernel) on stream 0 by thread [1-4]")
        self.assertRegex(
            lines[3], r"overtaken by #\d+ copy on stream \d by thread [1-4], reads 4096")
        again = lines[-1].split("TCUDA_SIM=")[1].split()[0]
        environment = dict(os.environ, TCUDA_BACKEND="sim", TCUDA_SIM=again)
        for _ in range(5):
            ended = subprocess.run([THREADED], env=environment, capture_output=True, check=False)
            self.assertEqual(ended.returncode, 1, again)
        ended = self.shrink("--seeds", "0-9", "--", THREADED, "right")
        self.assertEqual(ended.returncode, 1, ended.stdout)

    def test_a_right_program_passes(self):
        ended = self.shrink("--seeds", "0-19", "--", PROGRAM, "right")
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertIn("No seed", ended.stdout)

    def test_a_program_that_always_fails_is_not_called_late(self):
        ended = self.shrink("--seeds", "3", "--", sys.executable, "-c", "raise SystemExit(5)")
        self.assertEqual(ended.returncode, 0)
        self.assertIn("no operation late", ended.stdout)

    def test_wrong_usage(self):
        self.assertEqual(self.shrink("--seeds", "x", "--", PROGRAM).returncode, 2)
        self.assertEqual(self.shrink().returncode, 2)


if __name__ == "__main__":
    SCRIPT, PROGRAM, THREADED = sys.argv[1:4]
    unittest.main(argv=sys.argv[:1])
