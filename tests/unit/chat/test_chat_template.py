"""Where a template comes from, when it may fail, and what it makes of text and parts."""

import logging
import os
from pathlib import Path

import pytest

from minillama.chat import ChatTemplate, default_template
from minillama.errors import ChatTemplateError, InvalidInputError

CHAT = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
IMAGE = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "url": "x"}]}]

READS_TEXT = "{% for m in messages %}{{ '[' + m.content + ']' }}{% endfor %}"
PRINTS_ANYTHING = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
DUMPS_OTHERS = "{% for m in messages %}[{{ m.content if m.content is string else m.content | tojson }}]{% endfor %}"
READS_PARTS = (
    "{% for m in messages %}[{% for p in m.content %}"
    "{% if p.type == 'image' %}<img>{% endif %}{{ p.text }}{% endfor %}]{% endfor %}"
)
READS_BOTH = (
    "{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text if p.type == 'text' else '<img>' }}{% endfor %}{% endif %}]{% endfor %}"
)


def test_default_is_chatml():
    assert ChatTemplate(default_template()).render(CHAT) == (
        "<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert ChatTemplate(default_template()).render(
        [{"role": "assistant", "content": None}], add_generation_prompt=False
    ) == ("<|im_start|>assistant\n<|im_end|>\n")


def test_default_is_said_aloud_once_and_only_when_used(caplog):
    with caplog.at_level(logging.WARNING, "minillama.chat"):
        template = ChatTemplate.from_metadata({"general.name": "base"})
        assert template.is_default
        assert not caplog.records
        template.render(CHAT)
        template.render(CHAT)
    assert [(r.name, r.levelname) for r in caplog.records] == [("minillama.chat", "WARNING")]
    assert "no chat template" in caplog.text


def test_from_metadata_takes_the_models_own(caplog):
    template = ChatTemplate.from_metadata(
        {"tokenizer.chat_template": "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ strftime_now('') }}"},
        bos_token="<s>",
        eos_token="</s>",
        special_tokens={"pad_token": "<pad>"},
    )
    assert template.render(CHAT) == "<s></s><pad>"
    assert (template.is_default, template.bos_token, template.eos_token) == (False, "<s>", "</s>")
    assert not caplog.records


def test_named_variants():
    metadata = {
        "tokenizer.chat_template": "main",
        "tokenizer.chat_templates": ["tool_use", "rag", "lost"],
        "tokenizer.chat_template.tool_use": "{{ tools | length }}{{ bos_token }}{{ add_generation_prompt }}{{ x }}",
        "tokenizer.chat_template.rag": "rag",
    }
    template = ChatTemplate.from_metadata(metadata, bos_token="<s>")
    assert sorted(template.variants) == ["rag", "tool_use"]
    assert template.variants["rag"].render(CHAT) == "rag"
    assert template.render(CHAT) == template.render(CHAT, tools=[]) == "main"
    assert template.render(CHAT, tools=[{"name": "f"}], add_generation_prompt=False, x="!") == "1<s>False!"


def test_tool_use_stands_in_for_a_missing_main_template():
    template = ChatTemplate.from_metadata(
        {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "tools"}
    )
    assert (template.render(CHAT), template.is_default) == ("tools", False)


@pytest.mark.parametrize("key", ["tokenizer.chat_template", "tokenizer.chat_template.rag"])
def test_metadata_that_is_no_text_is_refused(key):
    with pytest.raises(ChatTemplateError, match=f"^{key}: found int, wanted the text"):
        ChatTemplate.from_metadata({"tokenizer.chat_templates": ["rag"], key: 5})


def test_source_that_is_no_text_is_refused():
    with pytest.raises(InvalidInputError, match="source: found bytes"):
        ChatTemplate(b"x")


@pytest.mark.parametrize(
    ("source", "line"),
    [("a\n{% if %}", 2), ("{{ x | no_such_filter }}", 1), ("\n\n{% for x in y %}", 3), ("{% do x %}", 1)],
)
def test_broken_template_fails_only_when_used_and_names_the_line(source, line):  # field failure 102
    template = ChatTemplate.from_metadata({"tokenizer.chat_template": source})
    for _ in range(2):
        with pytest.raises(ChatTemplateError, match=rf"^chat template is not valid Jinja: .*\(line {line}\)$"):
            template.render(CHAT)


