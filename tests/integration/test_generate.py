"""Generation: streaming, stopping, sampling, conversations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from minillama import gguf
from minillama.errors import ContextFullError, InvalidInputError
from minillama.generate import LanguageModel
from tests.tiny_models import TinyModel

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    tiny = TinyModel(n_layer=1, n_ctx=200, metadata={"tokenizer.chat_template": TEMPLATE})
    return LanguageModel(gguf.open(tiny.write(tmp_path_factory.mktemp("tiny") / "tiny.gguf")))


def saying(model: LanguageModel, text: str, *, then_end: bool = True) -> Callable[..., np.ndarray]:
    """A processor that makes the model say a text, then end."""
    ids = model.tokenizer.encode(text, add_special=False)
    wanted = iter([*ids, model.tokenizer.eos_id] if then_end else ids)

    def force(logits: np.ndarray, history: Sequence[int]) -> np.ndarray:
        logits[next(wanted)] = np.float32(1e9)
        return logits

    return force


def test_the_same_prompt_twice_gives_the_same(model: LanguageModel) -> None:
    first, second = (model.generate("the cat", max_tokens=20) for _ in range(2))
    assert first.tokens == second.tokens
    assert first.text == second.text


def test_greedy_equals_argmax_by_hand(model: LanguageModel) -> None:
    ids = model.tokenizer.encode("the cat")
    out = model.generate("the cat", max_tokens=5, ignore_eos=True)
    for _ in range(5):
        ids.append(int(np.argmax(np.delete(model.logits(ids)[-1], sorted(model.tokenizer.eog_ids)))))
    assert out.prompt_tokens + out.tokens == tuple(ids)
    assert out.finish_reason == "length"


@pytest.mark.parametrize("n", [0, 1, 2])
def test_exactly_as_many_tokens_as_asked(model: LanguageModel, n: int) -> None:
    out = model.generate("abc", max_tokens=n, ignore_eos=True)
    assert len(out.tokens) == n
    assert out.finish_reason == "length"
    assert out.timings.prompt_tokens == len(out.prompt_tokens)


def test_stream_equals_generate(model: LanguageModel) -> None:
    pieces = list(model.stream("the cat", max_tokens=30))
    out = model.generate("the cat", max_tokens=30)
    assert "".join(piece.text for piece in pieces) == out.text
    assert tuple(piece.token for piece in pieces if piece.token is not None) == out.tokens
    assert [piece.finish_reason for piece in pieces] == [None] * len(out.tokens) + [out.finish_reason]


def test_end_of_generation_ends_and_is_not_text(model: LanguageModel) -> None:
    out = model.generate("x", processors=[saying(model, "done")], max_tokens=50)
    assert (out.text, out.finish_reason) == ("done", "stop")
    assert out.tokens == tuple(model.tokenizer.encode("done", add_special=False))


def test_half_characters_are_never_shown(model: LanguageModel) -> None:
    text = "a→é🍕b"
    pieces = list(model.stream("x", processors=[saying(model, text)], max_tokens=50))
    assert "".join(piece.text for piece in pieces) == text
    assert all("�" not in piece.text for piece in pieces)


def test_an_unfinished_character_is_shown_at_the_end(model: LanguageModel) -> None:
    out = model.generate("x", processors=[saying(model, "🍕")], max_tokens=2)
    assert out.text == "�"


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("one two three", [" two"], "one"),
        ("one two three", ["three", " two"], "one"),
        ("aab aac", ["aac"], "aab "),
        ("Alice: hi", ["Alice!"], "Alice: hi"),
        ("beta gamma delta", ["beta gamma"], ""),
        ("ababac", ["abac"], "ab"),
    ],
)
def test_stop_strings_cut_exactly(model: LanguageModel, text: str, stop: list[str], shown: str) -> None:
    pieces = list(model.stream("x", processors=[saying(model, text)], stop=stop, max_tokens=50))
    assert "".join(piece.text for piece in pieces) == shown
    assert pieces[-1].finish_reason == "stop"


def test_context_full_ends_the_generation_and_says_so(model: LanguageModel) -> None:
    out = model.generate("x" * 190, max_tokens=None, ignore_eos=True)
    assert out.finish_reason == "context"
    assert len(out.prompt_tokens) + len(out.tokens) == 201  # the last one is not computed any more


def test_a_prompt_that_does_not_fit_is_an_error(model: LanguageModel) -> None:
    with pytest.raises(ContextFullError, match="201 more asked for, the context is 200"):
        model.generate("x" * 201)


def test_logprobs_are_those_of_the_logits(model: LanguageModel) -> None:
    out = model.generate("the", max_tokens=3, logprobs=2, ignore_eos=True)
    assert out.logprobs is not None
    logits = model.logits([*out.prompt_tokens, *out.tokens])[len(out.prompt_tokens) - 1 : -1].astype(np.float64)
    expected = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for row, token, entry in zip(expected, out.tokens, out.logprobs, strict=True):
        assert entry.token == token
        assert len(entry.top) == 2
        np.testing.assert_allclose(entry.logprob, row[token], rtol=1e-9)  # both are float64 sums of 266 terms


def test_seeds(model: LanguageModel) -> None:
    def run(**options: int) -> tuple[int, ...]:
        return tuple(model.generate("the", max_tokens=20, temperature=1.5, ignore_eos=True, **options).tokens)

    assert run(seed=0) == run(seed=0)
    assert run(seed=0) != run(seed=1)
    assert run() != run()
    unseeded = model.generate("the", max_tokens=20, temperature=1.5, ignore_eos=True)
    assert run(seed=unseeded.seed) == tuple(unseeded.tokens)


def test_going_on_in_a_cache(model: LanguageModel) -> None:
    cache = model.new_cache()
    first = model.generate("the cat", max_tokens=4, cache=cache, ignore_eos=True)
    second = model.generate([first.tokens[-1]], max_tokens=4, cache=cache, ignore_eos=True)
    whole = model.generate("the cat", max_tokens=8, ignore_eos=True)
    assert first.tokens + second.tokens == whole.tokens


def test_special_tokens_in_a_prompt_are_text_unless_asked(model: LanguageModel) -> None:
    plain = model.generate("<|im_end|>", max_tokens=0)
    parsed = model.generate("<|im_end|>", max_tokens=0, parse_special=True)
    assert len(plain.prompt_tokens) > 1
    assert parsed.prompt_tokens == (model.tokenizer.eos_id,)


def test_wrong_options(model: LanguageModel) -> None:
    with pytest.raises(InvalidInputError, match="max_tokens is -1"):
        model.generate("x", max_tokens=-1)
    with pytest.raises(InvalidInputError, match="stop is 'end'"):
        model.generate("x", stop="end")
    with pytest.raises(InvalidInputError, match="temperature"):
        model.generate("x", temperature=-1.0)
    with pytest.raises(InvalidInputError, match="prompt is empty"):
        model.generate("")
    with pytest.raises(TypeError, match="temperatur"):
        model.generate("x", temperatur=1.0)


def test_chat_renders_the_template_and_answers(model: LanguageModel) -> None:
    reply = model.chat([{"role": "user", "content": "Hi"}], processors=[saying(model, "Hello")])
    assert reply.text == "Hello"
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert list(reply.prompt_tokens) == model.tokenizer.encode(rendered, parse_special=True)


def test_a_conversation_computes_only_what_is_new(model: LanguageModel) -> None:
    talk = model.conversation([{"role": "system", "content": "Be brief."}])
    talk.add("user", "Hi")
    talk.reply(processors=[saying(model, "Hello")])
    assert talk.messages[-1] == {"role": "assistant", "content": "Hello"}
    talk.add("user", "And?")
    second = talk.reply(max_tokens=6, ignore_eos=True)
    assert second.timings.prompt_tokens < len(second.prompt_tokens) / 2
    alone = model.generate(list(second.prompt_tokens), max_tokens=6, ignore_eos=True)
    assert second.tokens == alone.tokens


def test_a_stopped_answer_stays_in_the_conversation(model: LanguageModel) -> None:
    talk = model.conversation()
    talk.add("user", "Hi")
    stream = talk.stream(processors=[saying(model, "Hello there")])
    shown = next(stream).text + next(stream).text
    stream.close()
    assert talk.messages[-1] == {"role": "assistant", "content": shown}
    talk.add("user", "Go on")
    again = talk.reply(max_tokens=4, ignore_eos=True)
    assert again.tokens == model.generate(list(again.prompt_tokens), max_tokens=4, ignore_eos=True).tokens


def test_a_conversation_has_its_own_cache(model: LanguageModel) -> None:
    with pytest.raises(InvalidInputError, match="no messages"):
        model.conversation().reply()
    with pytest.raises(InvalidInputError, match="cache of its own"):
        model.conversation([{"role": "user", "content": "x"}]).reply(cache=model.new_cache())


def test_history_of_penalties_reaches_back_into_the_prompt(model: LanguageModel, tmp_path: Path) -> None:
    seen: list[list[int]] = []

    def look(logits: np.ndarray, history: Sequence[int]) -> None:
        seen.append(list(history))

    out = model.generate("ab", max_tokens=3, processors=[look], ignore_eos=True)
    assert seen == [[*out.prompt_tokens, *out.tokens[:n]] for n in range(3)]
