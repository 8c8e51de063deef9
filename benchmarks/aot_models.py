# SPDX-License-Identifier: Apache-2.0
"""The models of aot_table.py as ordinary PyTorch, with the computation of their namesakes in jax_models.py.

`MODELS[name].build(device)` gives a bf16 module and its arguments; "meta" is a device like any other.
`build(device, small=True)` is the same code in a size for tests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Case:
    """make(small) gives the module and the arguments of its forward, on the device of the context.

    backward: the gradients of the output are wanted, for all parameters and for the arguments that require one.
    optimizer: makes the optimizer of a training step; then forward gives the loss.
    """

    make: Callable[[bool], tuple[nn.Module, tuple[torch.Tensor, ...]]]
    backward: bool = False
    optimizer: Callable[..., torch.optim.Optimizer] | None = None

    def build(self, device, small: bool = False) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        with torch.device(device):
            module, args = self.make(small)
            return module.to(torch.bfloat16), args


class Loss(nn.Module):
    """The loss of a model in f32. The batch's last tensor is the labels."""

    def __init__(self, model: nn.Module, loss: Callable):
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch):
        *inputs, labels = batch
        return self.loss(self.model(*inputs).float(), labels)


def cross_entropy(logits, labels):
    # PyTorch takes int64 labels alone.
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten().long())


def values(*shape):
    return torch.randn(shape, dtype=torch.bfloat16)


def ids(limit, *shape):
    return torch.randint(limit, shape, dtype=torch.int32)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def sgd_momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adamw(parameters):
    """Fused: arithmetic in f32, and the count of steps is on the device."""
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


# Decoder layers --------------------------------------------------------------------------------


def rotate(x, cos, sin):
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).type_as(x)


class DecoderLayer(nn.Module):
    """A layer of Llama 3; with qk_norm, of Qwen 3."""

    def __init__(self, width, heads, kv_heads, head, hidden, theta, qk_norm=False):
        super().__init__()
        self.head, self.theta = head, theta
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, heads * head, bias=False)
        self.k = nn.Linear(width, kv_heads * head, bias=False)
        self.v = nn.Linear(width, kv_heads * head, bias=False)
        self.o = nn.Linear(heads * head, width, bias=False)
        self.q_norm = nn.RMSNorm(head, eps=1e-5) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(head, eps=1e-5) if qk_norm else nn.Identity()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def angles(self, x):
        half = self.head // 2
        frequency = self.theta ** (-torch.arange(half, dtype=torch.float32, device=x.device) / half)
        angle = torch.outer(torch.arange(x.shape[1], dtype=torch.float32, device=x.device), frequency)
        return angle.cos(), angle.sin()

    def heads(self, y):
        return y.unflatten(-1, (-1, self.head))

    def attention(self, x):
        q, k, v = self.q_norm(self.heads(self.q(x))), self.k_norm(self.heads(self.k(x))), self.heads(self.v(x))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        cos, sin = self.angles(x)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(mixed.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def decoder(hidden, theta, qk_norm, backward):
    def make(small):
        if small:
            return DecoderLayer(64, 4, 2, 16, 96, theta, qk_norm), (values(1, 32, 64).requires_grad_(backward),)
        layer = DecoderLayer(4096, 32, 8, 128, hidden, theta, qk_norm)
        return layer, (values(1, 4096, 4096).requires_grad_(backward),)

    return Case(make, backward=backward)


# Mixture of experts ----------------------------------------------------------------------------


class Experts(nn.Module):
    """Every expert computes every token; those that a token did not choose have weight 0."""

    def __init__(self, experts, chosen, width, hidden):
        super().__init__()
        self.experts, self.chosen = experts, chosen
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def route(self, h):
        """The weight of each expert for each token."""
        weight, which = self.router(h).float().softmax(-1).topk(self.chosen)
        weight = (weight / weight.sum(-1, keepdim=True)).type_as(h)
        return h.new_zeros(h.shape[0], self.experts).scatter(1, which, weight)

    def forward(self, x):
        h = self.norm(x)
        weights = self.route(h)
        each = h.expand(self.experts, -1, -1)
        y = F.silu(torch.bmm(each, self.gate)) * torch.bmm(each, self.up)
        y = y * weights.T.unsqueeze(-1)
        return x + torch.einsum("etf,efd->td", y, self.down)


def moe(small):
    if small:
        return Experts(16, 4, 32, 24), (values(8, 32),)
    return Experts(128, 8, 2048, 768), (values(64, 2048),)


# ResNet ----------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, inputs, middle, stride):
        super().__init__()
        outputs = 4 * middle
        self.conv1, self.norm1 = nn.Conv2d(inputs, middle, 1, bias=False), nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(middle)
        self.conv3, self.norm3 = nn.Conv2d(middle, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.skip = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.skip(x))


class ResNet(nn.Module):
    def __init__(self, blocks=(3, 4, 6, 3), width=64, classes=1000):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        layers, inputs = [], width
        for stage, count in enumerate(blocks):
            middle = width << stage
            for i in range(count):
                layers.append(Bottleneck(inputs, middle, stride=2 if stage > 0 and i == 0 else 1))
                inputs = 4 * middle
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(inputs, classes)

    def forward(self, x):
        x = self.pool(F.relu(self.norm(self.stem(x))))
        return self.head(self.layers(x).mean((2, 3)))


def resnet(small):
    if small:
        return Loss(ResNet((1, 2, 1, 1), 8, 10), cross_entropy), (values(4, 3, 64, 64), ids(10, 4))
    return Loss(ResNet(), cross_entropy), (values(256, 3, 224, 224), ids(1000, 256))


# DLRM ------------------------------------------------------------------------------------------


def mlp(*sizes):
    """Linear layers with relu between them."""
    layers = []
    for inputs, outputs in zip(sizes[:-1], sizes[1:], strict=True):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Tables(nn.Module):
    """The tables of all features as one parameter."""

    def __init__(self, features, rows, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, rows, width))

    def forward(self, sparse):
        return self.weight[torch.arange(sparse.shape[1], device=sparse.device), sparse]


