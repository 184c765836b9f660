"""vLLM answers a few requests of one prompt, sleeps and wakes up. serve.py MODEL RANKS REQUESTS

On CPUs a worker that is told to sleep only warns: everything survives."""

import sys

KV_CACHE_BYTES = 64 << 20


def main() -> None:
    from vllm import LLM, SamplingParams

    model, ranks, requests = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    llm = LLM(
        model,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=256,
        tensor_parallel_size=ranks,
        gpu_memory_utilization=0.05,
        kv_cache_memory_bytes=KV_CACHE_BYTES,
        seed=0,
    )
    sampling = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    for _ in range(requests):
        (answer,) = llm.generate(["hello world"], sampling, use_tqdm=False)
    print("tokens", *answer.outputs[0].token_ids, flush=True)
    llm.collective_rpc("sleep", args=(1,))
    llm.collective_rpc("wake_up")


if __name__ == "__main__":  # workers are spawned, and import this file
    main()
