"""Malformed conversations are refused before a template sees them."""

import pytest

from minillama.chat import ChatTemplate
from minillama.errors import InvalidInputError

ECHO = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"


@pytest.mark.parametrize(
    ("messages", "match"),
    [
        ("hello", "messages: found str, wanted a list"),
        ({"role": "user", "content": "a"}, "messages: found dict"),
        (None, "messages: found NoneType"),
        ([], "messages: found an empty list"),
        (["hello"], r"messages\[0\]: found str, wanted a mapping"),
        ([{"role": "user", "content": "a"}, {"content": "a"}], r"messages\[1\]: found role None"),
        ([{"role": "", "content": "a"}], "found role ''"),
        ([{"role": 1, "content": "a"}], "found role 1"),
        ([{"role": "user"}], r"messages\[0\]: found keys \['role'\], wanted content"),
        ([{"role": "user", "content": 5}], "found content of type int"),
        ([{"role": "user", "content": b"a"}], "found content of type bytes"),
        ([{"role": "user", "content": ["a"]}], r"messages\[0\].content\[0\]: found 'a'"),
        ([{"role": "user", "content": [{"text": "a"}]}], "wanted a mapping with a type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "found a part without text"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "found a part without text"),
    ],
)
def test_bad_messages_are_refused(messages, match):
    with pytest.raises(InvalidInputError, match=match) as caught:
        ChatTemplate(ECHO).render(messages)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "match"), [("f", "tools: found str"), (5, "tools: found int"), (["f"], r"tools\[0\]: found str")]
)
def test_bad_tools_are_refused(tools, match):
    with pytest.raises(InvalidInputError, match=match):
        ChatTemplate(ECHO).render([{"role": "user", "content": "a"}], tools=tools)


def test_no_content_is_fine_where_it_makes_sense():
    messages = [
        {"role": "assistant", "content": None},
        {"role": "assistant", "tool_calls": [{"name": "f"}]},
        {"role": "tool", "content": ""},
    ]
    assert ChatTemplate(ECHO).render(messages) == "assistant:None;assistant:;tool:;"


def test_other_keys_reach_the_template():
    assert ChatTemplate("{{ messages[0].name }}").render([{"role": "tool", "content": "1", "name": "f"}]) == "f"