class Embeddings(nn.ModuleList):
    """An embedding for each feature."""

    def __init__(self, features, rows, width):
        super().__init__([nn.Embedding(rows, width) for _ in range(features)])

    def forward(self, sparse):
        return torch.stack([table(column) for table, column in zip(self, sparse.unbind(1), strict=True)], 1)


class DLRM(nn.Module):
    def __init__(self, tables, features, rows, width, bottom, top):
        super().__init__()
        self.features, self.rows = features, rows
        self.register_buffer("pairs", torch.tril_indices(features + 1, features + 1, -1), persistent=False)
        self.tables = tables(features, rows, width)
        self.bottom = mlp(*bottom, width)
        self.top = mlp(width + features * (features + 1) // 2, *top, 1)

    def forward(self, dense, sparse):
        dense = F.relu(self.bottom(dense))
        vectors = torch.cat([dense.unsqueeze(1), self.tables(sparse)], 1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))
        i, j = self.pairs
        return self.top(torch.cat([dense, dots[:, i, j]], 1)).squeeze(1)


def dlrm(small, tables):
    if small:
        batch, model = 8, DLRM(tables, 5, 50, 8, (13, 16), (32, 16))
    else:
        batch, model = 4096, DLRM(tables, 26, 100_000, 64, (13, 512, 256), (1024, 1024, 512, 256))
    inputs = values(batch, 13), ids(model.rows, batch, model.features)
    return Loss(model, F.binary_cross_entropy_with_logits), (*inputs, torch.rand(batch))


