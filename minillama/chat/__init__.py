"""Chat messages to prompt text, through the model's own Jinja template."""

from minillama.chat.messages import Message
from minillama.chat.template import ChatTemplate, default_template

__all__ = ["ChatTemplate", "Message", "default_template"]
