# SPDX-License-Identifier: Apache-2.0
"""The models of aot_models.py written in JAX and compiled for a TPU that is absent: the figures
that aot_table.py compares with.

usage: python benchmarks/jax_models.py --out FILE.json [--topology TPU7x:2x2x1] [--only NAME,NAME]

Needs jax, and the libtpu that torch_tpu uses; nothing of PyTorch. One process at a time can hold libtpu.

What is computed: parameters, activations and the optimizer's moments are bf16; norms, softmax, losses and the
optimizer's arithmetic are f32. A *_fwdbwd program takes the gradient of its output and gives the output and
the gradients of all else. Only a *_train program donates, and only what it updates.
"""

import argparse
import json
import math
import os
from functools import partial
from importlib.metadata import version
from pathlib import Path

# Nothing is looked up on the network, and JAX itself runs on the CPU.
for name, value in {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "tpu7x-8",
}.items():
    os.environ.setdefault(name, value)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import SingleDeviceSharding  # noqa: E402


def spec(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def ids(*shape):
    return spec(*shape, dtype=jnp.int32)


def rms_norm(scale, x):
    wide = x.astype(jnp.float32)
    size = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    return (wide * lax.rsqrt(size + 1e-5) * scale).astype(x.dtype)


def layer_norm(p, x):
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(axis=-1, keepdims=True)
    size = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    return (centred * lax.rsqrt(size + 1e-5) * p["scale"] + p["shift"]).astype(x.dtype)


def affine(width):
    return {"scale": spec(width), "shift": spec(width)}


attention = partial(jax.nn.dot_product_attention, implementation="xla")  # [batch, length, heads, width]


def cross_entropy(logits, labels):
    log_p = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(log_p, labels[..., None], axis=-1).squeeze(-1)
    return jnp.mean(jax.nn.logsumexp(log_p, axis=-1) - chosen)


def convolution(kernel, x, stride=1):
    """NHWC, padded to keep the size at stride 1."""
    edge = kernel.shape[0] // 2
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), ((edge, edge), (edge, edge)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def with_gradients(forward):
    def both(cotangent, *args):
        y, pullback = jax.vjp(forward, *args)
        return y, pullback(cotangent)

    return both


def sgd(params, update):
    """Learning rate 0.1, in f32."""

    def one(p, u):
        return (p.astype(jnp.float32) - 0.1 * u.astype(jnp.float32)).astype(p.dtype)

    return jax.tree.map(one, params, update)


def adamw(params, first, second, count, grads):
    """Learning rate 3e-4, betas 0.9 and 0.95, weight decay 0.1; f32 arithmetic on bf16 moments."""
    count = count + 1

    def one(p, m, v, g):
        g, wide = g.astype(jnp.float32), p.astype(jnp.float32)
        new_m = 0.9 * m + (1 - 0.9) * g
        new_v = 0.95 * v + (1 - 0.95) * jnp.square(g)
        direction = new_m / (1 - 0.9**count) / (jnp.sqrt(new_v / (1 - 0.95**count)) + 1e-8)
        wide = wide - 3e-4 * (direction + 0.1 * wide)
        return wide.astype(p.dtype), new_m.astype(m.dtype), new_v.astype(v.dtype)

    leaves, tree = jax.tree.flatten(params)
    rows = zip(leaves, *(tree.flatten_up_to(t) for t in (first, second, grads)), strict=True)
    columns = zip(*(one(*row) for row in rows), strict=True)
    return (*(tree.unflatten(column) for column in columns), count)


# Decoder layers --------------------------------------------------------------------------------


def rotary(x, theta):
    """Halves rotated against each other; x is [batch, length, heads, width]."""
    length, half = x.shape[1], x.shape[-1] // 2
    frequency = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle = (jnp.arange(length, dtype=jnp.float32)[:, None] * frequency)[:, None, :]
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [left * jnp.cos(angle) - right * jnp.sin(angle), right * jnp.cos(angle) + left * jnp.sin(angle)]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def decoder_spec(width, heads, kv_heads, head, hidden, qk_norm):
    p = {"norm1": spec(width), "norm2": spec(width), "o": spec(heads * head, width)}
    p |= {"q": spec(width, heads * head), "k": spec(width, kv_heads * head), "v": spec(width, kv_heads * head)}
    p |= {"gate": spec(width, hidden), "up": spec(width, hidden), "down": spec(hidden, width)}
    return p | ({"q_norm": spec(head), "k_norm": spec(head)} if qk_norm else {})


def decoder(p, x, *, head, theta):
    def split(y):
        return y.reshape(*x.shape[:2], -1, head)

    h = rms_norm(p["norm1"], x)
    q, k, v = split(h @ p["q"]), split(h @ p["k"]), split(h @ p["v"])
    if "q_norm" in p:
        q, k = rms_norm(p["q_norm"], q), rms_norm(p["k_norm"], k)
    mixed = attention(rotary(q, theta), rotary(k, theta), v, is_causal=True)
    x = x + mixed.reshape(*x.shape[:2], -1) @ p["o"]
    h = rms_norm(p["norm2"], x)
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def decoder_case(params, theta, backward):
    layer, x = partial(decoder, head=128, theta=theta), spec(1, 4096, 4096)
    return (with_gradients(layer), (x, params, x), ()) if backward else (layer, (params, x), ())


def llama(backward):
    return decoder_case(decoder_spec(4096, 32, 8, 128, 14336, False), 5e5, backward)


def qwen(backward):
    return decoder_case(decoder_spec(4096, 32, 8, 128, 12288, True), 1e6, backward)


# Mixture of experts ----------------------------------------------------------------------------


def experts(x, norm, router, gate, up, down, chosen=8):
    """Every expert computes every token; those that a token did not choose have weight 0."""
    h = rms_norm(norm, x)
    weight, which = lax.top_k(jax.nn.softmax((h @ router).astype(jnp.float32), axis=-1), chosen)
    weight = (weight / weight.sum(axis=-1, keepdims=True)).astype(x.dtype)
    rows = jnp.arange(x.shape[0])[:, None]
    weights = jnp.zeros((x.shape[0], router.shape[1]), x.dtype).at[rows, which].set(weight)
    y = jax.nn.silu(jnp.einsum("td,edf->etf", h, gate)) * jnp.einsum("td,edf->etf", h, up)
    y = y * weights.T[:, :, None]
    return x + jnp.einsum("etf,efd->td", y, down)


def moe():
    weights = spec(128, 2048, 768), spec(128, 2048, 768), spec(128, 768, 2048)
    return experts, (spec(64, 2048), spec(2048), spec(2048, 128), *weights), ()


# ResNet-50 -------------------------------------------------------------------------------------

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of the first


def resnet_spec():
    def conv(k, i, o):
        return {"kernel": spec(k, k, i, o), **affine(o)}

    blocks, width = [], 64
    for middle, count, _ in STAGES:
        for i in range(count):
            p = {"a": conv(1, width, middle), "b": conv(3, middle, middle), "c": conv(1, middle, 4 * middle)}
            if i == 0:
                p["skip"] = conv(1, width, 4 * middle)
            blocks.append(p)
            width = 4 * middle
    return {"stem": conv(7, 3, 64), "blocks": blocks, "head": spec(width, 1000), "bias": spec(1000)}


def resnet_stats(p):
    """Running mean and variance of each batch norm, in f32, in the shape of the parameters' tree."""

    def is_conv(node):
        return isinstance(node, dict) and "kernel" in node

    tree = {"stem": p["stem"], "blocks": p["blocks"]}
    return jax.tree.map(lambda c: spec(2, c["scale"].shape[0], dtype=jnp.float32), tree, is_leaf=is_conv)


def resnet_loss(p, stats, images, labels):
    def conv(p, stats, x, stride=1):
        y = convolution(p["kernel"], x, stride).astype(jnp.float32)
        mean = y.mean(axis=(0, 1, 2))
        variance = jnp.square(y).mean(axis=(0, 1, 2)) - jnp.square(mean)
        new = 0.9 * stats + 0.1 * jnp.stack([mean, variance])
        return ((y - mean) * lax.rsqrt(variance + 1e-5) * p["scale"] + p["shift"]).astype(x.dtype), new

    new = {"blocks": []}
    x = images.transpose(0, 2, 3, 1)  # given as PyTorch has it; inside NHWC is JAX's habit
    x, new["stem"] = conv(p["stem"], stats["stem"], x, 2)
    x = lax.reduce_window(
        jax.nn.relu(x), -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))
    )
    strides = [stride if i == 0 else 1 for _, count, stride in STAGES for i in range(count)]
    for q, old, stride in zip(p["blocks"], stats["blocks"], strides, strict=True):
        seen = {}
        y, seen["a"] = conv(q["a"], old["a"], x)
        y, seen["b"] = conv(q["b"], old["b"], jax.nn.relu(y), stride)
        y, seen["c"] = conv(q["c"], old["c"], jax.nn.relu(y))
        if "skip" in q:
            x, seen["skip"] = conv(q["skip"], old["skip"], x, stride)
        x = jax.nn.relu(y + x)
        new["blocks"].append(seen)
    return cross_entropy(x.mean(axis=(1, 2)) @ p["head"] + p["bias"], labels), new


