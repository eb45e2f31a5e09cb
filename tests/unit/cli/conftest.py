"""What the tests of the command line share: a runner, and tiny models it can run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minillama.cli import main
from tests.tiny_models import TinyModel

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """The program in this process; its stdin, stdout and stderr are no terminals."""

    def call(*arguments: object, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)

    return call


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that runs, with a chat template."""
    model = TinyModel(n_layer=1, n_ctx=200, metadata={"tokenizer.chat_template": TEMPLATE})
    return model.write(tmp_path_factory.mktemp("cli") / "tiny.gguf")


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context is so long that it never stops by itself."""
    return TinyModel(n_layer=1, n_ctx=1_000_000).write(tmp_path_factory.mktemp("cli") / "endless.gguf")
