# SPDX-License-Identifier: Apache-2.0
"""Small forms of a Transformers configuration, by rules on the names of its attributes.

No rule knows a model. As one set of rules does not suit all, there are several, tried in turn:
`fixed` gives every width the same small value, `scaled` divides all by common factors, so that
what was a product stays one, and `shallow` leaves the widths.
"""

import re
from collections.abc import Iterator
from typing import Any

VOCABULARY = 128
WIDTH = re.compile(
    r"(^|_)(hidden_sizes?|hidden_dims?|d_model|embed_dims?|n_embd|embedding_size|embedding_dim|embedding_dimension|emb_dim"
    r"|projection_dim|projection_size|projection_hidden_dim|output_dim|out_hidden_size|output_hidden_size|latent_dim|dim"
    r"|input_dim|inner_dim|proj_dim|word_embed_proj_dim|lru_width|hidden_channels|cross_attention_dim|qkv_channels"
    r"|attention_hidden_size|embed_dim_per_stage|hidden_size_global|feature_size_hidden|conv_dim|tdnn_dim|d_latents"
    r"|upsample_initial_channel|encoder_hidden_sizes|out_channels_hidden|neck_hidden_sizes|decoder_hidden_size"
    r"|hidden_size_per_layer_input|classifier_proj_size|fpn_hidden_size|encoder_in_channels|decoder_in_channels"
    r"|pooler_output_size|vision_output_dim|adapter_out_dim|shared_dim|q_lora_rank|kv_lora_rank|o_lora_rank|index_dim)$"
)
INNER = re.compile(
    r"(^|_)(intermediate_size|ffn_dim|d_ff|mlp_dim|n_inner|inner_size|ffn_hidden_size|intermediate_dim|linear_units"
    r"|ffn_intermediate_size|shared_intermediate_size|block_ff_dim|dim_feedforward|hidden_size_ff|projector_hidden_size)$"
)
HEADS = re.compile(r"(^|_)((num_)?(attention_)?heads|n_heads?|num_attention_heads_per_stage|heads?_num)$")
KV_HEADS = re.compile(r"(num_key_value_heads|num_kv_heads|kv_n_heads|multi_query_group_num|linear_num_key_heads)$")
HEAD_DIM = re.compile(
    r"(head_dim|d_kv|kv_channels|d_head|dim_head|head_size|rotary_dim|attention_head_size|mrope_section)$"
)
LAYERS = re.compile(
    r"(^|_)(layers|n_layers?|depth|depths|num_blocks|stage_num_blocks|num_block_repeats|blocks_per_stage"
    r"|stage_numb_of_layers)$"
)
NOT_LAYERS = re.compile(
    r"feat_extract|adapter|residual|lstm|postnet|nextn|feature|proj_layers|window_layers|num_kv|upsampling"
)
PER_LAYER = re.compile(r"(layer_types|block_type|no_rope_layers|layer_rope_theta|layers_block|attention_types)")
INDICES = re.compile(r"(indexes|indices|_layers?_ids?|_blocks|_attn_layers|attention_layers|cross_layers)$")
EXPERTS = re.compile(r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts|n_experts)$")
EXPERTS_PER_TOKEN = re.compile(r"(num_experts_per_tok|moe_topk|moe_k|top_k_experts|num_selected_experts)$")
IMAGE = re.compile(r"(^|_)(image_size|img_size|spectrogram_size|input_image_size)$")
PATCH = re.compile(r"(^|_)patch_size$")
CAPS = {  # name: at most
    r"(max_position_embeddings|n_positions|max_seq_len|max_sequence_length|n_ctx|num_position_embeddings)$": 256,
    r"block_size$": 256,
    r"max_(source|target)_positions$": 64,
    r"sliding_window(_size)?$": 8,
    r"index_topk$": 8,
    r"codebook_size|num_embeddings$": 64,
    r"num_queries$|num_object_queries$|num_query_tokens$": 10,
    r"num_codevectors_per_group$|num_denoising$|num_negatives$": 16,
    r"first_k_dense_replace$": 1,
    r"num_kv_shared_layers$|num_nextn_predict_layers$": 0,
    r"n_group$|topk_group$|num_expert_group$|n_groups$": 1,
    r"train_num_points$": 32,
}
CAPS = {re.compile(k): v for k, v in CAPS.items()}
UNSET = {"prediction_length": 4, "context_length": 8, "default_language": "en_XX"}  # for what has no default of its own
DROPPED = {"transformers_version", "architectures", "_name_or_path", "id2label", "label2id", "dtype", "auto_map"}


def forms(cls: type) -> Iterator[tuple[str, Any]]:
    """(name of the rules, configuration of class `cls` or the error that making it raised), smallest first."""
    default = cls().to_dict()
    for rules in ("fixed", "scaled", "shallow"):
        try:
            yield rules, cls.from_dict(_Shrink(default, rules).config(default))
        except Exception as error:
            yield rules, error


def _numbers(config: Any) -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _numbers(value)
        elif isinstance(value, int) and not isinstance(value, bool) and isinstance(key, str):
            yield key, value


