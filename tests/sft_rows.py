"""One row of each public SFT set, in the layout of its card; the texts are ours."""

from __future__ import annotations

import json

TOOLACE = {
    "system": (
        "You are an expert in composing functions. You are given a question and a set of possible "
        "functions. Here is a list of functions in JSON format that you can invoke:\n"
        '[{"name": "Market Trends API", "description": "Trends of a market", "parameters": '
        '{"type": "dict", "properties": {"trend_type": {"description": "Kind", "type": "string", '
        '"enum": ["INDEXES", "CRYPTO"]}, "days": {"type": "int", "default": 3}}, "required": '
        '["trend_type"]}, "required": null}]. \n'
        "Should you decide to return the function call(s). \n"
        "Put it in the format of [func1(params_name=params_value), func2(params)]\n"
    ),
    "conversations": [
        {"from": "user", "value": "How are indexes and crypto doing?"},
        {
            "from": "assistant",
            "value": '[Market Trends API(trend_type="INDEXES", days=7), '
            'Market Trends API(trend_type=\'CRYPTO\', filters={"open": true, "ids": [1, (2)]})]',
        },
        {"from": "tool", "value": '[{"name": "Market Trends API", "results": {"up": 3}}]'},
        {"from": "assistant", "value": "Three are up."},
    ],
}
APIGEN_MT = {
    "conversations": [
        {"from": "human", "value": "Cancel order W1, please."},
        {"from": "gpt", "value": "Which e-mail is it under?"},
        {"from": "human", "value": "a@b.example"},
        {"from": "function_call", "value": '{"name": "cancel", "arguments": {"order_id": "W1"}}'},
        {"from": "observation", "value": '{"status": "cancelled"}'},
        {"from": "gpt", "value": "It is cancelled."},
        {"from": "human", "value": "###STOP###"},
    ],
    "tools": json.dumps(
        [
            {
                "name": "cancel",
                "description": "Cancels an order.",
                "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
            }
        ]
    ),
    "system": "# Retail policy\nAsk for the e-mail first.",
}
GLAIVE = {
    "system": (
        "SYSTEM: You are a helpful assistant with access to the following functions. Use them if "
        'required -\n{\n    "name": "get_rate",\n    "description": "Exchange rate",\n    '
        '"parameters": {\n        "type": "object",\n        "properties": {"base": {"type": '
        '"string"}, "note": {"type": "string"}}\n    }\n}\n{\n    "name": "get_news",\n    '
        '"description": "News",\n    "parameters": {"type": "object", "properties": {}}\n}\n'
    ),
    "chat": (
        "USER: What is the rate of USD? It's urgent.\n\n\nASSISTANT: <functioncall> "
        '{"name": "get_rate", "arguments": \'{\n  "base": "USD",\n  "note": "it\\\'s {urgent}"\n}\'} '
        '<|endoftext|>\n\n\nFUNCTION RESPONSE: {"rate": 0.9}\n\n\nASSISTANT: It is 0.9. '
        "<|endoftext|>\n\n\nUSER: Thanks\n\n\nASSISTANT: You are welcome. <|endoftext|>\n"
    ),
}
MAGICODER = {
    "lang": "python",
    "raw_index": 1,
    "index": 2,
    "seed": "x = 1",
    "openai_fingerprint": "fp_1",
    "problem": "Print the sum of 1 and 2.",
    "solution": "We add them.\n\n```python\nprint(1 + 2)\n```\n\nIt prints 3.",
}
MAGICODER_EVOL = {
    "instruction": "Print 3.",
    "response": "```python\nprint(3)\n```",
}
TULU = {
    "id": "personas_IF_1",
    "prompt": "Answer in one word: capital of France?",
    "messages": [
        {"content": "Answer in one word: capital of France?", "role": "user"},
        {"content": "Paris", "role": "assistant"},
    ],
    "constraints": ["length constraints:number of words"],
}
NEMOTRON = {
    "input": [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi. What do you need?"},
        {"role": "user", "content": "A rhyme on cat."},
    ],
    "output": "Hat.",
    "category": "chat",
    "license": "cc-by-4.0",
    "reasoning": "off",
    "generator": "Llama-3.3-70B-Instruct",
    "used_in_training": "yes",
    "version": "v1",
    "system_prompt": "detailed thinking off",
}
NEMOTRON_TEXT = NEMOTRON | {
    "input": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\ndetailed thinking off"
    "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA rhyme on cat.<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "output": "Hat.<|eot_id|>",
}