def resnet():
    def step(p, momentum, stats, images, labels):
        (loss, stats), grads = jax.value_and_grad(resnet_loss, has_aux=True)(p, stats, images, labels)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        return sgd(p, momentum), momentum, stats, loss

    p = resnet_spec()
    return step, (p, p, resnet_stats(p), spec(256, 3, 224, 224), ids(256)), (0, 1, 2)


# DLRM ------------------------------------------------------------------------------------------


def dlrm_spec(features, rows, width, bottom, top, stacked=True):
    """The tables of all features as one array, or one each."""

    def mlp(sizes):
        return [{"w": spec(a, b), "b": spec(b)} for a, b in zip(sizes[:-1], sizes[1:], strict=True)]

    pairs = (features + 1) * features // 2
    tables = spec(features, rows, width) if stacked else [spec(rows, width)] * features
    return {"tables": tables, "bottom": mlp((*bottom, width)), "top": mlp((width + pairs, *top, 1))}


def dlrm_loss(p, dense, sparse, labels):
    def layer(q, x):
        return x @ q["w"] + q["b"]

    for q in p["bottom"]:
        dense = jax.nn.relu(layer(q, dense))
    tables, features = p["tables"], sparse.shape[1]
    if isinstance(tables, list):
        rows = jnp.stack([table[sparse[:, i]] for i, table in enumerate(tables)], axis=1)
    else:
        rows = tables[jnp.arange(features), sparse]
    vectors = jnp.concatenate([dense[:, None], rows], axis=1)
    dots = jnp.einsum("bid,bjd->bij", vectors, vectors)
    i, j = np.tril_indices(features + 1, k=-1)
    x = jnp.concatenate([dense, dots[:, i, j]], axis=1)
    for q in p["top"][:-1]:
        x = jax.nn.relu(layer(q, x))
    logit = layer(p["top"][-1], x).squeeze(1).astype(jnp.float32)
    return jnp.mean(jax.nn.relu(logit) - logit * labels + jnp.log1p(jnp.exp(-jnp.abs(logit))))


