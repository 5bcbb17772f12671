"""Writes one golden checkpoint in the compressed-tensors format: tiny Llama, a scheme a matrix.

Usage: make_ct.py OUT, in an environment with compressed-tensors and torch:
  dense/ was made with compressed-tensors 0.20.1, word/ with 0.17.0 (torch 2.15, on the CPU).
OUT gets config.json, model.safetensors and expected.json: of every packed module the SHA-256 of the
library's own decompressed weight, row-major, in the type of its scale.
"""
import hashlib
import json
import os
import sys

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

D, FF, HEADS, KV, VOCAB = 64, 128, 2, 1, 16
ATTN, MLP = "model.layers.%d.self_attn.%s_proj", "model.layers.%d.mlp.%s_proj"
# module: rows, columns, bits, symmetric, group (0: channel), type of weight and scale
CASES = {
    ATTN % (0, "q"): (64, D, 4, True, 32, torch.bfloat16),
    ATTN % (0, "k"): (32, D, 4, False, 32, torch.bfloat16),
    ATTN % (0, "v"): (32, D, 8, True, 0, torch.bfloat16),
    ATTN % (0, "o"): (64, 64, 8, False, 64, torch.bfloat16),
    MLP % (0, "gate"): (FF, D, 3, True, 32, torch.bfloat16),
    MLP % (0, "up"): (FF, D, 5, False, 64, torch.bfloat16),
    MLP % (0, "down"): (D, FF, 6, True, 128, torch.bfloat16),
    ATTN % (1, "q"): (64, D, 7, True, 32, torch.bfloat16),
    ATTN % (1, "k"): (32, D, 7, False, 32, torch.float16),
    ATTN % (1, "v"): (32, D, 4, False, 0, torch.bfloat16),
    ATTN % (1, "o"): (64, 64, 3, False, 32, torch.float16),
    MLP % (1, "gate"): (FF, D, 5, True, 0, torch.bfloat16),
    MLP % (1, "up"): (FF, D, 6, False, 32, torch.bfloat16),
    MLP % (1, "down"): (D, FF, 2, True, 64, torch.float16),
}


def pack(weight, args):
    n, k = weight.shape
    parts = weight.reshape(n, -1, args.group_size or k)
    scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args)
    state = {"weight": weight, "weight_scale": scale.to(weight.dtype),
             "weight_zero_point": zero.to(torch.int8)}
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    packed = PackedQuantizationCompressor.compress(state, scheme)
    back = PackedQuantizationCompressor.decompress(dict(packed), scheme)["weight"]
    return packed, back.to(weight.dtype)


def main(out):
    torch.manual_seed(1)
    tensors, groups, expected = {}, {}, {}
    for i, (name, (n, k, bits, symmetric, group, dtype)) in enumerate(CASES.items()):
        args = QuantizationArgs(num_bits=bits, type="int", symmetric=symmetric,
                                strategy="group" if group else "channel",
                                group_size=group or None)
        packed, back = pack((torch.randn(n, k) * 0.05 + 0.01).to(dtype), args)
        for part in ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point"):
            if part in packed:
                tensors[f"{name}.{part}"] = packed[part].contiguous()
        target = name if i % 2 else "re:.*" + name[len("model."):].replace(".", r"\.") + "$"
        groups[f"group_{i}"] = QuantizationScheme(targets=[target], weights=args)
        expected[name] = hashlib.sha256(
            back.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
    tensors["model.embed_tokens.weight"] = (torch.randn(VOCAB, D) * 0.05).to(torch.bfloat16)
    norms = ["model.norm"] + [f"model.layers.{i}.{x}_layernorm" for i in (0, 1)
                              for x in ("input", "post_attention")]
    for name in norms:
        tensors[name + ".weight"] = torch.ones(D, dtype=torch.bfloat16)
    quantization = QuantizationConfig(config_groups=groups, format="pack-quantized",
                                      quantization_status="compressed", ignore=["lm_head"])
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D,
              "intermediate_size": FF, "num_hidden_layers": 2, "num_attention_heads": HEADS,
              "num_key_value_heads": KV, "vocab_size": VOCAB, "rms_norm_eps": 1e-5,
              "rope_theta": 10000.0, "tie_word_embeddings": True, "max_position_embeddings": 128,
              "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
              "quantization_config": json.loads(quantization.model_dump_json())}
    os.makedirs(out, exist_ok=True)
    save_file(tensors, os.path.join(out, "model.safetensors"), metadata={"format": "pt"})
    for name, value in (("config.json", config), ("expected.json", expected)):
        with open(os.path.join(out, name), "w") as f:
            json.dump(value, f, indent=1)
            f.write("\n")


main(sys.argv[1])
