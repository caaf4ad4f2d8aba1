"""Write the real model as a folder that mlx-lm loads, for the published HTTP server. Argument: the folder."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import mlx.core as mx
import stock_models as models
from mlx.utils import tree_flatten


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    smollm = models.demo("smollm")
    _, metadata = mx.load(str(smollm.find_weights()), return_metadata=True)
    loaded = smollm.load(mx.float16)
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(loaded.model.parameters())))
    end = loaded.tokenizer.eos_id
    config = dataclasses.asdict(loaded.model.args) | {"eos_token_id": end}
    loaded.tokenizer._tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": metadata["tokenizer.ggml.tokens"][end],
        "chat_template": metadata["tokenizer.chat_template"],
    }
    for name, record in (("config", config), ("tokenizer_config", tokenizer)):
        (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")


main(Path(sys.argv[1]))