def dlrm(stacked):
    def step(p, *batch):
        loss, grads = jax.value_and_grad(dlrm_loss)(p, *batch)
        return sgd(p, grads), loss

    p = dlrm_spec(26, 100_000, 64, (13, 512, 256), (1024, 1024, 512, 256), stacked)
    return step, (p, spec(4096, 13), ids(4096, 26), spec(4096, dtype=jnp.float32)), (0,)


# UNet ------------------------------------------------------------------------------------------


def conv_spec(k, i, o):
    return {"kernel": spec(k, k, i, o), "bias": spec(o)}


def unet_block_spec(i, o, time, text):
    def mha(source):
        return {"q": spec(o, o), "k": spec(source, o), "v": spec(source, o), "o": spec(o, o)}

    p = {"norm1": affine(i), "conv1": conv_spec(3, i, o), "time": spec(time, o)}
    p |= {"norm2": affine(o), "conv2": conv_spec(3, o, o), "norm3": affine(o)}
    p |= {"enter": conv_spec(1, o, o), "leave": conv_spec(1, o, o)}
    p |= {"norm4": affine(o), "self": mha(o), "norm5": affine(o), "cross": mha(text)}
    p |= {"norm6": affine(o), "wide": spec(o, 8 * o), "narrow": spec(4 * o, o)}
    return p | ({"skip": conv_spec(1, i, o)} if i != o else {})


