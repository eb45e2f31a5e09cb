"""A model's chat template: compiled when first needed, rendered in a sandbox."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from minillama.chat.messages import Message, check_messages, check_tools, join_text
from minillama.errors import ChatTemplateError, InvalidInputError

if TYPE_CHECKING:
    from jinja2 import Template

_logger = logging.getLogger("minillama.chat")

_KEY = "tokenizer.chat_template"
_NAMES_KEY = "tokenizer.chat_templates"
_TOOL_USE = "tool_use"  # the name that transformers and llama.cpp look for when there are tools
_NEEDLE = "minillama-probe"


def default_template() -> str:
    """Return the ChatML template, which stands in for a model that has none, as in llama.cpp."""
    return (
        "{% for message in messages %}"
        "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )


class ChatTemplate:
    """Turns messages into the text a model was trained on.

    Nothing is compiled before the first `render`, so that a model with a broken template still loads.

    Parameters
    ----------
    source
        The Jinja source.
    bos_token, eos_token
        Text of the model's special tokens; empty if it has none.
    special_tokens
        More of them by the name templates use, such as ``{"pad_token": "<pad>"}``.
    variants
        Other templates of the same model by name; ``tool_use`` is taken when `render` is given tools.
    is_default
        The model has no template and this is a stand-in: a warning on the logger ``minillama.chat`` says so once.
    clock
        Where the template's ``strftime_now`` gets the time; the local time if None.

    Attributes
    ----------
    source, bos_token, eos_token, is_default
        As given.
    variants
        The other templates by name, each a `ChatTemplate`.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: Mapping[str, str] | None = None,
        variants: Mapping[str, str] | None = None,
        is_default: bool = False,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        if not isinstance(source, str):
            raise InvalidInputError(f"source: found {type(source).__name__}, wanted the text of a Jinja template")
        self.source = source
        self.bos_token = bos_token
        self.eos_token = eos_token
        self.is_default = is_default
        self._special_tokens = {**(special_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._clock = clock or datetime.now
        self._warned = False
        self.variants = {
            name: ChatTemplate(
                text, bos_token=bos_token, eos_token=eos_token, special_tokens=special_tokens, clock=clock
            )
            for name, text in (variants or {}).items()
        }

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        *,
        bos_token: str = "",
        eos_token: str = "",
        special_tokens: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> ChatTemplate:
        """Make the template of a GGUF file from its metadata.

        ``tokenizer.chat_template`` is the main one, ``tokenizer.chat_template.<name>`` for the names listed in
        ``tokenizer.chat_templates`` its variants. Without a main one, ``tool_use`` takes its place (as in llama.cpp),
        and without that ChatML, with `is_default` set.

        Raises
        ------
        ChatTemplateError
            A key holds something else than text.
        """
        listed = {str(name): _text(metadata, f"{_KEY}.{name}") for name in metadata.get(_NAMES_KEY, ())}
        variants = {name: source for name, source in listed.items() if source}
        main = _text(metadata, _KEY) or variants.get(_TOOL_USE, "")
        return cls(
            main or default_template(),
            bos_token=bos_token,
            eos_token=eos_token,
            special_tokens=special_tokens,
            variants=variants,
            is_default=not main,
            clock=clock,
        )

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        r"""Write the conversation as prompt text.

        Content may be text or a list of parts whatever the template was written for. Whether it reads text, parts or
        both is found out once, by rendering a probe message of either kind. Text for a template that reads only parts
        becomes one text part; text parts for any template that does not read parts are joined with ``"\n"``.

        The text holds the special tokens as text, the beginning-of-sequence token included if the template writes it:
        who encodes it must not add a second one.

        Parameters
        ----------
        messages
            Mappings with ``role`` and ``content`` (text, parts, or None), and whatever else the template knows.
        add_generation_prompt
            End with the opening of the assistant's reply.
        tools
            Descriptions of tools as JSON schemas.
        **variables
            More variables for the template, such as ``enable_thinking=False``.

        Raises
        ------
        InvalidInputError
            The messages or tools are malformed, or hold parts the template cannot read.
        ChatTemplateError
            The template is not valid Jinja, fails, or refuses the messages; names the template's line.
        """
        checked = check_messages(messages)
        tool_list = check_tools(tools)
        if tools and _TOOL_USE in self.variants:
            return self.variants[_TOOL_USE].render(
                messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables
            )
        self._warn_if_default()
        return self._rendered(
            messages=[self._readable(message, i) for i, message in enumerate(checked)],
            add_generation_prompt=add_generation_prompt,
            tools=tool_list,
            **variables,
        )

    def _rendered(self, **variables: Any) -> str:
        template = self._compiled
        try:
            # transformers defines documents too; Jinja's default undefined covers whatever else is missing
            return template.render({"documents": None, **self._special_tokens, **variables})
        except ChatTemplateError as error:
            raise ChatTemplateError(f"{error}{_at_line(error)}") from None
        except Exception as error:  # a template is a program: it can raise anything
            raise ChatTemplateError(f"chat template fails: {_one_line(error)}{_at_line(error)}") from error

    @cached_property
    def _compiled(self) -> Template:
        from jinja2 import TemplateSyntaxError

        from minillama.chat.environment import make_environment

        try:
            return make_environment(self._clock).from_string(self.source)
        except TemplateSyntaxError as error:
            line = f" (line {error.lineno})"
            raise ChatTemplateError(f"chat template is not valid Jinja: {_one_line(error)}{line}") from error
        except Exception as error:  # nesting beyond what Jinja's parser or Python's compiler takes
            raise ChatTemplateError(f"chat template cannot be compiled: {_one_line(error)}") from error

    def _readable(self, message: dict[str, Any], index: int) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, str) and not self._reads_text and self._reads_parts:
            return {**message, "content": [{"type": "text", "text": content}]}
        if isinstance(content, list) and not self._reads_parts:
            return {**message, "content": join_text(content, f"messages[{index}]")}
        return message

    @cached_property
    def _shown_of_text(self) -> str:
        return self._probe(_NEEDLE)

    @cached_property
    def _reads_text(self) -> bool:
        return _NEEDLE in self._shown_of_text

    @cached_property
    def _reads_parts(self) -> bool:
        shown = self._probe([{"type": "text", "text": _NEEDLE}])
        # a template that prints the list as Python or JSON writes it shows the needle too, but has not read it
        return shown == self._shown_of_text if self._reads_text else _NEEDLE in shown

    def _probe(self, content: str | list[dict[str, str]]) -> str:
        """Render one user message; empty if the template cannot."""
        messages = [{"role": "user", "content": content}]
        try:
            return self._rendered(messages=messages, add_generation_prompt=False, tools=None)
        except ChatTemplateError:
            return ""

    def _warn_if_default(self) -> None:
        if self.is_default and not self._warned:
            self._warned = True
            _logger.warning("the model has no chat template: using ChatML, which it may not have been trained on")


def _text(metadata: Mapping[str, Any], key: str) -> str:
    source = metadata.get(key, "")
    if not isinstance(source, str):
        raise ChatTemplateError(f"{key}: found {type(source).__name__}, wanted the text of a Jinja template")
    return source


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _at_line(error: Exception) -> str:
    """Name the innermost template line of a traceback, which Jinja has rewritten to point into the template."""
    traceback, line = error.__traceback__, None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return "" if line is None else f" (line {line})"
