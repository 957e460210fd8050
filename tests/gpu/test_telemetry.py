"""The device's probe against nvidia-smi, on a machine that has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import pytest
import torch

from lightning_perf.probes.telemetry.gpu import open_gpu

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or shutil.which("nvidia-smi") is None, reason="no NVIDIA device, or no nvidia-smi"
    ),
]

FIELDS = "uuid,memory.total,power.draw,temperature.gpu,clocks.sm,clocks.max.sm,pcie.link.gen.max,pcie.link.width.max"


def test_figures_agree_with_nvidia_smi_when_the_device_works() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    reader, reason = open_gpu(device, lambda: {os.getpid()}, torch)
    assert reader is not None, reason
    matrix = torch.randn(4096, 4096, device=device)
    next_reading = time.monotonic() + 2  # readings take milliseconds, in which the device must not become idle
    until = next_reading + 2
    while time.monotonic() < until:
        for _ in range(20):
            matrix = (matrix @ matrix).clamp(-1, 1)
        if time.monotonic() > next_reading:
            next_reading += 0.2
            reader.add(reader.read(), 0.2)
        torch.cuda.synchronize()
    record = reader.record()
    told = subprocess.run(
        ["nvidia-smi", f"--id={record.uuid}", f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split(", ")
    reader.close()
    assert told[0] == record.uuid
    assert record.memory_total_bytes == pytest.approx(float(told[1]) * 2**20, rel=0.01)
    assert record.power_w is None or record.power_w.max >= 0.5 * float(told[2])
    assert record.temperature_c is None or record.temperature_c.p95 == pytest.approx(float(told[3]), abs=10)
    assert record.max_sm_clock_mhz == pytest.approx(float(told[5]))
    assert (record.max_pcie_generation, record.max_pcie_width) == (int(told[6]), int(told[7]))
    assert record.utilisation_fraction is None or record.utilisation_fraction.p50 > 0.5


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one device")
def test_links_agree_with_nvidia_smi_when_there_are_several_devices() -> None:
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    reader, reason = open_gpu(devices[0], lambda: {os.getpid()}, torch, None, devices)
    assert reader is not None, reason
    links = reader.record().links
    reader.close()
    assert links is not None, reader.missing
    told = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True).stdout
    assert any(link.has_nvlink for link in links) == (" NV" in told.split("Legend")[0].replace("\t", " "))
