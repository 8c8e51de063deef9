# SPDX-License-Identifier: Apache-2.0
"""Tiny parts of Diffusers pipelines, made from the types that a pipeline's constructor names.

`SMALL` holds a value for each parameter that the library's models share; a class takes those that its constructor has,
so that widths agree between the parts. `OWN` is for classes whose parameters depend on one another.
"""

import functools
import inspect
import typing
from typing import Any

import diffusers
import torch
import transformers
from PIL import Image

from sweep import compare, tiny

TEXT = 32  # width of every text encoder
CONV = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
SMALL: dict[str, Any] = {
    "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "num_single_layers": 1, "num_mmdit_layers": 1,
    "num_single_dit_layers": 1, "num_refiner_layers": 1, "n_layers": 2, "n_refiner_layers": 1, "n_heads": 2,
    "n_kv_heads": 2, "dim": 32, "hidden_size": 32, "num_kv_heads": 1, "ffn_dim": 64, "freq_dim": 32, "multiple_of": 8,
    "joint_attention_dim": TEXT, "caption_channels": TEXT, "text_embed_dim": TEXT, "text_dim": TEXT,
    "cap_feat_dim": TEXT, "pooled_projection_dim": TEXT, "caption_projection_dim": 32, "cross_attention_dim": 32,
    "num_cross_attention_heads": 2, "cross_attention_head_dim": 16, "axes_dims_rope": (4, 4, 8), "axes_dims": (4, 4, 8),
    "axes_dim_rope": (4, 4, 8), "axes_lens": (64, 64, 64), "rope_axes_dim": (4, 4, 8), "sample_size": 16,
    "approximator_num_channels": 8, "approximator_hidden_dim": 32, "approximator_layers": 1, "embedding_dim": TEXT,
    "clip_embed_dim": TEXT, "embedding_proj_dim": TEXT, "time_embed_dim": 32, "time_step_dim": 32, "base_dim": 8,
    "num_res_blocks": 1, "pos_embed_max_size": 32, "adaln_lora_dim": 8, "max_text_seq_length": 16,
    "sample_height": 4, "sample_width": 4, "sample_frames": 5, "video_length": 2, "text_in_channels": TEXT,
    "encoder_hidden_states_channels": TEXT, "crossattn_proj_in_channels": TEXT, "text_states_dim": TEXT,
    "cross_attention_dim_t5": TEXT, "pooled_text_dim": TEXT, "in_text_dim": TEXT, "in_text_dim2": TEXT, "model_dim": 32,
    "ff_dim": 64, "num_text_blocks": 1, "num_visual_blocks": 1, "axes_dims_rope_": (4, 4, 8),
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "UNet2DConditionModel": {
        **CONV, "sample_size": 16, "cross_attention_dim": TEXT, "attention_head_dim": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    },
    "UNet2DModel": {
        **CONV, "sample_size": 16, "attention_head_dim": 4, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
        "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
    },
    "AutoencoderKL": {
        **CONV, "latent_channels": 4, "down_block_types": ("DownEncoderBlock2D",) * 2, "sample_size": 32,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
    },
    "VQModel": {
        **CONV, "latent_channels": 4, "down_block_types": ("DownEncoderBlock2D",) * 2, "num_vq_embeddings": 32,
        "up_block_types": ("UpDecoderBlock2D",) * 2, "sample_size": 32,
    },
    "AutoencoderKLFlux2": {
        **CONV, "latent_channels": 4, "down_block_types": ("DownEncoderBlock2D",) * 2, "sample_size": 32,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
    },
    "ControlNetModel": {
        **CONV, "cross_attention_dim": TEXT, "attention_head_dim": 4, "conditioning_embedding_out_channels": (8, 16),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    },
    "UNetMotionModel": {
        **CONV, "cross_attention_dim": TEXT, "sample_size": 16, "motion_num_attention_heads": 2,
        "down_block_types": ("DownBlockMotion", "CrossAttnDownBlockMotion"), "num_attention_heads": 2,
        "up_block_types": ("CrossAttnUpBlockMotion", "UpBlockMotion"),
    },
    "MotionAdapter": {"block_out_channels": (16, 32), "motion_layers_per_block": 1, "motion_norm_num_groups": 8,
                      "motion_num_attention_heads": 2},
    "T2IAdapter": {"in_channels": 3, "channels": (16, 32), "num_res_blocks": 1, "downscale_factor": 2},
    "AutoencoderDC": {
        "latent_channels": 4, "attention_head_dim": 8, "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
        "decoder_block_types": ("ResBlock", "EfficientViTBlock"), "encoder_block_out_channels": (8, 8),
        "decoder_block_out_channels": (8, 8), "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1),
        "encoder_qkv_multiscales": ((), (5,)), "decoder_qkv_multiscales": ((), (5,)), "downsample_block_type": "conv",
        "upsample_block_type": "interpolate",
    },
    "FluxTransformer2DModel": {"in_channels": 16}, "ChromaTransformer2DModel": {"in_channels": 16},
    "Flux2Transformer2DModel": {"in_channels": 16, "axes_dims_rope": (4, 4, 4, 4), "timestep_guidance_channels": 32},
    "SD3Transformer2DModel": {"in_channels": 4, "out_channels": 4, "pooled_projection_dim": 2 * TEXT},
    "SanaTransformer2DModel": {"in_channels": 4, "out_channels": 4},
    "PixArtTransformer2DModel": {"cross_attention_dim": 32, "caption_channels": TEXT, "sample_size": 16},
    "Lumina2Transformer2DModel": {"in_channels": 4},
    "ZImageTransformer2DModel": {"in_channels": 4},
    "AutoencoderKLLTXVideo": {
        "latent_channels": 8, "block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (8, 8, 8, 8),
        "layers_per_block": (1, 1, 1, 1, 1), "decoder_layers_per_block": (1, 1, 1, 1, 1),
    },
    "LTXVideoTransformer3DModel": {"in_channels": 8, "out_channels": 8},
    "AutoencoderKLCogVideoX": {"block_out_channels": (8, 8, 8, 8), "norm_num_groups": 2, "layers_per_block": 1,
                               "latent_channels": 4},
    "CogVideoXTransformer3DModel": {"in_channels": 4, "out_channels": 4, "use_rotary_positional_embeddings": True},
    "AutoencoderKLHunyuanVideo": {"block_out_channels": (8, 8, 8, 8), "norm_num_groups": 4, "layers_per_block": 1,
                                  "latent_channels": 4},
    "HunyuanVideoTransformer3DModel": {"in_channels": 4, "out_channels": 4},
    "PriorTransformer": {"embedding_dim": TEXT, "num_embeddings": 77},
    "QwenImageTransformer2DModel": {"in_channels": 64, "out_channels": 16},
    "LatteTransformer3DModel": {
        "in_channels": 4, "out_channels": 8, "patch_size": 2, "attention_bias": True, "num_embeds_ada_norm": 1000,
        "norm_type": "ada_norm_single", "norm_elementwise_affine": False, "activation_fn": "gelu-approximate",
    },
}  # fmt: skip
XL = {
    "cross_attention_dim": 2 * TEXT, "addition_embed_type": "text_time", "addition_time_embed_dim": 8,
    "projection_class_embeddings_input_dim": 6 * 8 + TEXT, "use_linear_projection": True,
}  # fmt: skip


