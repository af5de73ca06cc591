"""Chats: conversations become text, by the template of a tokenizer.

    row         of a source: messages, prompt and completion, or a pair of answers
    conversation    messages, each with a role and a content, and tools (`Conversation`)
    template    a program in Jinja's language that writes a conversation as text
    shape       who speaks in which order: all that most templates look at
    trained     the parts of a text that a model learns to write

A `ChatRenderer` renders the rows of a source. It runs the template once for each shape and fills in
contents from then on; a template that looks at contents is run for each conversation.
"""
