"""Utilization, heat, power and clocks of devices, from the management library (NVML)."""

from __future__ import annotations

from . import _core
from .devices import Device, index_of

__all__ = [
    "clock_rate", "device_memory_used", "memory_usage", "power_draw", "temperature", "utilization",
]


def utilization(device: Device = None) -> int:
    """Percent of the last second or so in which kernels ran."""
    return _core.monitor_utilization(index_of(device))


def memory_usage(device: Device = None) -> int:
    """Percent of the last second or so in which the memory was read or written."""
    return _core.monitor_memory_usage(index_of(device))


def temperature(device: Device = None) -> int:
    """Temperature of the GPU in degrees Celsius."""
    return _core.monitor_temperature_c(index_of(device))


def power_draw(device: Device = None) -> int:
    """Power in milliwatts."""
    return _core.monitor_power_draw_mw(index_of(device))


def clock_rate(device: Device = None) -> int:
    """Clock of the multiprocessors in MHz."""
    return _core.monitor_clock_rate_mhz(index_of(device))


def device_memory_used(device: Device = None) -> int:
    """Bytes of device memory that all processes use."""
    return _core.monitor_memory_used(index_of(device))
