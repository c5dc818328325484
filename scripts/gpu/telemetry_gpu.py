#!/usr/bin/env python3
"""Telemetry of a GPU beside nvidia-smi, which is asked just before and just after.

    scripts/gpu/telemetry_gpu.py target/release/libtcuda.so [--rounds N]

Each round asks nvidia-smi, tcuda and nvidia-smi again, for every visible device, by its UUID: an
idle round, and rounds while the device fills memory. A value fails when it is outside of what the
two answers span, by more than it moves in between. Run it as well with CUDA_VISIBLE_DEVICES=1,0 and
CUDA_DEVICE_ORDER=PCI_BUS_ID, where ordinals are not nvidia-smi's.
"""

import argparse
import ctypes
import subprocess
import sys
import time
import uuid

FIELDS = ["uuid", "utilization.gpu", "utilization.memory", "temperature.gpu", "power.draw",
          "clocks.sm", "memory.used", "memory.reserved"]
# Name, index in FIELDS, type of the output, factor to nvidia-smi's unit, what it may move
# meanwhile.
VALUES = [
    ("utilization", 1, ctypes.c_uint32, 1, 30),
    ("memory_usage", 2, ctypes.c_uint32, 1, 30),
    ("temperature_c", 3, ctypes.c_int32, 1, 3),
    ("power_draw_mw", 4, ctypes.c_uint32, 1e-3, 120),
    ("clock_rate_mhz", 5, ctypes.c_uint32, 1, 400),
    ("memory_used", 6, ctypes.c_uint64, 1 / (1 << 20), 64),
]
MIB = 1 << 20


def ask_smi():
    command = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [[field.strip() for field in line.split(",")] for line in answer.splitlines()]
    return {row[0]: row for row in rows}


def number(text):
    try:
        return float(text)
    except ValueError:
        return None  # [N/A]


class Library:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.tcuda_last_error.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            sys.exit(f"{name}: status {status}: {self.library.tcuda_last_error().decode()}")

    def uuid_of(self, device):
        info = (ctypes.c_char * 4096)()
        ctypes.c_size_t.from_buffer(info).value = 4096
        self.call("tcuda_device_properties", device, info)
        return f"GPU-{uuid.UUID(bytes=bytes(info[264:280]))}"

    def value(self, name, device, kind):
        value = kind()
        self.call(f"tcuda_monitor_{name}", device, ctypes.byref(value))
        return value.value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("library")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    tcuda = Library(options.library)
    count, failed = ctypes.c_int32(), 0
    tcuda.call("tcuda_device_count", ctypes.byref(count))
    for device in range(count.value):
        block, byte = ctypes.c_void_p(), (ctypes.c_ubyte * 1)(7)
        tcuda.call("tcuda_malloc", ctypes.c_size_t(1 << 30), device, None, ctypes.byref(block))
        name = tcuda.uuid_of(device)
        for around in range(options.rounds):
            for _ in range(0 if around == 0 else 2000):
                tcuda.call("tcuda_fill", block, byte, ctypes.c_size_t(1),
                           ctypes.c_size_t(1 << 30), None)
            before = ask_smi()[name]
            seen = [tcuda.value(value, device, kind) for value, _, kind, _, _ in VALUES]
            after = ask_smi()[name]
            tcuda.call("tcuda_device_synchronize", device)
            for (value, index, _, factor, slack), own in zip(VALUES, seen):
                ends = [number(row[index]) for row in (before, after)]
                if None in ends:
                    print(f"device {device}: {value}: nvidia-smi does not tell, tcuda says {own}")
                    continue
                own *= factor
                # What NVML calls used holds what the driver reserves, which nvidia-smi tells apart.
                reserved = number(before[7]) or 0 if value == "memory_used" else 0
                fits = min(ends) - slack <= own <= max(ends) + reserved + slack
                failed += not fits
                print(f"device {device}, round {around}: {value:<15} {own:>10.1f}  nvidia-smi "
                      f"{ends[0]:>9.1f} {ends[1]:>9.1f}{'' if fits else '  DIFFERS'}")
            time.sleep(0.2)
        tcuda.call("tcuda_free", block)
    print(f"{failed} differ")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
