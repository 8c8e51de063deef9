# SPDX-License-Identifier: Apache-2.0
"""Transformers as users call it, on models made here: nothing is downloaded, nothing is patched."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

VOCABULARY = 96


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def tiny(**changes):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, **changes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    tiny().save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def tokenizer():
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    letters = ["<pad>", "<s>", "</s>", "<unk>", *map(chr, range(32, 32 + VOCABULARY - 4))]
    made = Tokenizer(models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.mark.parametrize("device_map", ["tpu", {"": "tpu:0"}], ids=str)
def test_from_pretrained(saved: Path, device_map) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(saved, device_map=device_map)
    assert {p.device for p in model.parameters()} == {torch.device("tpu:0")}
    ids = torch.arange(3, 13).view(1, -1)
    torch.testing.assert_close(model(ids.to("tpu")).logits.cpu(), tiny()(ids).logits)


def test_checkpoint_opens_without_the_backend(saved: Path, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(saved, device_map="tpu")
    model.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    code = """
import sys, torch, transformers
assert not hasattr(torch, "tpu")
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1])
weights = torch.load(sys.argv[1] + "/weights.pt", map_location="cpu", weights_only=True)
assert all(torch.equal(weights[k], v) for k, v in model.state_dict().items())
"""
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "HF_HUB_OFFLINE": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


STRATEGIES = {
    "greedy": {},
    "beam": {"num_beams": 2},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "static": {"cache_implementation": "static"},
    "prompt lookup": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_generate(name: str) -> None:
    on_cpu = tiny()
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    batch = 1 if name == "prompt lookup" else 2
    ids = torch.randint(3, VOCABULARY, (batch, 5))
    asked = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, **STRATEGIES[name]}
    want = on_cpu.generate(ids, **asked)
    assert torch.equal(on_tpu.generate(ids.to("tpu"), **asked).cpu(), want)


def test_generate_with_an_assistant() -> None:
    on_cpu, helper = tiny(), tiny()
    ids = torch.randint(3, VOCABULARY, (1, 5))
    want = on_cpu.generate(ids, max_new_tokens=4, do_sample=False, assistant_model=helper)
    got = on_cpu.to("tpu").generate(ids.to("tpu"), max_new_tokens=4, do_sample=False, assistant_model=helper.to("tpu"))
    assert torch.equal(got.cpu(), want)


def test_sampling_follows_the_seed() -> None:
    model = tiny().to("tpu")
    ids = torch.randint(3, VOCABULARY, (4, 5)).to("tpu")

    def sample(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model.generate(ids, max_new_tokens=4, min_new_tokens=4, do_sample=True, top_k=20, top_p=0.9)

    first = sample(1)
    assert torch.equal(sample(1), first) and not torch.equal(sample(2), first)


def test_static_cache_decodes_with_one_compiled_program(fresh_dynamo: None) -> None:
    model = tiny()
    ids = torch.randint(3, VOCABULARY, (1, 5))
    want = model.generate(ids, max_new_tokens=6, min_new_tokens=6, do_sample=False)
    model = model.to("tpu")
    config = transformers.generation.CompileConfig(backend="tpu", fullgraph=False, dynamic=False, mode="default")
    from torch._dynamo.utils import counters

    counters.clear()
    got = model.generate(
        ids.to("tpu"), max_new_tokens=6, min_new_tokens=6, do_sample=False, cache_implementation="static",
        compile_config=config, disable_compile=False,
    )  # fmt: skip
    assert torch.equal(got.cpu(), want)
    assert counters["stats"]["unique_graphs"] <= 2, dict(counters["stats"])


def test_pipeline(saved: Path) -> None:
    asked = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    want = transformers.pipeline("text-generation", model=str(saved), device="cpu")("a boat", **asked)
    got = transformers.pipeline("text-generation", model=str(saved), device="tpu")("a boat", **asked)
    assert got == want


def test_mixture_of_experts_trains_through_grouped_products() -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, head_dim=8,
    )  # fmt: skip
    on_cpu = transformers.Qwen3MoeForCausalLM(config)
    on_cpu.set_experts_implementation("grouped_mm")
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    ids = torch.randint(3, VOCABULARY, (2, 8))
    on_cpu(ids, labels=ids).loss.backward()
    on_tpu(ids.to("tpu"), labels=ids.to("tpu")).loss.backward()
    for (name, want), got in zip(on_cpu.named_parameters(), on_tpu.parameters(), strict=True):
        torch.testing.assert_close(
            got.grad.cpu(), want.grad, rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


class Letters(torch.utils.data.Dataset):
    """Windows of a fixed text."""

    def __init__(self, count: int):
        text = Path(__file__).parents[2].joinpath("examples", "tide_pool.txt").read_text()
        ids = torch.tensor([4 + (ord(c) - 32) % (VOCABULARY - 4) for c in text])
        self.windows = ids[: count * 16].view(count, 16)

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.windows[i], "labels": self.windows[i]}


def trainer(model, folder: Path, **changes):
    options = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_steps": 4, "learning_rate": 1e-2,
        "bf16": True, "logging_steps": 1, "save_steps": 2, "eval_strategy": "steps", "eval_steps": 4, "report_to": [],
        "dataloader_num_workers": 2, "dataloader_pin_memory": True, "disable_tqdm": True, "seed": 0, **changes,
    }  # fmt: skip
    arguments = transformers.TrainingArguments(output_dir=str(folder), **options)
    return transformers.Trainer(model=model, args=arguments, train_dataset=Letters(64), eval_dataset=Letters(8))


def losses(run) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


@pytest.fixture
def accelerate_on_tpu(monkeypatch: pytest.MonkeyPatch):
    """Accelerate knows no tpu: without this variable the Trainer's model goes back to the CPU."""
    accelerate = pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "tpu")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.filterwarnings("ignore")
def test_trainer_trains_evaluates_and_resumes(tmp_path: Path, accelerate_on_tpu) -> None:
    whole = trainer(tiny(), tmp_path / "whole")
    assert whole.args.device == torch.device("tpu:0")
    whole.train()
    assert losses(whole)[-1] < losses(whole)[0]
    assert any("eval_loss" in entry for entry in whole.state.log_history)
    again = trainer(tiny(), tmp_path / "whole")
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert losses(again)[:2] == losses(whole)[:2]  # as the checkpoint says
    assert losses(again)[2:] == pytest.approx(losses(whole)[2:], abs=1e-3)


def test_lora(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    torch.manual_seed(0)
    on_cpu = peft.get_peft_model(tiny(), config)
    on_tpu = copy.deepcopy(on_cpu).to("tpu")
    ids = torch.randint(3, VOCABULARY, (2, 8))
    for model, x in ((on_cpu, ids), (on_tpu, ids.to("tpu"))):
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(3):
            model(x, labels=x).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    want, got = on_cpu(ids).logits, on_tpu(ids.to("tpu")).logits.cpu()
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)
    on_tpu.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(tiny(), tmp_path)
    torch.testing.assert_close(loaded(ids).logits, got, rtol=1e-3, atol=1e-4)
    merged = on_tpu.merge_and_unload()
    torch.testing.assert_close(merged(ids.to("tpu")).logits.cpu(), got, rtol=1e-3, atol=1e-4)
