"""Which native frame is the user's: not those of CANN, of torch, of the system and of the interpreter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fake_run import frame

from msmemscope.analysis.frames import is_user, user_chain, user_index
from msmemscope.tables.run import Frame

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "/home/me/env/lib/python3.11/site-packages"


def native(file: str) -> Frame:
    return frame(file, "some_function", 12767, "native")


def simulated_libraries() -> list[str]:
    """Every library of CANN that the simulator stands for."""
    text = (ROOT / "simulator" / "CMakeLists.txt").read_text()
    names = re.findall(r"^cann_(?:library|folder)\((\w+)", text, re.MULTILINE)
    for group in re.findall(r"^foreach\(name ([\w ]+)\)", text, re.MULTILINE):
        names += group.split()
    assert {"ascend_hal", "runtime", "ascendcl", "hccl", "ge_runner"} <= set(names)
    return sorted({*names, "opapi", "atb"})


@pytest.mark.parametrize("name", simulated_libraries())
def test_libraries_of_cann_are_not_the_users_wherever_they_are(name: str) -> None:
    assert not is_user(native(f"/opt/job/cann/lib64/lib{name}.so"))
    assert not is_user(native(f"lib{name}.so"))


@pytest.mark.parametrize(
    "file",
    [
        "/usr/local/Ascend/ascend-toolkit/latest/opp/built-in/op_impl/libanything.so",
        "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so",
        "/home/me/Ascend/cann-9.0.0/x86_64-linux/lib64/libwhatever.so",
        "/cann/lib64/libacl_rt_impl.so.1",
        "/cann/lib64/libaclnn_ops_infer.so",
        "/cann/lib64/libhccl_plf.so",
        f"{PACKAGES}/torch/lib/libtorch_cpu.so",
        f"{PACKAGES}/torch_npu/_C.cpython-311-x86_64-linux-gnu.so",
        "/src/pytorch/build/lib/libc10.so",
        "/src/pytorch/build/lib/libc10_cuda.so",
        "/src/pytorch/torch/lib/libtorch_python.so",
        "/src/op/torch_npu/lib/libtorch_npu.so",
        "/src/op/torch_npu/_C.cpython-311-aarch64-linux-gnu.so",
        "/usr/lib/x86_64-linux-gnu/libanything.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/opt/conda/lib/libstdc++.so.6.0.33",
        "/opt/conda/lib/libgomp.so.1",
        "/opt/conda/lib/libpython3.11.so.1.0",
        f"{PACKAGES}/torch/lib/libgomp-24e2ab19.so.1",
        "/opt/conda/bin/python3.11",
        "python3",
        "linux-vdso.so.1",
        "??",
        "",
    ],
)
def test_not_the_users(file: str) -> None:
    assert not is_user(native(file))


@pytest.mark.parametrize(
    "file",
    [
        "./train",
        "/home/me/train",
        "/home/me/project/libmodel.so",
        "/home/me/project/libgraphics.so",
        "/home/me/project/libatbench.so",
        "/home/me/project/libclient.so.2",
        "/home/me/project/ops.cpython-311-x86_64-linux-gnu.so",
        "/home/me/.cache/torch_extensions/py311_cpu/fused/fused.so",
        "/home/me/ascend/trainer",
    ],
)
def test_the_users(file: str) -> None:
    assert is_user(native(file))


def test_the_site_is_the_innermost_frame_that_is_the_users() -> None:
    stack = [
        native("/cann/lib64/libruntime.so"),
        native("/cann/lib64/libascendcl.so"),
        native(f"{PACKAGES}/torch_npu/lib/libtorch_npu.so"),
        native("/home/me/project/libmodel.so"),
        native("/home/me/train"),
        native("/lib/x86_64-linux-gnu/libc.so.6"),
    ]
    assert user_index(stack) == 3
    assert user_chain(stack) == (("/home/me/project/libmodel.so", 12767), ("/home/me/train", 12767))


def test_without_a_frame_of_the_users_the_innermost_stays() -> None:
    stack = [native("/cann/lib64/libruntime.so"), native("libtorch_npu.so"), native("/usr/bin/python3.11")]
    assert user_index(stack) == 0
    assert user_chain(stack) == ()


def test_the_code_that_multiprocessing_starts_a_process_with_is_not_the_users() -> None:
    """In a worker of vLLM there is no frame of the user's at all."""
    spawn = "/usr/lib/python3.11/multiprocessing/spawn.py"
    start = frame("<string>", "<module>", 1)
    library = [frame(f"{PACKAGES}/vllm/worker.py", "execute_model", 9), frame(spawn, "spawn_main", 122), start]
    assert user_index(library) == 0
    assert user_chain(library) == ()
    assert user_index([frame("/home/me/train.py", "step", 3), *library]) == 0
    assert user_index([frame(f"{PACKAGES}/torch/_ops.py", "call", 3), start]) == 1  # python -c
