"""Makes the renderer of a chat: finds its template, and compiles it."""

from typing import Any

from millstream.errors import UsageError
from millstream.text.chats.chat import Chat
from millstream.text.chats.rendering import ChatRenderer
from millstream.text.chats.template_files import find_template


def renderer_of(chat: Chat, tokenizer: Any) -> ChatRenderer:
    """Return what renders the conversations; `tokenizer` is a path, or the user's object."""
    if not isinstance(chat, Chat):
        raise UsageError(
            f"chat is {chat!r:.60}; it must be a millstream.Chat, as in "
            "millstream.Chat(loss_on='last')"
        )
    if not chat.uses_template:
        if chat.messages is not None:
            raise UsageError(
                "messages need a chat template; template='none' is for texts: prompt and completion"
            )
        return ChatRenderer(chat, None)
    return ChatRenderer(chat, find_template(chat.template, tokenizer))
