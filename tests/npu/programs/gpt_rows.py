"""What upstream's collector of operators writes of the GPT of gpt.py, by its rules: the other side of a comparison.

Its rules (a TorchDispatchMode on the thread that trains): an operator is ATEN_START, an ACCESS for each tensor of a
card that it is given, the operator, an ACCESS for each tensor of a card that it returns, ATEN_END. A tensor whose
schema says that it is written is WRITE; one whose schema says that it is an alias and no more has no row; of operators
whose name begins with new_ or ends with _like the arguments have none; what empty_like returns has none. All other
arguments are READ, all other results WRITE.

argv: `upstream` prints a JSON list of [name, [[READ or WRITE, text of dtype and shape], ...]] per operator; `plain`
runs the same program without it, for the tool.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import gpt
import torch
import torch_npu  # noqa: F401 - makes `npu` a device
from torch.utils._python_dispatch import TorchDispatchMode

STEPS = 2


class Upstream(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, list[tuple[str, str]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = f"torch._ops.{func._schema.name.replace('::', '.')}.{func._overloadname}"
        bare = func._schema.name.partition("::")[2]
        makes_new = bare.startswith("new_") or bare.endswith("_like")
        touched: list[tuple[str, str]] = []
        self.rows.append((name, touched))
        if not makes_new:
            for argument, value in zip(func._schema.arguments, args, strict=False):
                self._note(touched, argument.alias_info, value, "READ")
            for argument in func._schema.arguments:
                if argument.name in kwargs:
                    self._note(touched, argument.alias_info, kwargs[argument.name], "READ")
        result = func(*args, **kwargs)
        if bare != "empty_like":
            several = isinstance(result, (tuple, list)) and len(func._schema.returns) > 1
            for returned, value in zip(func._schema.returns, result if several else (result,), strict=False):
                self._note(touched, returned.alias_info, value, "WRITE")
        return result

    def _note(self, touched: list[tuple[str, str]], alias: Any, value: Any, how: str) -> None:
        if alias is not None and not alias.is_write:
            return
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == "npu":
                shape = f"dtype:{tensor.dtype},shape:{tensor.shape}"
                touched.append(("WRITE" if alias is not None else how, shape))


def main() -> None:
    torch.manual_seed(0)
    model = gpt.Gpt().npu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = torch.randint(0, gpt.VOCABULARY, (gpt.BATCH, gpt.TOKENS)).npu()
    torch.npu.synchronize()
    import msmemscope

    collector = Upstream()
    if sys.argv[1] == "upstream":
        collector.__enter__()
    else:
        msmemscope.start()
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(tokens)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, gpt.VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    torch.npu.synchronize()
    if sys.argv[1] == "upstream":
        collector.__exit__(None, None, None)
        print(json.dumps(collector.rows))
    else:
        msmemscope.stop()


if __name__ == "__main__":
    main()