# UNet ------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, width, source, heads=8):
        super().__init__()
        self.heads = heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(source, width, bias=False), nn.Linear(source, width, bias=False)

    def forward(self, x, source):
        q, k, v = self.q(x), self.k(source), self.v(source)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        return self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class GEGLU(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 8 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        value, gate = self.wide(x).chunk(2, -1)
        return self.narrow(value * F.gelu(gate, approximate="tanh"))


class UNetBlock(nn.Module):
    """A residual block that sees the time, then a transformer block that sees the text."""

    def __init__(self, inputs, width, time, text, groups=32):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, inputs), nn.Conv2d(inputs, width, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(groups, width), nn.Conv2d(width, width, 3, padding=1)
        self.time = nn.Linear(time, width, bias=False)
        self.skip = nn.Identity() if inputs == width else nn.Conv2d(inputs, width, 1)
        self.norm3, self.enter = nn.GroupNorm(groups, width), nn.Conv2d(width, width, 1)
        self.leave = nn.Conv2d(width, width, 1)
        self.norm4, self.self_attention = nn.LayerNorm(width), Attention(width, width)
        self.norm5, self.cross_attention = nn.LayerNorm(width), Attention(width, text)
        self.norm6, self.mlp = nn.LayerNorm(width), GEGLU(width)

    def forward(self, x, time, text):
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        x = h + self.skip(x)
        h = self.enter(self.norm3(x)).flatten(2).transpose(1, 2)
        y = self.norm4(h)
        h = h + self.self_attention(y, y)
        h = h + self.cross_attention(self.norm5(h), text)
        h = h + self.mlp(self.norm6(h))
        return x + self.leave(h.transpose(1, 2).unflatten(2, x.shape[2:]))


class UNet(nn.Module):
    """Two sizes down and up again, one block at each."""

    def __init__(self, a, b, c, time, text):
        super().__init__()
        self.down1, self.shrink1 = UNetBlock(a, a, time, text), nn.Conv2d(a, a, 3, 2, padding=1)
        self.down2, self.shrink2 = UNetBlock(a, b, time, text), nn.Conv2d(b, b, 3, 2, padding=1)
        self.middle = UNetBlock(b, c, time, text)
        self.grow2, self.up2 = nn.Conv2d(c, c, 3, padding=1), UNetBlock(c + b, b, time, text)
        self.grow1, self.up1 = nn.Conv2d(b, b, 3, padding=1), UNetBlock(b + a, a, time, text)
        self.twice = nn.Upsample(scale_factor=2, mode="nearest")

    def forward(self, x, time, text):
        a = self.down1(x, time, text)
        b = self.down2(self.shrink1(a), time, text)
        c = self.middle(self.shrink2(b), time, text)
        b = self.up2(torch.cat([self.grow2(self.twice(c)), b], 1), time, text)
        return self.up1(torch.cat([self.grow1(self.twice(b)), a], 1), time, text)


def unet(small):
    if small:
        model, args = UNet(32, 64, 128, 24, 16), (values(2, 32, 8, 8), values(2, 24), values(2, 5, 16))
    else:
        args = values(4, 320, 64, 64), values(4, 1280), values(4, 77, 768)
        model = UNet(320, 640, 1280, 1280, 768)
    return model, tuple(x.requires_grad_() for x in args)


# minGPT ----------------------------------------------------------------------------------------


class GPTBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers, width, heads, vocabulary, length):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.Sequential(*[GPTBlock(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions)))


def mingpt(small):
    if small:
        return Loss(GPT(2, 48, 12, 97, 16), cross_entropy), (ids(97, 2, 16), ids(97, 2, 16))
    return Loss(GPT(12, 768, 12, 50257, 1024), cross_entropy), (ids(50257, 8, 1024), ids(50257, 8, 1024))


MODELS = {
    "llama3_8b_layer_fwd": decoder(14336, 5e5, qk_norm=False, backward=False),
    "llama3_8b_layer_fwdbwd": decoder(14336, 5e5, qk_norm=False, backward=True),
    "qwen3_8b_layer_fwd": decoder(12288, 1e6, qk_norm=True, backward=False),
    "qwen3_8b_layer_fwdbwd": decoder(12288, 1e6, qk_norm=True, backward=True),
    "qwen3_30b_a3b_moe_decode_dense": Case(moe),
    "resnet50_train_nchw": Case(resnet, backward=True, optimizer=sgd_momentum),
    "dlrm_train": Case(partial(dlrm, tables=Tables), backward=True, optimizer=sgd),
    "dlrm_train_embeddings": Case(partial(dlrm, tables=Embeddings), backward=True, optimizer=sgd),
    "unet_fwdbwd": Case(unet, backward=True),
    "mingpt_train": Case(mingpt, backward=True, optimizer=adamw),
}
