"""Chat-template fixtures: constructs that real templates use, and whole templates in the manner of
the known families (written for this test), rendered by transformers' own engine."""

import json

import transformers.utils.chat_template_utils as reference

NOW = 1767225600  # 2026-01-01 00:00:00 UTC, a Thursday

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather <now> & \"later\" in a city: äöü 你好",
    "parameters": {"type": "object", "properties": {
        "zip": {"type": "string", "description": "Postal code"},
        "city": {"type": "string", "enum": ["Zürich", "Köln"]},
        "items": {"type": "array", "items": {"type": "integer"}},
        "days": {"type": "integer", "default": 3, "maximum": 7.5, "nullable": True}},
        "required": ["city", "zip"]}}}]

CHAT = [{"role": "system", "content": "You are helpful.\n"},
        {"role": "user", "content": "  Hi & <b>\"there\"</b> 你好 😀  "},
        {"role": "assistant", "content": "<think>\nhm, let me\n</think>\n\nHello!"},
        {"role": "user", "content": "What's 2+2?"}]

CALLS = [{"role": "user", "content": "Weather in Köln?"},
         {"role": "assistant", "content": "", "tool_calls": [
             {"id": "abcdef123", "type": "function", "function": {
                 "name": "get_weather", "arguments": {"city": "Köln", "days": 2, "live": True}}},
             {"id": "abcdef124", "type": "function", "function": {
                 "name": "get_weather", "arguments": {"zip": "8000", "x": None, "f": 1.5}}}]},
         {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "rain"},
         {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef124", "content": "{\"t\": 3}"},
         {"role": "user", "content": "Thanks"}]

# One construct each: (source, variables). An error in the reference is an error here.
SNIPPETS = [
    # whitespace control, trim_blocks, lstrip_blocks, the final newline
    ("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", {}),
    ("a\n  {%- if true -%}\n  b\n  {%- endif -%}\nc\n\n", {}),
    ("  {{ 'x' }}\n  {# note #}\n  y{% if true +%}\nz{% endif %}", {}),
    ("{%+ if true %}\n a{%+ endif %}", {}),
    ("x {#- c -#} y", {}),
    # printing as Python does
    ("{{ none }} {{ true }} {{ false }} {{ 1.0 }} {{ 1e20 }} {{ 1e-7 }} {{ 12345678901234567890 }}", {}),
    ("{{ [1, 'a', none, true, 2.5, \"it's\", 'q\"q'] }}", {}),
    ("{{ {'a': [1, {'b': none}], 'c': 'x\\ny', 3: 4} }}", {}),
    ("{{ v }}|{{ v.d }}|{{ 'x' ~ v.t ~ v.n ~ v.l }}", {"v": {"t": True, "n": None, "l": ["a", 1], "d": {"k": "é\u200b"}}}),
    ("{{ (1, 2) }} {{ (1,) }} {{ () }} {{ [] }} {{ {} }}", {}),
    ("{{ 'a\\tb' }}{{ ['a\\tb\\\\', '\\x41', '\\u00e9'] }}", {}),
    ("{{ x }}{{ x.y is defined }}{{ x is none }}", {"x": {"a": 1}}),
    ("[{{ missing }}][{{ missing is defined }}][{{ missing is undefined }}][{{ missing == none }}]", {}),
    ("{{ missing.attribute }}", {}),
    ("{{ missing + 'x' }}", {}),
    ("{{ 'a' + none }}", {}),
    ("{{ 'a' + 1 }}", {}),
    ("{% for x in missing %}{{ x }}{% else %}empty{% endfor %}", {}),
    ("{{ missing | length }}{{ missing | default('d') }}{{ '' | default('e', true) }}{{ none | default('f') }}", {}),
    ("{{ 'x' in missing }}", {}),
    ("{{ 'x' if false }}|{{ ('x' if false) is defined }}", {}),
    # arithmetic
    ("{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 4 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}", {}),
    ("{{ 1 + 2 * 3 - 4 }} {{ 'ab' * 3 }} {{ [1] + [2, 3] }} {{ 5.0 // 2 }} {{ 1 + 1.0 }} {{ true + 1 }}", {}),
    ("{{ 'a' ~ 1 + 2 ~ 'b' }}", {}),
    ("{{ 1 < 2 < 3 }} {{ 'a' < 'b' }} {{ 1 == 1.0 }} {{ 1 == true }} {{ [1,2] == [1,2] }} {{ 'a' != 'b' }}", {}),
    ("{{ not 1 == 2 }} {{ 1 and 0 }} {{ '' or 'x' }} {{ none or false }} {{ [] and 1 }}", {}),
    # slices and indexes
    ("{{ l[::-1] }} {{ l[1:] }} {{ l[:-1] }} {{ l[-2:] }} {{ l[::2] }} {{ l[3:0:-1] }} {{ l[-1] }} {{ l[10:] }}", {"l": [1, 2, 3, 4, 5]}),
    ("{{ s[::-1] }} {{ s[1:3] }} {{ s[-3:] }} {{ s[0] }} {{ s[:2] ~ s[2:] }}", {"s": "héllo"}),
    ("{{ l[7] }}|{{ d['nope'] }}|{{ d.a['b'] }}", {"l": [1], "d": {"a": {"b": 2}}}),
    # range
    ("{% for i in range(5, 0, -2) %}{{ i }},{% endfor %}{{ range(3) | list }}{{ range(2, 5) | list }}", {}),
    ("{% for m in l[::-1] %}{{ loop.index }}{{ m }}{{ loop.last }}{% endfor %}", {"l": ["a", "b"]}),
    # loops
    ("{% for x in l if x > 1 %}{{ loop.index0 }}/{{ loop.length }}:{{ x }};{% endfor %}", {"l": [1, 2, 3]}),
    ("{% for x in l %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}", {"l": [1, 2, 3, 4, 5]}),
    ("{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.first }} {{ loop.revindex }}|{% endfor %}", {"l": ["a", "b"]}),
    ("{% for x in l %}{{ loop.cycle('o', 'e') }}{{ loop.changed(x) }}{% endfor %}", {"l": [1, 1, 2]}),
    ("{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}", {"d": {"z": 1, "a": [2], "items": 3}}),
    ("{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}{{ d | length }}{{ d.keys() | list }}{{ d.values() | list }}", {"d": {"z": 1, "a": 2}}),
    ("{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}", {"d": {"z": 1, "A": 2, "b": 3}}),
    ("{% for a in [[1, 2], [3, 4]] %}{% for b in a %}{{ loop.index }}{{ b }}{% endfor %}{% endfor %}", {}),
    ("{% for c in 'héy' %}[{{ c }}]{% endfor %}", {}),
    # scopes
    ("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", {}),
    ("{% set ns = namespace(x=1, l=[]) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.x }}{{ ns.l }}", {}),
    ("{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c %}block {{ a }}{% endset %}[{{ c }}]{{ c | upper }}", {}),
    ("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", {}),
    ("{% if x is defined and x %}{% set y = 5 %}{% else %}{% set y = 6 %}{% endif %}{{ y }}", {"x": 1}),
    # macros
    ("{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(b=2, a=1) }}", {}),
    ("{% macro walk(v, depth=0) %}{% if v is mapping %}{% for k, x in v.items() %}\n{{ '  ' * depth }}{{ k }}:{{ walk(x, depth + 1) }}{% endfor %}{% elif v is iterable and v is not string %}{% for x in v %}[{{ walk(x, depth + 1) }}]{% endfor %}{% else %}{{ v }}{% endif %}{% endmacro %}{{ walk(d) }}", {"d": {"a": {"b": [1, {"c": "x"}]}, "items": 2, "t": True}}),
    ("{% macro m() %}({{ caller() }}){% endmacro %}{% call m() %}in{% endcall %}", {}),
    ("{% macro m(x) -%}\n  {{ x }}\n{%- endmacro %}{{ m('a') | trim }}{{ m('a') ~ 'b' }}{{ m('') == '' }}", {}),
    # tojson
    ("{{ t | tojson }}\n{{ t[0] | tojson(indent=4) }}\n{{ t | tojson(indent=2) }}", {"t": TOOLS}),
    ("{{ v | tojson }} {{ v | tojson(ensure_ascii=true) }} {{ v | tojson(separators=(',', ':')) }} {{ v | tojson(sort_keys=true) }}",
     {"v": {"b": "é😀</script>&'\"\\/\u0007\u2028", "a": [1.0, 1e20, 1e-7, -0.0, None, True, [], {}]}}),
    ("{{ v | tojson(indent=0) }}{{ v | tojson(indent='\t') }}{{ v | tojson(4) }}", {"v": {"a": [1, {"b": []}]}}),
    ("{{ {'a': 1, 'b': [none, true], 2: 'x'} | tojson }}{{ 'x\"' | tojson }}{{ none | tojson }}{{ 1.5 | tojson }}{{ (1, 2) | tojson }}", {}),
    ("{{ missing | tojson }}", {}),
    # filters
    ("{{ ' a ' | trim }}|{{ 'a-b' | replace('-', '+') }}|{{ 'aXa' | lower }}|{{ 'hello world' | title }}|{{ 'hELLO' | capitalize }}", {}),
    ("{{ l | join(', ') }}|{{ l | first }}|{{ l | last }}|{{ l | length }}|{{ l | sum }}|{{ l | max }}|{{ l | min }}|{{ l | reverse | list }}|{{ l | sort(reverse=true) }}", {"l": [2, 1, 3]}),
    ("{{ [1, none, true, 'x', [1]] | join('-') }}", {}),
    ("{{ m | map(attribute='role') | list }}{{ m | map(attribute='role') | join('|') }}{{ m | selectattr('role', 'equalto', 'user') | list | length }}{{ m | rejectattr('role', '==', 'user') | map(attribute='content') | first }}", {"m": CHAT}),
    ("{{ m | selectattr('role', 'in', ['user', 'system']) | list | length }}{{ m | selectattr('tool_calls', 'defined') | list }}{{ m | selectattr('content') | list | length }}", {"m": CHAT}),
    ("{{ l | map('upper') | list }}{{ l | select('equalto', 'a') | list }}{{ l | reject('in', ['a']) | list }}{{ l | unique | list }}", {"l": ["a", "b", "a"]}),
    ("{{ '42' | int + 1 }} {{ '4.5' | float }} {{ 'x' | int }} {{ 3.7 | int }} {{ 3.14159 | round(2) }} {{ 3 | float }} {{ -3 | abs }} {{ 2.5 | round }}", {}),
    ("{{ 1 | string + 'x' }}{{ true | string }}{{ none | string }}{{ [1, 'a'] | string }}{{ 1e20 | string }}", {}),
    ("{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a\nb' | indent(4, true) }}|{{ 'a\nb' | indent(width=1, first=true) }}", {}),
    ("{{ 'abc' | list }} {{ {'a': 1} | list }} {{ 'a b c' | wordcount }}", {}),
    ("{{ [1,2,3,4,5] | batch(2) | list }} {{ [1,2,3] | slice(2) | list }} {{ '%s-%02d' | format('a', 7) }} {{ '%.2f' | format(1.005) }}", {}),
    ("{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }} {{ [{'g': 1, 'v': 2}, {'g': 1, 'v': 3}] | groupby('g') | length }}", {}),
    ("{{ '<a>' | e }} {{ '<a>' | safe }} {{ '<a>' | escape }}", {}),
    ("{{ 'x' | nope }}", {}),
    ("{% filter upper %}abc{% endfilter %}", {}),
    # tests
    ("{{ 's' is string }} {{ 's' is sequence }} {{ {} is mapping }} {{ {} is sequence }} {{ [] is sequence }} {{ [] is iterable }} {{ 's' is iterable }} {{ 1 is iterable }}", {}),
    ("{{ 1 is number }} {{ true is number }} {{ 1 is integer }} {{ true is integer }} {{ 1.5 is float }} {{ true is boolean }} {{ none is none }} {{ 1 is odd }} {{ 4 is divisibleby 2 }}", {}),
    ("{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 'a' is in ['a'] }} {{ 'a' is eq 'a' }} {{ 1 is lt 2 }} {{ 'AB' is upper }} {{ 'x' is not string }} {{ 1 is sameas 1 }}", {}),
    ("{{ x is not none and x is not string }}{{ raise_exception is defined }}{{ range is callable }}", {"x": [1]}),
    # Python's methods
    ("{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'x'.split('</think>')[-1] }}", {}),
    ("{{ '  a '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ '\n\na\n'.lstrip('\n') }}|{{ 'a\n'.rstrip('\n') }}|{{ '\u3000a\u00a0'.strip() }}", {}),
    ("{{ 'abc'.startswith('a') }} {{ 'abc'.endswith(('x', 'c')) }} {{ 'abc'.find('c') }} {{ 'abc'.find('x') }} {{ 'aXb'.upper() }} {{ 'AB'.lower() }} {{ 'a b'.title() }} {{ 'aB'.capitalize() }}", {}),
    ("{{ 'a-b-c'.replace('-', '+') }} {{ 'a-b-c'.replace('-', '+', 1) }} {{ ','.join(['a', 'b']) }} {{ 'abab'.count('ab') }} {{ 'a\nb\r\nc'.splitlines() }}", {}),
    ("{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ 'AB'.isupper() }} {{ ' '.isspace() }} {{ '7'.zfill(3) }} {{ 'a'.ljust(3) }}|{{ 'a'.center(4, '*') }}", {}),
    ("{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'a.b'.removesuffix('.b') }} {{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }}", {}),
    ("{{ '{} and {}'.format('a', 1) }} {{ '{x:>4}'.format(x='r') }} {{ '{:.2f}'.format(2.345) }}", {}),
    ("{{ d.get('a') }} {{ d.get('b') }} {{ d.get('b', 'z') }} {{ 'a' in d }} {{ 'b' not in d }} {{ d.a }} {{ d['a'] }}", {"d": {"a": 1}}),
    ("{{ l.index(2) }} {{ l.count(1) }} {{ 2 in l }} {{ 'ell' in 'hello' }}", {"l": [1, 2, 1]}),
    ("{{ 'abc'.nope() }}", {}),
    # Jinja2's syntax corners
    ("{% raw %}{{ x }} {% if %}{% endraw %} {{ '{{' }} {{ '%}' }}", {}),
    ("{% generation %}a{% endgeneration %}|{%- generation -%} b {%- endgeneration -%}", {}),
    ("{{ 'a' 'b' }} {{ \"it's\" }} {{ 'say \\'x\\'' }} {{ 1_000 }} {{ 0x1F }} {{ 0b11 }}", {}),
    ("{{ [1, 2,] }} {{ {'a': 1,} }} {{ (1, 2,)[0] }} {{ true and not false }}", {}),
    ("{{ 'a' if x else 'b' }} {{ ('a' if x == 1 else 'b' if x == 2 else 'c') }} {{ -x }} {{ x is defined and x }}", {"x": 2}),
    ("{{ dict(a=1, b=2) }} {{ dict() }} {{ dict(a=1).b }}", {}),
    ("{{ True }} {{ None }} {{ False }} {{ True is true }}", {}),
    ("{% set x = {'a': 1} %}{{ x.update({'b': 2}) }}", {}),
    ("{% set l = [] %}{{ l.append(1) }}", {}),
    ("{% do l.append(1) %}", {"l": []}),
    ("{% if %}", {}),
    ("{{ 1 +", {}),
    ("{% include 'x' %}", {}),
    ("{{ raise_exception('No \"thing\" given: ' ~ 3) }}", {}),
    ("{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%A, %-d %B %y %H:%M:%S %%') }}", {}),
    ("{% set j = joiner(', ') %}{% for x in [1, 2] %}{{ j() }}{{ x }}{% endfor %}", {}),
    ("{{ x.__class__ }}", {"x": "s"}),
    ("{{ ''.__class__.__mro__ }}", {}),
    ("{{ messages[0].content | trim }}{{ messages[-1]['content'] }}{{ messages[1:] | length }}{{ messages | length }}", {"messages": CHAT}),
]

LLAMA3 = """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- if tools is not none %}
    {%- if messages | length != 0 %}
        {%- set first_user_message = messages[0]['content']|trim %}
        {%- set messages = messages[1:] %}
    {%- else %}
        {{- raise_exception("No first user message to put the tools into!") }}
    {%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
    {{- first_user_message + "<|eot_id|>"}}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("Only one tool call at once, please!") }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}
        {{- '{"name": "' + call.name + '", ' }}
        {{- '"parameters": ' }}
        {{- call.arguments | tojson }}
        {{- "}" }}
        {{- "<|eot_id|>" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

QWEN3 = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\nSignatures within <tools></tools>:\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

QWEN_CODER = """{% macro render_extra_keys(json_dict, handled_keys) %}
    {%- if json_dict is mapping %}
        {%- for json_key in json_dict if json_key not in handled_keys %}
            {%- if json_dict[json_key] is string %}
                {{-'\\n<' ~ json_key ~ '>' ~ json_dict[json_key] ~ '</' ~ json_key ~ '>' }}
            {%- else %}
                {{- '\\n<' ~ json_key ~ '>' ~ (json_dict[json_key] | tojson | safe) ~ '</' ~ json_key ~ '>' }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- if tools is iterable and tools | length > 0 %}
    {{- "<tools>" }}
    {%- for tool in tools %}
        {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
        {{- "\\n<function>\\n<name>" ~ tool.name ~ "</name>" }}
        {%- if tool.description is defined %}
            {{- '\\n<description>' ~ (tool.description | trim) ~ '</description>' }}
        {%- endif %}
        {%- if tool.parameters is defined and tool.parameters is mapping and tool.parameters.properties is defined and tool.parameters.properties is mapping %}
            {%- for param_name, param_fields in tool.parameters.properties|items %}
                {{- '\\n<parameter>\\n<name>' ~ param_name ~ '</name>' }}
                {%- if param_fields.type is defined %}{{- '\\n<type>' ~ (param_fields.type | string) ~ '</type>' }}{%- endif %}
                {{- render_extra_keys(param_fields, ['name', 'type', 'description']) }}
                {{- '\\n</parameter>' }}
            {%- endfor %}
        {%- endif %}
        {{- render_extra_keys(tool.parameters, ['type', 'properties']) }}
        {{- '\\n</function>' }}
    {%- endfor %}
    {{- "\\n</tools>" }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined and message.tool_calls is iterable and message.tool_calls | length > 0 %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
            {%- if tool_call.arguments is defined %}
                {%- for args_name, args_value in tool_call.arguments|items %}
                    {{- '<parameter=' + args_name + '>\\n' }}
                    {%- set args_value = args_value | tojson | safe if args_value is mapping or (args_value is sequence and args_value is not string) else args_value | string %}
                    {{- args_value }}
                    {{- '\\n</parameter>\\n' }}
                {%- endfor %}
            {%- endif %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<start_of_image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""

MISTRAL = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.role == "tool_results" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("After the optional system message, conversation roles must alternate user/assistant") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if not tool_call.id is defined or tool_call.id|length != 9 %}
                {{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool_results" or message["role"] == "tool" %}
        {%- if message.content is defined and message.content.content is defined %}
            {%- set content = message.content.content %}
        {%- else %}
            {%- set content = message.content %}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- else %}
        {{- raise_exception("Only user and assistant roles are supported, with the exception of an initial optional system message!") }}
    {%- endif %}
{%- endfor %}
"""

DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if loop.first %}{{'<｜Assistant｜><｜tool▁calls▁begin｜>'}}{%- else %}{{'\\n'}}{%- endif %}{{'<｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n' + tool['function']['arguments'] + '\\n' + '```' + '<｜tool▁call▁end｜>'}}{%- endfor %}{{'<｜tool▁calls▁end｜><｜end▁of▁sentence｜>'}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' not in message %}{%- set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{'<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜><think>\\n'}}{% endif %}"""

SMOLLM = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

PHI = """{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'user' %}{{'<|user|>
' + message['content'] + '<|end|>
'}}{% elif message['role'] == 'assistant' %}{% generation %}{{'<|assistant|>
' + message['content'] + '<|end|>
'}}{% endgeneration %}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>
' }}{% else %}{{ eos_token }}{% endif %}"""

HARMONY = """{%- macro render_type(spec, required_params, is_nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- if spec['items'] -%}
            {%- if spec['items']['type'] in ["string", "number", "integer", "boolean"] -%}
                {{- ("number" if spec['items']['type'] == "integer" else spec['items']['type']) + "[]" }}
            {%- else -%}
                {{- render_type(spec['items'], required_params) + "[]" }}
            {%- endif -%}
        {%- else -%}
            {{- "any[]" }}
        {%- endif -%}
    {%- elif spec.type is defined and spec.type is iterable and spec.type is not string and spec.type is not mapping and spec.type[0] is defined -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum -%}
            {{- '"' + spec.enum|join('" | "') + '"' -}}
        {%- else -%}
            {{- "string" }}
        {%- endif -%}
    {%- elif spec.type in ("number", "integer") -%}
        {{- "number" }}
    {%- elif spec.type == "object" -%}
        {{- "{\\n" }}
        {%- for prop_name, prop_spec in spec.properties.items() -%}
            {%- if prop_spec.description %}{{ "// " + prop_spec.description + "\\n" }}{% endif -%}
            {{- prop_name }}
            {%- if prop_name not in (spec.required or []) -%}{{- "?" }}{%- endif -%}
            {{- ": " }}
            {{- render_type(prop_spec, spec.required or []) }}
            {%- if prop_spec.default is defined -%}
                {%- if prop_spec.enum -%}{{- ", // default: " + prop_spec.default }}{%- else -%}{{- ", // default: " + prop_spec.default|tojson }}{%- endif -%}
            {%- else -%}{{- "," }}{%- endif -%}
            {{- "\\n" }}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}
        {{- "any" }}
    {%- endif -%}
{%- endmacro -%}
{%- if builtin_tools is not defined %}{%- set builtin_tools = [] %}{%- endif %}
{{- "<|start|>system<|message|>Current date: " + strftime_now("%Y-%m-%d") + "\\nReasoning: " + (reasoning_effort or "medium") + "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set developer_message = "" %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- if developer_message or tools %}
    {{- "<|start|>developer<|message|>" }}{{- developer_message }}
    {%- if tools -%}
        {{- "\\nnamespace functions {\\n\\n" }}
        {%- for tool in tools %}
            {%- set tool = tool.function %}
            {{- "// " + tool.description + "\\n" }}
            {{- "type " + tool.name + " = (_: " }}
            {{- render_type(tool.parameters, []) }}
            {{- ") => any;\\n\\n" }}
        {%- endfor %}
        {{- "} // namespace functions" }}
    {%- endif -%}
    {{- "<|end|>" }}
{%- endif %}
{%- set last_tool_call = namespace(name=none) %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "tool_calls" in message %}
            {%- set tool_call = message.tool_calls[0] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- "<|start|>assistant to=functions." + tool_call.name + "<|channel|>commentary json<|message|>" }}
            {{- tool_call.arguments|tojson }}
            {{- "<|call|>" }}
            {%- set last_tool_call.name = tool_call.name %}
        {%- elif loop.last and not add_generation_prompt %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last_tool_call.name is none %}
            {{- raise_exception("Message has tool role, but there was no previous assistant message with a tool call!") }}
        {%- endif %}
        {{- "<|start|>functions." + last_tool_call.name + " to=assistant<|channel|>commentary<|message|>" + message.content|tojson + "<|end|>" }}
    {%- elif message.role == 'user' -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|start|>assistant
{%- endif -%}
"""

GLM = """[gMASK]<sop>
{%- if tools -%}
<|system|>
# Tools
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}
{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}
        {{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}
            {%- if item is mapping and item.type == 'text' -%}
                {{- item.text }}
            {%- elif item is string -%}
                {{- item }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{- content }}
    {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(last_user_index=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {% set ns.last_user_index = loop.index0 -%}
    {%- endif %}
{%- endfor %}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}
<|assistant|>
{%- set reasoning_content = '' %}
{%- set content = visible_text(m.content) %}
{%- if '</think>' in content %}
    {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
    {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{%- if loop.index0 > ns.last_user_index and reasoning_content -%}
{{ '\\n<think>' + reasoning_content.strip() +  '</think>'}}
{%- else -%}
{{ '\\n<think></think>' }}
{%- endif -%}
{%- if content.strip() -%}
{{ '\\n' + content.strip() }}
{%- endif -%}
{% if m.tool_calls %}
{% for tc in m.tool_calls %}
{%- if tc.function %}
    {%- set tc = tc.function %}
{%- endif %}
{{ '\\n<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}
</tool_call>{% endfor %}
{% endif %}
{%- elif m.role == 'tool' -%}
{%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
    {{- '<|observation|>' }}
{%- endif %}
{{- '\\n<tool_response>\\n' }}
{{- m.content }}
{{- '\\n</tool_response>' }}
{%- elif m.role == 'system' -%}
<|system|>
{{ visible_text(m.content) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    <|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}
{%- endif -%}
"""

FAMILIES = {"llama3": LLAMA3, "qwen3": QWEN3, "qwen3_coder": QWEN_CODER, "gemma": GEMMA,
            "mistral": MISTRAL, "deepseek": DEEPSEEK, "smollm": SMOLLM, "phi": PHI,
            "harmony": HARMONY, "glm": GLM}

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": " two "}]}]


def text_arguments(messages):
    """The API's own form: arguments as JSON text."""
    out = json.loads(json.dumps(messages))
    for message in out:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"],
                                                       ensure_ascii=False)
    return out


def inputs(family):
    one_call = [m for m in CALLS if m.get("tool_call_id") != "abcdef124"]
    one_call = json.loads(json.dumps(one_call))
    one_call[1]["tool_calls"] = one_call[1]["tool_calls"][:1]
    yield "chat", {"messages": CHAT}
    yield "no_system", {"messages": CHAT[1:]}
    yield "no_prompt", {"messages": CHAT[:3], "add_generation_prompt": False}
    yield "tools", {"messages": CHAT, "tools": TOOLS}
    calls = text_arguments if family == "deepseek" else (lambda messages: messages)
    yield "calls", {"messages": calls(CALLS), "tools": TOOLS}
    yield "one_call", {"messages": calls(one_call)}
    yield "open_calls", {"messages": calls(CALLS[:-1]), "tools": TOOLS}
    yield "extra", {"messages": CHAT, "enable_thinking": False, "date_string": "1 Jan 2025",
                    "reasoning_effort": "high"}
    yield "wrong_order", {"messages": [CHAT[1], CHAT[1]]}
    yield "lone_tool", {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}
    if family in ("gemma", "glm"):
        yield "parts", {"messages": PARTS}


class Clock:
    @staticmethod
    def now():
        from datetime import datetime
        return datetime.fromtimestamp(NOW)


def render(source, variables):
    variables = json.loads(json.dumps(variables))
    messages = variables.pop("messages", [])
    try:
        rendered, _ = reference.render_jinja_template([messages], chat_template=source, **variables)
        return {"expected": rendered[0]}
    except Exception as error:  # the fixture records that it fails, and raise_exception's words
        result = {"error": type(error).__name__}
        if type(error).__name__ == "TemplateError":
            result["message"] = str(error)
        return result


def write_templates():
    reference.datetime = Clock
    snippets = [{"source": source, "variables": variables, **render(source, variables)}
                for source, variables in SNIPPETS]
    families = {}
    for name, source in FAMILIES.items():
        cases = []
        for case, variables in inputs(name):
            variables = {"add_generation_prompt": True, **variables}
            result = render(source, {**TOKENS, **variables})
            cases.append({"name": case, "variables": variables, **result})
        families[name] = {"source": source, "cases": cases}
    return {"now": NOW, "tokens": TOKENS, "snippets": snippets, "families": families}