def unet_spec(a, b, c, time, text):
    def block(i, o):
        return unet_block_spec(i, o, time, text)

    p = {"down1": block(a, a), "down2": block(a, b), "middle": block(b, c)}
    p |= {"up2": block(c + b, b), "up1": block(b + a, a)}
    p |= {"shrink1": conv_spec(3, a, a), "shrink2": conv_spec(3, b, b)}
    return p | {"grow2": conv_spec(3, c, c), "grow1": conv_spec(3, b, b)}


def group_norm(p, x, groups=32):
    wide = x.astype(jnp.float32).reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    centred = wide - wide.mean(axis=(1, 3), keepdims=True)
    normal = centred * lax.rsqrt(centred.var(axis=(1, 3), keepdims=True) + 1e-5)
    return (normal.reshape(x.shape) * p["scale"] + p["shift"]).astype(x.dtype)


def unet_block(p, x, time, text, heads=8):
    def conv(name, x):
        return convolution(p[name]["kernel"], x) + p[name]["bias"]

    def mha(p, x, source):
        def split(y, w):
            return (y @ w).reshape(*y.shape[:2], heads, -1)

        q, k, v = split(x, p["q"]), split(source, p["k"]), split(source, p["v"])
        return attention(q, k, v).reshape(x.shape) @ p["o"]

    h = conv("conv1", jax.nn.silu(group_norm(p["norm1"], x))) + (jax.nn.silu(time) @ p["time"])[:, None, None, :]
    h = conv("conv2", jax.nn.silu(group_norm(p["norm2"], h)))
    x = h + (conv("skip", x) if "skip" in p else x)
    h = conv("enter", group_norm(p["norm3"], x)).reshape(x.shape[0], -1, x.shape[-1])
    y = layer_norm(p["norm4"], h)
    h = h + mha(p["self"], y, y)
    h = h + mha(p["cross"], layer_norm(p["norm5"], h), text)
    value, gate = jnp.split(layer_norm(p["norm6"], h) @ p["wide"], 2, axis=-1)
    h = h + (value * jax.nn.gelu(gate)) @ p["narrow"]
    return x + conv("leave", h.reshape(x.shape))


def unet(p, x, time, text):
    def conv(name, x, stride=1):
        return convolution(p[name]["kernel"], x, stride) + p[name]["bias"]

    def grow(name, x, skip):
        return jnp.concatenate([conv(name, jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)), skip], axis=-1)

    a = unet_block(p["down1"], x, time, text)
    b = unet_block(p["down2"], conv("shrink1", a, 2), time, text)
    c = unet_block(p["middle"], conv("shrink2", b, 2), time, text)
    b = unet_block(p["up2"], grow("grow2", c, b), time, text)
    return unet_block(p["up1"], grow("grow1", b, a), time, text)


def unet_case():
    x = spec(4, 64, 64, 320)
    return with_gradients(unet), (x, unet_spec(320, 640, 1280, 1280, 768), x, spec(4, 1280), spec(4, 77, 768)), ()


# minGPT ----------------------------------------------------------------------------------------


def gpt_spec(layers, width, vocabulary, length):
    def linear(i, o):
        return {"w": spec(i, o), "b": spec(o)}

    layer = {"norm1": affine(width), "qkv": linear(width, 3 * width), "out": linear(width, width)}
    layer |= {"norm2": affine(width), "up": linear(width, 4 * width), "down": linear(4 * width, width)}
    p = {"tokens": spec(vocabulary, width), "positions": spec(length, width), "layers": [layer] * layers}
    return p | {"norm": affine(width), "head": spec(width, vocabulary)}


