"""Chat templates in the formats of the well-known families, written for these tests."""

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

CHATML_MARKED = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

LLAMA_2 = """\
{%- if messages[0]['role'] == 'system' -%}
    {%- set turns = messages[1:] -%}
    {%- set system = messages[0]['content'] -%}
{%- else -%}
    {%- set turns = messages -%}
    {%- set system = false -%}
{%- endif -%}
{%- for message in turns -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('roles must alternate: user, assistant, user, assistant') }}
    {%- endif -%}
    {%- if loop.index0 == 0 and system is not false -%}
        {%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] -%}
    {%- else -%}
        {%- set content = message['content'] -%}
    {%- endif -%}
    {%- if message['role'] == 'user' -%}
        {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else -%}
        {{ ' ' + content.strip() + ' ' + eos_token }}
    {%- endif -%}
{%- endfor -%}
"""

LLAMA_3 = """\
{% set loop_messages = messages %}{% for message in loop_messages %}
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' \
+ message['content'] | trim + '<|eot_id|>' %}
{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}
{{ content }}{% endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""

LLAMA_3_TOOLS = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now('%d %b %Y') %}
{%- endif %}
{%- if not tools is defined %}{% set tools = none %}{% endif %}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is not none %}{{ 'Environment: ipython\\n' }}{% endif %}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + date_string + '\\n\\n' }}
{%- if tools is not none %}
    {{- 'You may call these functions.\\n\\n' }}
    {%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ '\\n\\n' }}{% endfor %}
{%- endif %}
{{- system_message }}{{ '<|eot_id|>' }}
{%- for message in messages %}
    {%- if message.role in ('tool', 'ipython') %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
        {%- if message.content is mapping or message.content is iterable and \
message.content is not string %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception('one call at a time') }}
        {%- endif %}
        {%- set called = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + called.name + '", "parameters": ' }}
        {{- called.arguments | tojson }}{{ '}' }}{{ '<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
        {{- message.content | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}\
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}\
{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}
{% endfor %}
"""

