"""``--cache FILE``, ``--kv-type`` and the context's options, from the command line."""

from __future__ import annotations

import json

import pytest

import minillama as ml
from minillama.generate import PromptCache
from tests.tiny_adapters import write_adapter

PROMPT = "the band and the land "


def generated(result) -> dict:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_prompt_that_begins_alike_computes_the_rest(run, tiny, tmp_path):
    path = tmp_path / "prompt.kv"
    fresh = generated(run("generate", PROMPT, "-m", tiny, "-n", 8, "--json"))
    first = generated(run("generate", PROMPT, "-m", tiny, "-n", 8, "--json", "--cache", path))
    again = generated(run("generate", PROMPT, "-m", tiny, "-n", 8, "--json", "--cache", path))
    longer = generated(run("generate", PROMPT + "sea", "-m", tiny, "-n", 8, "--json", "--cache", path))
    for found in (first, again):
        assert {key: found[key] for key in ("text", "tokens", "prompt_tokens")} == {
            key: fresh[key] for key in ("text", "tokens", "prompt_tokens")
        }
    n = len(fresh["prompt_tokens"])
    assert [found["timings"]["prompt_tokens"] for found in (first, again)] == [n, 1]
    assert longer["timings"]["prompt_tokens"] < n
    assert longer["tokens"] == generated(run("generate", PROMPT + "sea", "-m", tiny, "-n", 8, "--json"))["tokens"]


def test_a_generation_goes_on_where_it_ended(run, tiny, tmp_path):
    path = tmp_path / "prompt.kv"
    first = generated(run("generate", PROMPT, "-m", tiny, "-n", 8, "--json", "--cache", path))
    model = ml.load(tiny)
    assert model.load_cache(path).tokens == (*first["prompt_tokens"], *first["tokens"][:-1])


def test_an_unrelated_prompt_starts_afresh(run, tiny, tmp_path):
    path = tmp_path / "prompt.kv"
    run("generate", PROMPT, "-m", tiny, "-n", 2, "--cache", path)
    other = generated(run("generate", "sand", "-m", tiny, "-n", 5, "--json", "--cache", path))
    assert other["tokens"] == generated(run("generate", "sand", "-m", tiny, "-n", 5, "--json"))["tokens"]


def test_window_only_reaches_the_model(run, tiny, monkeypatch):
    plain, seen = generated(run("generate", PROMPT, "-m", tiny, "-n", 8, "--json")), []
    original = ml.LanguageModel.__init__
    monkeypatch.setattr(
        ml.LanguageModel, "__init__", lambda *args, **options: (seen.append(options), original(*args, **options))[1]
    )
    found = generated(run("generate", PROMPT, "-m", tiny, "-n", 8, "--json", "--window-only"))
    assert seen[0]["window_only"] is True
    assert found["tokens"] == plain["tokens"]


def test_a_file_of_another_kind_is_refused_and_left(run, tiny, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("keep me")
    result = run("generate", PROMPT, "-m", tiny, "--cache", path)
    assert result.exit_code == 2
    assert result.stderr == f"minillama: error: {path}: not a file of a cache (they begin with minikv01)\n"
    assert path.read_text() == "keep me"


def test_a_chat_begins_where_one_with_the_same_beginning_was(run, tiny, tmp_path):
    path = tmp_path / "chat.kv"
    arguments = ("chat", "-m", tiny, "-n", 6, "--system", "Be brief and kind.", "--cache", path)
    first, second = (run(*arguments, stdin="hello\n/clear\nhello\n") for _ in range(2))
    assert first.exit_code == 0, first.stderr
    assert first.stdout == second.stdout == run(*arguments[:-2], stdin="hello\n/clear\nhello\n").stdout
    assert len(ml.load(tiny).load_cache(path)) > 20


def test_nothing_new_writes_nothing(tiny, tmp_path):
    model, path = ml.load(tiny), tmp_path / "prompt.kv"
    kept = PromptCache(model, path)
    assert kept.begin([1, 2, 3]) == 0
    model.forward([1, 2, 3], kept.cache)
    kept.save()
    before = path.stat().st_mtime_ns
    kept = PromptCache(model, path)
    kept.save()
    assert path.stat().st_mtime_ns == before
    assert kept.begin([1, 2, 3]) == 2  # the last token's logits are wanted, so it is computed again


@pytest.mark.parametrize("kv_type", ["f16", "bf16", "q8_0", "q4_0", "q8_0,f16"])
def test_types_of_the_cache(run, tiny, kv_type):
    found = generated(run("generate", PROMPT, "-m", tiny, "-n", 6, "--json", "--kv-type", kv_type))
    assert found["tokens"] == list(ml.load(tiny, kv_type=kv_type).generate(PROMPT, max_tokens=6).tokens)


def test_a_longer_context_is_a_choice(run, tiny):
    result = run("generate", PROMPT, "-m", tiny, "--n-ctx", 300)
    assert result.exit_code == 2
    assert "--ctx-size is 300, the model was trained for 200: going beyond takes extend_context" in result.stderr
    found = generated(
        run("generate", "a" * 150, "-m", tiny, "--n-ctx", 300, "--extend-context", "-n", 100, "--ignore-eos", "--json")
    )
    assert len(found["tokens"]) == 100


def test_adapters_from_the_command_line(run, tiny, tmp_path):
    first = write_adapter(tmp_path / "first.gguf", tiny, seed=1)
    second = write_adapter(tmp_path / "a:b.gguf", tiny, seed=2)  # a colon may belong to the name
    model = ml.load(tiny)
    adapters = [(model.load_adapter(first), 0.5), model.load_adapter(second)]
    expected = model.generate(PROMPT, max_tokens=8, adapters=adapters).tokens
    ours = run("generate", PROMPT, "-m", tiny, "-n", 8, "--json", "--lora", f"{first}:0.5", "--lora", second)
    assert generated(ours)["tokens"] == list(expected)
    assert expected != model.generate(PROMPT, max_tokens=8).tokens

    cached = [tmp_path / "prompt.kv"]
    generated(run("generate", PROMPT, "-m", tiny, "-n", 2, "--json", "--lora", first, "--cache", *cached))
    other = run("generate", PROMPT, "-m", tiny, "-n", 2, "--cache", *cached)
    assert other.exit_code == 2
    assert other.stderr.endswith("made by another model, or by other settings or adapters of it\n")


@pytest.mark.parametrize(("file", "message"), [("", "No such file"), ("tiny", "general.type is")])
def test_a_bad_adapter_is_one_line(run, tiny, tmp_path, file, message):
    path = tiny if file else tmp_path / "missing.gguf"
    result = run("generate", PROMPT, "-m", tiny, "--lora", path)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
