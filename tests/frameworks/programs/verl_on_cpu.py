"""A platform of verl without an accelerator, so that its real FSDP workers run on CPU: VERL_PLATFORM=cpu,
VERL_USE_EXTERNAL_MODULES=verl_on_cpu. Figures of "device memory" are this process's RSS.
"""

import functools
import types
from contextlib import contextmanager

import psutil
import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_api
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Cpu(types.ModuleType):
    """torch.cpu, and what verl expects of torch.cuda besides."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def _rss(self, *_):
        return psutil.Process().memory_info().rss

    def _nothing(self, *_):
        return None

    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _rss
    reset_peak_memory_stats = empty_cache = ipc_collect = set_device = synchronize = _nothing

    def mem_get_info(self, *_):
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, *_):
        return torch.get_rng_state()

    def set_rng_state(self, state, *_):
        torch.set_rng_state(state)

    def current_device(self):
        return 0

    def device_count(self):
        return 2

    def is_available(self):
        return True

    def get_device_name(self, *_):
        return "cpu"

    def get_device_properties(self, *_):
        return types.SimpleNamespace(name="cpu", total_memory=psutil.virtual_memory().total, major=0, minor=0)


_CPU = _Cpu("torch_cpu")


@PlatformRegistry.register(platform="cpu")
class PlatformCpu(PlatformBase):
    device_name = "cpu"
    vendor_name = "nvidia"  # verl knows no other kind whose operators are torch's own
    device_module = _CPU

    def is_available(self):
        return True

    def current_device(self):
        return torch.device("cpu")  # an index would mean a CUDA device to tensor.to()

    def device_count(self):
        return 2

    def set_device(self, index):
        pass

    def synchronize(self, index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    def manual_seed_all(self, seed):
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "NO_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, message):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "NPU"  # on_ray.py's clusters have some

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


def _one_gloo(function):
    """verl asks for "cpu:gloo,<device>:<backend>", which names the cpu twice here."""

    @functools.wraps(function)
    def wrapped(*args, **keywords):
        if "cpu:gloo,cpu:gloo" in str(keywords.get("backend")):
            keywords["backend"] = "gloo"
        return function(*("gloo" if one == "cpu:gloo,cpu:gloo" else one for one in args), **keywords)

    return wrapped


dist.init_process_group = _one_gloo(dist.init_process_group)
dist.new_group = _one_gloo(dist.new_group)
_make_policy = _fsdp_api.CPUOffloadPolicy.__init__
# The reference model's offload pins memory, which needs an accelerator.
_fsdp_api.CPUOffloadPolicy.__init__ = lambda policy, pin_memory=False: _make_policy(policy, pin_memory=False)
