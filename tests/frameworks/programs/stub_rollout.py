"""A rollout of verl that makes up its tokens: a Ray actor, so that the rest of the GRPO loop is verl's own without an
engine that serves. VERL_USE_EXTERNAL_MODULES=verl_on_cpu,stub_rollout and `rollout.name=stub`.

verl's registries lie in modules that must not be imported while verl itself is: they are changed when they have been.
"""

import importlib.machinery
import random
import sys

NAME, CACHE_BYTES = "stub", 16 << 20
_made = []


def _replica():
    """The class of replicas, once; Ray and verl are imported by then."""
    if _made:
        return _made[0]
    import ray
    import torch
    from verl.workers.rollout.replica import RolloutReplica, TokenOutput

    @ray.remote(num_cpus=0)
    class Server:
        def __init__(self, most):
            self.most, self.step, self.cache = most, 0, None
            self.random = random.Random(5)
            self.wake()

        def wake(self):
            self.cache = torch.ones(CACHE_BYTES, dtype=torch.uint8)

        async def generate(self, request_id, *, prompt_ids, sampling_params, **_):
            tokens = [self.random.randint(5, 500) for _ in range(self.random.randint(2, self.most))]
            return TokenOutput(
                token_ids=tokens,
                log_probs=[-1.0] * len(tokens),
                stop_reason="completed",
                extra_fields={"global_steps": self.step},
            )

        async def sleep(self):
            self.cache = None

        async def wake_up(self):
            self.wake()

        release_kv_cache, resume_kv_cache = sleep, wake_up

        async def clear_kv_cache(self):
            pass

        async def abort_all_requests(self, reject_request=False):
            pass

        async def resume_generation(self):
            pass

        async def start_profile(self, **_):
            pass

        async def stop_profile(self):
            pass

        async def set_global_steps(self, step):
            self.step = step

    class Replica(RolloutReplica):
        async def launch_servers(self):
            made = Server.options(name=f"stub_server_{self.replica_rank}").remote(self.config.response_length)
            self._server_handle, self.servers = made, [made]
            self._server_address = f"127.0.0.1:{9000 + self.replica_rank}"

    _made.append(Replica)
    return Replica


def __getattr__(name):
    """The workers' side, whose base is verl's."""
    if name != "Adapter":
        raise AttributeError(name)
    from verl.workers.rollout.base import BaseRollout

    class Adapter(BaseRollout):
        async def resume(self, tags):
            pass

        async def release(self):
            pass

        async def update_weights(self, weights, **_):
            for _name, tensor in weights:
                assert tensor.numel() > 0

    globals()["Adapter"] = Adapter
    return Adapter


def _of_base(module):
    module._ROLLOUT_REGISTRY[NAME, "async"] = "stub_rollout.Adapter"


def _of_replica(module):
    module.RolloutReplicaRegistry.register(NAME, _replica)


AWAITED = {"verl.workers.rollout.base": _of_base, "verl.workers.rollout.replica": _of_replica}


class _Finder:
    def find_spec(self, name, path, target=None):
        if name not in AWAITED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            AWAITED[name](module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
for _name, _change in AWAITED.items():
    if _name in sys.modules:
        _change(sys.modules[_name])