GEMMA = """\
{{- bos_token -}}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = '' -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Conversation roles must alternate') }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else '') }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception('Invalid content type') }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""

PHI_3 = """\
{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}\
{{ '<|system|>\\n' + message['content'] + '<|end|>\\n' }}\
{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '<|end|>\\n' }}\
{% elif message['role'] == 'assistant' %}\
{{ '<|assistant|>\\n' + message['content'] + '<|end|>\\n' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content }}
    {%- else %}
        {{- 'You are a helpful assistant.' }}
    {%- endif %}
    {{- '\\n\\n# Tools\\n\\n<tools>' }}
    {%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
    {{- '\\n</tools>\\n\\nAnswer within <tool_call></tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) or \
(message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{ '\\n' + message.content }}{% endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}{{ tool_call.name }}{{ '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != 'tool') %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}{{ message.content }}{{ '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != 'tool') %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

_THINKING = """\
{%- set ns = namespace(last_query=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last_query = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role != 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
        {%- continue %}
    {%- endif %}
    {%- set content = message.content %}
    {%- set reasoning = '' %}
    {%- if message.reasoning_content is string %}
        {%- set reasoning = message.reasoning_content %}
    {%- elif '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>assistant\\n' }}
    BEGIN
    {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
        {{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
    {%- else %}
        {{- content }}
    {%- endif %}
    {{- '<|im_end|>' }}
    END
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
QWEN_3 = _THINKING.replace("    BEGIN\n", "").replace("    END\n", "")
QWEN_3_MARKED = _THINKING.replace("BEGIN", "{%- generation %}").replace(
    "END", "{%- endgeneration %}"
)

DEEPSEEK = """\
{%- set ns = namespace(system='', is_tool=false) -%}
{%- for message in messages -%}
    {%- if message['role'] == 'system' -%}{% set ns.system = message['content'] %}{%- endif -%}
{%- endfor -%}
{{ bos_token }}{{ ns.system }}
{%- for message in messages -%}
    {%- if message['role'] == 'user' -%}
        {{ '<\uff5cUser\uff5c>' + message['content'] }}
    {%- elif message['role'] == 'assistant' -%}
        {{ '<\uff5cAssistant\uff5c>' + message['content'] + eos_token }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<\uff5cAssistant\uff5c><think>\\n' }}{%- endif -%}
"""

HARMONY = """\
{%- macro describe(tools) -%}
    {{- 'namespace functions {\\n' }}
    {%- for tool in tools %}
        {%- set tool = tool.function %}
        {{- 'type ' ~ tool.name ~ ' = (_: {' }}
        {%- for name, kind in (tool.parameters or {}).get('properties', {}).items() %}
            {{- name ~ ': ' ~ kind.type }}{% if not loop.last %}{{ ', ' }}{% endif %}
        {%- endfor %}
        {{- '}) => any;\\n' }}
    {%- endfor %}
    {{- '}' }}
{%- endmacro -%}
{%- macro start(role, channel=none) -%}
    {{- '<|start|>' ~ role }}
    {%- if channel is not none %}{{ '<|channel|>' ~ channel }}{% endif %}
    {{- '<|message|>' }}
{%- endmacro -%}
{{- start('system') }}{{ 'Current date: ' + strftime_now('%Y-%m-%d') + '<|end|>' }}
{%- if tools %}{{ start('developer') }}{{ describe(tools) }}{{ '<|end|>' }}{% endif %}
{%- for message in messages -%}
    {%- if message.role == 'assistant' %}
        {%- if message.thinking %}
            {{- start('assistant', 'analysis') }}{{ message.thinking }}{{ '<|end|>' }}
        {%- endif %}
        {{- start('assistant', 'final') }}{{ message.content }}{{ '<|return|>' }}
    {%- else %}
        {{- start(message.role) }}{{ message.content }}{{ '<|end|>' }}
    {%- endif %}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}
"""

ALPACA = """\
{% for message in messages %}
{% if message['role'] == 'system' %}
{{ message['content'] + '\\n\\n' }}
{% elif message['role'] == 'user' %}
{{ '### Instruction:\\n' + message['content'] + '\\n\\n' }}
{% elif message['role'] == 'assistant' %}
{{ '### Response:\\n' + message['content'] + eos_token + '\\n\\n' }}
{% endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}"""

TILDES = """\
{%- for message in messages -%}
    {{- '<|' ~ message.role ~ '|>' ~ message.content ~ eos_token ~ loop.index -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}
"""

SET_BLOCKS = """\
{%- for message in messages -%}
    {%- set header -%}<|im_start|>{{ message.role | capitalize }}{% endset -%}
    {%- set body %}{{ '\\n' ~ message['content'] }}<|im_end|>
{% endset -%}
    {{- header ~ body -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>Assistant\n' }}{%- endif -%}
"""

NAMESPACES = """\
{%- set ns = namespace(said='', count=0) -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}{% continue %}{%- endif -%}
    {%- set ns.count = ns.count + 1 -%}
    {%- set ns.said = ns.said + '<|' + message.role + '|>' + message.content + eos_token -%}
    {%- if ns.count > 6 -%}{% break %}{%- endif -%}
{%- endfor -%}
{{- bos_token + ns.said -}}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}
"""

LOOKS_INSIDE = """\
{%- for message in messages -%}
    {{- '<|' + message.role + '|>' -}}
    {%- if 'hi' in message.content | lower -%}{{ '(greets) ' }}{%- endif -%}
    {{- message.content[:40] | replace('\\n', ' ') }} {{ message.content | length }}{{ eos_token -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}
"""

MARKED_PARTS = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|assistant|>' }}
        {%- if message.reasoning_content %}
            {%- generation -%}
                {{ '<think>' + message.reasoning_content + '</think>' }}
            {%- endgeneration -%}
        {%- endif %}
        {%- generation -%}{{ message.content | trim }}{%- endgeneration -%}
        {%- for call in message.tool_calls or [] %}
            {%- generation -%}
                {{ '<tool_call>' + call.function | tojson + '</tool_call>' }}
            {%- endgeneration -%}
        {%- endfor %}
        {{- eos_token }}
    {%- else %}
        {{- '<|' + message.role + '|>' + message.content | string }}
    {%- endif %}
{%- endfor %}
"""

TEMPLATES = {
    "chatml": CHATML,
    "chatml, marked": CHATML_MARKED,
    "llama 2": LLAMA_2,
    "llama 3": LLAMA_3,
    "llama 3, tools": LLAMA_3_TOOLS,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "zephyr": ZEPHYR,
    "phi 3": PHI_3,
    "qwen": QWEN,
    "qwen 3": QWEN_3,
    "qwen 3, marked": QWEN_3_MARKED,
    "deepseek": DEEPSEEK,
    "harmony": HARMONY,
    "alpaca": ALPACA,
    "tildes": TILDES,
    "set blocks": SET_BLOCKS,
    "namespaces": NAMESPACES,
    "looks inside": LOOKS_INSIDE,
    "marked parts": MARKED_PARTS,
}
MARKED = tuple(name for name, template in TEMPLATES.items() if "endgeneration" in template)
WITH_DATE = ("llama 3, tools", "harmony")

SPECIALS = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<\uff5cUser\uff5c>",
    "<\uff5cAssistant\uff5c>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|return|>",
)
"""the special tokens of all of them"""
