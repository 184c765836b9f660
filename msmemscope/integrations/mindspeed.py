"""MindSpeed-LLM on Megatron: snapshots around the stages of a training step."""

from __future__ import annotations

from msmemscope.integrations.hook import SNAPSHOT, hooks

_LLM, _CORE = "mindspeed_llm.core", "megatron.core"

TRAINING = (
    *hooks("mindspeed_llm.training.training", "train train_step", SNAPSHOT),
    *hooks("megatron.training.training", "setup_model_and_optimizer get_model", SNAPSHOT),
    *hooks(f"{_CORE}.optimizer", "get_megatron_optimizer", SNAPSHOT),
    *hooks(f"{_LLM}.models.gpt.gpt_model", "GPTModel.forward GPTModel.compute_language_model_loss", SNAPSHOT),
    *hooks(f"{_LLM}.transformer.transformer_block", "TransformerBlock.forward", SNAPSHOT),
    *hooks(f"{_LLM}.transformer.transformer_layer", "TransformerLayer.forward", SNAPSHOT),
    *hooks(f"{_LLM}.transformer.attention", "SelfAttention.forward", SNAPSHOT),
    *hooks(f"{_LLM}.transformer.mlp", "MLP.forward", SNAPSHOT),
    *hooks(f"{_LLM}.transformer.moe.moe_layer", "MoELayer.forward", SNAPSHOT),
    *hooks(f"{_LLM}.transformer.moe.router", "TopKRouter.forward", SNAPSHOT),
    *hooks(f"{_CORE}.pipeline_parallel.schedules", "backward_step", SNAPSHOT),
    *hooks(f"{_LLM}.pipeline_parallel.dualpipe.gpt_model", "gpt_model_backward", SNAPSHOT),
    *hooks(f"{_CORE}.tensor_parallel.cross_entropy", "vocab_parallel_cross_entropy", SNAPSHOT),
    *hooks(
        f"{_CORE}.optimizer.optimizer",
        "MegatronOptimizer.step MixedPrecisionOptimizer.step Float16OptimizerWithFloat16Params.step "
        "FP32Optimizer.step ChainedOptimizer.step",
        SNAPSHOT,
    ),
    *hooks(f"{_CORE}.optimizer.distrib_optimizer", "DistributedOptimizer.step_with_ready_grads", SNAPSHOT),
)
