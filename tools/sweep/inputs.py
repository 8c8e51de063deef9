# SPDX-License-Identifier: Apache-2.0
"""Inputs for a Transformers model, from its forward's signature and its configuration."""

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import torch

LENGTH = 12
BATCH = 2
CHANNELS_FIRST = "num_channels", "in_channels", "in_chans", "input_channels"


def find(config: Any, *names: str, default: Any = None) -> Any:
    """The first attribute of these names that is set, in the configuration or those inside it."""
    pending = [config]
    while pending:
        at = pending.pop(0)
        values = vars(at) if not isinstance(at, dict) else at
        for name in names:
            value = values.get(name)
            if value is None and not isinstance(at, dict):
                try:
                    value = getattr(at, name, None)
                except Exception:  # attributes that vary by layer raise
                    value = None
            if isinstance(value, (int, float, list, tuple)) and not isinstance(value, bool):
                return value
        pending += [v for v in values.values() if hasattr(v, "to_dict")]
    return default


def _square(size: Any) -> tuple[int, int]:
    return (
        (size[-2], size[-1])
        if isinstance(size, (list, tuple)) and len(size) > 1
        else ((size[0], size[0]) if isinstance(size, (list, tuple)) else (size, size))
    )


def _ids(config: Any, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, min(find(config, "vocab_size", default=99), 99), (BATCH, length))


