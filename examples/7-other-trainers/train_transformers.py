"""transformers: a tiny Llama that learns to count, which survives lost ranks."""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from regroup_trainer.integrations.for_transformers import TransformersRecovery, saves_directory


class Counting(Dataset):
    """Sixteen numbers in order, from a start that differs."""

    def __init__(self, count: int) -> None:
        self.starts = torch.randint(0, 16, (count,), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.starts[index] + torch.arange(16)
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=800)
    parser.add_argument("--result", help="a file for the final parameters")
    options = parser.parse_args()

    set_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            attention_dropout=0.1,
        )
    )
    arguments = TrainingArguments(
        output_dir=str(saves_directory()),  # in the folder of the job
        save_strategy="steps",
        save_steps=20,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=10,
        report_to=[],
        use_cpu=True,
        seed=0,
        disable_tqdm=True,
    )
    recovery = TransformersRecovery()
    trainer = Trainer(
        model, arguments, train_dataset=Counting(options.samples), callbacks=[recovery]
    )
    trainer.train(resume_from_checkpoint=recovery.newest())
    if trainer.is_world_process_zero() and options.result:
        torch.save(model.state_dict(), options.result)


if __name__ == "__main__":
    main()