class Unknown(LookupError):
    """No rule makes this part."""


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Splits into letters; made here, as those of the real models are files to download."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

    letters = ["<pad>", "<s>", "</s>", "<unk>", *map(chr, range(32, 123))]
    made = Tokenizer(models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )  # fmt: skip
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    out = transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=77, **special)
    out.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return out


def _text(name: str) -> torch.nn.Module:
    """A text or image encoder of Transformers."""
    cls = getattr(transformers, name)
    common = {"vocab_size": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if name.startswith("CLIPText"):
        config = transformers.CLIPTextConfig(
            hidden_size=TEXT,
            intermediate_size=37,
            num_attention_heads=4,
            num_hidden_layers=3,
            projection_dim=TEXT,
            **common,
        )
        return cls(config)
    if name.startswith("CLIPVision"):
        config = transformers.CLIPVisionConfig(
            hidden_size=TEXT, intermediate_size=37, num_attention_heads=4, num_hidden_layers=3, projection_dim=TEXT,
            image_size=32, patch_size=8,
        )  # fmt: skip
        return cls(config)
    for rules, config in tiny.forms(cls.config_class):
        if rules == "fixed" and not isinstance(config, Exception):
            return cls(config)
    raise Unknown(name)


def part(pipeline: str, name: str, hint: Any) -> Any:
    """A part of `pipeline` for its constructor's parameter `name`; None for what is optional."""
    kinds = hint if isinstance(hint, tuple) else typing.get_args(hint) or (hint,)
    if type(None) in kinds:
        return None
    hint = kinds[0]
    cls = getattr(hint, "__name__", str(hint))
    if "okenizer" in cls or "Tokenizer" in name:
        return tokenizer()
    if name in ("safety_checker", "watermarker", "feature_extractor", "image_processor") and cls != "VaeImageProcessor":
        return None
    if "scheduler" in name:
        usual = getattr(diffusers, cls, None)
        make = usual if usual is not None and hasattr(usual, "set_timesteps") else diffusers.DDIMScheduler
        return make()
    if cls in ("bool", "int", "float"):
        raise Unknown(f"{name}: {cls}")
    if hasattr(transformers, cls):
        return _text(cls)
    if isinstance(hint, type) and issubclass(hint, diffusers.ModelMixin):
        return _model(hint, pipeline)
    raise Unknown(f"{name}: {cls}")


def _model(cls: type, pipeline: str) -> torch.nn.Module:
    known = inspect.signature(cls.__init__).parameters
    given = OWN.get(cls.__name__) or {}
    if cls.__name__ not in OWN or "Transformer" in cls.__name__:
        given = {**SMALL, **given}
    if cls.__name__ == "AutoencoderKL" and ("Flux" in pipeline or "Diffusion3" in pipeline or "Chroma" in pipeline):
        given = {**given, "shift_factor": 0.1, "use_quant_conv": False, "use_post_quant_conv": False}
    if cls.__name__ in ("UNet2DConditionModel", "ControlNetModel") and ("XL" in pipeline or "Kolors" in pipeline):
        given = {**given, **XL}
    if cls.__name__ == "UNet2DConditionModel":
        channels = {"InstructPix2Pix": 8, "LatentUpscale": 8, "Depth2Img": 5, "StableDiffusionUpscale": 7}
        given = {**given, "in_channels": next((n for k, n in channels.items() if k in pipeline), 4)}
    torch.manual_seed(0)
    return cls(**{k: v for k, v in given.items() if k in known})


@functools.cache
def pipelines() -> dict[str, type]:
    out = {}
    for name in dir(diffusers):
        if "Pipeline" in name:
            try:
                cls = getattr(diffusers, name)
            except Exception:  # needs a package that is not there
                continue
            if isinstance(cls, type) and issubclass(cls, diffusers.DiffusionPipeline):
                out[name] = cls
    return {k: v for k, v in out.items() if "Onnx" not in k and "Modular" not in k and k != "DiffusionPipeline"}


def build(name: str) -> Any:
    cls = pipelines()[name]
    made = {}
    hints = inspect.signature(cls.__init__).parameters
    for parameter, value in hints.items():
        if parameter in ("self", "args", "kwargs"):
            continue
        if value.default is value.empty:
            made[parameter] = part(name, parameter, value.annotation)
        elif value.default is None and parameter in (
            "transformer",
            "unet",
        ):  # one of two, each of which may be left out
            made[parameter] = part(name, parameter, typing.get_args(value.annotation)[:1] or value.annotation)
    pipe = cls(**made)
    for module in pipe.components.values():
        if isinstance(module, torch.nn.Module):
            compare.randomise(module.eval())
    return pipe


ALWAYS = (  # given wherever a pipeline has them
    "prompt", "height", "width", "num_inference_steps", "num_frames", "max_sequence_length", "batch_size",
    "video_length", "max_new_tokens", "clean_caption", "use_resolution_binning", "audio_length_in_s",
)  # fmt: skip
WANTED = (  # though they may be left out, by those that start from more than a prompt
    "image", "mask_image", "control_image", "video", "class_labels", "image_embeds", "negative_image_embeds",
    "source_prompt",
)  # fmt: skip
CONDITIONED = (
    "Img2Img", "Inpaint", "ImageToVideo", "Control", "Edit", "Upscale", "VideoToVideo", "Pix2Pix", "Fill",
)  # fmt: skip


def arguments(pipe: Any) -> dict[str, Any]:
    """Arguments for pipe(...), by the names of its parameters."""
    torch.manual_seed(1)
    size = 32
    image = torch.rand(1, 3, size, size)
    mask = (torch.arange(size) > size // 2).float().expand(1, 1, size, size).contiguous()
    frames = [Image.fromarray((f.permute(1, 2, 0) * 255).byte().numpy()) for f in torch.rand(5, 3, size, size)]
    known = inspect.signature(type(pipe).__call__).parameters
    required = [n for n, p in known.items() if n != "self" and p.default is p.empty and p.kind != p.VAR_KEYWORD]
    values = {
        "prompt": "a boat", "image": image, "mask_image": mask, "control_image": image, "height": size, "width": size,
        "num_inference_steps": 4, "class_labels": [0], "num_frames": 5, "max_sequence_length": 16, "batch_size": 1,
        "video": frames, "conditioning_frames": frames, "ip_adapter_image": image, "image_embeds": torch.randn(1, TEXT),
        "negative_image_embeds": torch.randn(1, TEXT), "source_prompt": "a house", "mask": mask, "video_length": 2,
        "original_image": image, "control_mask": mask, "condition_image": image, "control_video": frames,
        "audio_length_in_s": 0.1, "max_new_tokens": 4, "clean_caption": False, "use_resolution_binning": False,
    }  # fmt: skip
    missing = [n for n in required if n not in values]
    if missing:
        raise Unknown(f"argument {', '.join(missing)}")
    out = {n: values[n] for n in known if n in required or n in ALWAYS}
    if not required or any(k in type(pipe).__name__ for k in CONDITIONED):
        out |= {n: values[n] for n in known if n in WANTED}
    if "output_type" in known:
        out["output_type"] = "np"
    return out
