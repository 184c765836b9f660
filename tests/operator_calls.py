"""Calls of torch whose operators and accesses are known beforehand, and a program that records what is seen of them.

``python operator_calls.py observer|fallback cpu|npu`` prints what was recorded as JSON: name of the call → [[operator,
accesses], ...]. The accesses are written as in EXPECTED: `backward` when autograd runs the operator, then R, W or ? and
the tensor: a name of the call's own, `out` for what it returned (`out0`, ...), `tmp` for one that is gone.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HOW = ("?", "R", "W")
PREFIX = "torch._ops."

# What the simulated card has no operator for.
MISSING_ON_NPU = ("fused adamw",)

# Name of the call → (its tensors, the call). Tensors are made before recording begins.
Tensors = dict[str, Any]
Make = Callable[[Any, str], Tensors]
Run = Callable[[Any, Tensors], Any]
CALLS: dict[str, tuple[Make, Run]] = {}
EXPECTED: dict[str, list[tuple[str, str]]] = {}


def call(name: str, make: Make, run: Run, *expected: str) -> None:
    """expected: "operator: accesses"."""
    CALLS[name] = make, run
    EXPECTED[name] = [(PREFIX + one.partition(":")[0], one.partition(":")[2].strip()) for one in expected]


def floats(**shapes: tuple[int, ...]) -> Make:
    return lambda torch, device: {
        name: torch.arange(1.0, 1 + _count(shape)).reshape(shape).to(device) for name, shape in shapes.items()
    }


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def both(*makes: Make) -> Make:
    def make(torch: Any, device: str) -> Tensors:
        made: Tensors = {}
        for one in makes:
            made.update(one(torch, device))
        return made

    return make


def numbers(**values: Any) -> Make:
    return lambda torch, device: {name: torch.tensor(value).to(device) for name, value in values.items()}


SQUARE = floats(a=(3, 4), b=(3, 4))

# --- plain, in place, out= ---
call("add", SQUARE, lambda t, x: x["a"] + x["b"], "aten.add.Tensor: R a, R b, W out")
call("add a number", SQUARE, lambda t, x: x["a"] + 1, "aten.add.Tensor: R a, W out")
call("add in place", SQUARE, lambda t, x: x["a"].add_(x["b"]), "aten.add_.Tensor: W a, R b")
call("add into out", floats(a=(3, 4), b=(3, 4), c=(3, 4)), lambda t, x: t.add(x["a"], x["b"], out=x["c"]),
     "aten.add.out: R a, R b, W c")  # fmt: skip
call("two outs", both(floats(a=(3, 4), v=(3,)), numbers(i=[0, 0, 0])),
     lambda t, x: t.max(x["a"], dim=1, out=(x["v"], x["i"])), "aten.max.dim_max: R a, W v, W i")  # fmt: skip
call("two returns", floats(a=(3, 4)), lambda t, x: t.max(x["a"], dim=1), "aten.max.dim: R a, W out0, W out1")
call("fill", SQUARE, lambda t, x: x["a"].fill_(2.0), "aten.fill_.Scalar: W a")
call("zero", SQUARE, lambda t, x: x["a"].zero_(), "aten.zero_.default: W a")
call("copy", SQUARE, lambda t, x: x["a"].copy_(x["b"]), "aten.copy_.default: W a, R b")
call("random numbers", SQUARE, lambda t, x: x["a"].uniform_(), "aten.uniform_.default: W a")
call("one number out", floats(a=(1,)), lambda t, x: x["a"].item(), "aten._local_scalar_dense.default: R a")

# --- views ---
call("view", SQUARE, lambda t, x: x["a"].view(2, 6), "aten.view.default:")
call("slice", SQUARE, lambda t, x: x["a"][1:], "aten.slice.Tensor:")
call("transpose", SQUARE, lambda t, x: x["a"].t(), "aten.t.default:")
call("view in place", SQUARE, lambda t, x: x["a"].t_(), "aten.t_.default:")
call("split", SQUARE, lambda t, x: x["a"].split(2, dim=1), "aten.split.Tensor:")
call("unmarked view", SQUARE, lambda t, x: t.ops.aten._unsafe_view(x["a"], [12]), "aten._unsafe_view.default:")
call("write through a view", lambda t, d: {"whole": (a := t.ones(3, 4, device=d)), "row": a[1]},
     lambda t, x: x["row"].add_(1), "aten.add_.Tensor: W row")  # fmt: skip
call("copy of a transposed view", lambda t, d: {"a": t.ones(3, 4, device=d).t()}, lambda t, x: x["a"].contiguous(),
     "aten.clone.default: R a, W out")  # fmt: skip
call("nothing to copy", SQUARE, lambda t, x: x["a"].contiguous())

# --- what makes tensors ---
call("empty", SQUARE, lambda t, x: t.empty(4, device=x["a"].device), "aten.empty.memory_format:")
call("empty like", SQUARE, lambda t, x: t.empty_like(x["a"]), "aten.empty_like.default:")
call("new empty", SQUARE, lambda t, x: x["a"].new_empty(3), "aten.new_empty.default:")
call("zeros", SQUARE, lambda t, x: t.zeros(4, device=x["a"].device), "aten.zeros.default: W out")
call("zeros like", SQUARE, lambda t, x: t.zeros_like(x["a"]), "aten.zeros_like.default: W out")
call("new full", SQUARE, lambda t, x: x["a"].new_full((2,), 3.0), "aten.new_full.default: W out")
call("full", SQUARE, lambda t, x: t.full((2,), 3.0, device=x["a"].device), "aten.full.default: W out")
call("arange", SQUARE, lambda t, x: t.arange(4, device=x["a"].device), "aten.arange.default: W out")
call("of no element", floats(a=(0, 4), b=(0, 4)), lambda t, x: x["a"] + x["b"], "aten.add.Tensor:")
call("other dtype", SQUARE, lambda t, x: x["a"].to(t.float16), "aten._to_copy.default: R a, W out")

# --- lists, optional and nested arguments ---
call("cat", SQUARE, lambda t, x: t.cat([x["a"], x["b"]]), "aten.cat.default: R a, R b, W out")
call("where", both(SQUARE, lambda t, d: {"c": t.ones(3, 4, dtype=t.bool, device=d)}),
     lambda t, x: t.where(x["c"], x["a"], x["b"]), "aten.where.self: R c, R a, R b, W out")  # fmt: skip
call("index put", both(floats(a=(3, 4), v=(2,)), numbers(i=[0, 1])),
     lambda t, x: t.ops.aten.index_put_(x["a"], [None, x["i"]], x["v"]),
     "aten.index_put_.default: W a, R i, R v")  # fmt: skip
call("index", both(floats(a=(3, 4)), numbers(i=[0, 1])), lambda t, x: x["a"][x["i"]],
     "aten.index.Tensor: R a, R i, W out")  # fmt: skip
call("masked fill", both(SQUARE, lambda t, d: {"m": t.ones(3, 4, dtype=t.bool, device=d)}),
     lambda t, x: x["a"].masked_fill_(x["m"], 0.0), "aten.masked_fill_.Scalar: W a, R m")  # fmt: skip
call("foreach in place", SQUARE, lambda t, x: t._foreach_add_([x["a"], x["b"]], [x["b"], x["a"]]),
     "aten._foreach_add_.List: W a, W b, R b, R a")  # fmt: skip
call("foreach", SQUARE, lambda t, x: t._foreach_mul([x["a"], x["b"]], 2.0),
     "aten._foreach_mul.Scalar: R a, R b, W out0, W out1")  # fmt: skip
call("fused adamw", floats(p=(4,), g=(4,), m=(4,), v=(4,), s=(1,)),
     lambda t, x: t._fused_adamw_([x["p"]], [x["g"]], [x["m"]], [x["v"]], [], [x["s"]], lr=0.1, beta1=0.9, beta2=0.99,
                                  weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False),
     "aten._fused_adamw_.default: W p, W g, W m, W v, R s")  # fmt: skip

# --- layers ---
LINEAR = floats(x=(3, 4), w=(5, 4), b=(5,))
call("linear", LINEAR, lambda t, x: t.nn.functional.linear(x["x"], x["w"], x["b"]),
     "aten.t.default:", "aten.addmm.default: R b, R x, R w, W out")  # fmt: skip
call("convolution", floats(x=(1, 2, 5, 5), w=(3, 2, 3, 3), b=(3,)),
     lambda t, x: t.nn.functional.conv2d(x["x"], x["w"], x["b"]),
     "aten.convolution.default: R x, R w, R b, W out")  # fmt: skip
NORM = floats(x=(4, 3), w=(3,), b=(3,), mean=(3,), var=(3,))
call("batch norm that trains", NORM,
     lambda t, x: t.native_batch_norm(x["x"], x["w"], x["b"], x["mean"], x["var"], True, 0.1, 1e-5),
     "aten.native_batch_norm.default: R x, R w, R b, W mean, W var, W out0, W out1, W out2")  # fmt: skip
call("batch norm that is used", NORM,
     lambda t, x: t.native_batch_norm(x["x"], x["w"], x["b"], x["mean"], x["var"], False, 0.1, 1e-5),
     "aten.native_batch_norm.default: R x, R w, R b, R mean, R var, W out0")  # fmt: skip
call("batch norm without parameters", NORM,
     lambda t, x: t.native_batch_norm(x["x"], None, None, None, None, True, 0.1, 1e-5),
     "aten.native_batch_norm.default: R x, W out0, W out1, W out2")  # fmt: skip
call("layer norm", floats(x=(4, 3), w=(3,), b=(3,)),
     lambda t, x: t.native_layer_norm(x["x"], (3,), x["w"], x["b"], 1e-5),
     "aten.native_layer_norm.default: R x, R w, R b, W out0, W out1, W out2")  # fmt: skip
call("embedding", both(floats(w=(4, 2)), numbers(i=[1, 3])), lambda t, x: t.nn.functional.embedding(x["i"], x["w"]),
     "aten.embedding.default: R w, R i, W out")  # fmt: skip
call("embedding backward", both(floats(g=(2, 2)), numbers(i=[1, 3])),
     lambda t, x: t.ops.aten.embedding_dense_backward(x["g"], x["i"], 4, -1, False),
     "aten.embedding_dense_backward.default: R g, R i, W out")  # fmt: skip
call("attention", floats(q=(1, 2, 3, 4), k=(1, 2, 3, 4), v=(1, 2, 3, 4)),
     lambda t, x: t.ops.aten._scaled_dot_product_flash_attention_for_cpu(x["q"], x["k"], x["v"]),
     "aten._scaled_dot_product_flash_attention_for_cpu.default: R q, R k, R v, W out0, W out1")  # fmt: skip
call("softmax", SQUARE, lambda t, x: t._softmax(x["a"], 1, False), "aten._softmax.default: R a, W out")
call("loss", both(floats(x=(3, 4)), numbers(t=[0, 1, 2])), lambda t, x: t.nn.functional.cross_entropy(x["x"], x["t"]),
     "aten._log_softmax.default: R x, W tmp", "aten.nll_loss_forward.default: R tmp, R t, W out, W tmp")  # fmt: skip


# --- autograd, autocast, inference, what has no memory, what is not torch's own ---
def _backward(t: Any, x: Tensors) -> Any:
    x["a"].requires_grad_()
    (x["a"] * x["b"]).backward(x["g"])
    return x["a"].grad


call("backward", floats(a=(3, 4), b=(3, 4), g=(3, 4)), _backward,
     "aten.mul.Tensor: R a, R b, W tmp", "aten.mul.Tensor: backward, R g, R b, W out",
     "aten.detach.default: backward")  # fmt: skip


def _autocast(t: Any, x: Tensors) -> Any:
    with t.autocast(x["a"].device.type, dtype=t.bfloat16):
        return t.mm(x["a"], x["a16"])


call("autocast", lambda t, d: {"a": t.ones(3, 3, device=d), "a16": t.ones(3, 3, device=d, dtype=t.bfloat16)}, _autocast,
     "aten._to_copy.default: R a, W tmp", "aten.mm.default: R tmp, R a16, W out")  # fmt: skip


def _inference(t: Any, x: Tensors) -> Any:
    with t.inference_mode():
        return t.nn.functional.linear(x["x"], x["w"], x["b"])


call("inference", LINEAR, _inference, "aten.t.default:", "aten.addmm.default: R b, R x, R w, W out")


def _fake(t: Any, x: Tensors) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        t.ones(3) + 1
        t.nn.functional.linear(t.ones(3, 4), t.ones(5, 4))
    t.ones(3, device="meta").add_(1)


call("no memory", SQUARE, _fake)


def _subclass(t: Any, x: Tensors) -> Any:
    """A subclass that answers by a product of what it holds, and so two operators have run: its own is none."""
    from torch.utils._pytree import tree_map_only

    class Holder(t.Tensor):  # type: ignore[misc,name-defined]
        @staticmethod
        def __new__(cls: Any, held: Any) -> Any:
            made = t.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)
            made.held = held
            return made

        @classmethod
        def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return operator(*tree_map_only(cls, lambda one: one.held, args), **(kwargs or {}))

    return Holder(x["a"]) + Holder(x["b"])


call("a subclass", SQUARE, _subclass, "aten.add.Tensor: R a, R b, W out")


def _library(t: Any, device: str) -> Tensors:
    if not hasattr(t.ops.memscope_test, "touch"):
        t.library.define("memscope_test::touch", "(Tensor x) -> ()")
        t.library.define("memscope_test::change", "(Tensor(a!) x, Tensor y) -> ()")
        t.library.impl("memscope_test::touch", "default", lambda x: None)
        t.library.impl("memscope_test::change", "default", lambda x, y: x.add_(y) and None)
    return SQUARE(t, device)


call("unmarked operator of a library", _library, lambda t, x: t.ops.memscope_test.touch(x["a"]),
     "memscope_test.touch.default: ? a")  # fmt: skip


def _fails(t: Any, x: Tensors) -> None:
    try:
        t.mm(x["a"], x["b"])
    except RuntimeError:
        return


call("one that fails", SQUARE, _fails, "aten.mm.default: R a, R b")


def _all_reduce(t: Any, x: Tensors) -> None:
    t.distributed.all_reduce(x["a"])


def _group(t: Any, device: str) -> Tensors:
    import torch.distributed as distributed

    if not distributed.is_initialized():
        store = Path(tempfile.mkdtemp()) / "store"
        backend = "hccl" if device == "npu" else "gloo"
        distributed.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
    return SQUARE(t, device)


call("all reduce", _group, _all_reduce, "c10d.allreduce_.default: W a")


def _optimizer(**options: Any) -> Make:
    def make(t: Any, device: str) -> Tensors:
        p = t.nn.Parameter(t.ones(4, device=device))
        p.grad = t.ones(4, device=device)
        optimizer = t.optim.SGD([p], lr=0.1, momentum=0.9, **options)
        optimizer.step()
        return {"p": p, "g": p.grad, "m": optimizer.state[p]["momentum_buffer"], "optimizer": optimizer}

    return make


call("sgd foreach", _optimizer(foreach=True), lambda t, x: x["optimizer"].step(),
     "aten._foreach_mul_.Scalar: W m", "aten._foreach_add_.List: W m, R g",
     "aten._foreach_add_.List: W p, R m")  # fmt: skip
call("sgd", _optimizer(foreach=False), lambda t, x: x["optimizer"].step(),
     "aten.mul_.Tensor: W m", "aten.add_.Tensor: W m, R g", "aten.add_.Tensor: W p, R m")  # fmt: skip


# --- whole steps, of which both ways must see the same ---
def _model(t: Any, device: str) -> Tensors:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    from transformer import TransformerLM, batches

    t.manual_seed(0)
    model = TransformerLM().to(device)
    optimizer = t.optim.AdamW(model.parameters())
    ((x, y),) = batches(1)
    return {"model": model, "optimizer": optimizer, "x": x.to(device), "y": y.to(device)}


def _train(t: Any, x: Tensors) -> None:
    for _ in range(2):
        x["optimizer"].zero_grad()
        t.nn.functional.cross_entropy(x["model"](x["x"]).flatten(0, 1), x["y"].flatten()).backward()
        x["optimizer"].step()


STEPS = "two steps of a transformer"
# With a mode on the stack autograd adds gradients up out of place, and shows views of its own: these the mode changes.
OF_THE_MODE = ("add.Tensor", "add_.Tensor", "detach.default", "detach_.default", "empty.memory_format")
CALLS[STEPS] = (_model, _train)


# --- the program ---
def record(way: str, device: str) -> dict[str, list[tuple[str, str]]]:
    import torch

    from msmemscope import _native
    from msmemscope.collect import torch_ext

    if device == "npu":
        import torch_npu  # noqa: F401
    directory = tempfile.mkdtemp(prefix="msmemscope-operators-", dir="/dev/shm")
    _native.set_session(directory)
    _native.configure(f"devices={device};sorts=5")
    mode: Any = None
    if way == "observer":
        _native.observe_operators(torch_ext.build(torch_ext.torch_of(torch)))
    else:
        from msmemscope.collect.rank.dispatch_mode import make_mode

        mode = make_mode(torch)
    known: dict[str, dict[tuple[int, int], str]] = {}
    failed: dict[str, list[tuple[str, str]]] = {}
    try:
        for name, (make, run) in CALLS.items():
            try:
                known[name] = _recorded(torch, _native, mode, name, make(torch, device), run)
            except RuntimeError as error:  # the simulated card has not all operators
                known[name] = {}
                failed[name] = [("failed", str(error).splitlines()[0])]
                _native.meta("call", "")
                _native.stop()
        if device == "npu":
            torch.npu.synchronize()
        (ring,) = Path(directory).glob("*.ring")
        return dict(_by_call(_native.RingReader(str(ring)), known)) | failed
    finally:
        shutil.rmtree(directory)


_kept: list[Any] = []  # so that no two calls have tensors at the same address


def _recorded(torch: Any, native: Any, mode: Any, name: str, tensors: Tensors, run: Run) -> dict[tuple[int, int], str]:
    """Runs one call between two records of its name; (address, bytes) → name of each tensor."""
    native.start()
    native.meta("call", name)
    if mode is not None:
        with mode:
            result = run(torch, tensors)
    else:
        result = run(torch, tensors)
    native.meta("call", "")
    native.stop()
    _kept.extend([tensors, result])
    named = {label: one for label, one in tensors.items() if isinstance(one, torch.Tensor)}
    results = result if isinstance(result, (tuple, list)) else [result]
    new = {
        f"out{i}" if len(results) > 1 else "out": getattr(one, "held", one)
        for i, one in enumerate(results)
        if isinstance(one, torch.Tensor)
    }
    known = {}
    for label, tensor in (new | named).items():  # what a call returns may be what it was given
        if type(tensor).__name__ != "Holder" and tensor.numel():
            known[tensor.data_ptr(), tensor.numel() * tensor.element_size()] = label
    return known


def _by_call(reader: Any, known: dict[str, dict[tuple[int, int], str]]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    import numpy as np

    from msmemscope.vocabulary import Flag, Kind

    cut = reader.cut(0, 1 << 24)
    texts, at = {}, 0
    counts = np.frombuffer(cut["strings"]["bytes"], "<u4")
    for number, count in zip(np.frombuffer(cut["strings"]["id"], "<u8"), counts, strict=True):
        texts[int(number)] = cut["strings"]["text"][at : at + int(count)].decode()
        at += int(count)

    def column(name: str, kind: str) -> Any:
        values = np.frombuffer(cut["cols"][name], kind)
        return values if len(values) == cut["n"] else np.repeat(values, cut["n"])

    kinds, names, attrs = column("kind", "u1"), column("name", "<u8"), column("attr", "<u8")
    flags = column("flags", "u1")
    addresses, sizes, how = column("ptr", "<u8"), column("size", "<i8"), column("aux", "<u4") & 0xFF
    current = ""
    operators: list[list[Any]] = []
    for i, kind in enumerate(kinds):
        name = texts.get(int(names[i]), "")
        if kind == Kind.META and name == "call":
            if current:
                yield current, [(operator, ", ".join(accesses)) for operator, accesses in operators]
            current, operators = texts.get(int(attrs[i]), ""), []
        elif kind == Kind.OP_START:
            operators.append([name, ["backward"] if flags[i] & Flag.BACKWARD else []])
        elif kind == Kind.ACCESS:
            tensor = known[current].get((int(addresses[i]), int(sizes[i])), "tmp")
            operators[-1][1].append(f"{HOW[how[i]]} {tensor}")


if __name__ == "__main__":
    print(json.dumps(record(*sys.argv[1:])))
