"""Leaves the weights of vLLM's linear layers as they are loaded, where vLLM runs on CPU: it packs them and lets the
parameters go, and verl has none to copy new ones into. One of VERL_USE_EXTERNAL_MODULES; a worker of vLLM imports verl
for its worker extension, when vLLM is there already.
"""

import sys

import torch

if "vllm" in sys.modules:
    from vllm.model_executor.layers import utils

    def keep(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep
