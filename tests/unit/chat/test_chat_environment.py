"""What templates in the wild use, one short template for each thing."""

from datetime import datetime

import pytest

from minillama.chat import ChatTemplate
from minillama.errors import ChatTemplateError

MESSAGES = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]


def render(source, messages=MESSAGES, **kwargs):
    settings = {k: kwargs.pop(k) for k in ("bos_token", "eos_token", "special_tokens", "clock") if k in kwargs}
    return ChatTemplate(source, **settings).render(messages, **kwargs)


def test_special_tokens_are_text_and_empty_if_none():  # field failure 101
    assert render("{{ bos_token + messages[0].content + eos_token }}", bos_token="<s>", eos_token="</s>") == "<s>a</s>"
    assert render("{{ bos_token + messages[0].content + eos_token }}") == "a"
    assert render("{{ pad_token }}", special_tokens={"pad_token": "<pad>"}) == "<pad>"


def test_strftime_now_asks_the_clock():  # field failure 96
    assert render('{{ strftime_now("%d %b %Y") }}', clock=lambda: datetime(2024, 7, 26)) == "26 Jul 2024"
    assert render('{{ strftime_now("%Y") }}') >= "2025"


def test_break_and_continue():  # field failure 98
    assert (
        render("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.content }}{% endfor %}")
        == "a"
    )
    source = "{% for m in messages %}{% if m.role != 'user' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}"
    assert render(source) == "ac"


def test_generation_blocks_are_their_content():
    source = (
        "{% for m in messages %}{% generation %}{% set x = m.content %}[{{ x }}]{% endgeneration %}{{ x }}{% endfor %}"
    )
    assert render(source) == "[a][b][c]"


def test_tojson_is_written_for_models_not_for_html():
    value = {"z": "<é'&>", "a": [1, None, True]}
    assert render("{{ v | tojson }}", v=value) == '{"z": "<é\'&>", "a": [1, null, true]}'
    assert render("{{ v | tojson(indent=2) }}", v={"a": 1}) == '{\n  "a": 1\n}'
    assert render("{{ v | tojson(separators=(',', ':'), sort_keys=True) }}", v={"b": 1, "a": 2}) == '{"a":2,"b":1}'
    assert render("{{ v | tojson(ensure_ascii=True) }}", v="é") == '"\\u00e9"'


def test_tojson_of_something_undefined_is_an_error():
    with pytest.raises(ChatTemplateError, match="Undefined is not JSON serializable"):
        render("{{ nothing | tojson }}")


def test_namespace_macro_items_and_string_methods():
    source = (
        "{% macro put(k, v) %}{{ k }}={{ v.strip() }};{% endmacro %}{% set ns = namespace(n=0) %}"
        "{% for k, v in settings.items() %}{{ put(k, v) }}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{% for k, v in settings | items %}{{ k }}{% endfor %}{{ ns.n }}"
    )
    assert render(source, settings={"x": " 1 ", "y": "2"}) == "x=1;y=2;xy2"


def test_blocks_take_their_line_with_them():
    source = (
        "{% for m in messages %}\n    {% if m.role == 'user' %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\nend\n"
    )
    assert render(source) == "a\nc\nend"


def test_what_transformers_defines_is_defined():
    source = "{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ x is defined }}[{{ x }}]"
    assert render(source) == "True True True False[]"
    assert render("{{ tools[0].name }}", tools=[{"name": "f"}]) == "f"
    assert render("{{ add_generation_prompt }}", add_generation_prompt=False) == "False"


def test_variables_win_over_special_tokens():
    assert render("{{ bos_token }}", bos_token="<s>") == "<s>"
    assert ChatTemplate("{{ pad_token }}", special_tokens={"pad_token": "<pad>"}).render(MESSAGES, pad_token="!") == "!"


def test_raise_exception_refuses_the_messages_and_names_the_line():
    source = (
        "{% for m in messages %}\n{% if m.role == 'assistant' %}\n"
        "{{ raise_exception('no ' + m.role) }}{% endif %}{% endfor %}"
    )
    with pytest.raises(ChatTemplateError, match=r"^chat template refuses the messages: no assistant \(line 3\)$"):
        render(source)


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ strftime_now.__closure__[0].cell_contents }}",
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].update({'role': 'x'}) %}",
        "{{ range(10**9) | list }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_the_sandbox_holds(attack):
    messages = [{"role": "user", "content": "a"}]
    with pytest.raises(ChatTemplateError, match=r"^chat template fails: .* \(line 1\)$"):
        render(attack, messages)
    assert messages == [{"role": "user", "content": "a"}]
