"""The models that bench/ and tests/parity/ compare with, in plain PyTorch: residual networks with torchvision's
names (He et al., arXiv 1512.03385), a GPT with nanoGPT's (vocabulary, block and width as arguments)."""
import torch
from torch import nn


def convolution(inputs, outputs, kernel, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, inputs, planes, stride, bottleneck):
        super().__init__()
        outputs = 4 * planes if bottleneck else planes
        shapes = ([(inputs, planes, 1, 1), (planes, planes, 3, stride), (planes, outputs, 1, 1)] if bottleneck
                  else [(inputs, planes, 3, stride), (planes, planes, 3, 1)])
        self.count = len(shapes)
        for number, shape in enumerate(shapes, 1):
            setattr(self, f"conv{number}", convolution(*shape))
            setattr(self, f"bn{number}", nn.BatchNorm2d(shape[1]))
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, inputs):
        values = inputs
        for number in range(1, self.count + 1):
            values = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(values))
            if number < self.count:
                values = values.relu_()
        return (values + (inputs if self.downsample is None else self.downsample(inputs))).relu_()


class ResNet(nn.Module):
    def __init__(self, blocks, bottleneck, channels=3, num_classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        width = 64
        for stage, count in enumerate(blocks):
            layers = []
            for i in range(count):
                layers.append(Block(width, 64 << stage, 2 if stage and not i else 1, bottleneck))
                width = (64 << stage) * (4 if bottleneck else 1)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(width, num_classes)

    def forward(self, images):
        values = nn.functional.max_pool2d(self.bn1(self.conv1(images)).relu_(), 3, 2, 1)
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            values = stage(values)
        return self.fc(values.mean((2, 3)))


def resnet18(**options):
    return ResNet([2, 2, 2, 2], False, **options)


def resnet50(**options):
    return ResNet([3, 4, 6, 3], True, **options)


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, values):
        return nn.functional.layer_norm(values, self.weight.shape, self.weight, None, 1e-5)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, values):
        batch, time, width = values.shape
        q, k, v = (part.view(batch, time, self.heads, -1).transpose(1, 2)
                   for part in self.c_attn(values).split(width, dim=2))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, time, width))


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_proj = nn.Linear(4 * width, width, bias=False)

    def forward(self, values):
        return self.c_proj(nn.functional.gelu(self.c_fc(values)))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.ln_1, self.attn = Norm(width), Attention(width, heads)
        self.ln_2, self.mlp = Norm(width), FeedForward(width)

    def forward(self, values):
        values = values + self.attn(self.ln_1(values))
        return values + self.mlp(self.ln_2(values))


class Gpt(nn.Module):
    """The logits are the transposed token embedding's; nanoGPT also lists it as lm_head.weight."""

    def __init__(self, layers=4, heads=4, width=128, block=64, vocabulary=65):
        super().__init__()
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(vocabulary, width), wpe=nn.Embedding(block, width),
            h=nn.ModuleList(GptBlock(width, heads) for _ in range(layers)), ln_f=Norm(width)))

    def forward(self, tokens):
        parts = self.transformer
        values = parts.wte(tokens) + parts.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in parts.h:
            values = block(values)
        return nn.functional.linear(parts.ln_f(values), parts.wte.weight)
