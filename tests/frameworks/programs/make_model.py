"""Writes a tiny Qwen3 with random weights, and a tokenizer trained on two sentences. make_model.py DIRECTORY"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXTS = ["memory snapshot of a tensor on device zero", "hello world this is a tiny model"]
WORDS = 512

directory = sys.argv[1]
tokenizer = Tokenizer(models.BPE(unk_token=None))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
trainer = trainers.BpeTrainer(
    vocab_size=WORDS, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
)
tokenizer.train_from_iterator(TEXTS * 50, trainer)
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
fast.save_pretrained(directory)

torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=WORDS,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    head_dim=32,  # vLLM's attention on CPUs takes no smaller one
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
config.architectures = ["Qwen3ForCausalLM"]
Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(directory)