def _patches(config: Any, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Flattened patches, and their grid: what models with images of any size take."""
    patch = _square(find(config, "patch_size", default=14))[0]
    frames = find(config, "temporal_patch_size", default=1)
    channels = find(config, *CHANNELS_FIRST, default=3)
    grid = torch.tensor([[1, 4, 4]] * batch)
    return torch.randn(16 * batch, channels * frames * patch * patch), grid


def candidates(name: str, config: Any) -> list[Any]:
    """What may be given for a parameter of this name, likeliest first."""
    height, width = _square(find(config, "image_size", "img_size", default=64))
    channels = find(config, *CHANNELS_FIRST, default=3)
    channels = channels if isinstance(channels, int) else 3
    mels = find(config, "num_mel_bins", "feature_size", "n_mels", "input_feat_per_channel", "mel_dim", default=80)
    hidden = find(config, "hidden_size", "d_model", "embed_dim", "n_embd", default=32)
    hidden = hidden if isinstance(hidden, int) else hidden[0]
    audio = find(config, "audio_channels", default=1)
    if name == "input_ids":
        return [_ids(config)]
    if name in ("decoder_input_ids", "labels_ids"):
        return [_ids(config, 6)]
    if name in ("attention_mask",):
        return [torch.ones(BATCH, LENGTH, dtype=torch.long)]
    if name in ("pixel_values", "pixel_values_videos", "images"):
        frames = find(config, "num_frames", "frames_per_clip", default=4)
        image = torch.randn(BATCH, channels, height, width)
        video = torch.randn(BATCH, frames, channels, height, width)
        both = [video, image] if find(config, "num_frames", "tubelet_size", "frames_per_clip") else [image, video]
        return [
            *both,
            torch.randn(BATCH, channels, 64, 64),
            torch.randn(BATCH, channels, 224, 224),
            _patches(config)[0],
            _patches(config, BATCH)[0].view(BATCH, 16, -1),
        ]
    if name in ("grid_thw", "image_grid_thw"):
        return [_patches(config)[1]]
    if name in ("input_values", "input_features", "audio_values", "waveform"):
        length = find(config, "max_length", default=256) if name == "input_values" else LENGTH
        positions = find(config, "max_source_positions", default=64)
        spectrogram = [
            torch.randn(BATCH, mels, 2 * positions),
            torch.randn(BATCH, 128, find(config, "feature_projection_input_dim", default=mels)),
            torch.randn(BATCH, 128, mels),
        ]
        sound = [torch.randn(BATCH, 3840), torch.randn(BATCH, audio, 4096), torch.randn(BATCH, 16000)]
        made = [torch.randn(BATCH, length, mels)]
        square = [torch.randn(BATCH, 1, height, width), torch.randn(BATCH, 1, 256, 64), torch.randn(BATCH, 1, 1001, 64)]
        return sound + made + spectrogram if name != "input_features" else spectrogram + sound + square
    if name in ("inputs_embeds", "hidden_states", "encoder_hidden_states", "image_embeddings", "query_embeds"):
        flat = [_patches(config)[0]] if name == "hidden_states" else []
        return [*flat, torch.randn(BATCH, LENGTH, hidden), torch.randn(BATCH, hidden, LENGTH)]
    if name in ("bbox",):
        return [torch.tensor([1, 2, 8, 9]).expand(BATCH, LENGTH, 4).contiguous()]
    if name in ("pixel_mask",):
        return [torch.ones(BATCH, height, width, dtype=torch.long)]
    if name in ("past_values", "context_values", "time_series"):
        length = find(config, "context_length", default=32)
        lags = find(config, "lags_sequence", default=[0])
        width = find(config, "num_input_channels", "input_size", default=1)
        total = length + max(lags if isinstance(lags, (list, tuple)) else [0])
        many, one = torch.randn(BATCH, total, width), torch.randn(BATCH, total)
        return [one, many] if width == 1 else [many, one]
    if name in ("past_time_features", "future_time_features", "past_observed_mask", "future_values"):
        return _series(name, config)
    if name in ("input_points",):
        return [torch.rand(BATCH, 1, 2, 2) * 30]
    if name in ("codes", "audio_codes", "codec_ids", "input_codes"):
        books = find(config, "num_codebooks", "n_codebooks", "num_quantizers", default=8)
        return [torch.randint(0, 32, (BATCH, books, LENGTH)), torch.randint(0, 32, (BATCH, LENGTH, books))]
    if name == "pixel_attention_mask":
        return [torch.ones(BATCH, 16, dtype=torch.long), torch.ones(BATCH, height, width, dtype=torch.long)]
    if name == "spatial_shapes":
        return [torch.tensor([[4, 4]] * BATCH)]
    if name in ("pixel_position_ids", "image_position_ids"):
        grid = torch.cartesian_prod(torch.arange(4), torch.arange(4))
        return [grid.expand(BATCH, 16, 2).contiguous()]
    if name == "flattened_patches":
        patches = torch.randn(BATCH, 16, 2 + find(config, "patch_embed_hidden_size", default=768))
        patches[..., :2] = torch.cartesian_prod(torch.arange(1.0, 5), torch.arange(1.0, 5))
        return [patches]
    if name in ("qformer_input_ids", "decoder_attention_mask", "qformer_attention_mask"):
        ids = "input_ids" in name
        return [_ids(config) if ids else torch.ones(BATCH, 6, dtype=torch.long)]
    if name in ("feature_lens", "input_lengths", "seq_lens"):
        return [torch.tensor([64, 64])]
    if name in ("padding_mask",):
        return [torch.ones(BATCH, 3840, dtype=torch.long)]
    if name in ("spectrogram", "mel_spectrogram"):
        return [torch.randn(BATCH, 20, find(config, "model_in_dim", "num_mel_bins", default=80))]
    if name in ("task_inputs", "task_input_ids"):
        return [torch.randint(3, 90, (BATCH, find(config, "task_seq_len", default=LENGTH)))]
    if name in ("prompt_depth",):
        return [torch.rand(BATCH, 1, 16, 16)]
    if name in ("input_boxes",):
        return [torch.tensor([[[2.0, 3.0, 20.0, 25.0]]] * BATCH)]
    if name in ("speech_ids", "text_input_ids"):
        return [_ids(config)]
    if name in ("visual_feats",):
        return [torch.randn(BATCH, 5, find(config, "visual_feat_dim", default=2048))]
    if name in ("visual_pos",):
        return [torch.rand(BATCH, 5, 4)]
    if name in ("image_embeds", "visual_embeds"):
        return [torch.randn(BATCH, 5, find(config, "visual_embedding_dim", default=hidden))]
    if name in ("states", "actions", "rewards", "returns_to_go", "timesteps"):
        sizes = {"states": find(config, "state_dim", default=17), "actions": find(config, "act_dim", default=4)}
        if name == "timesteps":
            return [torch.arange(5).expand(BATCH, 5).contiguous()]
        return [torch.randn(BATCH, 5, sizes.get(name, 1))]
    if name == "return_loss":
        return [True]
    return []


def _series(name: str, config: Any) -> list[torch.Tensor]:
    lags = max(find(config, "lags_sequence", default=[0]))
    past, future = find(config, "context_length", default=32) + lags, find(config, "prediction_length", default=8)
    features = find(config, "num_time_features", default=0)
    length = future if name.startswith("future") else past
    if name == "past_observed_mask":
        return [torch.ones(BATCH, past), torch.ones(BATCH, past, 1)]
    if name == "future_values":
        return [torch.randn(BATCH, length), torch.randn(BATCH, length, 1)]
    return [torch.randn(BATCH, length, features)]


USUAL = ("input_ids", "bbox", "decoder_input_ids")  # given where the forward has them, though it asks for none
INSTEAD = (  # where nothing is asked for: the first of these that it has
    "input_ids", "pixel_values", "input_values", "input_features", "inputs_embeds", "past_values", "hidden_states",
    "pixel_values_videos", "audio_values", "codes", "states", "flattened_patches", "audio_codes",
)  # fmt: skip
GO_WITH = {
    "pixel_values": ("grid_thw",),
    "past_values": ("past_time_features", "past_observed_mask", "future_values", "future_time_features"),
    "states": ("actions", "rewards", "returns_to_go", "timesteps"),
    "input_ids": ("attention_mask",),
    "pixel_values_videos": (),
}


def inputs(model: torch.nn.Module, config: Any, with_labels: bool) -> Iterator[dict[str, Any]]:
    """Keyword arguments for model(...), likeliest first."""
    signature = inspect.signature(model.forward).parameters
    required = [
        n for n, p in signature.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]  # fmt: skip
    main = getattr(model, "main_input_name", None)
    sets: list[list[str]] = []
    if required:
        sets.append(required)
    text = [n for n in USUAL if n in signature]
    both = [n for n in INSTEAD if n in signature]
    if "input_ids" in signature:
        # With an image too where the model has two towers.
        if "pixel_values" in signature and "return_loss" in signature:
            sets.append([*required, *text, "pixel_values"])
        if "input_features" in signature and "return_loss" in signature:
            sets.append([*required, *text, "input_features"])
        sets.append([*required, *text])
        for extra in ("input_features", "flattened_patches"):
            if extra in signature:
                sets.append([*required, *text, extra])
        sets.append([*required, *text, *[n for n in ("pixel_values",) if n in signature]])
    if main in signature:
        sets.append([*required, main])
        sets.append([*required, main, *[n for n in ("decoder_input_ids", "input_ids") if n in signature]])
    for n in both:
        sets.append([*required, n, *[g for g in GO_WITH.get(n, ()) if g in signature]])
    seen = set()
    for names in sets:
        names = list(dict.fromkeys(names))
        if "input_ids" in names and "attention_mask" in signature and "attention_mask" not in names:
            names.append("attention_mask")
        if tuple(names) in seen or not names:
            continue
        seen.add(tuple(names))
        torch.manual_seed(3)
        options = [candidates(n, config) for n in names]
        if not all(options):
            continue
        for chosen in itertools.islice(itertools.product(*options), 14):
            out = dict(zip(names, chosen, strict=True))
            if with_labels and "labels" in signature and "input_ids" in out:
                yield {**out, "labels": out.get("decoder_input_ids", out["input_ids"]).clone()}
            yield out
            if "use_cache" in signature:
                yield {**out, "use_cache": False}
    dummy = getattr(model, "dummy_inputs", None)
    if isinstance(dummy, dict) and dummy:
        yield dict(dummy)


def missing(model: torch.nn.Module, config: Any) -> list[str]:
    """Parameters that the forward asks for and no rule here gives."""
    return [
        n for n, p in inspect.signature(model.forward).parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and not candidates(n, config)
    ]  # fmt: skip