class _Shrink:
    def __init__(self, default: dict[str, Any], rules: str):
        self.rules = rules
        found = list(_numbers(default))
        heads = max((v for k, v in found if HEADS.search(k)), default=1)
        widths = [v for k, v in found if WIDTH.search(k)]
        self.by_heads = max((d for d in range(1, heads + 1) if heads % d == 0 and heads // d >= 2), default=1)
        self.by_head_dim = 1
        while max(widths, default=0) // (self.by_heads * self.by_head_dim) > 64:
            self.by_head_dim *= 2
        self.token_ids: dict[int, int] = {}

    def config(self, values: dict[str, Any]) -> dict[str, Any]:
        """The small form of one (sub-)configuration."""
        keep = self._kept_layers(values)
        stages = {
            len(v)
            for k, v in values.items()
            if isinstance(k, str) and LAYERS.search(k) and isinstance(v, (list, tuple))
        }
        out = {}
        for key, value in values.items():
            if key in DROPPED:
                continue
            if value is None or not isinstance(key, str):
                out[key] = UNSET.get(key, value)
            elif key == "per_layer_config":
                out[key] = {str(keep.index(int(i))): self.config(v) for i, v in value.items() if int(i) in keep}
            elif isinstance(value, dict):
                out[key] = self.config(value)
            elif key.endswith("mrope_section"):
                out[key] = self._sections(value)
            elif PER_LAYER.search(key) and isinstance(value, (list, tuple)) and keep:
                out[key] = [value[i] for i in keep if i < len(value)]
            elif key == "num_hidden_layers" and value in stages:
                out[key] = value  # counts the entries of a list
            elif self.rules == "shallow" and LAYERS.search(key) and isinstance(value, (list, tuple)):
                out[key] = value
            else:
                out[key] = self._value(key, value, len(keep))
        if "depths" not in values and any(k in values for k in ("out_indices", "out_features", "stage_names")):
            for key in ("out_indices", "out_features", "stage_names", "_out_indices", "_out_features"):
                out.pop(key, None)
        return out

    def _kept_layers(self, values: dict[str, Any]) -> list[int]:
        """The layers to keep: the first of each kind."""
        lists = [
            v
            for k, v in values.items()
            if isinstance(k, str) and PER_LAYER.search(k) and isinstance(v, (list, tuple)) and v
        ]
        keep = {0, 1}
        for value in lists:
            keep |= {list(value).index(kind) for kind in value}
        return sorted(keep)

    def _sections(self, sections: list[int]) -> list[int]:
        """Parts of half a head, which add up to it."""
        if self.rules == "shallow":
            return sections
        total = 4 if self.rules == "fixed" else max(len(sections), sum(sections) // self.by_head_dim)
        parts = [max(1, v * total // sum(sections)) for v in sections]
        parts[parts.index(max(parts))] += total - sum(parts)
        return parts

    def _value(self, key: str, value: Any, layers: int) -> Any:
        if isinstance(value, bool) or isinstance(value, (str, float)):
            return value
        if isinstance(value, (list, tuple)):
            if (
                INDICES.search(key)
                and key not in ("out_indices", "_out_indices")
                and all(isinstance(v, int) for v in value)
                and not LAYERS.search(key)
            ):
                return sorted({min(v, layers - 1) for v in value})
            if any(p.search(key) for p in (WIDTH, INNER, HEADS, KV_HEADS, HEAD_DIM, LAYERS, IMAGE, PATCH)):
                return [self._value(key, v, 1) for v in value]
            return value
        for pattern, cap in CAPS.items():
            if pattern.search(key):
                return min(value, cap)
        if "vocab_size" in key or key.endswith("_vocab") or key == "n_vocab":
            return min(value, VOCABULARY)
        if key.endswith(("_token_id", "_token_index", "_token_idx")):
            return self._token(key, value)
        if EXPERTS.search(key):
            return min(value, 4)
        if EXPERTS_PER_TOKEN.search(key):
            return min(value, 2)
        if LAYERS.search(key) and not NOT_LAYERS.search(key):
            return min(value, layers)
        if "feature_layer" in key:
            return max(-layers, min(value, layers - 1))
        if PATCH.search(key):
            return 8 if self.rules == "fixed" and value > 8 else value
        if IMAGE.search(key):
            return min(value, 32 if self.rules == "fixed" else 64)
        return value if self.rules == "shallow" else self._width(key, value)

    def _width(self, key: str, value: int) -> int:
        if value <= 0:
            return value
        fixed = self.rules == "fixed"
        if KV_HEADS.search(key):
            return min(value, 2) if fixed else max(1, value // self.by_heads)
        if key == "index_n_heads":
            return value  # a token's score is a sum of positive parts: with few heads many are zero, and equal
        if HEADS.search(key):
            return min(value, 4) if fixed else max(1, value // self.by_heads)
        if HEAD_DIM.search(key):
            if key == "qk_head_dim" and fixed:
                return 16
            return min(value, 8) if fixed else max(1, value // self.by_head_dim)
        by = self.by_heads * self.by_head_dim
        if INNER.search(key):
            return min(value, 64) if fixed else max(8, value // by // 8 * 8)
        if WIDTH.search(key):
            return min(value, 32) if fixed else max(8, value // by // 8 * 8 if value // by > 8 else 8)
        return value

    def _token(self, key: str, value: int) -> int:
        for i, name in enumerate(("pad_token_id", "bos_token_id", "eos_token_id")):
            if key == name:
                return i
        if value < 0:
            return value
        return self.token_ids.setdefault(value, 100 + len(self.token_ids) % 28)