def gpt_loss(p, tokens, labels, heads=12):
    def linear(q, x):
        return x @ q["w"] + q["b"]

    h = p["tokens"][tokens] + p["positions"]
    for q in p["layers"]:
        qkv = linear(q["qkv"], layer_norm(q["norm1"], h)).reshape(*h.shape[:2], 3, heads, -1)
        mixed = attention(*jnp.moveaxis(qkv, 2, 0), is_causal=True)
        h = h + linear(q["out"], mixed.reshape(h.shape))
        h = h + linear(q["down"], jax.nn.gelu(linear(q["up"], layer_norm(q["norm2"], h))))
    return cross_entropy(layer_norm(p["norm"], h) @ p["head"], labels)


def mingpt():
    def step(p, first, second, count, tokens, labels):
        loss, grads = jax.value_and_grad(gpt_loss)(p, tokens, labels)
        return *adamw(p, first, second, count, grads), loss

    p = gpt_spec(12, 768, 50257, 1024)
    return step, (p, p, p, ids(), ids(8, 1024), ids(8, 1024)), (0, 1, 2, 3)


# name: a function that gives the program, what it takes, and which of its arguments are donated
CASES = {
    "llama3_8b_layer_fwd": partial(llama, backward=False),
    "llama3_8b_layer_fwdbwd": partial(llama, backward=True),
    "qwen3_8b_layer_fwd": partial(qwen, backward=False),
    "qwen3_8b_layer_fwdbwd": partial(qwen, backward=True),
    "qwen3_30b_a3b_moe_decode_dense": moe,
    "resnet50_train_nchw": resnet,
    "dlrm_train": partial(dlrm, stacked=True),
    "dlrm_train_embeddings": partial(dlrm, stacked=False),
    "unet_fwdbwd": unet_case,
    "mingpt_train": mingpt,
}

# bf16 FLOP/s of one device, as Google Cloud publishes it; a TPU7x chip is two devices.
PEAK = {"TPU7x": 2307e12 / 2, "TPU v6 lite": 918e12, "TPU v5 lite": 197e12, "TPU v5": 459e12}


def product_flops(jaxpr):
    """Multiplications and additions of all products and convolutions."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            total += 2 * eqn.outvars[0].aval.size * math.prod(eqn.invars[0].aval.shape[d] for d in contracted)
        elif eqn.primitive.name == "conv_general_dilated":
            kernel, outputs = eqn.invars[1].aval, eqn.params["dimension_numbers"].rhs_spec[0]
            taps = kernel.size // kernel.shape[outputs]
            total += 2 * eqn.outvars[0].aval.size * taps // math.prod(eqn.params["lhs_dilation"])
        else:
            for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "eqns")):
                inner = getattr(value, "jaxpr", value)  # closed, or open
                total += product_flops(inner) if hasattr(inner, "eqns") else 0
    return total


def measure(name, topology, device):
    function, args, donated = CASES[name]()
    place = SingleDeviceSharding(device)
    traced = jax.jit(function, in_shardings=place, out_shardings=place, donate_argnums=donated).trace(*args)
    compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    # An instruction of unknown cost counts as -1 s, and no program here takes a second.
    seconds = cost["optimal_seconds"]
    seconds += max(0, math.ceil(-seconds))
    return {
        "name": name,
        "topology": topology,
        "optimal_seconds": seconds,
        "temp_bytes": memory.temp_size_in_bytes,
        "argument_bytes": memory.argument_size_in_bytes,
        "output_bytes": memory.output_size_in_bytes,
        "mfu_estimate": product_flops(traced.jaxpr.jaxpr) / seconds / PEAK[device.device_kind],
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--topology", default="TPU7x:2x2x1")
    parser.add_argument("--only", help="names, separated by commas", default=",".join(CASES))
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    args = parser.parse_args()
    device = topologies.get_topology_desc(platform="tpu", topology_name=args.topology).devices[0]
    result = {package: version(package) for package in ("jax", "jaxlib", "libtpu")} | {"records": []}
    for name in args.only.split(","):
        result["records"].append(measure(name, args.topology, device))
        args.out.write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(result["records"][-1]), flush=True)


if __name__ == "__main__":
    main()
