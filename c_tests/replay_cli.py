#!/usr/bin/env python3
"""The command line of examples/replay: good and bad traces, exit codes, messages, JSON.

    python3 c_tests/replay_cli.py PATH_TO_REPLAY

Runs on the backend that TCUDA_BACKEND names; without it, on what replay chooses by itself.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

REPLAY = ""

GOOD = """# workload small
# peak_allocated 1000
# peak_reserved 2000
# events 7
a 0 1000 0
a 1 100 1
a 7 3000000 0
f 0
a 2 0 0
a 0 513 2
f 1
"""


class ReplayTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def trace(self, text, name="t.trace"):
        with open(self.path(name), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def replay(self, *arguments, stdin=None, env=None):
        """Runs it; a variable of `env` that is None is taken out of the environment."""
        variables = {**os.environ, **(env or {})}
        return subprocess.run([REPLAY, *arguments], input=stdin, capture_output=True, text=True,
                              timeout=300,
                              env={k: v for k, v in variables.items() if v is not None})

    def expect_failure(self, text, *parts, code=1):
        """A trace with this text fails, and the message has all these parts."""
        run = self.replay(self.trace(text))
        self.assertEqual(run.returncode, code, run.stderr)
        for part in ("replay: ", "t.trace", *parts):
            self.assertIn(part, run.stderr)
        self.assertNotIn("ns per event", run.stdout)

    # ---- What works ----

    def test_help(self):
        run = self.replay("--help")
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        for word in ("usage: replay", "--backend", "--device", "--repeat", "--json", "--no-verify",
                     "TRACE", "TCUDA_BACKEND"):
            self.assertIn(word, run.stdout)

    def test_good_trace(self):
        run = self.replay(self.trace(GOOD))
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        for word in ("t.trace: 7 events, 5 allocations, 3 streams", "cold", "warm",
                     "peak allocated", "peak requested", "peak reserved", "recorded: 2.0000",
                     "segments", "driver calls", "verified"):
            self.assertIn(word, run.stdout)
        # 2, 1, 3 and 2 units; the block of 0 bytes has none.
        self.assertIn("8 tagged units in 4 blocks", run.stdout)

    def test_backend_is_named(self):
        run = self.replay(self.trace(GOOD), env={"TCUDA_BACKEND": None})
        self.assertEqual(run.returncode, 0, run.stderr)
        lines = run.stdout.splitlines()
        self.assertRegex(lines[0], r"^tcuda \d+\.\d+\.\d+ on the (cuda|sim) backend$")
        self.assertRegex(lines[1], r"^(GPU 0: .+|simulated machine \(no GPU was found: .+\), .+)$")

    def test_backend_sim(self):
        run = self.replay("--backend", "sim", self.trace(GOOD))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("simulated machine (asked for by --backend), device 0: ", run.stdout)

    def test_no_verify(self):
        run = self.replay("--no-verify", self.trace(GOOD))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertNotIn("tagged units", run.stdout)

    def test_json(self):
        out = self.path("out.json")
        run = self.replay("--repeat", "2", "--json", out, self.trace(GOOD),
                          self.trace("a 1 5 0\n", 'quote".trace'))
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(out) as file:
            report = json.load(file)
        self.assertIn(report["backend"], ("cuda", "sim"))
        self.assertEqual((report["device"], report["repeat"], report["ok"]), (0, 2, True))
        self.assertTrue(report["device_name"] and report["version"] and report["machine"])
        self.assertEqual([r["trace"] for r in report["results"]], ["t.trace", 'quote".trace'])
        first = report["results"][0]
        self.assertEqual((first["events"], first["allocations"], first["streams"]), (7, 5, 3))
        # 1000 + 100 + 3000000, rounded up to units of 512 each.
        self.assertEqual((first["peak_requested"], first["peak_allocated"]), (3001100, 3001856))
        self.assertGreaterEqual(first["peak_reserved"], first["peak_allocated"])
        self.assertGreater(first["cold_ns_per_event"], 0)
        self.assertGreater(first["warm_ns_per_event"], 0)
        self.assertEqual((first["ok"], first["verified"], first["verified_units"],
                          first["verified_blocks"]), (True, True, 8, 4))
        for key in ("ratio", "segments", "driver_calls_cold", "driver_calls_warm"):
            self.assertIn(key, first)

    def test_several_traces(self):
        run = self.replay(
            self.trace(GOOD, "one.trace"), self.trace("a 1 600 0\nf 1\n", "two.trace"))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("one.trace: 7 events", run.stdout)
        self.assertIn("two.trace: 2 events, 1 allocations, 1 stream\n", run.stdout)

    def test_bad_trace_among_good_ones(self):
        out = self.path("out.json")
        run = self.replay("--json", out, self.path("missing"), self.trace(GOOD))
        self.assertEqual(run.returncode, 1)
        self.assertIn("t.trace: 7 events", run.stdout)
        with open(out) as file:
            report = json.load(file)
        self.assertEqual([r["ok"] for r in report["results"]], [False, True])
        self.assertFalse(report["ok"])

    def test_standard_input(self):
        run = self.replay("-", stdin=GOOD)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("standard input: 7 events", run.stdout)

    def test_line_ends_blank_lines_and_unknown_headers(self):
        text = "# some key\r\n#\r\n\r\na 1 20 0\r\nf 1"
        run = self.replay(self.trace(text))
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_many_ids(self):
        """Ids far apart, thousands live at once, freed in another order."""
        ids = [(i * 2654435761) % 2**40 for i in range(5000)]
        lines = [f"a {k} {i % 3000 + 1} {i % 4}" for i, k in enumerate(ids)]
        lines += [f"f {k}" for k in sorted(ids)] + [f"a {k} 8 0" for k in ids[:100]]
        run = self.replay("--repeat", "1", self.trace("\n".join(lines)))
        self.assertEqual((run.returncode, run.stderr), (0, ""))
        self.assertIn("in 5,100 blocks intact", run.stdout)

    # ---- Traces that are wrong ----

    def test_missing(self):
        run = self.replay(self.path("nowhere.trace"))
        self.assertEqual(run.returncode, 1)
        self.assertIn("nowhere.trace: cannot be opened: No such file", run.stderr)

    def test_folder(self):
        run = self.replay(self.folder.name)
        self.assertEqual(run.returncode, 1)
        self.assertIn("cannot be read: ", run.stderr)

    def test_truncated(self):
        self.expect_failure(GOOD.replace("f 1\n", ""), "truncated: its header promises 7 events",
                            "it has 6")

    def test_more_than_promised(self):
        self.expect_failure(GOOD + "f 2\n", "does not fit its header", "it has 8")

    def test_cut_in_a_line(self):
        self.expect_failure("a 1 20 0\na 2 3", "line 2: malformed, expected 'a ID SIZE STREAM'",
                            "'a 2 3'")

    def test_malformed_lines(self):
        for line in ("x 1", "a", "a 1 2", "a 1 2 0 9", "a -1 2 0", "a 1 2.5 0", "f", "f x", "f 1 2",
                     "a 1 99999999999999999999 0", "a1 2 0", "free 1"):
            with self.subTest(line):
                self.expect_failure(f"a 5 5 0\n{line}\n", "line 2: malformed", f"'{line}'")

    def test_long_line_is_cut(self):
        run = self.replay(self.trace("z" * 5000))
        self.assertEqual(run.returncode, 1)
        self.assertLess(len(run.stderr), 400)

    def test_bad_header(self):
        self.expect_failure("# events many\na 1 2 0\n", "line 1: a header line without its number")

    def test_stream_out_of_range(self):
        self.expect_failure("a 1 2 1024\n", "line 1: a stream number above 1023")

    def test_unknown_id(self):
        self.expect_failure("a 1 20 0\nf 2\n", "line 2: frees an unknown id: 'f 2'")

    def test_freed_twice(self):
        self.expect_failure("a 1 20 0\nf 1\nf 1\n", "line 3: frees an unknown id")

    def test_live_id(self):
        self.expect_failure("a 1 20 0\na 1 30 0\n", "line 2: allocates an id that is still live")

    def test_empty(self):
        self.expect_failure("# workload none\n", "no events")

    def test_packed(self):
        self.expect_failure(b"\xfd7zXZ\x00\x00\x04rest\n", "line 1: packed, unpack it with 'xz -d'")

    def test_binary(self):
        self.expect_failure(b"a 1 2 0\nf \x00\x01\n", "line 2: not text")

    # ---- Runs that fail ----

    def test_out_of_memory(self):
        run = self.replay(self.trace(f"a 1 20 0\na 2 {2**42} 0\n"))
        self.assertEqual(run.returncode, 1)
        self.assertIn("t.trace: line 2: tcuda_malloc of block 2", run.stderr)
        self.assertIn("TCUDA_STATUS_OUT_OF_MEMORY: ", run.stderr)
        self.assertNotIn("leak", run.stderr)

    def test_device_out_of_range(self):
        run = self.replay("--device", "900", self.trace(GOOD), env={"TCUDA_SIM": "devices=2"})
        self.assertEqual(run.returncode, 1)
        self.assertIn("TCUDA_STATUS_INVALID_DEVICE", run.stderr)

    def test_json_path(self):
        run = self.replay("--json", self.path("no/such/folder"), self.trace(GOOD))
        self.assertEqual(run.returncode, 1)
        self.assertIn("cannot be written: No such file", run.stderr)

    # ---- Wrong command lines ----

    def test_usage(self):
        trace = self.trace(GOOD)
        for arguments in ((), ("--unknown", trace), ("--backend", "rocm", trace),
                          ("--backend",), ("--device", "x", trace), ("--device", "-1", trace),
                          ("--repeat", "0", trace), ("--repeat", "1x", trace)):
            with self.subTest(arguments):
                run = self.replay(*arguments)
                self.assertEqual((run.returncode, run.stdout), (2, ""))
                self.assertIn("Try 'replay --help'.", run.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not os.access(sys.argv[1], os.X_OK):
        sys.exit(__doc__)
    REPLAY = os.path.abspath(sys.argv.pop(1))
    unittest.main()