@pytest.mark.parametrize(
    "source", ["{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "{% for x in 'a' %}" * 30 + "{% endfor %}" * 30]
)
def test_nesting_without_measure_is_a_chat_template_error(source):
    with pytest.raises(ChatTemplateError, match=r"^chat template cannot be compiled: "):
        ChatTemplate(source).render(CHAT)


@pytest.mark.parametrize("fault", ["{{ nothing.x }}", "{{ 1 + 'a' }}", "{{ 1 // 0 }}", "{{ messages[0].content() }}"])
def test_failing_template_names_the_line(fault):
    with pytest.raises(ChatTemplateError, match=r"^chat template fails: .+ \(line 3\)$"):
        ChatTemplate(f"a\nb\n{fault}\nc").render(CHAT)


@pytest.mark.parametrize("source", [READS_TEXT, PRINTS_ANYTHING, DUMPS_OTHERS])
def test_text_parts_are_joined_for_a_template_that_reads_text(source):  # field failure 104
    assert ChatTemplate(source).render(PARTS) == "[a\nb]"
    assert ChatTemplate(source).render(CHAT) == "[Hi][Hello][Bye]"


def test_text_becomes_a_part_for_a_template_that_reads_parts():  # field failure 104
    assert ChatTemplate(READS_PARTS).render(PARTS) == "[ab]"
    assert ChatTemplate(READS_PARTS).render(CHAT) == "[Hi][Hello][Bye]"
    assert ChatTemplate(READS_PARTS).render(IMAGE) == "[a<img>]"


def test_a_template_that_reads_both_gets_what_was_given():  # field failure 104
    assert ChatTemplate(READS_BOTH).render(PARTS + CHAT) == "[ab][Hi][Hello][Bye]"
    assert ChatTemplate(READS_BOTH).render(IMAGE) == "[a<img>]"


@pytest.mark.parametrize("source", [READS_TEXT, PRINTS_ANYTHING, DUMPS_OTHERS])
def test_parts_that_are_not_text_are_refused_if_the_template_cannot_read_them(source):
    with pytest.raises(InvalidInputError, match=r"^messages\[0\]: found a part of type 'image'"):
        ChatTemplate(source).render(IMAGE)


def test_a_template_that_cannot_show_a_lone_user_message_still_works():
    source = "{% if messages | length < 3 %}{{ raise_exception('too short') }}{% endif %}" + READS_TEXT
    assert ChatTemplate(source).render(CHAT) == "[Hi][Hello][Bye]"
    assert ChatTemplate(source).render(PARTS * 3) == "[a\nb][a\nb][a\nb]"


def test_bos_is_written_once_by_the_template_and_only_by_it():  # field failure 56
    source = "{{ bos_token }}" + READS_TEXT
    assert ChatTemplate(source, bos_token="<s>").render(CHAT) == "<s>[Hi][Hello][Bye]"
    assert ChatTemplate(READS_TEXT, bos_token="<s>").render(CHAT) == "[Hi][Hello][Bye]"


def _models_folder():
    if cache := os.environ.get("MINILLAMA_CACHE"):
        return Path(cache) / "models"
    import platformdirs

    return Path(platformdirs.user_cache_dir("minillama")) / "models"


def _template_of(file_name):
    from minillama import gguf

    file = gguf.open(_models_folder() / file_name)
    tokens = file.metadata["tokenizer.ggml.tokens"]
    bos, eos = (str(tokens[int(file.metadata[f"tokenizer.ggml.{end}_token_id"])]) for end in ("bos", "eos"))
    return ChatTemplate.from_metadata(file.metadata, bos_token=bos, eos_token=eos)


# A system message of one's own, then two turns: what ChatML says, with no sentence of either model's template.
SYSTEM_CHAT = [{"role": "system", "content": "Be brief."}, *CHAT]
CHATML = (
    "<|im_start|>system\nBe brief.<|im_end|>\n"
    "<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\nHello<|im_end|>\n"
    "<|im_start|>user\nBye<|im_end|>\n"
)


@pytest.mark.real
@pytest.mark.parametrize(
    ("file_name", "system"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"),
        (
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        ),
    ],
)
def test_real_chatml_models(file_name, system):
    template = _template_of(file_name)
    assert not template.is_default
    assert template.render(SYSTEM_CHAT, add_generation_prompt=False) == CHATML
    assert template.render(SYSTEM_CHAT) == CHATML + "<|im_start|>assistant\n"
    assert template.render(CHAT) == (CHATML + "<|im_start|>assistant\n").replace("Be brief.", system)
    as_parts = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in SYSTEM_CHAT]
    assert template.render(as_parts, add_generation_prompt=False) == CHATML


@pytest.mark.real
def test_real_tool_call_of_qwen():
    tool = {"type": "function", "function": {"name": "größe", "parameters": {"b": "<1>", "a": 2}}}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "größe", "arguments": {"x": 1}}}]}
    chat = [*CHAT[:1], call, {"role": "tool", "content": "180"}]
    text = _template_of("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf").render(chat, tools=[tool])
    assert (
        '<tools>\n{"type": "function", "function": {"name": "größe", "parameters": {"b": "<1>", "a": 2}}}\n</tools>'
        in text
    )
    assert text.endswith(
        "<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "größe", "arguments": {"x": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n180\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.real
def test_real_base_model_has_none():
    assert _template_of("gemma-3-270m-q4_k_m.gguf").is_default
